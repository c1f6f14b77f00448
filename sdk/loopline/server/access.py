"""The dependencies of routes: the host, the authenticated caller, and the conversations that the caller may reach.

All of them are async, because FastAPI runs each plain function of a request in another thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BeforeValidator

from loopline.conversations import UnansweredCall
from loopline.errors import LooplineError
from loopline.reader import ConversationReader, check_name
from loopline.server.bodies import NAME
from loopline.server.bundle_host import BundleHost, bundle_host
from loopline.server.principals import APPROVER, Principal
from loopline.server.problems import forbidden, not_found
from loopline.server.request_access import SLASH, access_of
from loopline.server.turn_requests import ServedConversation, serve
from loopline.timeline import ConversationKey, ConversationSummary

Name = Annotated[
    str,
    Path(min_length=1, max_length=NAME),
    BeforeValidator(lambda name: name.replace(SLASH, "/")),
]
OptionalName = Annotated[str, Query(max_length=NAME)]
_bearer = HTTPBearer(auto_error=False, description="An API key or a JWT.")


async def host_of(request: Request) -> BundleHost:
    """Return the host of the app that serves the request."""
    return bundle_host(request.app)


HostDep = Annotated[BundleHost, Depends(host_of)]


async def caller_of(
    host: HostDep,
    request: Request,
    _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],  # for the OpenAPI document
) -> Principal:
    """Open the bundles if they are not open, and authenticate the sender of the request.

    Raises:
        Unauthenticated: the token is missing, wrong or expired.
        RequestProblem: the sender makes too many requests, 429.
    """
    await host.open()
    return await access_of(request.scope).principal()


CallerDep = Annotated[Principal, Depends(caller_of)]


async def owner_of(host: HostDep, caller: CallerDep, tenant: Name, project: Name) -> Principal:
    """Return the caller, after a check that the token is of the tenant and project in the path.

    On a server that only reads a store, every tenant and project is accepted, and the result has those of the path.

    Raises:
        RequestProblem: the token is of another tenant or project, 403.
        LooplineError: on a server that only reads a store, a name in the path is not valid.
    """
    if host.is_reading:
        check_name("tenant", tenant)
        check_name("project", project)
        return replace(caller, tenant=tenant, project=project)
    if (tenant, project) != (caller.tenant, caller.project):
        raise forbidden("the token is of another tenant or project than the path")
    return caller


OwnerDep = Annotated[Principal, Depends(owner_of)]


async def reader_of(host: HostDep, owner: OwnerDep, user_id: OptionalName = "") -> Principal:
    """Return the principal for reading: the caller, or the caller with the user `user_id` if it is not empty.

    Only a privileged caller may name another user; on a server that only reads a store, every caller may.

    Raises:
        RequestProblem: another user is named, and the caller is not privileged, 403.
        LooplineError: `user_id` is not a valid name.
    """
    if user_id in ("", owner.user):
        return owner
    if not owner.is_privileged and not host.is_reading:
        raise forbidden("only a privileged caller may read conversations of another user")
    check_name("user", user_id)
    return replace(owner, user=user_id)


ReaderDep = Annotated[Principal, Depends(reader_of)]


def key_of(owner: Principal, name: str) -> ConversationKey:
    """Return the key of the conversation `name` of the user `owner`.

    Raises:
        LooplineError: the name is not valid, or is too long for a path.
    """
    check_name("conversation", name, is_in_url=True)
    if len(name) > NAME:
        raise LooplineError(f"the name of a conversation may have {NAME} characters")
    return owner.conversation(name)


async def own_conversation(owner: OwnerDep, conversation: Name) -> ConversationKey:
    """Return the key of the caller's conversation in the path."""
    return key_of(owner, conversation)


async def readable_conversation(reader: ReaderDep, conversation: Name) -> ConversationKey:
    """Return the key of the conversation in the path, for reading."""
    return key_of(reader, conversation)


OwnKeyDep = Annotated[ConversationKey, Depends(own_conversation)]
ReadKeyDep = Annotated[ConversationKey, Depends(readable_conversation)]


async def own_existing(host: HostDep, key: OwnKeyDep) -> ServedConversation:
    """Return the caller's conversation in the path.

    Raises:
        RequestProblem: it does not exist, 404.
    """
    await find_summary(host, key)
    return await serve(host, key)


async def readable_existing(host: HostDep, key: ReadKeyDep) -> ConversationReader:
    """Return the conversation in the path, for reading. Errors are those of `own_existing`."""
    await find_summary(host, key)
    return await host.reader(key)


async def find_summary(host: HostDep, key: ReadKeyDep) -> ConversationSummary:
    """Return the summary of the conversation in the path. Errors are those of `own_existing`."""
    summary = await host.log.find(key)
    if summary is None:
        raise not_found(f"conversation {key.name!r}")
    return summary


@dataclass(frozen=True, slots=True)
class Answering:
    """A conversation whose calls the caller answers; `by` is the name of the caller, empty in a conversation of the caller."""

    served: ServedConversation
    by: str = ""

    async def waiting(self) -> dict[str, UnansweredCall]:
        """Return the waiting calls that the caller may answer, by call id.

        In a conversation of another user these are only the calls that several people must approve.
        """
        waiting = await self.served.waiting()
        return {
            call_id: call for call_id, call in waiting.items() if not self.by or call.people > 1
        }

    async def check(self, call_ids: Iterable[str]) -> None:
        """Check that the caller may answer these calls; in a conversation of the caller, all calls are accepted.

        Raises:
            RequestProblem: in a conversation of another user, a call is not in the result of `waiting`, or no call is named,
                403.
        """
        if not self.by:
            return
        waiting = await self.waiting()
        refused = [call_id for call_id in call_ids if call_id not in waiting]
        if refused or not call_ids:
            raise forbidden(
                "in a conversation of another user you may only approve or deny waiting calls that several people must approve"
            )


async def answering_existing(
    host: HostDep, owner: OwnerDep, conversation: Name, user_id: OptionalName = ""
) -> Answering:
    """Return the conversation in the path: of the caller, or of the user `user_id` if the caller has the role `approver`.

    Raises:
        RequestProblem: another user is named, and the caller does not have the role, 403; or the conversation does not
            exist, 404.
        LooplineError: a name is not valid.
    """
    user = user_id or owner.user
    by = "" if user == owner.user else owner.user
    if by and APPROVER not in owner.roles:
        raise forbidden("only a caller with the role approver may approve calls of another user")
    check_name("user", user)
    key = key_of(replace(owner, user=user), conversation)
    await find_summary(host, key)
    return Answering(await serve(host, key), by)


OwnDep = Annotated[ServedConversation, Depends(own_existing)]
AnsweringDep = Annotated[Answering, Depends(answering_existing)]
ReadDep = Annotated[ConversationReader, Depends(readable_existing)]
SummaryDep = Annotated[ConversationSummary, Depends(find_summary)]
