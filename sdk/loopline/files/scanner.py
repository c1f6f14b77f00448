"""The port of a virus scanner."""

from __future__ import annotations

from typing import Protocol


class AttachmentScanner(Protocol):
    """Searches files for viruses before they are recorded.

    Promised: a file that was not searched to its end is refused. Not promised: that a harmful file is known.
    """

    async def scan(self, name: str, data: bytes) -> None:
        """Search the bytes of a file.

        Raises:
            AttachmentError: something was found, or the scanner cannot be reached or is too slow.
        """
        ...
