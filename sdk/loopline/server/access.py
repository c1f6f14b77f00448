"""The dependencies of routes: the host, the authenticated caller, and the conversations that the caller may reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Path, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from loopline.reader import ConversationReader, check_name
from loopline.server.bundle_host import BundleHost, bundle_host
from loopline.server.principals import Principal
from loopline.server.problems import forbidden, not_found
from loopline.server.request_access import access_of
from loopline.server.turn_requests import ServedConversation, serve
from loopline.timeline import ConversationKey, ConversationSummary

NAME_CHARACTERS = 200
Name = Annotated[str, Path(min_length=1, max_length=NAME_CHARACTERS)]
OptionalName = Annotated[str, Query(max_length=NAME_CHARACTERS)]
_bearer = HTTPBearer(auto_error=False, description="An API key or a JWT.")


def host_of(request: Request) -> BundleHost:
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


def owner_of(host: HostDep, caller: CallerDep, tenant: Name, project: Name) -> Principal:
    """Return the caller, whose token must be of the tenant and project in the path.

    A server that only reads a store shows every tenant and project of it to the user of this machine.

    Raises:
        RequestProblem: the token is of another tenant or project, 403.
    """
    if host.is_reading:
        check_name("tenant", tenant)
        check_name("project", project)
        return replace(caller, tenant=tenant, project=project)
    if (tenant, project) != (caller.tenant, caller.project):
        raise forbidden("the token is of another tenant or project than the path")
    return caller


OwnerDep = Annotated[Principal, Depends(owner_of)]


def reader_of(host: HostDep, owner: OwnerDep, user_id: OptionalName = "") -> Principal:
    """Return the user whose conversations are read: the caller, or the user `user_id` if the caller is privileged.

    On a server that only reads a store, the caller may read the conversations of all users.

    Raises:
        RequestProblem: another user is named, and the caller is not privileged, 403.
    """
    if user_id in ("", owner.user):
        return owner
    if not owner.is_privileged and not host.is_reading:
        raise forbidden("only a privileged caller may read conversations of another user")
    check_name("user", user_id)
    return replace(owner, user=user_id)


ReaderDep = Annotated[Principal, Depends(reader_of)]


def key_of(owner: Principal, name: str) -> ConversationKey:
    """Return the key of a conversation of that user.

    Raises:
        LooplineError: the name is not valid.
    """
    check_name("conversation", name)
    return owner.conversation(name)


def own_conversation(owner: OwnerDep, conversation: Name) -> ConversationKey:
    """Return the key of the caller's conversation in the path."""
    return key_of(owner, conversation)


def readable_conversation(reader: ReaderDep, conversation: Name) -> ConversationKey:
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


OwnDep = Annotated[ServedConversation, Depends(own_existing)]
ReadDep = Annotated[ConversationReader, Depends(readable_existing)]
SummaryDep = Annotated[ConversationSummary, Depends(find_summary)]
