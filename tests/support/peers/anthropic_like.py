"""A server that speaks Anthropic's wire, and takes whatever it is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from loopline.models.json import JsonObject
from tests.support.peers.anthropic_messages import message
from tests.support.peers.anthropic_replies import Says
from tests.support.peers.behaviors import Behaviour, Fault, answering
from tests.support.peers.http_server import Peer, Request, serving
from tests.support.peers.streams import Event, Reply, document, event

MESSAGES = "/v1/messages"

USUAL_FAULTS = {
    400: ("invalid_request_error", "messages: Field required"),
    401: ("authentication_error", "invalid x-api-key"),
    402: ("billing_error", "Your credit balance is too low."),
    403: ("permission_error", "Your API key may not use this resource."),
    404: ("not_found_error", "model: not found"),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your rate limit."),
    500: ("api_error", "Internal server error"),
    503: ("api_error", "Service unavailable"),
    504: ("timeout_error", "The request timed out."),
    529: ("overloaded_error", "Overloaded"),
}
"""The type and the words by which each status is told."""


class Anthropic:
    def refuses(self, asked: Request) -> Reply | None:
        if asked.method == "POST" and asked.path.partition("?")[0] == MESSAGES:
            return None
        return document(error_of("not_found_error", "Not found"), 404)

    def reply(self, says: Says, asked: Request) -> Reply:
        return message(says, says.blocks, says.usage, asked)

    def error(self, status: int, fault: Fault) -> JsonObject:
        """The usual words for the status, unless the fault has its own."""
        kind, words = USUAL_FAULTS.get(status, USUAL_FAULTS[500])
        return error_of(fault.kind or kind, fault.message or words)

    def broken_off(self, fault: Fault, asked: Request, at: int) -> Event:
        kind, words = USUAL_FAULTS[529]
        return event(_error(fault.kind or kind, fault.message or words), "error")


def error_of(kind: str, words: str) -> JsonObject:
    """An error in Anthropic's form, as the body of a reply."""
    return {**_error(kind, words), "request_id": "req_peer"}


def _error(kind: str, words: str) -> JsonObject:
    return {"type": "error", "error": {"type": kind, "message": words}}


@asynccontextmanager
async def anthropic_like(*behaviours: Behaviour[Says]) -> AsyncGenerator[Peer, None]:
    """One behaviour a request, in order; then the last one again and again."""
    async with serving(Peer(), answering(behaviours, Anthropic())) as peer:
        yield peer
