"""Locks of the operating system, which a dead process no longer has."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import ExitStack
from hashlib import sha256
from io import FileIO
from pathlib import Path

from loopline.adapters.sql.files import explained, make_private_folder
from loopline.timeline import ConversationKey
from loopline.timeline.waiting import settled


class Locks:
    """Locks for each conversation, on files of their own in a folder beside the store.

    A lock is of a generation. The next one is begun when its owner is alive and silent, for such a
    lock cannot be taken away.
    """

    def __init__(self, store: Path) -> None:
        self._folder = store.with_name(f"{store.name}-locks")

    async def open(self, conversation: ConversationKey, generation: int, held: ExitStack) -> FileIO:
        """The lock's file, until the stack is closed, which gives the lock back too.

        Two tasks of a process exclude each other too, for each opens the file anew.
        """
        loop = asyncio.get_running_loop()
        path = self._folder / _file_name(conversation, generation)
        return await settled(loop.run_in_executor(None, self._open, path, held))

    def _open(self, path: Path, held: ExitStack) -> FileIO:
        try:
            make_private_folder(self._folder)
            return held.enter_context(FileIO(path, "a", opener=_open_private))
        except OSError as error:
            raise explained(self._folder, error) from error

    def take(self, file: FileIO) -> bool:
        """Whether the lock is had now."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise explained(self._folder, error) from error
        return True

    def give_back(self, file: FileIO) -> None:
        """Let somebody else have the lock."""
        fcntl.flock(file, fcntl.LOCK_UN)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _file_name(conversation: ConversationKey, generation: int) -> str:
    names = (conversation.tenant, conversation.project, conversation.user, conversation.name)
    later = f".{generation}" if generation else ""
    return f"{sha256(repr(names).encode()).hexdigest()}{later}.lock"
