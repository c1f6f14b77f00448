"""What every message passes before anything of it is stored: the limits, the scanner, and redaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from loopline.errors import AttachmentError
from loopline.files import (
    AttachmentCaps,
    AttachmentInput,
    AttachmentScanner,
    check_text,
    read_attachments,
)
from loopline.redaction.redaction import Redactor, redact_text
from loopline.timeline import UserAttachment
from loopline.timeline.attachments import content


@dataclass(frozen=True, slots=True)
class InputChecks:
    """The limits of messages, the scanner of their files, and the redactor of their texts, if there are any."""

    caps: AttachmentCaps = field(default_factory=AttachmentCaps)
    scanner: AttachmentScanner | None = None
    redactor: Redactor | None = None

    def stored(self, text: str) -> str:
        """Return the text of a message as it is stored."""
        return text if self.redactor is None else redact_text(self.redactor, text)

    async def attachments(
        self, text: str, attachments: AttachmentInput | Sequence[AttachmentInput]
    ) -> Sequence[UserAttachment]:
        """Return the files of a message as they are recorded, and check them and its text.

        Raises:
            AttachmentError: the text or a file is too large or not allowed.
        """
        size = check_text(text, self.caps)
        if not attachments:
            return ()
        files = await asyncio.to_thread(read_attachments, attachments, self.caps, text_bytes=size)
        if self.scanner is not None:
            for file in files:
                await self.scanner.scan(file.name, content(file))
        if self.redactor is not None:
            await asyncio.to_thread(self._check_documents, files)
        return files

    def _check_documents(self, files: Sequence[UserAttachment]) -> None:
        """Check that no document has a text that may not be stored: in its bytes it cannot be replaced.

        Raises:
            AttachmentError: one has, or the name of a file may not be stored.
        """
        for file in files:
            if self.stored(file.name) != file.name:
                raise AttachmentError("the name of a file may not be stored here: rename it")
            if file.data and self.stored(file.text) != file.text:
                raise AttachmentError(
                    f"{file.name} has text that may not be stored here: attach its text in its place"
                )
