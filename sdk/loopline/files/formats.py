"""Images by their first bytes: type, size in pixels, and whether they move.

The formats: PNG (W3C), GIF89a (CompuServe), WebP container (RFC 9649), JPEG (ITU T.81, B.2.2).
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import cast

from loopline.errors import AttachmentError

_PNG, _GIF, _JPEG = b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a"), b"\xff\xd8\xff"
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
"""The markers of JPEG that begin a frame and say its size."""
_BARE = {0x01, *range(0xD0, 0xD9)}
"""Those that nothing belongs to."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image, with a size of 0 where none could be read."""

    mime: str
    width: int = 0
    height: int = 0
    moves: bool = False


def image_of(data: bytes) -> Image | None:
    """The image that the bytes begin as; None when they are none of the four types."""
    if data.startswith(_PNG):
        size = _big(data, 16, 4), _big(data, 20, 4)
        return Image("image/png", *size, moves=b"acTL" in data[: data.find(b"IDAT")])
    if data.startswith(_GIF):
        size = _little(data, 6, 2), _little(data, 8, 2)
        return Image("image/gif", *size, moves=b"NETSCAPE2.0" in data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return Image("image/webp", *_webp(data), moves=b"ANIM" in data[:64])
    if data.startswith(_JPEG):
        return Image("image/jpeg", *_jpeg(data))
    return None


def _webp(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8X":
            return _little(data, 24, 3) + 1, _little(data, 27, 3) + 1
        case b"VP8L":
            bits = _little(data, 21, 4)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF
        case _:
            return 0, 0


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAMES:
            return _big(data, at + 7, 2), _big(data, at + 5, 2)
        if marker == 0xFF:
            at += 1
        elif marker in _BARE:
            at += 2
        else:
            at += 2 + _big(data, at + 2, 2)
    return 0, 0


def _big(data: bytes, at: int, count: int) -> int:
    return int.from_bytes(data[at : at + count], "big")


def _little(data: bytes, at: int, count: int) -> int:
    return int.from_bytes(data[at : at + count], "little")


SIGNATURE = b"%PDF-"
CPU_SECONDS = 20
MEMORY_BYTES = 768 * 1024 * 1024
WAIT_SECONDS = 60.0
"""So long a PDF is waited for, on a machine that is busy with other things too."""


@dataclass(frozen=True, slots=True)
class Pdf:
    """The pages of a PDF, and its text as far as it was read."""

    pages: int
    text: str


def pdf_of(
    name: str,
    data: bytes,
    most_pages: int,
    *,
    cpu_seconds: int = CPU_SECONDS,
    memory_bytes: int = MEMORY_BYTES,
) -> Pdf:
    """Return the PDF that the bytes are; blocks while a process of its own reads it.

    A file of 50 KB can ask for minutes or for a gigabyte: that process has limits for both.

    Raises:
        AttachmentError: it is damaged, has a password or too many pages, or reading it takes too much.
    """
    # A folder of the user must not stand in for a package: no current folder in the path.
    command = [sys.executable, "-P", "-m", "loopline.files.pdf_worker"]
    command += map(str, (most_pages, cpu_seconds, memory_bytes))
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=WAIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise _too_much(name) from error
    if done.returncode != 0:
        raise _too_much(name)
    found = cast("dict[str, int | str]", json.loads(done.stdout))
    if "problem" in found:
        raise AttachmentError(f"{name} {found['problem']}")
    return Pdf(int(found["pages"]), str(found["text"]))


def _too_much(name: str) -> AttachmentError:
    return AttachmentError(
        f"{name} takes too much time or memory to be read as a PDF: attach its text, or print it anew"
    )
