"""The process that reads a PDF, with limits for its time and memory.

The file comes on standard input; the number of pages and the text go to standard output as JSON.
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
"""How much text of a PDF is read."""
TEXT_SECONDS = 10.0
"""How much processor time its text may take."""
_DAMAGE = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RecursionError),
    *(TypeError, ValueError),
)
"""What reading a damaged file may raise besides the library's own errors."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def extract(data: bytes, page_limit: int) -> dict[str, int | str]:
    """Return the `pages` of a PDF and its `text`, or the `problem` if it cannot be read."""
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").addHandler(logging.NullHandler())
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted:
            return {"problem": "has a password or is encrypted: save it without"}
        pages = len(reader.pages)
    except (PyPdfError, *_DAMAGE) as error:
        return {"problem": f"cannot be read as a PDF: {error}"}
    if not 1 <= pages <= page_limit:
        return {"problem": f"has {pages:,} pages: 1 to {page_limit:,} can be attached"}
    texts, size = list[str](), 0
    for number in range(pages):
        if size > TEXT_CHARACTERS or time.process_time() > TEXT_SECONDS:
            texts.append(f"[The text of pages {number + 1} to {pages} was not read.]")
            break
        try:
            text = reader.pages[number].extract_text().strip()
        except (PyPdfError, *_DAMAGE):
            text = "[The text of this page cannot be read.]"
        if text:
            texts.append(f"[page {number + 1}]\n{_CONTROLS.sub(' ', well_formed(text))}")
            size += len(text)
    return {"pages": pages, "text": "\n\n".join(texts)}


def main() -> None:
    """Read the file on standard input; the arguments are the limits of pages, seconds and bytes."""
    page_limit, cpu_seconds, memory_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    sys.stdout.write(json.dumps(extract(sys.stdin.buffer.read(), page_limit)))


if __name__ == "__main__":
    main()
