"""The sender of a request, which is checked before the body is read, and the limits that all users share."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from http import HTTPStatus

from starlette.types import Scope

from loopline.server.principals import Principal
from loopline.server.problems import RETRY, RequestProblem, unavailable
from loopline.timeline import ConversationKey

KEY = "loopline.access"
"""The key of the ASGI scope for the `RequestAccess` of the request."""
SLASH = "\udc2f"
"""An encoded slash, `%2F`, in the path of a scope: it is part of a name, so the router must not split the path at it."""
Sender = tuple[str, str, str]
"""The tenant, the project and the user."""
UNKNOWN: Sender = "", "", ""
"""The sender of a socket that has not sent its first packet."""
SENDERS = 10_000
"""How many senders have a stored request rate. The sender that was idle longest is dropped first."""
MINUTE = 60.0
FIRST_PACKET_BYTES = 8 * 1024
"""The size limit of packets and bodies of a socket that has not authenticated with its first packet."""
FIRST_PACKET_SECONDS = 5.0


class RequestAccess:
    """The token of a request. It is authenticated once, when the body or a route first needs the sender."""

    def __init__(self, token: str, admit: Callable[[str], Awaitable[Principal]]) -> None:
        self.token = token
        self._admit = admit
        self._principal: Principal | None = None

    async def principal(self) -> Principal:
        """Return the sender. The first call authenticates the token, and counts the request against its rate.

        Raises:
            Unauthenticated: the token is missing, wrong or expired.
            RequestProblem: the sender makes too many requests, 429.
        """
        if self._principal is None:
            self._principal = await self._admit(self.token)
        return self._principal


def access_of(scope: Scope) -> RequestAccess:
    """Return the access that the guard of the app stored in the scope."""
    access = scope[KEY]
    assert isinstance(access, RequestAccess)
    return access


def sender_of(owner: Principal | ConversationKey) -> Sender:
    """Return the tenant, project and user of a token or a conversation."""
    return owner.tenant, owner.project, owner.user


class SocketEntry:
    """A WebSocket that has not authenticated yet, so its packets are limited."""

    def __init__(self, unlock: Callable[[], None]) -> None:
        """Begin with the limits; `unlock` removes those of the connection itself."""
        self.is_open: bool = False
        self._unlock = unlock

    def open(self) -> None:
        """Remove the limits, because the sender is known."""
        self.is_open = True
        self._unlock()


@dataclass(slots=True)
class _Allowance:
    """The number of requests that a sender may still make, as of the monotonic time `at`."""

    requests: float
    at: float


class RequestRates:
    """A token bucket of requests for every user; an empty bucket is full again after a minute."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._allowances = OrderedDict[Sender, _Allowance]()

    def check(self, principal: Principal) -> None:
        """Count a request of the sender.

        Raises:
            RequestProblem: the sender has used up its requests, 429.
        """
        sender = sender_of(principal)
        now = time.monotonic()
        allowance = self._allowances.pop(sender, None) or _Allowance(self._per_minute, now)
        refill = (now - allowance.at) * self._per_minute / MINUTE
        allowance.requests = min(allowance.requests + refill, self._per_minute)
        allowance.at = now
        self._allowances[sender] = allowance
        if len(self._allowances) > SENDERS:
            self._allowances.popitem(last=False)
        if allowance.requests < 1:
            wait = (1 - allowance.requests) * MINUTE / self._per_minute
            raise RequestProblem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"a user may make {self._per_minute} requests a minute",
                headers={"Retry-After": f"{int(wait) + 1}"},
            )
        allowance.requests -= 1


class SharedLimit:
    """A number of units in use by all users together, with a smaller limit for each user."""

    def __init__(
        self, limit: int, user_limit: int | None, *, full_text: str, user_full_text: str
    ) -> None:
        """Set the limits, and the texts of the refusals when all users or one user reach them.

        With None only the limit of all users applies.
        """
        self._limit = limit
        self._user_limit = user_limit
        self._full_text = full_text
        self._user_full_text = user_full_text
        self._used = Counter[Sender]()

    @property
    def count(self) -> int:
        """The number of units in use."""
        return self._used.total()

    def add(self, sender: Sender, count: int) -> None:
        """Count units as used by the sender.

        Raises:
            RequestProblem: the sender would pass its limit, 429; or all users would pass theirs, 503.
        """
        if self._user_limit is not None and self._used[sender] + count > self._user_limit:
            raise RequestProblem(HTTPStatus.TOO_MANY_REQUESTS, self._user_full_text, headers=RETRY)
        if self.count + count > self._limit:
            raise unavailable(self._full_text)
        self._used[sender] += count

    def subtract(self, sender: Sender, count: int) -> None:
        """Count units of the sender as free again."""
        self._used[sender] -= count
        if not self._used[sender]:
            del self._used[sender]


def body_bytes_limit(limit: int, *, is_shared: bool) -> SharedLimit:
    """Return the limit of the bytes of request bodies in memory; if it is shared, a user may have half of them."""
    user_limit = limit // 2 if is_shared else limit
    return SharedLimit(
        limit,
        user_limit,
        full_text=f"{limit:,} bytes are being received already: try again",
        user_full_text=f"a user may send {user_limit:,} bytes at once: wait for the other requests",
    )


class Listeners(SharedLimit):
    """The slots of listeners: event streams and sockets."""

    def __init__(self, limit: int, user_limit: int | None) -> None:
        """Without `user_limit` one user may have all slots."""
        super().__init__(
            limit,
            user_limit,
            full_text=f"{limit} streams are open already: try again",
            user_full_text=f"a user may have {user_limit} streams open: close one of them",
        )

    def take(self, owner: ConversationKey | Principal) -> ExitStack:
        """Take a slot for the user of a conversation or of a token. The first `close` of the result frees it.

        Raises:
            RequestProblem: the user has too many listeners, 429; or all users together, 503.
        """
        user = sender_of(owner)
        self.add(user, 1)
        slot = ExitStack()
        slot.callback(self.subtract, user, 1)
        return slot
