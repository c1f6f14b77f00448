"""Bundles as models: `/v1/chat/completions` and `/v1/models` of OpenAI's API."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from hashlib import sha256
from http import HTTPStatus
from secrets import token_hex
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Header, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from loopline.conversations import Conversation, HandedOver, Submission
from loopline.errors import LooplineError
from loopline.events import (
    ChatCompletion,
    TurnOutcome,
    completion_dialect,
    failure_data,
    outcome_of,
)
from loopline.files import Attachment
from loopline.server.access import CallerDep, HostDep, key_of
from loopline.server.approvals import waiting_questions
from loopline.server.bodies import FILES, NAME, TEXT, decode_file
from loopline.server.bundle_host import BundleHost
from loopline.server.event_streams import (
    DONE_FRAME,
    EventResponse,
    StreamFormat,
    conversation_events,
    dialect_frames,
    subscribe_early,
)
from loopline.server.guards import BodyRefused
from loopline.server.principals import Principal
from loopline.server.problems import (
    DETAIL_CHARACTERS,
    PROBLEMS,
    RequestProblem,
    faults_text,
    problem_of,
)
from loopline.server.turn_requests import resume_turn, submit_message

MESSAGES = 2_000


class _Part(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")


class TextPart(_Part):
    """A part with a text."""

    type: Literal["text"]
    text: Annotated[str, Field(max_length=TEXT)]


class ImageUrl(_Part):
    """The bytes of an image in a data URL."""

    url: str


class ImagePart(_Part):
    """A part with an image."""

    type: Literal["image_url"]
    image_url: ImageUrl


class FileData(_Part):
    """The bytes of a file in a data URL, and its name."""

    file_data: str
    filename: Annotated[str, Field(max_length=NAME)] = ""


class FilePart(_Part):
    """A part with a file, such as a PDF."""

    type: Literal["file"]
    file: FileData


Part = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]


class ChatMessage(_Part):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str, Field(max_length=TEXT)] | list[Part] | None = None

    @property
    def parts(self) -> Sequence[TextPart | ImagePart | FilePart]:
        """The parts of the content; a text is one part."""
        match self.content:
            case None:
                return ()
            case str(text):
                return (TextPart(type="text", text=text),)
            case parts:
                return parts

    @property
    def text(self) -> str:
        """The texts of the message, joined by line breaks."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))


class StreamOptions(_Part):
    """The options of a stream."""

    include_usage: bool = False


class CompletionBody(_Part):
    """A request for a chat completion. `model` is the id of a bundle."""

    model: Annotated[str, Field(max_length=NAME)] = ""
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MESSAGES)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    tools: Annotated[list[JsonValue], Field(max_length=0)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=50)] | None = None

    @property
    def newest(self) -> Sequence[ChatMessage]:
        """The messages of the user after the last answer."""
        last = max(
            (at for at, message in enumerate(self.messages) if message.role == "assistant"),
            default=-1,
        )
        return [message for message in self.messages[last + 1 :] if message.role == "user"]

    @property
    def transcript(self) -> str:
        """The messages before the newest ones, and the client's instructions, one per line; empty if there are none."""
        newest = self.newest
        lines = [
            f"{message.role}: {message.text}"
            for message in self.messages
            if message.text and not any(message is user_message for user_message in newest)
        ]
        return "\n".join(lines)

    def text(self, *, with_transcript: bool) -> str:
        """Return the text to send; with `with_transcript`, it begins with the earlier messages.

        Raises:
            LooplineError: the newest messages have no text.
        """
        text = "\n".join(message.text for message in self.newest if message.text)
        if not text:
            raise LooplineError("the last message must be a message of the user with a text")
        before = self.transcript if with_transcript else ""
        return f"[Earlier in this conversation]\n{before}\n[Now]\n{text}" if before else text

    def attachments(self) -> list[Attachment]:
        """Decode the files of the newest messages.

        Raises:
            LooplineError: a file is not in a data URL, or there are more than `FILES`.
        """
        files: list[Attachment] = []
        for part in (part for message in self.newest for part in message.parts):
            match part:
                case TextPart():
                    pass
                case ImagePart(image_url=image):
                    files.append(decode_file(f"image-{len(files) + 1}", image.url))
                case FilePart(file=file):
                    name = file.filename or f"file-{len(files) + 1}"
                    files.append(decode_file(name, file.file_data))
        if len(files) > FILES:
            raise LooplineError(f"a message may have {FILES} files, not {len(files)}")
        return files


