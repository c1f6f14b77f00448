"""A server that speaks OpenAI's two wires: chat completions and responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from loopline.models.json import JsonObject
from tests.support.peers.behaviors import Behaviour, Fault, answering
from tests.support.peers.http_server import Peer, Request, serving
from tests.support.peers.openai_chat import chat
from tests.support.peers.openai_replies import Says
from tests.support.peers.openai_responses import numbered, respond
from tests.support.peers.streams import Event, Reply, document, event

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"

USUAL_FAULTS: dict[int, tuple[str, str | None, str]] = {
    400: ("invalid_request_error", None, "We could not parse the JSON body of your request."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("request_forbidden", "unsupported_country_region_territory", "Not supported there."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist."),
    413: ("invalid_request_error", "request_too_large", "The request is too large."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached. Please try again later."),
    500: ("server_error", None, "The server had an error while processing your request."),
    503: ("server_error", "service_unavailable", "The engine is currently overloaded."),
}
"""The type, the code and the words by which each status is told."""


class OpenAI:
    def refuses(self, asked: Request) -> Reply | None:
        """Anything but the two posts."""
        if asked.method == "POST" and asked.path in {CHAT, RESPONSES}:
            return None
        unknown = f"Unknown request URL: {asked.method} {asked.path}."
        return document(refusal(unknown, code="unknown_url"), 404)

    def reply(self, says: Says, asked: Request) -> Reply:
        return chat(says, asked) if asked.path == CHAT else respond(says, asked)

    def error(self, status: int, fault: Fault) -> JsonObject:
        """The usual words for the status, unless the fault has its own."""
        kind, code, message = USUAL_FAULTS.get(status, USUAL_FAULTS[500])
        return refusal(fault.message or message, kind=fault.kind or kind, code=code)

    def broken_off(self, fault: Fault, asked: Request, at: int) -> Event:
        """In chat a chunk that is an error, in responses an event."""
        kind, message = fault.kind or "server_error", fault.message or "The server had an error."
        if asked.path == CHAT:
            return event(refusal(message, kind=kind))
        error: JsonObject = {"code": kind, "message": message, "param": None}
        body: JsonObject = {"error": {"type": kind, **error}} if fault.nested else error
        return numbered({"type": "error", **body}, at)


def refusal(
    message: str,
    *,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
) -> JsonObject:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@asynccontextmanager
async def openai_like(*behaviours: Behaviour[Says]) -> AsyncGenerator[Peer, None]:
    """One behaviour a request, in order; then the last one again and again."""
    async with serving(Peer(), answering(behaviours, OpenAI())) as peer:
        yield peer
