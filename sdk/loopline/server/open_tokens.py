"""The tokens of open streams and sockets, which are closed when a key is revoked or a token expires."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from loopline.errors import LooplineError
from loopline.server.principals import Authenticator, Principal

CHECK_SECONDS = 3.0
"""The time between two checks of a token."""
ANSWER_SECONDS = 1.5
"""How long a check may take. If it takes longer, the token counts as refused."""
logger: logging.Logger = logging.getLogger("loopline")


@dataclass(slots=True, eq=False)
class OpenStream:
    """A stream or socket. `end` closes it; it is called at most once, with the reason."""

    end: Callable[[str], None]


@dataclass(slots=True, eq=False)
class _OpenToken:
    principal: Principal
    streams: set[OpenStream] = field(default_factory=set[OpenStream])
    checking: asyncio.Task[None] | None = None


class OpenTokens:
    """Checks the token of open streams every `CHECK_SECONDS` and after `check_now`, once for all streams of a token.

    So the checks do not slow down the delivery of events.
    """

    def __init__(self, auth: Authenticator) -> None:
        self._auth = auth
        self._open: dict[str, _OpenToken] = {}
        self._now = asyncio.Event()

    def check_now(self) -> None:
        """Check all tokens at once, such as after another process revoked a key."""
        self._now.set()
        self._now = asyncio.Event()

    def add(self, token: str, principal: Principal, end: Callable[[str], None]) -> OpenStream:
        """Register a stream of the token, and return it for `discard`.

        `end` is called with the reason when a check refuses the token, or when the token belongs to another user by then.
        """
        stream = OpenStream(end)
        opened = self._open.get(token)
        if opened is None or opened.principal != principal:
            opened = self._open[token] = _OpenToken(principal)
            opened.checking = asyncio.create_task(self._check(token, opened))
        opened.streams.add(stream)
        return stream

    def discard(self, token: str, stream: OpenStream) -> None:
        """Remove a stream that has ended."""
        opened = self._open.get(token)
        if opened is None:
            return
        opened.streams.discard(stream)
        if not opened.streams:
            del self._open[token]
            if opened.checking is not None:
                opened.checking.cancel()

    async def _check(self, token: str, opened: _OpenToken) -> None:
        """Check the token every `CHECK_SECONDS` and after `check_now` until it is refused, then end its streams."""
        reason = ""
        while not reason:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._now.wait()
            reason = await self._problem(token, opened.principal)
        if self._open.get(token) is opened:
            del self._open[token]
        for stream in list(opened.streams):
            stream.end(reason)

    async def _problem(self, token: str, principal: Principal) -> str:
        """Return the reason why the token is refused, or an empty text if it is valid."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                is_same = await self._auth.authenticate(token) == principal
        except LooplineError as error:
            return str(error)
        except TimeoutError:
            return "the token could not be checked again"
        except Exception:  # no caller awaits this task, and an unchecked token must not stay valid
            logger.exception("a token could not be checked again")
            return "the token could not be checked again"
        return "" if is_same else "the token belongs to another user now"