CONVERSATION = "Loopline-Conversation"
NAMED = "conversation_id"
"""The key of the metadata for the name of the conversation."""
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


@router.post(
    "/chat/completions",
    response_class=JSONResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def complete_chat(
    host: HostDep,
    caller: CallerDep,
    body: CompletionBody,
    conversation_name: Annotated[str, Header(alias=CONVERSATION, max_length=NAME)] = "",
    idempotency_key: Annotated[str, Header(alias="Idempotency-Key", max_length=NAME)] = "",
) -> Response:
    """Send the newest message to a bundle, and return its answer in one piece or as a stream.

    The header `Loopline-Conversation` or the metadata `conversation_id` names the conversation to continue. Without a name a
    new conversation is created, and its message includes the earlier messages of the request.
    """
    bundle_id = _harness_id(host, body.model)
    named = conversation_name or (body.metadata or {}).get(NAMED) or ""
    key = key_of(caller, named or _new_name(caller, idempotency_key))
    conversation = await host.conversation(key, bundle_id)
    with subscribe_early(host, conversation, is_streamed=body.stream) as early:
        submission = await _submit(host, conversation, body, idempotency_key, is_named=bool(named))
        receipt = submission.receipt
        [block] = await conversation.blocks(after=receipt.seq - 1, limit=1)
        completion = ChatCompletion(
            conversation=key.name,
            turn=receipt.turn,
            model=bundle_id,
            created=int(block.ts.timestamp()),
            with_usage=body.stream_options is not None and body.stream_options.include_usage,
        )
        headers = {CONVERSATION: key.name}
        if early is not None:
            frames = dialect_frames(
                host,
                conversation_events(host, conversation, submission, early=early),
                completion_dialect(completion),
                FORMAT,
                after=receipt.seq - 1,
            )
            return EventResponse(host, key, frames, headers, early=early)
    outcome = await _outcome(conversation, completion, submission)
    if outcome is None:
        error = "the bundle's code failed"
    elif outcome.has_failed:
        error = outcome.error or outcome.reason
    else:
        return JSONResponse(completion.whole(outcome), headers=headers)
    problem = RequestProblem(HTTPStatus.BAD_GATEWAY, error, headers={**_NO_RETRY, **headers})
    return failure(problem)


def _harness_id(host: BundleHost, model: str) -> str:
    """Return the id of the bundle for a model name; without a name, the id of the first bundle."""
    return host.harness(model).bundle.id if model else host.harnesses[0].bundle.id


def _new_name(caller: Principal, idempotency_key: str) -> str:
    """Return the name of a new conversation: the same for the same user and key, or random without a key."""
    if not idempotency_key:
        return f"chat-{token_hex(12)}"
    digest = sha256(f"{caller.user} {idempotency_key}".encode()).hexdigest()
    return f"chat-{digest[:24]}"


async def _submit(
    host: BundleHost,
    conversation: Conversation[Any],
    body: CompletionBody,
    idempotency_key: str,
    *,
    is_named: bool,
) -> Submission:
    """Send the newest message; if a named conversation is paused, it is the answer to the first waiting call.

    A question of a running turn is not answered here: the message waits until the turn has ended.
    """
    text = body.text(with_transcript=not is_named)
    questions = await waiting_questions(host.log, conversation.conversation) if is_named else {}
    paused = [question.call_id for question in questions.values() if not question.stays_open]
    if paused:
        answer = {paused[0]: text}
        await host.check_approvals(conversation, answer, {})
        return await resume_turn(host, conversation, answer)
    return await submit_message(
        host, conversation, text, attachments=body.attachments(), key=idempotency_key
    )


async def _outcome(
    conversation: Conversation[Any], completion: ChatCompletion, submission: Submission
) -> TurnOutcome | None:
    """Wait until the turn has ended or paused, and return its outcome; None if bundle code failed.

    Raises:
        HandedOver: the server shuts down; the next server resumes the turn.
    """
    try:
        await submission.result()
    except HandedOver:
        raise
    except LooplineError:
        _log.exception("a turn failed")
    return outcome_of(await conversation.blocks(), completion.turn)


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
