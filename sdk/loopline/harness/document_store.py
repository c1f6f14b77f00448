"""A store in memory with the conversation of one file: an exported document, or the session of a coding agent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Self

from loopline.clock import SystemClock
from loopline.errors import LooplineError
from loopline.harness.read_only_store import MEMORY
from loopline.harness.store import Store
from loopline.models import Json
from loopline.reader.session_files import read_session
from loopline.timeline.log import DEFAULT_LIMITS

SESSION = ".jsonl"
"""How the name of a session file ends."""


class DocumentStore(Store):
    """A store with the conversation of one file, for reading. Open it with `async with DocumentStore(file)`."""

    def __init__(self, file: Path) -> None:
        super().__init__(MEMORY, read_only=False, clock=SystemClock(), limits=DEFAULT_LIMITS)
        self._file = file

    async def __aenter__(self) -> Self:
        """Read the file.

        Raises:
            LooplineError: the file cannot be read, or is neither a document nor a session.
        """
        await super().__aenter__()
        try:
            text = await asyncio.to_thread(self._file.read_text, encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise LooplineError(f"{self._file} cannot be read: {error}") from error
        if self._file.suffix == SESSION:
            blocks = await asyncio.to_thread(read_session, text)
            await self.log.restore(self.conversation(self._file.stem).conversation, blocks)
            return self
        try:
            document: Json = await asyncio.to_thread(json.loads, text)
        except (ValueError, RecursionError) as error:
            raise LooplineError(f"{self._file} is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise LooplineError(f"{self._file} is not a JSON object")
        await self.load(document)
        return self
