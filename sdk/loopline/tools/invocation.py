"""A tool invocation: the context, callbacks and state that a tool receives in addition to its arguments."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import (
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from concurrent.futures import Future
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Generic, NoReturn, Protocol, Self, cast

from msgspec import Struct
from typing_extensions import TypeVar

from loopline import timeline as tl
from loopline.errors import LooplineError, ToolError
from loopline.events import Event
from loopline.files import FileChange, Workspace
from loopline.models import UNSET, Json, JsonObject, Model, ModelSettings, dumps
from loopline.prompt import View
from loopline.reader import Reader
from loopline.tasks import finish
from loopline.tools.outcome import Outcome, as_json

Deps = TypeVar("Deps", covariant=True, default=None)


class AskUser(BaseException):
    """A tool's question to the user: its call ends as pending, and the answer becomes its result.

    It is not an `Exception`, so that tools do not catch it as a failure. If a child run asks, `child` is the `cv:` ref of
    the block with its question, to which the answer is forwarded. An approval needs the yes of `people` people. The kind
    "client" is that of a call that the client runs; `form` is then the JSON Schema of its result, or None.
    """

    def __init__(
        self,
        question: str,
        *,
        kind: tl.WaitKind = "question",
        child: str = "",
        people: int = 1,
        form: Json = None,
    ) -> None:
        super().__init__(question)
        self.question = question
        self.kind: tl.WaitKind = kind
        self.child = child
        self.people = people
        self.form = form

    @classmethod
    def for_client(cls, tool: str, arguments: JsonObject, form: Json) -> Self:
        """Return the exception for a call of `tool` that the client runs; `form` is the JSON Schema of the result, or None."""
        return cls(f"The client runs {tool} with {dumps(arguments)}.", kind="client", form=form)


DELEGATE = "crew.delegate"
"""The tool that runs agents; `<agent_call …>` in the tagged protocol is a call of it."""

ChildBodies = Callable[[tl.Timeline, tl.RunChild], Sequence[tl.Body]]
"""Returns the bodies that are recorded with the start and with the end of a child run."""


@dataclass(slots=True, eq=False)
class CallCache:
    """The outcomes of calls to tools that match `patterns` and only read; several child runs share them.

    Equal calls at the same time run once. A call that failed is not cached.
    """

    patterns: tuple[str, ...]
    _running: dict[str, asyncio.Future[Outcome]] = field(
        default_factory=dict[str, "asyncio.Future[Outcome]"]
    )

    def takes(self, tool: str, effect: tl.Effect) -> bool:
        """Return whether calls to a tool of that name and effect are cached."""
        return effect == "read" and any(fnmatchcase(tool, pattern) for pattern in self.patterns)

    async def outcome(
        self, tool: str, arguments: JsonObject, run: Callable[[], Awaitable[Outcome]]
    ) -> Outcome:
        """Return the outcome of an equal call, waiting for it if it is running; without an equal call, that of `run`.

        If the awaited call fails, a caller that waits makes the call itself. An error of `run` is raised.
        """
        key = json.dumps([tool, arguments], sort_keys=True)
        while (running := self._running.get(key)) is not None:
            # Unlike `shield`, `wait` raises CancelledError only if this caller is cancelled, and not for a cancelled call.
            await asyncio.wait([running])
            if not running.cancelled():
                return running.result()
        self._running[key] = own = asyncio.get_running_loop().create_future()
        try:
            outcome = await run()
        except BaseException:
            # Callers that wait see the cancelled future and make the call themselves.
            del self._running[key]
            own.cancel()
            raise
        own.set_result(outcome)
        return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyForm:
    """The form of a structured reply: a JSON object that matches `schema` and for which `check` does not raise.

    A model with tool calls is forced to call a function with this `name` and `description`.
    """

    name: str
    description: str
    schema: JsonObject
    check: Callable[[JsonObject], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTask:
    """The task of a child run. A field that is None is taken from the workflow.

    `text` is the child's prompt, followed by `context`. `settings` are the agent's settings of the model. `tools` are names, or patterns such as `shop.*`, of the bundle's
    tools that it may call. `limits` are the options of `say` for the child; in any case it cannot use more time, tokens
    and money than its parent has left. `model` is a model, or a role of the bundle's models such as `fast`. `skills` are
    patterns of the skills that it can use. `agent` is the name of the agent that runs it, and `agent_digest` the digest of
    the agent's definition.

    If a call may start its children in different orders, each child needs a unique `number`, from 1. The result of
    `bodies` is recorded in the same append as each `run.child` block of the child. Its workspace starts with `files`; with
    `writes_files` it may change them. `call_cache` is shared with other runs. `on_event` is called for each event of the
    run.

    A child with a `form` makes one structured request, without tools; its answer is the JSON of the reply.
    """

    text: str
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    model: Model | str | None = None
    limits: Mapping[str, tl.LimitValue] = field(default_factory=dict[str, tl.LimitValue])
    context: str = ""
    skills: tuple[str, ...] | None = None
    agent: str = ""
    agent_digest: str = ""
    number: int = 0
    bodies: ChildBodies | None = None
    files: tuple[FileChange, ...] = ()
    writes_files: bool = True
    call_cache: CallCache | None = None
    on_event: Callable[[Event], None] | None = None
    form: ReplyForm | None = None
    settings: ModelSettings = UNSET

    @property
    def prompt(self) -> str:
        """The text and the context, separated by an empty line."""
        return "\n\n".join(part for part in (self.text, self.context) if part)


def _no_children(task: ChildTask) -> Awaitable[tl.TurnResult]:
    del task
    raise ToolError("no child run can be started: the tool was called outside of a conversation")


def _no_background(work: object, seconds: float | None, may_repeat: bool) -> Outcome:
    del work, seconds, may_repeat
    raise ToolError(
        "no work can run in the background: the tool was called outside of a conversation"
    )


@dataclass(frozen=True, slots=True)
class Emission:
    """An emitted event. Awaiting it is optional; it waits until the event is recorded, and raises the error if that fails."""

    recorded: asyncio.Future[None] | None = None

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until a durable event is recorded; for other events, return at once."""
        if self.recorded is not None:
            yield from finish(self.recorded).__await__()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext(Generic[Deps]):
    """The context of a call, for a tool function that has a parameter with the type `ToolContext`.

    `idempotency_key` is the same when the same call runs again after a crash. `scratchpad` has values of the turn that are
    not stored, shared with the workflow and its hooks. `properties` are those of the bundle, by dotted name. `workspace`
    has the files of the turn; changes are recorded with the result of the call. `deps` is the object that was passed to
    `Harness.open`; it is not shown in logs, events and reprs.
    """

    call_id: str
    idempotency_key: str
    conversation: str
    turn_id: str
    user: str
    properties: Mapping[str, Json]
    scratchpad: MutableMapping[str, Any]
    on_progress: Callable[[str], None]
    on_spawn: Callable[[ChildTask], Awaitable[tl.TurnResult]] = _no_children
    on_emit: Callable[[tl.CustomEvent, bool], Emission] = lambda _event, _durable: Emission()
    workspace: Workspace = field(default_factory=lambda: Workspace(tl.Timeline(), 1), compare=False)
    deps: Deps = field(default=cast("Any", None), repr=False, compare=False)

    def progress(self, text: str) -> None:
        """Report the progress of the call to the listeners of the turn; it is not recorded."""
        self.on_progress(text)

    def emit(self, name: str, data: object = None, *, durable: bool = False) -> Emission:
        """Emit a custom event to the listeners of the turn; the events of a call keep their order.

        `data` is any JSON, pydantic or dataclass value. A `durable` event is recorded as a block `event.custom`: when the
        result is awaited or, in a thread, when this returns. Other events are not recorded. The model does not see events.

        Raises:
            LooplineError: the name or the data is invalid, or the call has ended.
        """
        return self.on_emit(custom_event(name, data, self.call_id), durable)

    def ask_user(self, question: str) -> NoReturn:
        """Ask the user, and end the call as pending; this never returns.

        The value that the user passes to `resume` becomes the result of the call; the tool does not run again.
        """
        raise AskUser(question)

    def spawn(
        self,
        text: str,
        *,
        instructions: str | None = None,
        tools: Iterable[str] | None = None,
        model: Model | str | None = None,
        limits: Mapping[str, tl.LimitValue] | None = None,
        context: str = "",
    ) -> Awaitable[tl.TurnResult]:
        """Start a child run for a task at once; awaiting it returns the result. The parameters are as in `ChildTask`.

        Only async tools with the effect "meta" can start child runs. If their call is resumed after a crash or a pause,
        the function runs again, and its n-th `spawn` returns the same child run as before; a child run that has ended
        is not started again. Child runs that still run when the function ends are cancelled. Citations in the answer
        are `[1]`, `[2]`, …, in the order of its `sources`.

        Raises:
            ToolError: the tool may not start this child run; or, when it is awaited, the code of the child failed.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ToolError("only an async tool can start a child run: write async def") from None
        return self.on_spawn(
            ChildTask(
                text=text,
                instructions=instructions,
                tools=None if tools is None else tuple(tools),
                model=model,
                limits={} if limits is None else limits,
                context=context,
            )
        )


async def _no_answer(question: str, schema: Json) -> Json:
    del question, schema
    return None


class ApprovalRequired(LooplineError):
    """A call of a program needs an approval, which was not given in time."""

    def __init__(self, tool: str, question: str) -> None:
        super().__init__(f"approval_required: {tool} needs an approval: {question}")
        self.tool = tool
        self.question = question


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxiedAnswer:
    """The result of a call for the program that made it; `code` is the status of a call that failed.

    `sections` are the texts of the sections of the result, such as those that `react.read` found; `text` has them too.
    `ran_with` are the arguments that the user put in the place of those of the program, None if the user changed none.
    """

    ok: bool
    text: str
    sections: tuple[str, ...] = ()
    code: str = ""
    ran_with: JsonObject | None = None


class ToolProxy(Protocol):
    """Tool calls for a program; each is recorded as a call of the turn."""

    @property
    def names(self) -> Sequence[str]:
        """The tools that the program may call."""
        ...

    async def call(
        self, tool: str, arguments: JsonObject, *, approval_seconds: float
    ) -> ProxiedAnswer:
        """Run a call and return its result; an error of the tool is returned, too.

        Raises:
            ApprovalRequired: the call needs an approval, which was not given within `approval_seconds`.
            LooplineError: the program has ended, or the call could not be recorded.
        """
        ...


class NoProxy:
    """The proxy outside of a conversation: it refuses all calls, because they cannot be recorded."""

    names: Sequence[str] = ()

    async def call(
        self, tool: str, arguments: JsonObject, *, approval_seconds: float
    ) -> ProxiedAnswer:
        """Refuse the call.

        Raises:
            ToolError: always.
        """
        del arguments, approval_seconds
        raise ToolError(f"{tool} cannot be called: the program runs outside of a conversation")


Work = Callable[[], Awaitable[Outcome]]


BeginLater = Callable[[Work, float | None, bool], Outcome]
"""Begins work in the background, and returns the outcome of the call, which ends at once.

