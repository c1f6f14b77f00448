"""Bundles as models: `/v1/chat/completions`, `/v1/responses` and `/v1/models` of OpenAI's API."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from http import HTTPStatus
from secrets import token_hex
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from loopline import events
from loopline.conversations import HandedOver, Submission
from loopline.errors import LooplineError
from loopline.files import Attachment
from loopline.models import Effort, Json, ModelSettings, well_formed
from loopline.react import Limits
from loopline.server import event_streams, problems
from loopline.server.access import CallerDep, HostDep, Name, key_of
from loopline.server.bodies import NAME, TEXT, ClientToolFields, SampledFields, decode_file
from loopline.server.bundle_host import BundleHost
from loopline.server.guards import BodyRefused
from loopline.server.principals import Principal
from loopline.server.turn_requests import ServedConversation, TurnRequest, serve
from loopline.timeline import ClientTool, turn_number
from loopline.tools import MAX_CLIENT_TOOLS

MESSAGES = 2_000
NAMED = "conversation_id"
"""The key of the metadata for the name of the conversation."""
RESPONSE = "resp_"
"""The beginning of the id of a response."""


class _Part(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")


class TextPart(_Part):
    """A part with a text."""

    type: Literal["text", "input_text", "output_text"]
    text: Annotated[str, Field(max_length=TEXT)]


class ImageUrl(_Part):
    """The bytes of an image in a data URL."""

    url: str


class ImagePart(_Part):
    """A part with an image, as chat completions have it."""

    type: Literal["image_url"]
    image_url: ImageUrl


class InputImagePart(_Part):
    """A part with an image, as responses have it: its bytes in a data URL."""

    type: Literal["input_image"]
    image_url: str


class FileData(_Part):
    """The bytes of a file in a data URL, and its name."""

    file_data: str
    filename: Annotated[str, Field(max_length=NAME)] = ""


class FilePart(_Part):
    """A part with a file, such as a PDF, as chat completions have it."""

    type: Literal["file"]
    file: FileData


class InputFilePart(FileData):
    """A part with a file, as responses have it."""

    type: Literal["input_file"]


Part = Annotated[
    TextPart | ImagePart | InputImagePart | FilePart | InputFilePart, Field(discriminator="type")
]


class ChatMessage(_Part):
    """A message of a conversation; `tool_call_id` is the call whose result it is."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    tool_call_id: Annotated[str, Field(max_length=2 * NAME)] = ""
    content: Annotated[str, Field(max_length=TEXT)] | list[Part] | None = None

    @property
    def parts(self) -> Sequence[Part]:
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


class InputMessage(ChatMessage):
    """A message in the input of a response."""

    type: Literal["message"] = "message"


class InputCall(_Part):
    """A call of an earlier response, which a client sends back; it is not used."""

    type: Literal["function_call"]


