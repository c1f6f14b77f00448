"""PDFs: how many pages they have, and their text."""

from __future__ import annotations

import io
import logging
import re
from dataclasses import dataclass

from loopline.errors import AttachmentError
from loopline.models import well_formed

SIGNATURE = b"%PDF-"
TEXT_CHARACTERS = 400_000
"""So much of the text of a PDF is read."""
_TROUBLE = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError)
"""What reading a damaged file may come to, beside what the library means to say."""
_UNHEARD = logging.NullHandler()
"""What the library logs of a damaged file is for who listens, and not for the terminal."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Pdf:
    """The pages of a PDF, and its text as far as it was read."""

    pages: int
    text: str


def pdf_of(name: str, data: bytes, most_pages: int) -> Pdf:
    """The PDF that the bytes are; takes a moment for each page.

    Raises:
        AttachmentError: it is damaged, has a password or too many pages.
    """
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").addHandler(_UNHEARD)
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted:
            raise AttachmentError(f"{name} has a password or is encrypted: save it without")
        pages = len(reader.pages)
    except (PyPdfError, ValueError, *_TROUBLE) as error:
        raise AttachmentError(f"{name} cannot be read as a PDF: {error}") from error
    if not 1 <= pages <= most_pages:
        raise AttachmentError(f"{name} has {pages:,} pages: 1 to {most_pages:,} can be attached")
    texts, size = list[str](), 0
    for number in range(pages):
        if size > TEXT_CHARACTERS:
            texts.append(f"[The text of pages {number + 1} to {pages} was not read.]")
            break
        try:
            text = reader.pages[number].extract_text().strip()
        except (PyPdfError, ValueError, *_TROUBLE):
            text = "[The text of this page cannot be read.]"
        if text:
            texts.append(f"[page {number + 1}]\n{_CONTROLS.sub(' ', well_formed(text))}")
            size += len(text)
    return Pdf(pages, "\n\n".join(texts))
