"""The places for those who listen: so many for all, and of them so many for one user."""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus

from loopline.server.principals import Principal
from loopline.server.problems import RequestProblem
from loopline.timeline import ConversationKey

RETRY = {"Retry-After": "2"}


class ListenerPlace:
    """The place of one listener, until it is released; to release it again changes nothing."""

    def __init__(self, listeners: Listeners, user: tuple[str, str, str]) -> None:
        self._listeners = listeners
        self._user = user
        self._is_held = True

    def release(self) -> None:
        """Give the place back."""
        if self._is_held:
            self._is_held = False
            self._listeners.release(self._user)


class Listeners:
    """Who listens now; without `user_limit` one user may have all places."""

    def __init__(self, limit: int, user_limit: int | None) -> None:
        self._limit = limit
        self._user_limit = user_limit
        self._open = Counter[tuple[str, str, str]]()

    @property
    def count(self) -> int:
        """Return how many listen."""
        return self._open.total()

    def take(self, sender: ConversationKey | Principal) -> ListenerPlace:
        """Return a place for the user of a conversation, or of a token.

        Raises:
            RequestProblem: as many listen as may, of all or of this user.
        """
        user = sender.tenant, sender.project, sender.user
        if self._user_limit is not None and self._open[user] >= self._user_limit:
            raise RequestProblem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"a user may have {self._user_limit} streams open: close one of them",
                headers=RETRY,
            )
        if self.count >= self._limit:
            raise RequestProblem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self._limit} streams are open already: try again",
                headers=RETRY,
            )
        self._open[user] += 1
        return ListenerPlace(self, user)

    def release(self, user: tuple[str, str, str]) -> None:
        """Take note that a user has one listener less."""
        self._open[user] -= 1
        if not self._open[user]:
            del self._open[user]
