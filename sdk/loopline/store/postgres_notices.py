"""Notices between the processes of a store, sent with NOTIFY and received with LISTEN of PostgreSQL.

A notice is a hint: it may be lost while a connection is opened again. What it is about is in the tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import select
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field
from threading import Lock, Thread

import psycopg
from psycopg import sql

from loopline.models import dumps
from loopline.store.postgres import FIRST_PAUSE, LAST_PAUSE, PostgresConnection, PostgresServer
from loopline.timeline import ConversationKey

logger: logging.Logger = logging.getLogger("loopline")

PAYLOAD_BYTES = 7_999
"""The most bytes of the text of a notice; the server refuses longer ones."""
WAITING_NOTICES = 10_000
"""How many notices wait for the connection; older ones are dropped."""
_CHECK_SECONDS = 5.0
"""How often a silent connection is checked."""
_SET_NAME = "SET application_name = 'loopline notices'"
_SEND = "SELECT pg_notify(c, p) FROM unnest(%s::text[], %s::text[]) AS waiting(c, p)"

Receive = Callable[[str | None], object]
"""A function that is called with the text of each notice, or None if notices may have been lost."""


class PostgresNotices:
    """One connection that sends and receives notices, in a thread that opens it again if it is lost.

    The connection is opened for the first notice or listener.
    """

    def __init__(self, server: PostgresServer, space: int) -> None:
        """`space` is the number of the store in its database: other stores in the database have channels of their own."""
        self._server = server
        self._space = space
        self._waiting = deque[tuple[str, str]](maxlen=WAITING_NOTICES)
        self._receivers = dict[str, list[Receive]]()
        self._listening = set[str]()
        self._lock = Lock()
        self._thread: Thread | None = None
        self._closed = False
        self._waking, self._wake = socket.socketpair()
        self._wake.setblocking(False)

    def notify(self, channel: str, text: str) -> None:
        """Send a notice to every listener of the channel in any process, soon and without waiting.

        Equal notices that wait are sent once. A text of more than `PAYLOAD_BYTES` is refused by the server and lost.
        """
        self._waiting.append((self._name(channel), text))
        self._start()

    @contextlib.contextmanager
    def listen(self, channel: str, receive: Receive) -> Generator[None]:
        """Call `receive`, on the event loop, with each notice of the channel while the context is open.

        It is called with None when the server listens, at first and after each loss of the connection: notices that were sent
        before that are lost.
        """
        loop = asyncio.get_running_loop()

        def pass_on(text: str | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(receive, text)

        name = self._name(channel)
        with self._lock:
            self._receivers.setdefault(name, []).append(pass_on)
            self._listening.discard(name)  # so that this receiver hears of the start too
        self._start()
        try:
            yield
        finally:
            with self._lock:
                self._receivers[name].remove(pass_on)

    def close(self) -> None:
        """Send the waiting notices, close the connection, and end the thread; this blocks."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._ring()
            self._thread.join()
        self._waking.close()
        self._wake.close()

    def _name(self, channel: str) -> str:
        return f"loopline_{self._space}_{channel}"

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = Thread(target=self._run, name="loopline-notices", daemon=True)
            self._thread.start()
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # it is full: the thread will wake up
            self._wake.send(b"x")

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._closed:
            started = time.monotonic()
            try:
                connection = self._server.connect()
                try:
                    connection.raw.execute(_SET_NAME)
                    self._listening.clear()
                    self._follow(connection)
                finally:
                    connection.close()
            except psycopg.Error as error:
                logger.info("notices of %s are lost for now: %s", self._server.name, error)
            if time.monotonic() - started > LAST_PAUSE:
                pause = FIRST_PAUSE
            if not self._closed:
                time.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE)

    def _follow(self, connection: PostgresConnection) -> None:
        """Listen, send and receive until the connection is lost or this is closed."""
        waking = self._waking.fileno()
        connected = connection.raw.fileno()
        while True:
            self._listen(connection)
            self._send(connection)
            if self._closed:
                return
            self._receive(connection)
            ready, _, _ = select.select([connected, waking], [], [], _CHECK_SECONDS)
            if waking in ready:
                self._waking.recv(65_536)
            elif not ready:
                connection.raw.execute("SELECT 1")

    def _listen(self, connection: PostgresConnection) -> None:
        with self._lock:
            names = self._receivers.keys() - self._listening
        for name in names:
            connection.raw.execute(sql.SQL("LISTEN {}").format(sql.Identifier(name)))
            self._pass_on(name, None)
        self._listening |= names

    def _send(self, connection: PostgresConnection) -> None:
        while self._waiting:
            notices = [self._waiting.popleft() for _ in range(len(self._waiting))]
            fitting = [notice for notice in notices if len(notice[1].encode()) <= PAYLOAD_BYTES]
            channels, texts = [name for name, _ in fitting], [text for _, text in fitting]
            connection.raw.execute(_SEND, [channels, texts])

    def _receive(self, connection: PostgresConnection) -> None:
        for notice in connection.raw.notifies(timeout=0):
            self._pass_on(notice.channel, notice.payload)

    def _pass_on(self, name: str, text: str | None) -> None:
        with self._lock:
            receivers = [*self._receivers.get(name, ())]
        for receive in receivers:
            receive(text)


@dataclass(slots=True)
class PostgresWakeUps:
    """Wake-ups of workers as notices. None is stored: what the channel loses is found by the sweep of the worker."""

    notices: PostgresNotices
    _channel: str = field(default="work", init=False)

    def wake(self, conversation: ConversationKey) -> None:
        """Wake the workers for a conversation that has work, without waiting."""
        key = (conversation.tenant, conversation.project, conversation.user, conversation.name)
        self.notices.notify(self._channel, dumps([*key]))

    async def send(self, conversation: ConversationKey) -> None:
        """Wake the workers for a conversation that has work."""
        self.wake(conversation)

    async def receive(self) -> AsyncGenerator[ConversationKey | None, None]:
        """Yield the conversations of the notices, and None when notices may have been lost, until it is closed."""
        texts = asyncio.Queue[str | None]()
        with self.notices.listen(self._channel, texts.put_nowait):
            while True:
                text = await texts.get()
                if text is None:
                    yield None
                else:
                    tenant, project, user, name = json.loads(text)
                    yield ConversationKey(name=name, user=user, tenant=tenant, project=project)