The work may take the given seconds; None is the time that a call may take, or an hour. If the last argument is True, it
begins again after a crash.

Raises:
    ToolError: the work cannot be started.
"""


class ToolInvocation(Struct, frozen=True, kw_only=True, dict=True):
    """One call of a tool by the loop: the context for a tool function, and the state of the loop.

    `on_outlived` receives a thread that still runs when its call is cancelled. `on_question` asks the user a question
    while the call runs, with the schema of the answer; it returns None if there is no answer. `make_proxy` makes the
    `proxy`, which runs the calls of a program. `begin_later` runs work in the background. If the call `is_background`, it runs
    there already.
    """

    make_context: Callable[[], ToolContext[object]]
    timeline: tl.Timeline
    view: View
    reader: Reader
    moment: tl.Moment
    on_outlived: Callable[[Future[object]], None] = lambda _thread: None
    on_question: Callable[[str, Json], Awaitable[Json]] = _no_answer
    make_proxy: Callable[[], ToolProxy] = NoProxy
    begin_later: BeginLater = _no_background
    is_background: bool = False

    @cached_property
    def context(self) -> ToolContext[object]:
        """The context of the call, made at its first use."""
        return self.make_context()

    @cached_property
    def proxy(self) -> ToolProxy:
        """The proxy for the calls of a program, made at its first use."""
        return self.make_proxy()


EVENT_BYTES = 2_000_000
"""The largest size of the data of an event, in bytes of JSON."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_RESERVED = re.compile(r"question|file|plan|input|background\.started|(?:loopline|crew)\..*")


