"""Files to attach, made here: images of any size in four formats, PDFs of any text."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence


def png(width: int, height: int = 48, *, moving: bool = False) -> bytes:
    """A grey image; one that moves says so, and has only one frame."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x80" * width) * height)
    frames = _chunk(b"acTL", struct.pack(">II", 1, 0)) if moving else b""
    start = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + frames
    return start + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def gif(width: int, height: int, *, moving: bool = False) -> bytes:
    loop = b"\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0" if moving else b""
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0) + loop + b";"


def jpeg(width: int, height: int) -> bytes:
    """The beginning of a JPEG: a comment, filled up, and the header of a progressive frame."""
    comment = b"\xff\xfe" + struct.pack(">H", 6) + b"tea!"
    frame = b"\xff\xff\xc2" + struct.pack(">HBHHB", 8, 8, height, width, 1)
    return b"\xff\xd8" + comment + frame + b"\0" * 8


def webp(kind: bytes, width: int, height: int) -> bytes:
    """The beginning of a WebP in one of its three forms."""
    match kind:
        case b"VP8X":
            size = (
                b"\0\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
            )
        case b"VP8L":
            size = b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little")
        case _:
            size = b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height)
    return b"RIFF\0\0\0\0WEBP" + kind + b"\0\0\0\0" + size


def pdf(*pages: str) -> bytes:
    kids = " ".join(f"{number} 0 R" for number in range(4, 4 + 2 * len(pages), 2))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        drawn = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET"
        font = "/Resources << /Font << /F1 3 0 R >> >>"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 400 200] {font} /Contents {5 + 2 * number} 0 R >>",
            f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        ]
    return pdf_of([item.encode() for item in objects]) + b"\n"


def pdf_of(objects: Sequence[bytes], *, version: bytes = b"1.4") -> bytes:
    """Return a PDF of these objects, the first of which is the catalog and has the number 1."""
    data, places = b"%PDF-" + version + b"\n", list[int]()
    for number, item in enumerate(objects, start=1):
        places.append(len(data))
        data += b"%d 0 obj\n%b\nendobj\n" % (number, item)
    rows = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    tail = b"xref\n0 %d\n0000000000 65535 f \n%btrailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF"
    return data + tail % (size, rows, size, len(data))


def small_and_large(operators: bytes, times: int) -> bytes:
    """A small PDF that asks for much: its only page has these operators again and again, compressed."""
    stream = zlib.compress(operators * times, 9)
    return pdf_of(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R /Resources << /Font "
            b"<< /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
            b"<< /Filter /FlateDecode /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream),
        ]
    )