class CallOutput(_Part):
    """The result of a call that the client ran."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(max_length=2 * NAME)]
    output: Annotated[str, Field(max_length=TEXT)] | list[Part]

    @property
    def message(self) -> ChatMessage:
        """The result as a message of a chat."""
        return ChatMessage(role="tool", content=self.output, tool_call_id=self.call_id)


class InputReasoning(_Part):
    """The reasoning of an earlier response, which a client sends back; it is not used."""

    type: Literal["reasoning"]


def _content(
    messages: Sequence[ChatMessage], *, with_transcript: bool
) -> tuple[str, list[Attachment]]:
    """Return the text and the files of the user's messages after the last answer.

    With `with_transcript`, the text begins with the earlier messages and the instructions.

    Raises:
        LooplineError: these messages do not have a text, or a file is not a data URL in base64.
    """
    roles = [message.role for message in messages]
    begin = max((at + 1 for at, role in enumerate(roles) if role == "assistant"), default=0)
    newest = [message for message in messages[begin:] if message.role == "user"]
    text = "\n".join(message.text for message in newest if message.text)
    if not text:
        raise LooplineError("the last message must be a message of the user with a text")
    earlier = [
        f"{message.role}: {message.text}"
        for at, message in enumerate(messages)
        if message.text and (at < begin or message.role != "user")
    ]
    if with_transcript and earlier:
        before = "\n".join(earlier)
        text = f"[Earlier in this conversation]\n{before}\n[Now]\n{text}"
    files: list[Attachment] = []
    for part in (part for message in newest for part in message.parts):
        match part:
            case TextPart():
                pass
            case ImagePart(image_url=ImageUrl(url=url)) | InputImagePart(image_url=str(url)):
                files.append(decode_file(f"image-{len(files) + 1}", url))
            case FilePart(file=file) | (InputFilePart() as file):
                name = file.filename or f"file-{len(files) + 1}"
                files.append(decode_file(name, file.file_data))
    return text, files


class StreamOptions(_Part):
    """The options of a stream."""

    include_usage: bool = False


class Function(ClientToolFields):
    """A function that the client runs."""

    name: Annotated[str, Field(max_length=NAME)]


class ChatTool(_Part):
    """A tool of a chat completion."""

    type: Literal["function"]
    function: Function


class ResponseTool(Function):
    """A tool of a response."""

    type: Literal["function"]


class ReplyBody(SampledFields, _Part):
    """The fields that both requests have. `model` is the id of a bundle.

    The client runs the calls of the functions. With the `tool_choice` "none" the turn has none.
    """

    model: Annotated[str, Field(max_length=NAME)] = ""
    stream: bool = False
    tool_choice: Literal["auto", "none"] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=50)] | None = None

    def options(self) -> Limits:
        """Return the settings of the model that the client sent, as an option of the turn; empty without settings.

        Clients send a temperature also to models that refuse it, so settings that the model does not support are left out.
        """
        values = self.sampled()
        return {"settings": ModelSettings(**values, unsupported="drop")} if values else {}

    @property
    def name(self) -> str:
        """The name of the conversation that the metadata has, or an empty text."""
        return (self.metadata or {}).get(NAMED, "")


class CompletionBody(ReplyBody):
    """A request for a chat completion."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MESSAGES)]
    tools: Annotated[list[ChatTool], Field(max_length=MAX_CLIENT_TOOLS)] | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None

    def sampled(self) -> dict[str, Any]:
        """Return the settings that are set, by name; `max_completion_tokens` is the newer name of `max_tokens`."""
        limit = self.max_completion_tokens
        return super().sampled() | ({} if limit is None else {"max_tokens": limit})


class ResponseConversation(_Part):
    """The name of a conversation."""

    id: Annotated[str, Field(max_length=NAME)]


class ResponseReasoning(_Part):
    """How much the model thinks."""

    effort: Effort | None = None


class ResponseBody(ReplyBody):
    """A request for a response."""

    input: (
        Annotated[str, Field(max_length=TEXT)]
        | Annotated[
            list[InputMessage | InputReasoning | InputCall | CallOutput], Field(max_length=MESSAGES)
        ]
    )
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_CLIENT_TOOLS)] | None = None
    instructions: Annotated[str, Field(max_length=TEXT)] | None = None
    conversation: Annotated[str, Field(max_length=NAME)] | ResponseConversation | None = None
    previous_response_id: Annotated[str, Field(max_length=2 * NAME)] | None = None
    background: Literal[False] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    reasoning: ResponseReasoning | None = None

    def sampled(self) -> dict[str, Any]:
        """Return the settings that are set, by name.

        `max_output_tokens` and `reasoning.effort` of this request are `max_tokens` and `reasoning_effort` in the result.
        """
        effort = self.reasoning.effort if self.reasoning else None
        values = {"max_tokens": self.max_output_tokens, "reasoning_effort": effort}
        named = {name: value for name, value in values.items() if value is not None}
        return super().sampled() | named

    @property
    def name(self) -> str:
        """The name of the conversation in `conversation`, otherwise in the metadata; an empty text without one."""
        match self.conversation:
            case None:
                return super().name
            case str(name) | ResponseConversation(id=name):
                return name

    @property
    def messages(self) -> Sequence[ChatMessage]:
        """The instructions as a message, and the messages and results of the input, without calls and reasoning."""
        system = ChatMessage(role="system", content=self.instructions)
        if isinstance(self.input, str):
            return [system, ChatMessage(role="user", content=self.input)]
        messages: list[ChatMessage] = [system]
        for item in self.input:
            match item:
                case InputMessage():
                    messages.append(item)
                case CallOutput():
                    messages.append(item.message)
                case InputReasoning() | InputCall():
                    pass
        return messages


CONVERSATION = "Loopline-Conversation"
_KINDS = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
_NO_RETRY = {"x-should-retry": "false"}
"""A header that keeps OpenAI's clients from sending the message again, because the turn has run already."""
FORMAT = event_streams.StreamFormat(
    error_data=events.failure_data,
    retry_ms=None,  # clients of this API take the field for an event without data
    last_frame=event_streams.DONE_FRAME,
)
_log = logging.getLogger("loopline")


