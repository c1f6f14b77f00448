"""A process that is stopped within a transaction: `stopped_in_commit.py STORE` stops itself, and appends once it goes on."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading

from loopline.clock import SystemClock
from loopline.store.postgres_log import PostgresLog
from loopline.timeline import NEW_TURN, ConversationKey, Entry, UserPrompt

KEY = ConversationKey(name="c1")


class StoppingClock(SystemClock):
    """The system's clock, whose ids for the first two new conversations hold the writer: it waits, then it is stopped.

    A writer needs an id for each new conversation, when it has locked those that exist.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = threading.Event()
        self.may_go_on = threading.Event()
        self._ids = 0

    def new_id(self) -> str:
        """Return an id: the first one once the next writes are queued, the second one once the process goes on."""
        self._ids += 1
        if self._ids == 1:
            self.is_asked.set()
            self.may_go_on.wait()
        elif self._ids == 2:
            say("stopped")
            # A signal to the process would be taken by its main thread, and this one might commit first.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return super().new_id()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(store: str) -> None:
    """Append a message to a conversation, and one to a new conversation in the same transaction."""
    clock = StoppingClock()
    async with await PostgresLog.open(store, clock=clock) as log, asyncio.TaskGroup() as tasks:

        def append(conversation: ConversationKey) -> None:
            prompt = Entry(body=UserPrompt(text="stopped"), turn=NEW_TURN)
            tasks.create_task(log.append(conversation, [prompt], seen=0))

        append(ConversationKey(name="c0"))
        await asyncio.to_thread(clock.is_asked.wait)
        append(KEY)
        append(ConversationKey(name="c2"))
        await asyncio.sleep(0.1)  # both are queued, so one transaction writes them
        clock.may_go_on.set()
    say("stored")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
