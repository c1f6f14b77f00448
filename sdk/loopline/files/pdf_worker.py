"""A script that reads a PDF, with limits for its time and memory.

It reads the file from stdin, and prints the number of pages and the text, or the problem with the file, as JSON.
"""

from __future__ import annotations

import io
import json
import logging
import re
import resource
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pypdf.generic import DictionaryObject

TEXT_CHARACTERS = 400_000
"""The number of characters after which no more pages are read."""
TEXT_SECONDS = 10.0
"""The CPU seconds after which no more pages are read."""
_DAMAGE = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RecursionError),
    *(TypeError, ValueError),
)
"""The exceptions that pypdf raises for a damaged file, in addition to its own."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


OBJECTS = 100_000
OBJECT_STREAMS = 2_000
UPDATES = 5
STREAM_BYTES = 100 * 1024 * 1024
SEARCH_SECONDS = 5.0
"""The CPU seconds after which the search for active content gives up and the file is refused."""
_LENGTH = re.compile(rb"/Length\s{1,4}([0-9]{1,12})(?![0-9]|\s{1,4}[0-9]{1,9}\s{1,4}R)")
_ACTIONS = {
    *(
        "/JavaScript",
        "/Launch",
        "/ImportData",
        "/GoToE",
        "/GoToR",
        "/Rendition",
        "/RichMediaExecute",
    ),
    *("/Sound", "/Movie", "/GoTo3DView", "/SubmitForm"),
}
"""The actions, of ISO 32000-2, table 201, that start programs or media, open other files, or send a form."""
_AUTOMATIC_ACTIONS = {
    *("/GoTo", "/GoToDp", "/Named", "/Hide", "/ResetForm", "/SetOCGState", "/Trans"),
}
"""The actions of the same table that stay in the document: only these may run at an event (tables 29 and 197) without a link."""
_FILES = "has files in it"
_MEDIA = "has media that start programs"
_ACTIVE_KEYS = {
    "/JS": "has JavaScript",
    "/XFA": "has a form with scripts",
    "/EmbeddedFiles": _FILES,
    "/EF": _FILES,
    "/AF": _FILES,
    "/Collection": "is a portfolio",
    "/RichMediaContent": _MEDIA,
    "/OnInstantiate": "has a script of a 3D model",
}
"""Keys of ISO 32000-2: those that `pdfid` counts, and those of files (7.11 and 14.13), portfolios (12.3.5) and 3D models (13.6).
"""
_ACTIVE_KINDS = {
    "/EmbeddedFile": _FILES,
    "/FileAttachment": _FILES,
    **dict.fromkeys(("/3D", "/RichMedia", "/Movie", "/Screen", "/Sound"), _MEDIA),
}
"""The values of `/Type` and `/Subtype` of embedded files, and of annotations (table 171) with files and media."""
_PASSIVE_KEYS = {
    *("/Parent", "/Contents", "/P", "/Prev", "/StructParent"),
    *("/Font", "/ColorSpace", "/ExtGState", "/Shading"),
}
"""The keys below which there are no actions and files: references to parents, and the drawing of pages."""


class PdfRefused(Exception):
    """The file may not be attached; the message completes a sentence that begins with its name."""


def check_structure(data: bytes, objects: int, object_streams: int) -> None:
    """Check the given numbers of objects and object streams, and the number of updates and the size of streams in `data`.

    Raises:
        PdfRefused: a number or the total size exceeds its limit.
    """
    if objects > OBJECTS:
        raise PdfRefused(f"has {objects:,} objects: a PDF may have {OBJECTS:,}")
    if object_streams > OBJECT_STREAMS:
        raise PdfRefused(
            f"has {object_streams:,} object streams: a PDF may have {OBJECT_STREAMS:,}"
        )
    if data.count(b"startxref") > UPDATES + 1:
        raise PdfRefused(f"was updated more than {UPDATES} times: print it anew")
    if sum(int(match[1]) for match in _LENGTH.finditer(data)) > STREAM_BYTES:
        raise PdfRefused(f"has streams of more than {STREAM_BYTES:,} bytes")


def check_actions(root: object) -> None:
    """Search all objects that can be reached from `root` for scripts, embedded files and actions that start programs.

    Raises:
        PdfRefused: there is one, or the search takes more than five CPU seconds.
    """
    from pypdf.generic import ArrayObject, DictionaryObject, IndirectObject, NullObject

    # An object may be an action of a link and of an event, so it is visited once as each.
    pending: list[tuple[object, bool]] = [(root, False)]
    visited: set[tuple[int, int, bool]] = set()
    while pending:
        if time.process_time() > SEARCH_SECONDS:
            raise PdfRefused("takes too long to be searched for scripts")
        item, automatic = pending.pop()
        if isinstance(item, IndirectObject):
            if (item.idnum, item.generation, automatic) in visited:
                continue
            visited.add((item.idnum, item.generation, automatic))
            item = item.get_object()
        if isinstance(item, ArrayObject):
            pending.extend((part, automatic) for part in item)
        elif isinstance(item, DictionaryObject):
            _check_action(item, automatic)
            for key in item:
                if key not in _PASSIVE_KEYS:
                    at_event = key == "/OpenAction" or (automatic and key == "/Next")
                    pending.append((item.raw_get(key), at_event))
            if isinstance(events := item.get("/AA", NullObject()).get_object(), DictionaryObject):
                pending.extend((events.raw_get(event), True) for event in events)


def _check_action(item: DictionaryObject, automatic: bool) -> None:
    """Check a dictionary of a PDF. With `automatic` it is used at an event, as an action or a destination.

    Raises:
        PdfRefused: it has active content.
    """
    from pypdf.generic import StreamObject

    problems = [problem for key, problem in _ACTIVE_KEYS.items() if key in item]
    problems += [
        _ACTIVE_KINDS[kind]
        for key in ("/Type", "/Subtype")
        if (kind := str(item.get(key))) in _ACTIVE_KINDS
    ]
    action = str(item["/S"]) if "/S" in item else "/GoTo"
    if action in _ACTIONS or (action == "/Thread" and "/F" in item):
        problems.append(f"has an action of the type {action}")
    elif automatic and action not in _AUTOMATIC_ACTIONS:
        problems.append(f"has an action that runs by itself, of the type {ascii(action)[:60]}")
    if isinstance(item, StreamObject) and {"/F", "/Ref"} & item.keys():  # 7.3.8.2 and 8.10.4
        problems.append("loads another file")
    if problems:
        raise PdfRefused(f"{problems[0]}: print it anew")


def extract(data: bytes, page_limit: int) -> dict[str, int | str]:
    """Return the number of `pages` of a PDF and its `text`, or the `problem` for which it may not be attached.

    Pages that cannot be read, and those after the limits of characters and time, are replaced by a note in the text.
    """
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").addHandler(logging.NullHandler())
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted:
            return {"problem": "has a password or is encrypted: save it without a password"}
        streams = {stream for stream, _ in reader.xref_objStm.values()}
        plain = sum(map(len, reader.xref.values()))
        check_structure(data, plain + len(reader.xref_objStm), len(streams))
        pages = len(reader.pages)
        check_actions(reader.trailer["/Root"])
    except PdfRefused as refused:
        return {"problem": str(refused)}
    except (PyPdfError, *_DAMAGE) as error:
        return {"problem": f"cannot be read as a PDF: {error}"}
    if not 1 <= pages <= page_limit:
        return {"problem": f"has {pages:,} pages: 1 to {page_limit:,} can be attached"}
    texts: list[str] = []
    size = 0
    for number in range(pages):
        if size > TEXT_CHARACTERS or time.process_time() > TEXT_SECONDS:
            texts.append(f"[The text of pages {number + 1} to {pages} was not read.]")
            break
        try:
            text = reader.pages[number].extract_text().strip()
        except (PyPdfError, *_DAMAGE):
            text = "[The text of this page cannot be read.]"
        if text:
            texts.append(f"[page {number + 1}]\n{_CONTROLS.sub(' ', _escape_surrogates(text))}")
            size += len(text)
    return {"pages": pages, "text": "\n\n".join(texts)}


def _escape_surrogates(text: str) -> str:
    """Return the text with lone surrogates escaped. `well_formed` would do it too, but would import the whole package."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def main() -> None:
    """Read the file on stdin. The command-line arguments are the limits of pages, CPU seconds and bytes of memory."""
    page_limit, cpu_seconds, memory_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    sys.stdout.write(json.dumps(extract(sys.stdin.buffer.read(), page_limit)))


if __name__ == "__main__":
    main()