class _OpenAiRoute(APIRoute):
    """A route that answers errors in the format of OpenAI's API."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route, which converts errors."""
        handle = super().get_route_handler()

        async def handle_errors(request: Request) -> Response:
            """Run the handler; answer a LooplineError, refused body or invalid request (400) in OpenAI's format."""
            try:
                return await handle(request)
            except RequestValidationError as error:
                return failure(
                    problems.RequestProblem(HTTPStatus.BAD_REQUEST, problems.faults_text(error))
                )
            except LooplineError as error:
                return failure(problems.problem_of(error))
            except BodyRefused as error:
                return failure(error.problem)

        return handle_errors


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {**problem, "content": {**problem["content"], "application/json": {}}}
    for status, problem in problems.PROBLEMS.items()
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


@router.get("/models/{model:path}")
async def show_model(host: HostDep, caller: CallerDep, model: Name) -> ModelAnswer:
    """Return a served bundle."""
    del caller
    return ModelAnswer(id=host.harness(model).bundle.id)


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
    name = conversation_name or body.name or _called_from(body.messages)
    key = key_of(caller, name or _new_name(caller, idempotency_key))
    served = await serve(host, key, host.harness(body.model).bundle.id)
    return await _reply(served, body, idempotency_key, is_new=not name)


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
    bundle_id = host.harness(body.model).bundle.id
    if body.previous_response_id:
        served = await _continued(
            host, caller, body.previous_response_id, bundle_id, idempotency_key
        )
        return await _reply(served, body, idempotency_key, is_new=False)
    name = conversation_name or body.name or _called_from(body.messages)
    key = key_of(caller, name or _new_name(caller, idempotency_key))
    served = await serve(host, key, bundle_id)
    return await _reply(served, body, idempotency_key, is_new=not name)


async def _reply(
    served: ServedConversation,
    body: CompletionBody | ResponseBody,
    idempotency_key: str,
    *,
    is_new: bool,
) -> Response:
    """Send the newest message of the client, and return the reply in one piece or as a stream.

    Without a stream, a turn that has failed or not ended is answered with 502 and the header `x-should-retry: false`.
    """
    host = served.host
    key = served.key
    with event_streams.subscribe_early(served, is_streamed=body.stream) as early:
        request = await _submit(served, body, idempotency_key, is_new=is_new)
        blocks = await served.conversation.blocks(after=request.after, limit=1)
        created = blocks[0].ts if blocks else host.clock.now()
        head = events.ReplyHead(
            conversation=key.name,
            turn=request.turn,
            model=host.harness(body.model).bundle.id,
            created=int(created.timestamp()),
            after=request.after,
            code=host.approvals.code_maker(key),
        )
        reply = _make_reply(head, body)
        headers = _name_header(key.name)
        if early is not None:
            stream_format = replace(FORMAT, headers=headers)
            return event_streams.run_response(
                served, reply.dialect(), stream_format, request, early
            )
    outcome = await _outcome(served, head, request.submission)
    if outcome is None:
        error = "the turn has not ended: its conversation has the answer later"
    elif outcome.has_failed:
        error = outcome.error or outcome.reason
    else:
        return JSONResponse(reply.whole(outcome), headers=headers)
    problem = problems.RequestProblem(
        HTTPStatus.BAD_GATEWAY, error, headers={**_NO_RETRY, **headers}
    )
    return failure(problem)


def _name_header(name: str) -> dict[str, str]:
    """Return the header with the name of the conversation, which clients may send back as it is.

    There is no header if the name does not fit in one: if it is not printable Latin-1, or begins or ends with a space.
    """
    fits = name.isprintable() and max(name) <= "\xff" and name == name.strip()
    return {CONVERSATION: name} if fits else {}


def _results(messages: Sequence[ChatMessage]) -> dict[str, str]:
    """Return the texts of the results of calls that the messages end with, by the ids of the calls."""
    results: dict[str, str] = {}
    for message in reversed(messages):
        if message.role != "tool":
            break
        results[message.tool_call_id] = message.text
    return results


def _called_from(messages: Sequence[ChatMessage]) -> str:
    """Return the conversation in the call ids of the results at the end of `messages`; empty without results."""
    names = (
        call_id.removeprefix(events.CLIENT_CALL).rpartition("-")[0]
        for call_id in _results(messages)
    )
    return next(filter(None, names), "")


def _client_tools(body: CompletionBody | ResponseBody) -> list[ClientTool]:
    """Return the tools that the client runs in the turn; none if `tool_choice` is "none"."""
    if body.tool_choice == "none":
        return []
    functions: Sequence[Function]
    match body:
        case CompletionBody(tools=tools):
            functions = [tool.function for tool in tools or ()]
        case ResponseBody(tools=tools):
            functions = tools or ()
    return [function.tool(function.name) for function in functions]


