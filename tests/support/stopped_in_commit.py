"""A process that is stopped within a transaction: `stopped_in_commit.py STORE` stops itself, and appends once it goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from loopline.clock import SystemClock
from loopline.store.postgres_log import PostgresLog
from loopline.timeline import NEW_TURN, ConversationKey, Entry, UserPrompt

KEY = ConversationKey(name="c1")


class StoppingClock(SystemClock):
    """The system's clock, which stops the process at the next id once it `is_armed`."""

    is_armed: bool = False

    def new_id(self) -> str:
        """Return an id; a writer needs one for a new conversation, when it has locked those that exist."""
        if self.is_armed:
            self.is_armed = False
            say("stopped")
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().new_id()


def say(line: str) -> None:
    """Write a line to the process that waits for it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(store: str) -> None:
    """Append a message to a conversation, and one to a new conversation in the same transaction."""
    clock = StoppingClock()
    async with await PostgresLog.open(store, clock=clock) as log:
        clock.is_armed = True
        prompt = Entry(body=UserPrompt(text="stopped"), turn=NEW_TURN)
        new = ConversationKey(name="c2")
        await asyncio.gather(*(log.append(key, [prompt], seen=0) for key in (KEY, new)))
        say("stored")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
