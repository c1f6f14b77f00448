"""Who may run a conversation: a lock of the operating system, which a dead owner no longer has."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from hashlib import sha256
from io import FileIO
from pathlib import Path

from loopline.adapters.sql.files import explained
from loopline.adapters.sql.threads import settled
from loopline.errors import ConflictError
from loopline.timeline import Conversation

FIRST_POLL_SECONDS = 0.005
LAST_POLL_SECONDS = 0.05


class Locks:
    """A lock for each conversation, on a file of its own in a folder beside the store."""

    def __init__(self, store: Path) -> None:
        self._folder = store.with_name(f"{store.name}-locks")

    @asynccontextmanager
    async def hold(self, conversation: Conversation, *, wait: bool) -> AsyncGenerator[None, None]:
        """Have the conversation's lock until the context is left.

        Two tasks of a process exclude each other too, for each opens the file anew.

        Raises:
            ConflictError: `wait` is False and somebody else has it.
        """
        loop = asyncio.get_running_loop()
        with ExitStack() as held:
            file = await settled(loop.run_in_executor(None, self._open, conversation, held))
            pause = FIRST_POLL_SECONDS
            while not self._taken(file):
                if not wait:
                    raise ConflictError(f"conversation {conversation.name!r} is being run already")
                # Not by the port's clock: the other process lives in the time of this machine.
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_POLL_SECONDS)
            yield

    def _open(self, conversation: Conversation, held: ExitStack) -> FileIO:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return held.enter_context(FileIO(self._folder / _file_name(conversation), "a"))
        except OSError as error:
            raise explained(self._folder, error) from error

    def _taken(self, file: FileIO) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise explained(self._folder, error) from error
        return True


def _file_name(conversation: Conversation) -> str:
    names = (conversation.tenant, conversation.project, conversation.user, conversation.name)
    return f"{sha256(repr(names).encode()).hexdigest()}.lock"