def custom_event(name: str, data: object, call_id: str = "") -> tl.CustomEvent:
    """Make an event; its data is any JSON, pydantic or dataclass value.

    Raises:
        LooplineError: the name is invalid or reserved for Loopline, or the data cannot be converted to JSON or is too
            large.
    """
    if not _NAME.fullmatch(name):
        raise LooplineError(
            f"{name[:100]!r} is not a name for an event: it has 1 to 100 letters, digits, _ . : or -"
        )
    if _RESERVED.fullmatch(name.casefold()):
        raise LooplineError(
            f"{name!r} is reserved for events of Loopline's own, as are question, file, plan, input, "
            "background.started, loopline.… and crew.…: choose another name"
        )
    try:
        value = as_json(data)
        size = len(dumps(value).encode())
    except (ValueError, TypeError, RecursionError) as error:
        raise LooplineError(f"the data of the event {name!r} is not JSON: {error}") from error
    if size > EVENT_BYTES:
        raise LooplineError(
            f"the data of the event {name!r} has {size:,} bytes, and may have {EVENT_BYTES:,}: store it as a "
            "file or an artifact, and emit its ref"
        )
    return tl.CustomEvent(name=name, data=value, call_id=call_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundCall:
    """A call whose work runs in the background, for `seconds` at most.

    `again` are the arguments with which it begins again after a crash, None if it does not.
    """

    conversation: tl.ConversationKey
    turn: int
    call_id: str
    tool: str
    seconds: float
    again: JsonObject | None = None


class Background(Protocol):
    """Runs work in the background, and records one result for each of its calls, also after a crash."""

    def begin(self, call: BackgroundCall, work: Work) -> Outcome:
        """Start the work, and return the outcome with which the call ends at once, before the work is done.

        Raises:
            ToolError: the work cannot be started.
        """
        ...

    async def settle(self, conversation: tl.ConversationKey, timeline: tl.Timeline) -> None:
        """Record a result for each call whose work no longer runs, such as after a crash, and add it to the timeline."""
        ...

    def find_lost(
        self, conversation: tl.ConversationKey, timeline: tl.Timeline
    ) -> Sequence[BackgroundCall]:
        """Return the calls that must begin again, because their process has gone."""
        ...

    async def wait(self, conversation: tl.ConversationKey, call_id: str, seconds: float) -> bool:
        """Wait until a call of this process has its result, at most `seconds`; return whether it has ended."""
        ...

    def follow(self, recorders: Mapping[tl.ConversationKey, tl.Recorder]) -> None:
        """Set the recorders of the running turns; results of their conversations are recorded through them."""
        ...
