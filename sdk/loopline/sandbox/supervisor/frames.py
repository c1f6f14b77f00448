"""Frames: what a supervisor elsewhere and its harness exchange, as pieces of a few channels. Any Python can read this."""

from __future__ import annotations

import struct

READY, CALLS, OUTPUT, ERRORS, EXIT, STOP = b"r", b"c", b"o", b"e", b"x", b"s"
"""The channels: the snapshot is restored; the program's connection; its streams; how it ended; stop it."""
ADDRESSES = b"a"
"""The channel of more addresses, at which the task writes and reads."""
_HEAD = 5


def frame(channel: bytes, data: bytes) -> bytes:
    """Return data as a frame of a channel."""
    return channel + struct.pack(">I", len(data)) + data


def frames(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the frames that an object holds, each with its channel.

    Raises:
        ValueError: they are cut off.
    """
    parts: list[tuple[bytes, bytes]] = []
    while data:
        size = int.from_bytes(data[1:_HEAD], "big")
        if len(data) < _HEAD + size:
            raise ValueError("a frame is cut off")
        parts.append((data[:1], data[_HEAD : _HEAD + size]))
        data = data[_HEAD + size :]
    return parts
