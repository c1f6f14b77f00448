"""Serves a bundle over MCP: its tools, a tool for questions, timelines and knowledge as resources, skills as prompts."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Any

import mcp_types as types
import uvicorn
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.types import ASGIApp, Receive, Scope, Send

from loopline.errors import LooplineError
from loopline.files import decoded_text
from loopline.mcp.served import (
    BundleService,
    HttpAddress,
    ServedCaller,
    ServedFile,
    ServedQuestion,
    ServedResult,
)
from loopline.models import Json, JsonObject
from loopline.tools import Tool

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_REFUSAL = b"a key is needed: send it as Authorization: Bearer\n"


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Passes on requests with the key, which is compared by its sha256; other requests get status 401."""

    app: ASGIApp
    key_sha256: bytes = field(repr=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request with the key to the app, and answer an HTTP request without it with 401."""
        if scope["type"] != "http" or self._has_key(scope["headers"]):
            await self.app(scope, receive, send)
            return
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"www-authenticate", b'Bearer realm="loopline"'),
        ]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": _REFUSAL})

    def _has_key(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Return whether there is exactly one Authorization header and it has the bearer key."""
        values = [value for name, value in headers if name.lower() == b"authorization"]
        if len(values) != 1:
            return False
        scheme, _, key = values[0].partition(b" ")
        digest = sha256(key.strip()).digest()
        return compare_digest(digest, self.key_sha256) and scheme.lower() == b"bearer"


def check_addresses(host: str, names: Sequence[str]) -> TransportSecuritySettings:
    """Return settings that allow this machine, `host` and `names`, with any port, in the headers Host and Origin.

    This prevents DNS rebinding: a page of another site sends the name of its own site in both headers.
    """
    own = f"[{host}]" if ":" in host else host
    hosts = dict.fromkeys([*LOOPBACK_NAMES, own, *names])
    allowed = [form for name in hosts for form in (name, f"{name}:*")]
    origins = [f"{scheme}://{form}" for form in allowed for scheme in ("http", "https")]
    return TransportSecuritySettings(allowed_hosts=allowed, allowed_origins=origins)


Context = ServerRequestContext[Any, Any]
COMPLETIONS = 100
"""The maximum number of values of a completion in the protocol."""
ANSWER_SCHEMA: types.ElicitRequestedSchema = {
    "type": "object",
    "properties": {"answer": {"type": "string", "title": "Answer"}},
    "required": ["answer"],
}
NO_FIELDS: types.ElicitRequestedSchema = {"type": "object", "properties": {}}
OPEN = "open."
"""The prefix of the names of input requests for running calls."""
ASK = "ask"
ASK_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "The question or task."},
        "conversation": {
            "type": "string",
            "description": "The conversation to go on with, as an earlier answer names it.",
        },
    },
    "required": ["text"],
    "additionalProperties": False,
}


