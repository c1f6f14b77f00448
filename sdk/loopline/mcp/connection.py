"""A connection to a server. One task owns its session, and all turns of a harness share it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    contextmanager,
    suppress,
)
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp.client.auth import OAuthFlowError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from loopline.bundle import McpConnectionSettings
from loopline.clock import Clock
from loopline.errors import LooplineError, ToolError
from loopline.mcp.results import AddedTool, call_result, list_added_tools, list_pages
from loopline.mcp.tool_cache import CachedTools
from loopline.mcp.tool_lists import SCHEMA_BYTES, ToolLists
from loopline.mcp.transports import HttpEndpoint, ServerProcess
from loopline.models import Json, JsonObject, dumps, one_line
from loopline.models.bounded_schema import UnusableSchema, check_schema
from loopline.models.json_schema import SchemaMismatch, convert_scalars, validator_of_checked
from loopline.models.safe_text import MIN_SECRET_CHARACTERS
from loopline.tasks import cancel_all, wait_until_done
from loopline.tools import AskPerson, McpFile, McpResult

QUESTION_CHARACTERS = 2_000
FormContent = dict[str, str | int | float | bool | list[str] | None]
_CONTENT: TypeAdapter[FormContent] = TypeAdapter(FormContent)
_DECLINED = types.ElicitResult(action="decline")


@dataclass(frozen=True, slots=True, eq=False)
class _AskingCall:
    """A running call, and its questions without an answer."""

    ask: AskPerson
    waiting: set[asyncio.Task[Json]] = field(default_factory=set[asyncio.Task[Json]])


_current: ContextVar[_AskingCall | None] = ContextVar("_current", default=None)


class ServerQuestions:
    """Passes the questions of a server to the calls that they belong to.

    In the older protocol a question does not name its call, so it is declined if several calls are running.
    """

    def __init__(self, server: str, remove_secrets: Callable[[str], str]) -> None:
        self._server = server
        self._remove_secrets = remove_secrets
        self._open: list[_AskingCall] = []

    @contextmanager
    def route_to(self, ask: AskPerson) -> Generator[None]:
        """Pass questions to this call during the context; questions without an answer are cancelled at its end."""
        call = _AskingCall(ask)
        token = _current.set(call)
        self._open.append(call)
        try:
            yield
        finally:
            self._open.remove(call)
            _current.reset(token)
            for task in call.waiting:
                task.cancel()

    async def ask(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Ask the user of the call, and return the result or error for the server.

        The result is an error for a form with an unusable schema, declined if the call is not known, and cancelled if the
        call ends before the answer.
        """
        del context
        if isinstance(params, types.ElicitRequestFormParams):
            try:
                await asyncio.to_thread(_check_form, params.requested_schema)
            except UnusableSchema as error:
                return types.ErrorData(
                    code=types.INVALID_PARAMS, message=f"requestedSchema: {error}"
                )
        call = _current.get()
        if call is None and len(self._open) == 1:
            [call] = self._open
        if call is None:
            return _DECLINED
        task = asyncio.ensure_future(self._answer(call, params))
        call.waiting.add(task)
        try:
            answer = await task
            return await asyncio.to_thread(_result, answer, params)
        except asyncio.CancelledError:
            if task.cancelled() and call not in self._open:
                return types.ElicitResult(action="cancel")  # the call of the question has ended
            raise
        finally:
            call.waiting.discard(task)

    async def _answer(self, call: _AskingCall, params: types.ElicitRequestParams) -> Json:
        """Ask the user of the call and return the answer. The question is without secrets, and cut if it is long."""
        message = one_line(self._remove_secrets(params.message), QUESTION_CHARACTERS)
        match params:
            case types.ElicitRequestFormParams(requested_schema=schema):
                return await call.ask(f"{self._server} asks: {message}", dict(schema))
            case types.ElicitRequestURLParams(url=url):
                address = one_line(self._remove_secrets(url), QUESTION_CHARACTERS)
                return await call.ask(f"{self._server} asks you to open {address}: {message}", None)