def _make_reply(
    head: events.ReplyHead, body: CompletionBody | ResponseBody
) -> events.ChatCompletion | events.ModelResponse:
    """Return the encoder of the reply in the format of the request: a chat completion or a response."""
    match body:
        case CompletionBody(stream_options=options):
            return events.ChatCompletion(
                head=head, with_usage=options is not None and options.include_usage
            )
        case ResponseBody(previous_response_id=previous, metadata=metadata):
            return events.ModelResponse(head=head, previous=previous or "", metadata=metadata or {})


def _new_name(caller: Principal, idempotency_key: str) -> str:
    """Return the name of a new conversation: the same for the same user and key, or random without a key."""
    if not idempotency_key:
        return f"chat-{token_hex(12)}"
    digest = sha256(f"{caller.user} {idempotency_key}".encode()).hexdigest()
    return f"chat-{digest[:24]}"


async def _continued(
    host: BundleHost, caller: Principal, response_id: str, bundle_id: str, idempotency_key: str
) -> ServedConversation:
    """Return the conversation of a response; if a later turn has begun there, a fork that ends with the response.

    Raises:
        RequestProblem: the caller does not have a conversation with such a response, 400.
    """
    name, _, turn = response_id.removeprefix(RESPONSE).rpartition("-")
    key = key_of(caller, name) if name else None
    if key is None or await host.log.find(key) is None or not turn_number(turn):
        text = f"no response {well_formed(response_id)[:60]!r} of yours"
        raise problems.RequestProblem(HTTPStatus.BAD_REQUEST, text)
    served = await serve(host, key, bundle_id)
    ends = await host.log.read(key, types=["react.exit"], turn=turn_number(turn))
    newest = await event_streams.newest_turn(served)
    if newest is None or not ends or newest.number <= turn_number(turn):
        return served
    fork = _new_name(caller, idempotency_key and f"{response_id} {idempotency_key}")
    return await served.fork(ends[-1].seq, fork)


async def _submit(
    served: ServedConversation,
    body: CompletionBody | ResponseBody,
    idempotency_key: str,
    *,
    is_new: bool,
) -> TurnRequest:
    """Send the newest message, the answer that it gives to a call of the paused turn, or the results of the client's calls.

    A message that does not answer a call ends the paused turn. A question of a running turn is not answered here: the message
    waits until the turn has ended.

    Raises:
        LooplineError: the message has no text, or is refused as in `ServedConversation.submit`.
    """
    if results := _results(body.messages):
        return await _send_results(served, results)
    text, files = _content(body.messages, with_transcript=is_new)
    questions = {} if is_new else await served.waiting()
    paused = [
        question
        for question in questions.values()
        if not question.stays_open and question.kind != "client"
    ]
    answer = served.host.approvals.read_text(served.key, paused, text)
    if answer is not None:
        return await served.send_answers({answer.call_id: answer.value}, answer.approvals)
    submission = await served.submit(
        text, attachments=files, key=idempotency_key, tools=_client_tools(body), **body.options()
    )
    return TurnRequest.of_message(submission)


async def _send_results(served: ServedConversation, results: Mapping[str, str]) -> TurnRequest:
    """Continue the paused turn with the results of calls that the client ran.

    Raises:
        ConflictError: a call has got its result already.
        RequestProblem: no such call waits for the client, 400.
    """
    waiting = await served.waiting()
    texts = {call_id.rpartition("-")[2]: text for call_id, text in results.items()}
    values: dict[str, Json] = {}
    for call_id, text in texts.items():
        question = waiting.get(call_id)
        if question is None or question.kind != "client":
            await served.check_unanswered({call_id: text})
            raise problems.RequestProblem(
                HTTPStatus.BAD_REQUEST,
                f"no call {well_formed(call_id)[:80]!r} of yours waits for the client: send a message, or its id as it came",
            )
        values[call_id] = text
    return await served.send_answers(values, {})


async def _outcome(
    served: ServedConversation, head: events.ReplyHead, submission: Submission | None
) -> events.TurnOutcome | None:
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
    return events.outcome_of(await served.conversation.blocks(), head)


def failure(problem: problems.RequestProblem) -> Response:
    """Return a problem in the format of OpenAI's API."""
    status = problem.status
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = events.failure_data(
        str(problem)[: problems.DETAIL_CHARACTERS],
        kind=_KINDS.get(status, kind),
        code="model_not_found" if status == HTTPStatus.NOT_FOUND else "",
    )
    return JSONResponse(error, int(status), dict(problem.headers))
