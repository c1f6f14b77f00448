"""Bundles as models: `/v1/chat/completions`, `/v1/responses` and `/v1/models` of OpenAI's API."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from hashlib import sha256
from http import HTTPStatus
from secrets import token_hex
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from loopline.conversations import Conversation, HandedOver, Submission
from loopline.errors import LooplineError
from loopline.events import (
    ChatCompletion,
    ModelResponse,
    ReplyHead,
    TurnOutcome,
    failure_data,
    outcome_of,
)
from loopline.models import well_formed
from loopline.server.access import CallerDep, HostDep, key_of
from loopline.server.approvals import waiting_questions
from loopline.server.bodies import NAME
from loopline.server.bundle_host import BundleHost
from loopline.server.event_streams import (
    DONE_FRAME,
    StreamFormat,
    newest_turn,
    run_response,
    subscribe_early,
)
from loopline.server.guards import BodyRefused
from loopline.server.openai_bodies import (
    RESPONSE,
    CompletionBody,
    ResponseBody,
)
from loopline.server.principals import Principal
from loopline.server.problems import (
    DETAIL_CHARACTERS,
    PROBLEMS,
    RequestProblem,
    faults_text,
    problem_of,
)
from loopline.server.turn_requests import TurnRequest, open_fork, send_answers, submit_message
from loopline.timeline import turn_number

CONVERSATION = "Loopline-Conversation"
_KINDS = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
_NO_RETRY = {"x-should-retry": "false"}
"""A header that keeps OpenAI's clients from sending the message again, because the turn has run already."""
FORMAT = StreamFormat(
    error_data=failure_data,
    retry_ms=None,  # clients of this API take the field for an event without data
    last_frame=DONE_FRAME,
)
_log = logging.getLogger("loopline")


class _OpenAiRoute(APIRoute):
    """A route that answers errors in the format of OpenAI's API."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route, which converts errors."""
        handle = super().get_route_handler()

        async def handle_errors(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return failure(RequestProblem(HTTPStatus.BAD_REQUEST, faults_text(error)))
            except LooplineError as error:
                return failure(problem_of(error))
            except BodyRefused as error:
                return failure(error.problem)

        return handle_errors


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {**problem, "content": {**problem["content"], "application/json": {}}}
    for status, problem in PROBLEMS.items()
}
router: APIRouter = APIRouter(
    prefix="/v1", tags=["openai"], route_class=_OpenAiRoute, responses=_ERRORS
)


