"""Active content in attachments, in every form that the formats have: a file with it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from loopline import Attachment
from loopline.errors import AttachmentError
from loopline.files import AttachmentCaps, read_attachments
from tests.bench.attacks.programs.trial import Draw, Trial
from tests.support.attachment_corpus import HARMFUL

MUST_HOLD = "a file with active content is refused by an AttachmentError"
CAPS = AttachmentCaps(known_types=True, decode_images=True)


async def take(name: str, data: bytes) -> str:
    """Attach a file; return what passed through, which is nothing if it was refused."""
    attaching = asyncio.to_thread(read_attachments, Attachment(name, data), CAPS)
    [outcome] = await asyncio.gather(attaching, return_exceptions=True)
    match outcome:
        case AttachmentError():
            return ""
        case BaseException():
            return f"an error of another kind: {outcome!r}"
        case files:
            return f"taken as {files[0].mime}"


async def attack(draw: Draw) -> AsyncIterator[Trial]:
    """Attach each file under the name of its kind."""
    for kind, files in HARMFUL.items():
        for what, data in draw.programs(files):
            yield Trial(f"{kind}, {what}", MUST_HOLD, await take(f"x.{kind}", data))
