"""A server of conversations, and the way to it."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from loopline.client.answers import ListDocument, ListedDocument, PrincipalDocument
from loopline.client.connection import RETRY_SECONDS, ServerConnection, ServerRequest
from loopline.client.remote_conversation import RemoteConversation
from loopline.client.server_sessions import server_session
from loopline.clock import Clock, SystemClock
from loopline.errors import LooplineError
from loopline.reader import check_name
from loopline.timeline import ConversationKey


def connect(
    url: str, key: str = "", *, retry_seconds: float = RETRY_SECONDS, clock: Clock | None = None
) -> RemoteServer:
    """Return a server, to be opened with `async with`; it has the `conversation` of a harness.

    A request is repeated for `retry_seconds` while the server cannot be reached.

    Raises:
        LooplineError: the URL is no address of a server, or a key could be read by others on its way.
    """
    session = server_session(url, key)
    return RemoteServer(ServerConnection(session, clock or SystemClock(), retry_seconds))


class RemoteServer:
    """A server, and the user whom the key names there."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._principal: PrincipalDocument | None = None

    async def __aenter__(self) -> Self:
        """Ask the server whom the key names.

        Raises:
            LooplineError: the key is wrong, or the server could not be reached for too long.
        """
        request = ServerRequest(method="GET", path="/me")
        try:
            self._principal = await self._connection.read(request, PrincipalDocument)
        except BaseException:
            await self._connection.session.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close every connection."""
        await self._connection.session.close()

    @property
    def bundles(self) -> tuple[str, ...]:
        """The ids of the bundles that are served; the first begins a conversation that names none."""
        return self._open.bundles

    @property
    def user(self) -> str:
        """The user whom the key names."""
        return self._open.user

    @property
    def _open(self) -> PrincipalDocument:
        if self._principal is None:
            raise LooplineError("the server is not open: use async with connect(…)")
        return self._principal

    def conversation(
        self,
        name: str,
        *,
        user: str | None = None,
        project: str | None = None,
        tenant: str | None = None,
        bundle: str = "",
    ) -> RemoteConversation:
        """Return a conversation of the user whom the key names; `bundle` is the one that begins it.

        Raises:
            LooplineError: the key is of another user, project or tenant, or there can be no such name.
        """
        check_name("conversation", name)
        own = self._open
        for kind, wished, key_name in (
            ("user", user, own.user),
            ("project", project, own.project),
            ("tenant", tenant, own.tenant),
        ):
            if wished not in (None, key_name):
                raise LooplineError(f"the key is of the {kind} {key_name!r}, not of {wished!r}")
        key = ConversationKey(name=name, user=own.user, project=own.project, tenant=own.tenant)
        return RemoteConversation(self._connection, key, bundle)

    async def conversations(self, *, limit: int = 100) -> tuple[ListedDocument, ...]:
        """Return the user's conversations, the last active one first."""
        own = self._open
        request = ServerRequest(
            method="GET",
            path=f"/conversations/{own.tenant}/{own.project}",
            query=[("last_n", f"{limit}")],
        )
        return (await self._connection.read(request, ListDocument)).items
