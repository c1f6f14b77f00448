"""File formats: the headers of images are parsed here; PDFs, Office documents and pixels are read by worker processes.

The image formats: PNG (W3C), GIF89a (CompuServe), WebP container (RFC 9649), JPEG (ITU T.81, B.2.2).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from loopline.errors import AttachmentError

_PNG, _GIF, _JPEG = b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a"), b"\xff\xd8\xff"
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
"""The JPEG markers of a frame header, which has the size of the image."""
_BARE = {0x01, *range(0xD0, 0xD9)}
"""The JPEG markers without a segment."""
ZIP_SIGNATURES = (b"PK\x03\x04", b"PK\x05\x06")
_ZIP_END, _ZIP_END_REACH = b"PK\x05\x06", 66_000
"""The signature at the end of an archive, and how far from the end it may be: a comment has at most 65,535 bytes."""
PDF_SIGNATURE = b"%PDF-"
_PDF_HEADER = re.compile(rb"%PDF|%!PS-Adobe-[0-9.]{1,9} PDF")
_PDF_HEADER_REACH = 1_100
"""The headers of a PDF that programs accept, and the number of bytes that are searched: the header may begin within 1,024.

The PDF Reference 1.7, appendix H, notes 13 and 14. PDFium, which Chromium uses, does not require the dash.
"""
_PDF_OBJECT = re.compile(rb"(?<![A-Za-z_.])obj(?![A-Za-z_])")
"""The keyword that begins each object of a PDF."""
_RTF_SIGNATURE = b"{\\rt"
"""The first bytes of RTF, as `rtfobj` of `oletools` has them: Word does not require the rest of `{\\rtf1`."""
_BEFORE_RTF = b"\xef\xbb\xbf \t\r\n"
_RTF_WORDS = re.compile(
    rb"(?i)\\(?:obj|fld|(?:field|mailmerge|template|filetbl|nextfile|subdocument|sn|bin)(?![a-z]))"
)
"""The control words of RTF 1.9.1 that load or start something: objects, fields, mail merge, templates, other files, and the
properties of shapes, which may be addresses of pictures; and `bin`, behind which bytes may be anything.
"""
CPU_SECONDS = 20
MEMORY_BYTES = 768 * 1024 * 1024
WAIT_SECONDS = 60.0
"""The timeout for a worker process; longer than its CPU seconds because the machine may be busy."""


@dataclass(frozen=True, slots=True)
class Image:
    """The header of an image. Its width and height are 0 if they could not be read."""

    mime: str
    width: int = 0
    height: int = 0
    animated: bool = False


@dataclass(frozen=True, slots=True)
class Pdf:
    """The number of pages of a PDF, and its text up to a limit."""

    pages: int
    text: str


@dataclass(frozen=True, slots=True)
class OfficeDocument:
    """The media type of a Word, PowerPoint or Excel document, and its text up to a limit."""

    mime: str
    text: str


def parse_image(data: bytes) -> Image | None:
    """Read the media type, the size and the animation from the header of a PNG, GIF, WebP or JPEG image.

    Return None if the data does not begin with the signature of one of them. The rest of the data is not checked: a
    damaged or truncated image is returned, too, with a size that may be wrong. A GIF without a loop extension counts
    as not animated.
    """
    if data.startswith(_PNG):
        size = _big(data, 16, 4), _big(data, 20, 4)
        return Image("image/png", *size, animated=b"acTL" in data[: data.find(b"IDAT")])
    if data.startswith(_GIF):
        size = _little(data, 6, 2), _little(data, 8, 2)
        return Image("image/gif", *size, animated=b"NETSCAPE2.0" in data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return Image("image/webp", *_webp_size(data), animated=b"ANIM" in data[:64])
    if data.startswith(_JPEG):
        return Image("image/jpeg", *_jpeg_size(data))
    return None


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return the width and height in pixels from the first chunk of a WebP image; 0, 0 if they cannot be read."""
    match data[12:16]:
        case b"VP8X" if len(data) >= 30:
            return _little(data, 24, 3) + 1, _little(data, 27, 3) + 1
        case b"VP8L" if len(data) >= 25:
            bits = _little(data, 21, 4)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF
        case _:
            return 0, 0


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Return the width and height in pixels from the first frame header of a JPEG image; 0, 0 without one."""
    offset = 2
    while offset + 9 <= len(data) and data[offset] == 0xFF:
        marker = data[offset + 1]
        if marker in _FRAMES:
            return _big(data, offset + 7, 2), _big(data, offset + 5, 2)
        if marker == 0xFF:
            offset += 1
        elif marker in _BARE:
            offset += 2
        else:
            offset += 2 + _big(data, offset + 2, 2)
    return 0, 0


def _big(data: bytes, offset: int, count: int) -> int:
    return int.from_bytes(data[offset : offset + count], "big")


def _little(data: bytes, offset: int, count: int) -> int:
    return int.from_bytes(data[offset : offset + count], "little")


def is_archive(data: bytes) -> bool:
    """Return whether the data begins with the signature of a ZIP archive."""
    return data.startswith(ZIP_SIGNATURES)


def is_office(data: bytes) -> bool:
    """Return whether the data is an archive with the name `[Content_Types].xml`, a part of every Office document."""
    return is_archive(data) and b"[Content_Types].xml" in data


def has_archive_at_end(data: bytes) -> bool:
    """Return whether a ZIP archive is appended to other data; many programs would open it as an archive."""
    return not is_archive(data) and _ZIP_END in data[-_ZIP_END_REACH:]


def has_late_pdf_header(data: bytes) -> bool:
    """Return whether a PDF begins after other data, or with the header of PostScript; many programs would open it as a PDF.

    A text that has `%PDF` within its first 1,100 bytes and somewhere the word `obj` is such a file.
    """
    if data.startswith(PDF_SIGNATURE) or not _PDF_HEADER.search(data, 0, _PDF_HEADER_REACH):
        return False
    return _PDF_OBJECT.search(data) is not None


def has_active_rtf(data: bytes) -> bool:
    """Return whether the data is RTF that has objects or fields, or loads or starts something in another way."""
    if not data.lstrip(_BEFORE_RTF).startswith(_RTF_SIGNATURE):
        return False
    # Two backslashes are a backslash of the text, which does not begin a control word.
    return _RTF_WORDS.search(data.replace(b"\\\\", b" ")) is not None


def check_image(
    name: str,
    data: bytes,
    *,
    cpu_seconds: int = CPU_SECONDS,
    memory_bytes: int = MEMORY_BYTES,
) -> None:
    """Check that all frames of an image can be decoded; blocks while a worker process decodes it.

    Raises:
        AttachmentError: the image is damaged, has too many frames or pixels, or exceeds the limits of time and memory;
            or Pillow is not installed.
    """
    if find_spec("PIL") is None:
        raise AttachmentError("images are decoded by Pillow: pip install 'loopline[images]'")
    too_much = "takes too much time or memory to be decoded as an image"
    _run_worker("image_worker.py", name, data, (cpu_seconds, memory_bytes), too_much)


def parse_office(name: str, data: bytes) -> OfficeDocument | None:
    """Read an Office document; blocks while a worker process reads it. Return None if it is another kind of archive.

    Raises:
        AttachmentError: the document is damaged, has a password, macros or active content, or exceeds the limits of
            time, memory and unpacked size.
    """
    too_much = "takes too much time or memory to be read as an Office document: attach its text"
    result = _run_worker("archive_worker.py", name, data, (CPU_SECONDS, MEMORY_BYTES), too_much)
    mime = str(result["mime"])
    return OfficeDocument(mime, str(result["text"])) if mime else None


def parse_pdf(
    name: str,
    data: bytes,
    page_limit: int,
    *,
    cpu_seconds: int = CPU_SECONDS,
    memory_bytes: int = MEMORY_BYTES,
) -> Pdf:
    """Read a PDF; blocks while a worker process reads it.

    The worker has limits, because a file of 50 KB can take minutes or a gigabyte of memory.

    Raises:
        AttachmentError: the file is damaged, has a password, active content or more than `page_limit` pages, or exceeds
            the limits of time and memory.
    """
    too_much = (
        "takes too much time or memory to be read as a PDF: attach its text, or print it anew"
    )
    limits = page_limit, cpu_seconds, memory_bytes
    result = _run_worker("pdf_worker.py", name, data, limits, too_much)
    return Pdf(int(result["pages"]), str(result["text"]))


def _run_worker(
    script: str, name: str, data: bytes, limits: Sequence[int], too_much: str
) -> dict[str, int | str]:
    """Run a worker script with the file as its input and `limits` as its arguments, and return the object that it prints.

    Raises:
        AttachmentError: the worker reports a problem; or it exceeds its limits, runs for `WAIT_SECONDS` or crashes,
            then the message is the name of the file with `too_much`.
    """
    # -P: a package in the user's current folder must not be imported in place of an installed one.
    # By path and not as a module: the import of `loopline.files` would take longer than the work.
    command = [sys.executable, "-P", str(Path(__file__).with_name(script)), *map(str, limits)]
    try:
        worker = subprocess.run(command, input=data, capture_output=True, timeout=WAIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise AttachmentError(f"{name} {too_much}") from error
    if worker.returncode != 0:
        raise AttachmentError(f"{name} {too_much}")
    result = cast("dict[str, int | str]", json.loads(worker.stdout))
    if "problem" in result:
        raise AttachmentError(f"{name} {result['problem']}")
    return result
