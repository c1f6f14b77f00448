"""The tokens of open streams and sockets, which end when a key is revoked or a token expires."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from loopline.errors import LooplineError
from loopline.server.principals import Authenticator, Principal

CHECK_SECONDS = 3.0
"""How long a token counts that was checked, for what is open already."""
ANSWER_SECONDS = 1.5
"""How long the check may take: one that takes longer counts as refused."""
logger: logging.Logger = logging.getLogger("loopline")


@dataclass(slots=True, eq=False)
class OpenStream:
    """A stream or socket that is to end with its token; `end` is called once, with the reason."""

    end: Callable[[str], None]


@dataclass(slots=True, eq=False)
class _OpenToken:
    principal: Principal
    streams: set[OpenStream] = field(default_factory=set[OpenStream])
    checking: asyncio.Task[None] | None = None


class OpenTokens:
    """Checks each token again every few seconds, once for all streams that it opened.

    So a listener costs nothing at an event, however many there are.
    """

    def __init__(self, auth: Authenticator) -> None:
        self._auth = auth
        self._open: dict[str, _OpenToken] = {}

    def add(self, token: str, principal: Principal, end: Callable[[str], None]) -> OpenStream:
        """Have a stream end when its token does not count any more, or names somebody else."""
        stream = OpenStream(end)
        opened = self._open.get(token)
        if opened is None or opened.principal != principal:
            opened = self._open[token] = _OpenToken(principal)
            opened.checking = asyncio.create_task(self._check(token, opened))
        opened.streams.add(stream)
        return stream

    def discard(self, token: str, stream: OpenStream) -> None:
        """Forget a stream that has ended."""
        opened = self._open.get(token)
        if opened is None:
            return
        opened.streams.discard(stream)
        if not opened.streams:
            del self._open[token]
            if opened.checking is not None:
                opened.checking.cancel()

    async def _check(self, token: str, opened: _OpenToken) -> None:
        reason = ""
        while not reason:
            await asyncio.sleep(CHECK_SECONDS)
            reason = await self._problem(token, opened.principal)
        if self._open.get(token) is opened:
            del self._open[token]
        for stream in list(opened.streams):
            stream.end(reason)

    async def _problem(self, token: str, principal: Principal) -> str:
        """Return why the token does not count any more; empty if it does."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                is_same = await self._auth.authenticate(token) == principal
        except LooplineError as error:
            return str(error)
        except TimeoutError:
            return "the token could not be checked again"
        except Exception:  # nobody waits for this task, and an unknown answer opens nothing
            logger.exception("a token could not be checked again")
            return "the token could not be checked again"
        return "" if is_same else "the token names somebody else now"
