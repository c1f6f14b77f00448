"""Frames: the messages between the supervisor of a Fargate task and the harness. Runs on any version of Python 3."""

from __future__ import annotations

import struct

READY, CALLS, OUTPUT, ERRORS, EXIT, STOP = b"r", b"c", b"o", b"e", b"x", b"s"
"""The channels. From the task: the snapshot is restored, stdout, stderr, the exit. To the task: stop. Both ways: CALLS, the
bytes of the program's connection.
"""
ADDRESSES = b"a"
"""The channel for more signed addresses, to which the task writes and from which it reads."""
_HEAD = 5


def frame(channel: bytes, data: bytes) -> bytes:
    """Encode data as one frame: a byte for the channel, four for the length, and the data."""
    return channel + struct.pack(">I", len(data)) + data


def frames(data: bytes) -> list[tuple[bytes, bytes]]:
    """Decode the frames of an object as pairs of channel and data.

    Raises:
        ValueError: the last frame is incomplete.
    """
    parts: list[tuple[bytes, bytes]] = []
    while data:
        size = int.from_bytes(data[1:_HEAD], "big")
        if len(data) < _HEAD + size:
            raise ValueError("the last frame is incomplete")
        parts.append((data[:1], data[_HEAD : _HEAD + size]))
        data = data[_HEAD + size :]
    return parts