class BundleServer:
    """Answers the requests of clients from a served bundle."""

    def __init__(self, served: BundleService, version: str) -> None:
        self._served = served
        self._server: Server[Any] = Server(
            served.name,
            version=version,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_completion=self._complete,
        )
        boundary = RequestStateBoundary(
            RequestStateSecurity.ephemeral(), default_audience=served.name
        )
        # The boundary signs the request state, which a client sends back.
        self._server.middleware.append(boundary)

    async def serve_stdio(self) -> None:
        """Serve one client over the standard input and output, until it closes them."""
        async with stdio_server() as (received, sent):
            await self._server.run(received, sent, self._server.create_initialization_options())

    async def serve_http(self, address: HttpAddress) -> None:
        """Serve any number of clients at `/mcp` of the address, until the process receives a signal.

        If the address has the sha256 of a key, requests without the key get 401.
        """
        security = check_addresses(address.host, address.names)
        app: ASGIApp = self._server.streamable_http_app(
            host=address.host, transport_security=security
        )
        if address.key_sha256:
            app = KeyCheck(app, address.key_sha256)
        config = uvicorn.Config(app, host=address.host, port=address.port, log_level="warning")
        await uvicorn.Server(config).serve()

    async def _list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Return the tool `ask` and then the tools of the bundle, all in one page."""
        del context, params
        tools = [_describe_tool(tool) for tool in await self._served.tools()]
        question = types.Tool(
            name=ASK,
            description=f"Ask {self._served.name}; it works on the question and answers with sources.",
            input_schema=ASK_SCHEMA,
        )
        return types.ListToolsResult(tools=[question, *tools])

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Run a call in a turn, or continue it with the answers of the client; a LooplineError is an error result.

        A client of the newer protocol gets the questions of the turn as the result; an older one is asked during the call. If
        a client can't ask its user, declines, or answers with an error, it gets the result of the paused turn.
        """
        progress = _ProgressReport(context)
        caller = ServedCaller(on_progress=progress.show, can_ask=_can_answer(context))
        try:
            result = await self._begin(params, caller)
            while result.questions and caller.can_ask:
                if context.session.protocol_version in MODERN_PROTOCOL_VERSIONS:
                    return _input_required(result)
                answers = await _elicit(context, result.questions)
                if answers is None:
                    break
                result = await self._served.answer(result.conversation, answers, caller)
        except LooplineError as error:
            return _texts(str(error), is_error=True)
        finally:
            await progress.close()
        return _to_call_result(result)

    async def _begin(
        self, params: types.CallToolRequestParams, caller: ServedCaller
    ) -> ServedResult:
        """Start the call, or continue a call with the answers that the client sends.

        Raises:
            LooplineError: the call cannot be started or continued.
        """
        arguments: JsonObject = params.arguments or {}
        if params.request_state is not None:
            answers = {
                name.removeprefix(OPEN): _answer(response, is_open=name.startswith(OPEN))
                for name, response in (params.input_responses or {}).items()
            }
            return await self._served.answer(params.request_state, answers, caller)
        if params.name == ASK:
            text, conversation = _question(arguments)
            return await self._served.ask(text, conversation, caller)
        return await self._served.call(params.name, arguments, caller)

    async def _complete(
        self, context: Context, params: types.CompleteRequestParams
    ) -> types.CompleteResult:
        """Return up to `COMPLETIONS` values for a variable of a resource template; an empty list for a prompt."""
        del context
        values: list[str] = []
        if isinstance(params.ref, types.ResourceTemplateReference):  # skills have no arguments
            values += await self._served.complete(params.argument.name, params.argument.value)
        return types.CompleteResult(completion=types.Completion(values=values[:COMPLETIONS]))

    async def _list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """Return the timelines that the client may read, all in one page."""
        del context, params
        listed = [
            types.Resource(uri=item.uri, name=item.name, mime_type=item.mime)
            for item in await self._served.resources()
        ]
        return types.ListResourcesResult(resources=listed)

    async def _list_templates(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """Return the templates for timelines and their parts, and for knowledge if there is a knowledge space."""
        del context, params
        timeline = types.ResourceTemplate(
            uri_template="timeline:{conversation}",
            name="timeline",
            description="All blocks of a conversation, as a document.",
            mime_type="application/json",
        )
        knowledge = types.ResourceTemplate(
            uri_template="ks:{+path}",
            name="knowledge",
            description="A file of the knowledge space, whole or by lines: ks:docs/a.md#L1-L20.",
            mime_type="text/plain",
        )
        part = types.ResourceTemplate(
            uri_template="cv:{conversation}/{+ref}",
            name="part of a timeline",
            description="What a ref in a conversation names, such as a file: cv:c1/fi:turn_1.outputs/a.png.",
        )
        templates = [timeline, part, *([knowledge] if self._served.has_knowledge else [])]
        return types.ListResourceTemplatesResult(resource_templates=templates)

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return the contents of one resource; raise an MCPError, INVALID_PARAMS, if it cannot be read."""
        del context
        uri = str(params.uri)
        try:
            file = await self._served.read(uri)
        except LooplineError as error:
            raise MCPError(
                code=types.INVALID_PARAMS, message=str(error), data={"uri": uri}
            ) from error
        return types.ReadResourceResult(contents=[_contents(file)])

    async def _list_prompts(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        """Return the skills of the bundle as prompts, all in one page."""
        del context, params
        prompts = [
            types.Prompt(name=skill.full_id, title=skill.name, description=skill.description)
            for skill in await self._served.skills()
        ]
        return types.ListPromptsResult(prompts=prompts)

    async def _get_prompt(
        self, context: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        """Return the body of a skill with its imports as a message of the user; raise an MCPError if it does not exist."""
        del context
        for skill in await self._served.skills():
            if skill.full_id == params.name:
                text = skill.with_imports().body
                message = types.PromptMessage(role="user", content=types.TextContent(text=text))
                return types.GetPromptResult(description=skill.description, messages=[message])
        raise MCPError(code=types.INVALID_PARAMS, message=f"there is no skill {params.name!r}")


class _ProgressReport:
    """Sends progress to the client in order; `show` does not wait."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._count = 0
        self._last: asyncio.Task[None] | None = None

    def show(self, text: str) -> None:
        """Send the text as the next progress notification."""
        self._count += 1
        self._last = asyncio.create_task(self._send(self._last, self._count, text))

    async def close(self) -> None:
        """Wait until all notifications are sent."""
        if self._last is not None:
            await asyncio.gather(self._last, return_exceptions=True)

    async def _send(self, before: asyncio.Task[None] | None, count: int, text: str) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._context.session.report_progress(count, None, text)


def _question(arguments: JsonObject) -> tuple[str, str]:
    """Return the text of a question and the conversation to continue, which may be empty.

    Raises:
        LooplineError: the text is missing, blank or not a text, or the conversation is not a text.
    """
    match {"conversation": "", **arguments}:
        case {"text": str(text), "conversation": str(conversation)} if text.strip():
            return text, conversation
        case _:
            raise LooplineError("ask: text must be a text that is not empty")


def _describe_tool(tool: Tool) -> types.Tool:
    """Return a tool in the form of the protocol; the effects `write` and `exclusive` are hinted as destructive."""
    parameters: dict[str, Json] = dict(tool.spec.parameters)
    destroys = tool.effect in ("write", "exclusive")
    return types.Tool(
        name=tool.spec.name,
        description=tool.spec.description,
        input_schema=parameters,
        annotations=types.ToolAnnotations(
            read_only_hint=tool.effect == "read", destructive_hint=destroys
        ),
    )


def _can_answer(context: Context) -> bool:
    """Return whether the client supports elicitation, which asks its user."""
    capabilities = context.session.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None


def _form(question: ServedQuestion) -> types.ElicitRequestFormParams:
    """Return the form of a question; for a running call without a form it has no fields."""
    schema = ANSWER_SCHEMA
    if question.is_open:
        schema = question.form if isinstance(question.form, dict) else NO_FIELDS
    return types.ElicitRequestFormParams(message=question.text, requested_schema=schema)


def _input_required(result: ServedResult) -> types.InputRequiredResult:
    """Return the questions that a client of the newer protocol must ask before it repeats its request."""
    requests: types.InputRequests = {
        f"{OPEN if question.is_open else ''}{question.call_id}": types.ElicitRequest(
            params=_form(question)
        )
        for question in result.questions
    }
    return types.InputRequiredResult(input_requests=requests, request_state=result.conversation)


async def _elicit(
    context: Context, questions: tuple[ServedQuestion, ...]
) -> dict[str, Json] | None:
    """Ask a client of the older protocol, and return its answers, or None if it declines a question of a paused turn.

    If the client answers with an error, the question is cancelled, because the result of the turn must not be lost.
    """
    answers: dict[str, Json] = {}
    for question in questions:
        form = _form(question)
        try:
            result = await context.session.elicit_form(
                form.message, form.requested_schema, context.request_id
            )
        except MCPError:
            result = types.ElicitResult(action="cancel")
        if result.action != "accept" and not question.is_open:
            return None
        answers[question.call_id] = _answer(result, is_open=question.is_open)
    return answers


def _answer(response: types.InputResponse, *, is_open: bool) -> Json:
    """Return the answer in a response to a question of a running call (`is_open`) or of a paused turn.

    Without an answer, return None for a running call, and a text that says so for a paused turn. An accepted answer to a
    running call is its fields, or True without fields.

    Raises:
        LooplineError: the response is not the result of an elicitation.
    """
    match response:
        case types.ElicitResult(action="accept", content=content) if is_open:
            fields = (content or {}).items()
            return {
                name: list[Json](value) if isinstance(value, list) else value
                for name, value in fields
            } or True
        case types.ElicitResult() if is_open:
            return None
        case types.ElicitResult(action="accept", content={"answer": str(answer)}):
            return answer
        case types.ElicitResult(action=action):
            return f"The user gave no answer ({action})."
        case _:
            raise LooplineError("the response to an elicitation is not an elicitation result")


def _to_call_result(result: ServedResult) -> types.CallToolResult:
    """Return the text of a result, the name of its conversation as a second text if it has one, and its files."""
    texts = [result.text]
    if result.conversation:
        texts.append(f"conversation: {result.conversation}")
    shown = _texts(*texts, is_error=not result.ok)
    shown.content.extend(map(_content, result.files))
    return shown


def _content(file: ServedFile) -> types.ContentBlock:
    """Return a file as an image or a sound by its media type, otherwise as an embedded resource."""
    kind = file.mime.partition("/")[0]
    if kind == "image":
        return types.ImageContent(data=b64encode(file.data).decode(), mime_type=file.mime)
    if kind == "audio":
        return types.AudioContent(data=b64encode(file.data).decode(), mime_type=file.mime)
    return types.EmbeddedResource(resource=_contents(file))


def _contents(file: ServedFile) -> types.TextResourceContents | types.BlobResourceContents:
    text = decoded_text(file.data)
    if text is None:
        blob = b64encode(file.data).decode()
        return types.BlobResourceContents(uri=file.uri, mime_type=file.mime, blob=blob)
    return types.TextResourceContents(uri=file.uri, mime_type=file.mime, text=text)


def _texts(*texts: str, is_error: bool) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(text=text) for text in texts]
    return types.CallToolResult(content=content, is_error=is_error)
