"""The virus scanner ClamAV: files are sent to `clamd` by the command `INSTREAM` of its protocol."""

from __future__ import annotations

import asyncio
import re
import struct

from loopline.errors import AttachmentError

PIECE_BYTES = 64 * 1024
_REPLY = re.compile(rb"stream: (OK|(.{1,200}) FOUND)\0?", re.DOTALL)


class ClamdScanner:
    """Sends files to the `clamd` at `unix:PATH` or `HOST:PORT`. A file without an answer in time is refused."""

    def __init__(self, address: str, timeout_seconds: float) -> None:
        self._address = address
        self._timeout = timeout_seconds

    async def scan(self, name: str, data: bytes) -> None:
        """Send the file to the scanner, and return if the answer is that it is clean. `name` is its name in the error.

        Raises:
            AttachmentError: the scanner does not answer that the file is clean, is too slow, or cannot be reached.
        """
        try:
            async with asyncio.timeout(self._timeout):
                reply = await self._send(data)
        except (OSError, TimeoutError, ValueError) as error:
            reason = "took too long" if isinstance(error, TimeoutError) else "cannot be reached"
            raise AttachmentError(
                f"{name} cannot be attached now: the virus scanner {reason}"
            ) from error
        match = _REPLY.fullmatch(reply.strip())
        if match is None:
            raise AttachmentError(f"{name} cannot be attached: the virus scanner gave up on it")
        if match[2] is not None:
            raise AttachmentError(f"{name} cannot be attached: the virus scanner refuses it")

    async def _send(self, data: bytes) -> bytes:
        """Send the bytes over a new connection in pieces of `PIECE_BYTES`, and return the reply; always close it."""
        reader, writer = await self._connect()
        try:
            writer.write(b"zINSTREAM\0")
            for start in range(0, len(data), PIECE_BYTES):
                piece = data[start : start + PIECE_BYTES]
                writer.write(struct.pack(">I", len(piece)) + piece)
                await writer.drain()
            writer.write(struct.pack(">I", 0))
            await writer.drain()
            return await _read_reply(reader)
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._address.startswith("unix:"):
            return await asyncio.open_unix_connection(self._address.removeprefix("unix:"))
        host, _, port = self._address.rpartition(":")
        return await asyncio.open_connection(host, int(port))


async def _read_reply(reader: asyncio.StreamReader) -> bytes:
    """Read the reply up to its null byte, or to the end of the connection.

    Raises:
        ValueError: the reply is longer than the buffer.
    """
    try:
        return await reader.readuntil(b"\0")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        raise ValueError("the reply is too long") from error
