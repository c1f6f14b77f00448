"""Images that can be decoded, and those that cannot or should not be, made by Pillow."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping, Sequence

from PIL import Image, PngImagePlugin

SIZE = (64, 48)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def frames(kind: str, count: int, size: tuple[int, int] = SIZE) -> bytes:
    images = [Image.new("L", size, n % 2 * 200) for n in range(count)]
    return saved(images[0], kind, save_all=True, append_images=images[1:], duration=20)


def photo(kind: str, mode: str = "RGB", **options: object) -> bytes:
    image = Image.linear_gradient("L").resize(SIZE).convert(mode)
    return saved(image, kind, **options)


def shown() -> Mapping[str, bytes]:
    return {
        "photo.jpg": photo("JPEG"),
        "progressive.jpg": photo("JPEG", progressive=True),
        "printed.jpg": photo("JPEG", "CMYK"),
        "grey.jpg": photo("JPEG", "L"),
        "photo.png": photo("PNG"),
        "transparent.png": photo("PNG", "RGBA"),
        "palette.png": photo("PNG", "P"),
        "line drawing.png": photo("PNG", "1"),
        "large.png": saved(Image.new("1", (8_000, 8_000)), "PNG"),
        "photo.gif": photo("GIF", "P"),
        "moving.gif": frames("GIF", 12),
        "photo.webp": photo("WEBP"),
        "lossless.webp": photo("WEBP", lossless=True),
        "moving.webp": frames("WEBP", 5),
        "described.png": saved(Image.new("L", SIZE), "PNG", pnginfo=_text("tea", 1_000)),
    }


def _text(word: str, count: int) -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", word * count, zip=True)
    return info


def _empty_frames(count: int, side: int) -> bytes:
    """Return a small GIF that promises so many frames of that size."""
    head = b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    frame = b"," + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\2\2\x4c\1\0"
    return head + frame * count + b";"


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _noise(data: bytes, places: Sequence[int]) -> bytes:
    changed = bytearray(data)
    for place in places:
        changed[place % len(changed)] ^= 0xFF
    return bytes(changed)


def broken() -> Mapping[str, bytes]:
    header = struct.pack(">IIBBBBB", 40, 40, 8, 2, 0, 0, 0)
    start, end = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header), _chunk(b"IEND", b"")
    bomb = _chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"\0" * 90_000_000))
    big = struct.pack(">IIBBBBB", 8_000, 8_000, 16, 6, 0, 0, 0)
    return {
        "half a JPEG": _cut(photo("JPEG")),
        "half a PNG": _cut(photo("PNG")),
        "half a GIF": _cut(photo("GIF", "P")),
        "half a WebP": _cut(photo("WEBP")),
        "a PNG without pixels": start + end,
        "a PNG with too few rows": start + _chunk(b"IDAT", zlib.compress(b"\0" * 90)) + end,
        "a PNG whose pixels are no data": start + _chunk(b"IDAT", b"tea" * 90) + end,
        "a PNG with a wrong sum": _noise(photo("PNG"), [45]),
        "a PNG whose comment is a bomb": start
        + bomb
        + _chunk(b"IDAT", zlib.compress(b"\0" * 4_840))
        + end,
        "a PNG that promises too much": b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", big)
        + _chunk(b"IDAT", zlib.compress(b"\0" * 99))
        + end,
        "a GIF of too many frames": _empty_frames(501, 8),
        "a GIF of too many pixels": _empty_frames(5, 8_000),
        "a JPEG with nothing behind its header": photo("JPEG")[:200],
        "a WebP with another length": b"RIFF" + struct.pack("<I", 9) + photo("WEBP")[8:],
        "a GIF that ends in its palette": photo("GIF", "P")[:400],
    }
