"""A PDF read in a process of its own, which may use so much time and memory and can do nothing else.

It is run as a program: the file comes on the standard input, the pages and the text go out as JSON.
"""

from __future__ import annotations

import io
import json
import logging
import re
import resource
import sys
import time

from loopline.models import well_formed

TEXT_CHARACTERS = 400_000
"""So much of the text of a PDF is read."""
TEXT_SECONDS = 10.0
"""So much of the processor's time its text may take."""
_TROUBLE = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RecursionError),
    *(TypeError, ValueError),
)
"""What reading a damaged file may come to, beside what the library means to say."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def read_pdf(data: bytes, most_pages: int) -> dict[str, int | str]:
    """Return the `pages` of a PDF and its `text`, or the `problem` of one that can't be read."""
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").addHandler(logging.NullHandler())
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted:
            return {"problem": "has a password or is encrypted: save it without"}
        pages = len(reader.pages)
    except (PyPdfError, *_TROUBLE) as error:
        return {"problem": f"cannot be read as a PDF: {error}"}
    if not 1 <= pages <= most_pages:
        return {"problem": f"has {pages:,} pages: 1 to {most_pages:,} can be attached"}
    texts, size = list[str](), 0
    for number in range(pages):
        if size > TEXT_CHARACTERS or time.process_time() > TEXT_SECONDS:
            texts.append(f"[The text of pages {number + 1} to {pages} was not read.]")
            break
        try:
            text = reader.pages[number].extract_text().strip()
        except (PyPdfError, *_TROUBLE):
            text = "[The text of this page cannot be read.]"
        if text:
            texts.append(f"[page {number + 1}]\n{_CONTROLS.sub(' ', well_formed(text))}")
            size += len(text)
    return {"pages": pages, "text": "\n\n".join(texts)}


def main() -> None:
    """Read the file on the standard input; the arguments are most pages, seconds and bytes."""
    most_pages, cpu_seconds, memory_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    found = read_pdf(sys.stdin.buffer.read(), most_pages)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