def _check_form(schema: JsonObject) -> None:
    """Check the schema of a form. A large schema takes long.

    Raises:
        UnusableSchema: the schema has more than `SCHEMA_BYTES` bytes, or cannot be used.
    """
    size = len(dumps(schema))
    if size > SCHEMA_BYTES:
        raise UnusableSchema(f"it has {size:,} bytes, more than {SCHEMA_BYTES:,}")
    check_schema(schema, skip_unreadable=True)


def _result(answer: Json, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Return the result for the server: declined for None or False, otherwise accepted with the answer to a form.

    Missing fields of the answer get their defaults first. If it does not fit the schema of the form, the result is
    cancelled.
    """
    if answer is None or answer is False:
        return _DECLINED
    if isinstance(params, types.ElicitRequestURLParams):
        return types.ElicitResult(action="accept")
    try:
        schema = params.requested_schema
        filled = convert_scalars(_fill_in_defaults(answer, schema), schema)
        validator_of_checked(schema)(filled)
        return types.ElicitResult(action="accept", content=_CONTENT.validate_python(filled))
    except (SchemaMismatch, ValidationError):
        return types.ElicitResult(action="cancel")


def _fill_in_defaults(answer: Json, schema: Mapping[str, Json]) -> Json:
    """Return the answer with the defaults of missing fields; unchanged if it is not an object."""
    match answer, schema:
        case dict(), {"properties": dict(properties)}:
            defaults = {
                name: described["default"]
                for name, described in properties.items()
                if isinstance(described, dict) and "default" in described
            }
            return {**defaults, **answer}
        case _:
            return answer


logger: logging.Logger = logging.getLogger("loopline")

LONGEST_PAUSE = 60.0
"""The maximum number of seconds between two attempts to start a server."""
VERSION = "1"
PROGRESS_SECONDS = 0.1
"""Progress of a call is shown at most this often."""
RELIST_SECONDS = 1.0
TEXT_CHARACTERS = 2_000
_HIDDEN = "[secret]"
_WRONG_HEADERS = "its x-mcp-header annotations are wrong"
_LIST_CHANGES = (
    types.ToolListChangedNotification,
    types.ResourceListChangedNotification,
    types.PromptListChangedNotification,
)
_FAILURES = (
    MCPError,
    OAuthFlowError,
    ValueError,
    OSError,
    RuntimeError,
    httpx2.HTTPError,
    ExceptionGroup,
)
"""The errors that the SDK raises if a server cannot be reached, or violates the protocol."""


Authorize = Callable[
    [McpConnectionSettings, Callable[[str], None]], AbstractAsyncContextManager[httpx2.Auth]
]
"""Signs in to a server over HTTP; its second argument is called with each secret."""


@dataclass(frozen=True, slots=True)
class _Session:
    """An open session: the client, and the link, which has the reason for the end of the connection."""

    client: Client
    link: ServerProcess | HttpEndpoint
    over: asyncio.Event

    @property
    def is_over(self) -> bool:
        return self.over.is_set() or self.link.ended.is_set()


class McpConnection:
    """A server that is started at the first call, and again at the first call after it ended.

    `settings` returns the settings with the values of variables. `on_tools` is called with each list of tools. After a
    failed start, calls fail without another attempt for 1, 2, 4, … and at most 60 seconds.
    """

    def __init__(
        self,
        name: str,
        settings: Callable[[], McpConnectionSettings],
        *,
        clock: Clock,
        start_seconds: float,
        on_tools: Callable[[CachedTools], None],
        authorize: Authorize | None = None,
    ) -> None:
        self._name = name
        self._settings = settings
        self._clock = clock
        self._start_seconds = start_seconds
        self._on_tools = on_tools
        self._authorize = authorize
        self._lists = ToolLists()
        self._outputs: dict[str, JsonObject] = {}
        self._added: dict[str, AddedTool] = {}
        self._secrets: tuple[str, ...] = ()
        self._session: _Session | None = None
        self._owner: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[_Session] | None = None
        self._stop = asyncio.Event()
        self._tools_changed = asyncio.Event()
        self._questions = ServerQuestions(name, self._remove_secrets)
        self._failures = 0
        self._not_before = 0.0
        self._failure = ""
        self._closed = False

    async def call(
        self,
        tool: str,
        arguments: JsonObject,
        on_progress: Callable[[str], None],
        on_question: AskPerson,
    ) -> McpResult:
        """Call a tool, and start the server if it does not run.

        The server may ask the user questions, and cancelling this method cancels the call on the server; the call has no
        timeout. Secrets are removed from texts. A result that the server marks as an error is returned.

        Raises:
            ToolError: the server cannot be started, ended, or sent an error or a result that does not fit its schema.
        """
        session = await self.start()
        last = -PROGRESS_SECONDS

        async def show(progress: float, total: float | None, message: str | None) -> None:
            """Report progress without secrets, at most every `PROGRESS_SECONDS`; the last one is always reported."""
            nonlocal last
            now = self._clock.elapsed()
            if now - last >= PROGRESS_SECONDS or progress == total:
                last = now
                of = f" of {total:g}" if total is not None else ""
                words = f": {message[:TEXT_CHARACTERS]}" if message else ""
                on_progress(self._remove_secrets(f"{progress:g}{of}{words}"))

        try:
            with self._questions.route_to(on_question):
                added = self._added.get(tool)
                if added is not None:
                    shown = await added.run(session.client, arguments)
                else:
                    result = await session.client.call_tool(tool, arguments, progress_callback=show)
                    await self._check_output(tool, result)
                    shown = call_result(result)
        except MCPError as error:
            if session.is_over or _is_closed(error):
                raise ToolError(await self._ending(session)) from None
            raise ToolError(self._clean(error.message)) from None
        except ValidationError:
            raise ToolError(f"{self._name} sent an invalid result of a tool") from None
        except (SchemaMismatch, RuntimeError) as error:
            raise ToolError(self._clean(str(error))) from None
        except (OSError, httpx2.HTTPError) as error:
            raise ToolError(self._clean(f"{self._name}: {_reason(error)}")) from None
        return replace(
            shown,
            text=self._remove_secrets(shown.text),
            files=tuple(map(self._remove_file_secrets, shown.files)),
            structured=_map_texts(shown.structured, self._remove_secrets),
        )

    async def close(self) -> None:
        """Stop the server and wait until it has stopped; running calls and later calls fail."""
        self._closed = True
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await wait_until_done(self._starting)
        self._stop.set()
        if self._owner is not None:
            await wait_until_done(self._owner)

    async def start(self) -> _Session:
        """Start the server and list its tools if it is not running, and return its session.

        Raises:
            ToolError: the server is closed, cannot be started, or may not be tried again yet; the message has the
                reason, without secrets.
        """
        session = self._session
        if session is not None and not session.is_over:
            return session
        if self._closed:
            raise ToolError(f"the MCP server {self._name!r} is closed with its harness")
        if self._starting is None or self._starting.done():
            remaining = self._not_before - self._clock.elapsed()
            if remaining > 0:
                raise ToolError(f"{self._failure}; it can be tried again in {remaining:.0f} s")
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> _Session:
        """Start the task that owns the session, and wait until the session is open.

        Raises:
            ToolError: the session is not open after `start_seconds`, or opening it failed; the next attempt is delayed.
        """
        if self._owner is not None:
            self._stop.set()
            await wait_until_done(self._owner)
        self._stop = asyncio.Event()
        opened: asyncio.Future[_Session] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(opened, self._stop))
        try:
            async with asyncio.timeout(self._start_seconds):
                session = await asyncio.shield(opened)
        except TimeoutError:
            self._fail(f"it was not ready after {self._start_seconds:g} s")
        except ToolError as error:
            self._fail(str(error))
        except asyncio.CancelledError:
            await self._cancel_owner()
            raise
        else:
            self._failures = 0
            self._session = session
            return session
        await self._cancel_owner()
        raise ToolError(self._failure)

    def _fail(self, reason: str) -> None:
        self._failures += 1
        pause = min(2.0 ** (self._failures - 1), LONGEST_PAUSE)
        self._not_before = self._clock.elapsed() + pause
        self._failure = f"the MCP server {self._name!r} cannot be started: {reason}"

    async def _cancel_owner(self) -> None:
        if self._owner is not None:
            self._owner.cancel()
            await wait_until_done(self._owner)

    async def _own(self, opened: asyncio.Future[_Session], stop: asyncio.Event) -> None:
        """Open the session, serve it and close it in one task, because its cancel scopes belong to a task.

        A failure before the session is open becomes a ToolError of `opened`, without secrets; a later failure ends the
        session.
        """
        link: ServerProcess | HttpEndpoint | None = None
        over = asyncio.Event()
        try:
            settings = self._settings()
            self._secrets = settings.secrets
            async with AsyncExitStack() as stack:
                link = await self._link(settings, stack)
                client = await stack.enter_async_context(self._client(link))
                await self._list_tools(client)
                if not opened.done():
                    opened.set_result(_Session(client, link, over))
                await self._serve(client, link, stop)
        except ToolError as error:
            _refuse(opened, ToolError(self._clean(str(error))))
        except _FAILURES as error:
            words = f" ({link.last_words})" if link is not None and link.last_words else ""
            _refuse(opened, ToolError(self._clean(f"{_reason(error)}{words}")))
        finally:
            over.set()
            _refuse(opened, ToolError("it was stopped"))

    async def _link(
        self, settings: McpConnectionSettings, stack: AsyncExitStack
    ) -> ServerProcess | HttpEndpoint:
        """Return the process or the HTTP endpoint of the server.

        If the settings require a sign-in, it is opened for the endpoint, and `stack` closes it.
        """
        if not settings.url:
            return ServerProcess(settings)
        if self._authorize is None or not settings.signs_in:
            return HttpEndpoint(settings)
        auth = await stack.enter_async_context(self._authorize(settings, self._hide))
        return HttpEndpoint(settings, auth)

    def _hide(self, secret: str) -> None:
        if len(secret) >= MIN_SECRET_CHARACTERS and secret not in self._secrets:
            self._secrets = (secret, *self._secrets)

    def _client(self, link: ServerProcess | HttpEndpoint) -> Client:
        """Return a client over the link that notes changed lists and answers questions; it does not connect yet."""

        async def on_message(message: object) -> None:
            if isinstance(message, _LIST_CHANGES):
                self._tools_changed.set()

        return Client(
            self._lists.read_from(link.open()),
            client_info=types.Implementation(name="loopline", version=VERSION),
            message_handler=on_message,
            elicitation_callback=self._questions.ask,
            cache=None,
        )

    async def _serve(
        self, client: Client, link: ServerProcess | HttpEndpoint, stop: asyncio.Event
    ) -> None:
        """Return at `stop` or the end of the connection; until then, list the tools again when they have changed."""
        works = (stop.wait(), link.ended.wait(), self._relist(client), self._listen(client))
        tasks = [asyncio.create_task(work) for work in works]
        stopped, ended, *_ = tasks
        try:
            await asyncio.wait([stopped, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(*tasks)

    async def _relist(self, client: Client) -> None:
        """List the tools each time they have changed, until cancelled.

        A failed list is logged, and requested again after 2, 4, … and at most 60 seconds.
        """
        pause = RELIST_SECONDS
        while True:
            await self._tools_changed.wait()
            self._tools_changed.clear()
            try:
                await self._list_tools(client)
            except (MCPError, ValidationError) as error:
                logger.warning("%s: %s", self._name, self._clean(_reason(error)))
                self._tools_changed.set()
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                pause = RELIST_SECONDS
            await asyncio.sleep(pause)

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes of the lists, which the newer protocol requires, and note each change.

        Return at once for the older protocol, or if the server does not support subscriptions.
        """
        has = client.server_capabilities
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        try:
            async with client.listen(
                tools_list_changed=has.tools is not None,
                prompts_list_changed=has.prompts is not None,
                resources_list_changed=has.resources is not None,
            ) as changes:
                async for _ in changes:
                    self._tools_changed.set()
        except (MCPError, RuntimeError, TimeoutError):
            return  # the server does not support subscriptions

    async def _list_tools(self, client: Client) -> None:
        """List the tools, add those for resources and prompts, store them all, and pass them to `on_tools`.

        If the server refuses a page or sends an invalid one, raise an MCPError or a ValidationError.
        """
        names = set[str]()
        self._lists.clear()
        self._lists.version = client.protocol_version
        if client.server_capabilities.tools is not None:
            listed_tools = await list_pages(client.list_tools, lambda page: page.tools)
            names = {tool.name for tool in listed_tools}
        listed = self._lists.usable
        specs = [spec for name, spec in listed.items() if name in names]
        ignored = {name: _WRONG_HEADERS for name in listed if name not in names}
        self._outputs = {spec.name: spec.output_schema for spec in specs if spec.output_schema}
        self._added = await list_added_tools(client, {spec.name for spec in specs})
        info = client.server_info
        kept = CachedTools(
            server=one_line(info.name) if info else "",
            version=one_line(info.version) if info else "",
            tools=(*specs, *(tool.spec for tool in self._added.values())),
            left_out=self._lists.unusable | ignored,
        )
        self._on_tools(kept)

    async def _check_output(self, tool: str, result: types.CallToolResult) -> None:
        """Check a structured result against the output schema of its tool.

        An error result, and a result of a tool without a schema, is accepted.

        Raises:
            SchemaMismatch: the structured result is missing, or does not fit the schema.
        """
        schema = self._outputs.get(tool)
        if schema is None or result.is_error:
            return
        if result.structured_content is None:
            raise SchemaMismatch(f"{tool} has an output schema, but gave no structured result")
        try:
            validate = await asyncio.to_thread(validator_of_checked, schema)
            await asyncio.to_thread(validate, result.structured_content)
        except SchemaMismatch as error:
            raise SchemaMismatch(
                f"the result of {tool} does not fit its schema: {error}"
            ) from error

    async def _ending(self, session: _Session) -> str:
        """Wait up to 1 second for the reason why the connection ended, and return the error text for a call."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await session.link.ended.wait()
        link = session.link
        words = f": {link.last_words}" if link.last_words else ""
        why = link.ending or "its connection closed"
        return self._clean(
            f"the MCP server {self._name!r} gave no result, because {why}{words}; "
            "whether the call took effect is unknown"
        )

    def _clean(self, text: str) -> str:
        return one_line(self._remove_secrets(text), TEXT_CHARACTERS)

    def _remove_file_secrets(self, file: McpFile) -> McpFile:
        data = file.data
        for secret in self._secrets:
            data = data.replace(secret.encode(), _HIDDEN.encode())
        return replace(file, data=data, name=self._remove_secrets(file.name))

    def _remove_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text


def _is_closed(error: MCPError) -> bool:
    """Return whether the SDK itself raised the error; a server may send the same code."""
    return error.code == types.CONNECTION_CLOSED and error.message == "Connection closed"


def _refuse(opened: asyncio.Future[_Session], error: ToolError) -> None:
    if not opened.done():
        opened.set_exception(error)
        opened.exception()  # marks the exception as retrieved


def _reason(error: BaseException) -> str:
    """Return the message of an error, or of the first error in a group.

    It begins with the name of the type, except for a LooplineError.
    """
    match error:
        case BaseExceptionGroup(exceptions=(BaseException() as first, *_)):
            return _reason(first)
        case LooplineError():
            return str(error)
        case _:
            return f"{type(error).__name__}: {error}".removesuffix(": ")


def _map_texts(value: Json, change: Callable[[str], str]) -> Json:
    """Apply `change` to all texts in a JSON value, also to keys; numbers, booleans and None are not changed."""
    match value:
        case str():
            return change(value)
        case list():
            return [_map_texts(item, change) for item in value]
        case dict():
            return {change(key): _map_texts(item, change) for key, item in value.items()}
        case _:
            return value
