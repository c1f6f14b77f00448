"""The sender of a request, who is known before a byte of the body is read, and how many bytes of bodies are in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.types import Scope

from loopline.server.principals import Principal
from loopline.server.problems import RequestProblem

KEY = "loopline.access"
Sender = tuple[str, str, str]
"""The tenant, the project and the user; all empty for a socket whose first packet is still to come."""
UNKNOWN: Sender = "", "", ""
RETRY = {"Retry-After": "2"}
SHARE = 2
"""One user may have this part of the bytes, one half."""


class RequestAccess:
    """The token of a request, which is checked once: when the body or a route first needs its sender."""

    def __init__(self, token: str, admit: Callable[[str], Awaitable[Principal]]) -> None:
        self.token = token
        self._admit = admit
        self._principal: Principal | None = None

    async def principal(self) -> Principal:
        """Return the sender.

        Raises:
            Unauthenticated: the token is missing, wrong or expired.
            RequestProblem: the sender makes too many requests.
        """
        if self._principal is None:
            self._principal = await self._admit(self.token)
        return self._principal


def access_of(scope: Scope) -> RequestAccess:
    """Return the access of a request that has passed the guard of the app."""
    access = scope[KEY]
    assert isinstance(access, RequestAccess)
    return access


def sender_of(principal: Principal) -> Sender:
    """Return whose bytes are counted."""
    return principal.tenant, principal.project, principal.user


class BodyBytes:
    """The bytes of request bodies that are in memory: at most `limit`, and half of them of one user if there are several."""

    def __init__(self, limit: int, *, is_shared: bool) -> None:
        self._limit = limit
        self._user_limit = limit // SHARE if is_shared else limit
        self._open = Counter[Sender]()

    @property
    def count(self) -> int:
        """Return how many bytes are in memory."""
        return self._open.total()

    def take(self, sender: Sender, count: int) -> None:
        """Count bytes that have come.

        Raises:
            RequestProblem: there are too many of them, of this user or of all.
        """
        if self._open[sender] + count > self._user_limit:
            raise RequestProblem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"a user may send {self._user_limit:,} bytes at once: wait for the other requests",
                headers=RETRY,
            )
        if self.count + count > self._limit:
            raise RequestProblem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self._limit:,} bytes are being sent already: try again",
                headers=RETRY,
            )
        self._open[sender] += count

    def release(self, sender: Sender, count: int) -> None:
        """Take note that so many bytes are in memory no more."""
        self._open[sender] -= count
        if not self._open[sender]:
            del self._open[sender]
