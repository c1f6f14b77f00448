"""Problems of requests in the format of RFC 9457: the reason, and who must act."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from loopline import errors
from loopline.conversations import HandedOver
from loopline.models import JsonObject, dumps, well_formed
from loopline.models.settings import UnsupportedSetting
from loopline.server.principals import Unauthenticated

ActionBy = Literal["client", "user", "operator", "author"]
"""Who must act: the program that sent the request, its user, the operator of the server, or the bundle's author."""
MEDIA_TYPE = "application/problem+json"
DETAIL_CHARACTERS = 2_000
SHOWN_FAULTS = 20
RETRY = {"Retry-After": "2"}

_PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "action_by"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "action_by": {"enum": ["client", "user", "operator", "author"]},
    },
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": HTTPStatus(status).phrase,
        "content": {MEDIA_TYPE: {"schema": _PROBLEM_SCHEMA}},
    }
    for status in (400, 401, 403, 404, 405, 409, 413, 421, 422, 429, 500, 502, 503, 507)
}
"""The problem responses of every route for the OpenAPI document."""

_log = logging.getLogger("loopline")


class RequestProblem(errors.LooplineError):
    """A request is refused, with this status."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        action_by: ActionBy = "client",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.action_by: ActionBy = action_by
        self.headers: Mapping[str, str] = headers or {}


def not_found(name: str) -> RequestProblem:
    """Return the problem for something that does not exist or that the sender may not see, 404."""
    return RequestProblem(HTTPStatus.NOT_FOUND, f"there is no {name} here")


def forbidden(text: str) -> RequestProblem:
    """Return the problem for something that the sender is not allowed to do, 403."""
    return RequestProblem(HTTPStatus.FORBIDDEN, text)


def unavailable(text: str) -> RequestProblem:
    """Return the problem for a request that the server may accept in two seconds, 503."""
    return RequestProblem(HTTPStatus.SERVICE_UNAVAILABLE, text, headers=RETRY)


def problem_of(error: errors.LooplineError) -> RequestProblem:
    """Convert an error to the problem that the sender of the request gets; an unlisted class of errors gets 422."""
    text = str(error)
    match error:
        case RequestProblem():
            return error
        case Unauthenticated():
            challenge = {"WWW-Authenticate": 'Bearer realm="loopline"'}
            return RequestProblem(HTTPStatus.UNAUTHORIZED, text, headers=challenge)
        case errors.StoreBusy() | HandedOver():
            return unavailable(text)
        case errors.StoreFailed():
            return RequestProblem(HTTPStatus.SERVICE_UNAVAILABLE, text, action_by="operator")
        case errors.StoreFull():
            return RequestProblem(HTTPStatus.INSUFFICIENT_STORAGE, text, action_by="operator")
        case errors.ConflictError():
            return RequestProblem(HTTPStatus.CONFLICT, text)
        case errors.AttachmentError():
            return RequestProblem(HTTPStatus.UNPROCESSABLE_ENTITY, text, action_by="user")
        case errors.ModelError() if not isinstance(error, UnsupportedSetting):
            return RequestProblem(HTTPStatus.BAD_GATEWAY, text, action_by="operator")
        case errors.StoreError():
            return RequestProblem(HTTPStatus.CONFLICT, text, action_by="operator")
        case _:
            return RequestProblem(HTTPStatus.UNPROCESSABLE_ENTITY, text)


def response_to(problem: RequestProblem) -> Response:
    """Return the problem as a JSON response with at most `DETAIL_CHARACTERS` characters of its message."""
    status = problem.status
    content: JsonObject = {
        "type": "about:blank",
        "title": status.phrase,
        "status": int(status),
        "detail": well_formed(str(problem))[:DETAIL_CHARACTERS],
        "action_by": problem.action_by,
    }
    return Response(dumps(content), int(status), {**problem.headers}, MEDIA_TYPE)


def add_handlers(app: FastAPI) -> None:
    """Register a handler that answers every error of the app with a problem."""
    for kind in (errors.LooplineError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer_error)


async def _answer_error(request: Request, error: Exception) -> Response:
    """Convert an error to a problem response. An error of an unknown class is logged and answered with 500.

    The body and the traceback of a `RequestValidationError` are removed from it to free memory.
    """
    match error:
        case errors.LooplineError():
            problem = problem_of(error)
        case HTTPException(status_code=status, detail=detail, headers=headers):
            problem = RequestProblem(HTTPStatus(status), str(detail), headers=headers)
        case RequestValidationError():
            problem = RequestProblem(HTTPStatus.UNPROCESSABLE_ENTITY, faults_text(error))
            # The frames of the traceback refer to each other in a cycle: a body of 36 MB would stay in memory until the
            # garbage collector finds the cycle, many requests later.
            error.body = None
            error.__traceback__ = error.__cause__ = error.__context__ = None
        case _:
            _log.error("%s %r failed", request.method, request.url.path, exc_info=error)
            problem = RequestProblem(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "the server failed; the reason is in its log",
                action_by="operator",
            )
    return response_to(problem)


def faults_text(error: RequestValidationError) -> str:
    """Return the names of the first `SHOWN_FAULTS` invalid fields with the reasons.

    The values are left out, because they may be secrets.
    """
    texts: list[str] = []
    for fault in list(error.errors())[:SHOWN_FAULTS]:
        names: tuple[str | int, ...] = fault["loc"]
        text = f"{'.'.join(map(str, names))}: {fault['msg']}"
        if names == ("body",) and fault["type"] == "model_attributes_type":
            text = "body: send JSON with the header Content-Type: application/json"
        elif fault["type"] == "json_invalid":
            text = "body: it is not valid JSON"
            if names:
                text += f" at the position {names[-1]}"
        texts.append(text)
    return "; ".join(dict.fromkeys(texts))  # two dependencies may read the same parameter