class ModelAnswer(BaseModel):
    """A bundle as a model."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "loopline"


class ModelsAnswer(BaseModel):
    """The bundles as models."""

    object: str = "list"
    data: list[ModelAnswer]


@router.get("/models")
async def list_models(host: HostDep, caller: CallerDep) -> ModelsAnswer:
    """List the served bundles."""
    del caller
    return ModelsAnswer(data=[ModelAnswer(id=harness.bundle.id) for harness in host.harnesses])


@router.get("/models/{model}")
async def show_model(
    host: HostDep, caller: CallerDep, model: Annotated[str, Path(max_length=NAME)]
) -> ModelAnswer:
    """Return a served bundle."""
    del caller
    return ModelAnswer(id=_harness_id(host, model))


_STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
NameHeader = Annotated[str, Header(alias=CONVERSATION, max_length=NAME)]
KeyHeader = Annotated[str, Header(alias="Idempotency-Key", max_length=NAME)]


@router.post("/chat/completions", response_class=JSONResponse, responses=_STREAMED)
async def complete_chat(
    host: HostDep,
    caller: CallerDep,
    body: CompletionBody,
    conversation_name: NameHeader = "",
    idempotency_key: KeyHeader = "",
) -> Response:
    """Send the newest message to a bundle, and return its answer in one piece or as a stream.

    The header `Loopline-Conversation` or the metadata `conversation_id` names the conversation to continue. Without a name a
    new conversation is created, and its message includes the earlier messages of the request.
    """
    name = conversation_name or body.name
    key = key_of(caller, name or _new_name(caller, idempotency_key))
    conversation = await host.conversation(key, _harness_id(host, body.model))
    return await _reply(host, conversation, body, idempotency_key, is_new=not name)


@router.post("/responses", response_class=JSONResponse, responses=_STREAMED)
async def create_response(
    host: HostDep,
    caller: CallerDep,
    body: ResponseBody,
    conversation_name: NameHeader = "",
    idempotency_key: KeyHeader = "",
) -> Response:
    """Send the newest message to a bundle, and return its response in one piece or as a stream.

    `conversation`, the header `Loopline-Conversation` or the metadata `conversation_id` names the conversation to continue;
    `previous_response_id` continues the conversation of that response, or a fork of it if the conversation has gone on.
    """
    bundle_id = _harness_id(host, body.model)
    if body.previous_response_id:
        conversation = await _continued(
            host, caller, body.previous_response_id, bundle_id, idempotency_key
        )
        return await _reply(host, conversation, body, idempotency_key, is_new=False)
    name = conversation_name or body.name
    key = key_of(caller, name or _new_name(caller, idempotency_key))
    conversation = await host.conversation(key, bundle_id)
    return await _reply(host, conversation, body, idempotency_key, is_new=not name)


async def _reply(
    host: BundleHost,
    conversation: Conversation[Any],
    body: CompletionBody | ResponseBody,
    idempotency_key: str,
    *,
    is_new: bool,
) -> Response:
    """Send the newest message of the client, and return the reply in one piece or as a stream."""
    key = conversation.conversation
    with subscribe_early(host, conversation, is_streamed=body.stream) as early:
        request = await _submit(host, conversation, body, idempotency_key, is_new=is_new)
        blocks = await conversation.blocks(after=request.after, limit=1)
        created = blocks[0].ts if blocks else host.clock.now()
        head = ReplyHead(
            conversation=key.name,
            turn=request.turn,
            model=body.model or host.harnesses[0].bundle.id,
            created=int(created.timestamp()),
            after=request.after,
            code=host.approvals.code_maker(key),
        )
        reply = _make_reply(head, body)
        headers = {CONVERSATION: key.name}
        if early is not None:
            stream_format = replace(FORMAT, headers=headers)
            return run_response(host, conversation, reply.dialect(), stream_format, request, early)
    outcome = await _outcome(conversation, head, request.submission)
    if outcome is None:
        error = "the turn has not ended: its conversation has the answer later"
    elif outcome.has_failed:
        error = outcome.error or outcome.reason
    else:
        return JSONResponse(reply.whole(outcome), headers=headers)
    problem = RequestProblem(HTTPStatus.BAD_GATEWAY, error, headers={**_NO_RETRY, **headers})
    return failure(problem)


def _make_reply(
    head: ReplyHead, body: CompletionBody | ResponseBody
) -> ChatCompletion | ModelResponse:
    match body:
        case CompletionBody(stream_options=options):
            return ChatCompletion(
                head=head, with_usage=options is not None and options.include_usage
            )
        case ResponseBody(previous_response_id=previous, metadata=metadata):
            return ModelResponse(head=head, previous=previous or "", metadata=metadata or {})


def _harness_id(host: BundleHost, model: str) -> str:
    """Return the id of the bundle for a model name; without a name, the id of the first bundle."""
    return host.harness(model).bundle.id if model else host.harnesses[0].bundle.id


def _new_name(caller: Principal, idempotency_key: str) -> str:
    """Return the name of a new conversation: the same for the same user and key, or random without a key."""
    if not idempotency_key:
        return f"chat-{token_hex(12)}"
    digest = sha256(f"{caller.user} {idempotency_key}".encode()).hexdigest()
    return f"chat-{digest[:24]}"


async def _continued(
    host: BundleHost, caller: Principal, response_id: str, bundle_id: str, idempotency_key: str
) -> Conversation[Any]:
    """Return the conversation of a response; if a later turn has begun there, a fork that ends with the response.

    Raises:
        RequestProblem: the caller has no response with this id, 400.
    """
    name, _, turn = response_id.removeprefix(RESPONSE).rpartition("-")
    key = key_of(caller, name) if name else None
    if key is None or await host.log.find(key) is None or not turn_number(turn):
        text = f"no response {well_formed(response_id)[:60]!r} of yours"
        raise RequestProblem(HTTPStatus.BAD_REQUEST, text)
    conversation = await host.conversation(key, bundle_id)
    ends = await host.log.read(key, types=["react.exit"], turn=turn_number(turn))
    newest = await newest_turn(host, key)
    if newest is None or not ends or newest.number <= turn_number(turn):
        return conversation
    fork = _new_name(caller, idempotency_key and f"{response_id} {idempotency_key}")
    return await open_fork(host, conversation, ends[-1].seq, fork)


async def _submit(
    host: BundleHost,
    conversation: Conversation[Any],
    body: CompletionBody | ResponseBody,
    idempotency_key: str,
    *,
    is_new: bool,
) -> TurnRequest:
    """Send the newest message, or the answer that it gives to a call of the paused turn.

    A message that is no answer ends the paused turn. A question of a running turn is not answered here: the message waits
    until the turn has ended.
    """
    messages = body.client_messages
    text = messages.text(with_transcript=is_new)
    key = conversation.conversation
    questions = {} if is_new else await waiting_questions(host.log, key)
    paused = [question for question in questions.values() if not question.stays_open]
    answer = host.approvals.read_text(key, paused, text)
    if answer is not None:
        values = {answer.call_id: answer.value}
        return await send_answers(host, conversation, values, answer.approvals)
    submission = await submit_message(
        host,
        conversation,
        text,
        attachments=messages.attachments(),
        key=idempotency_key,
        **body.options(),
    )
    return TurnRequest.of_message(submission)


async def _outcome(
    conversation: Conversation[Any], head: ReplyHead, submission: Submission | None
) -> TurnOutcome | None:
    """Wait until the turn has ended or paused, and return its outcome; None if it has neither ended nor paused.

    Raises:
        HandedOver: the server shuts down; the next server resumes the turn.
    """
    try:
        if submission is not None:
            await submission.result()
    except HandedOver:
        raise
    except LooplineError:
        _log.exception("a turn failed")
    return outcome_of(await conversation.blocks(), head)


def failure(problem: RequestProblem) -> Response:
    """Return a problem in the format of OpenAI's API."""
    status = problem.status
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = failure_data(
        str(problem)[:DETAIL_CHARACTERS],
        kind=_KINDS.get(status, kind),
        code="model_not_found" if status == HTTPStatus.NOT_FOUND else "",
    )
    return JSONResponse(error, int(status), dict(problem.headers))
