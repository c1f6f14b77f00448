"""A tool invocation: what a tool is given besides its arguments."""

from __future__ import annotations

import asyncio
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
from functools import cached_property
from typing import Any, Generic, Literal, NoReturn, Protocol, cast

from msgspec import Struct
from typing_extensions import TypeVar

from loopline.errors import LooplineError, ToolError
from loopline.events import Event
from loopline.files import FileChange, Workspace
from loopline.models import Json, JsonObject, Model, dumps
from loopline.prompt import View
from loopline.reader import Reader
from loopline.tasks import finish
from loopline.timeline import (
    Body,
    ConversationKey,
    CustomEvent,
    Effect,
    LimitValue,
    Moment,
    Recorder,
    RunChild,
    Timeline,
    TurnResult,
)
from loopline.tools.outcome import Outcome, as_json

Deps = TypeVar("Deps", covariant=True, default=None)


class AskUser(BaseException):
    """A tool's question to the user: its call ends as pending, and the answer becomes its result.

    It is no `Exception`, so that no tool catches it as a failure. If a child run asks, `child` is the `cv:` ref of the
    block with its question, and the answer goes there.
    """

    def __init__(
        self, question: str, *, kind: Literal["question", "approval"] = "question", child: str = ""
    ) -> None:
        super().__init__(question)
        self.question = question
        self.kind: Literal["question", "approval"] = kind
        self.child = child


DELEGATE = "crew.delegate"
"""The tool that has an agent work, which `<agent_call …>` means in the tagged protocol."""

ChildBodies = Callable[[Timeline, RunChild], Sequence[Body]]
"""Returns what is recorded with the beginning of a child run, and with its end."""


class CallCache(Protocol):
    """What calls to tools gave, for several child runs."""

    def takes(self, tool: str, effect: Effect) -> bool:
        """Return whether calls to that tool are cached."""
        ...

    async def outcome(
        self, tool: str, arguments: JsonObject, run: Callable[[], Awaitable[Outcome]]
    ) -> Outcome:
        """Return the outcome of an equal call, or of this one.

        Raises:
            ToolError: the call failed, which is not cached.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyForm:
    """The form of a reply that is data: a JSON object that fits `schema`, and that `check` returns from without raising.

    `name` and `description` are those of the function that a model with calls is made to call.
    """

    name: str
    description: str
    schema: JsonObject
    check: Callable[[JsonObject], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTask:
    """The task of a child run; what is None is as the workflow has wired it.

    `text` is the child's prompt, with `context` below it. `tools` are names, or patterns such as `shop.*`, of the bundle's
    tools that it may call. `limits` are its own, as `say` takes them, not those of the turn; but it has no more time,
    tokens and money than its parent has left. `model` is a model, or a role of the bundle's models such as `fast`.
    `skills` are patterns of the skills that it sees. `agent` names the agent that runs it, and `agent_digest` its definition.

    A call that does not always begin its children in one order gives each a `number` of its own, from 1. `bodies` are
    recorded in the same append as each `run.child` of it. Its workspace begins with `files`, which it cannot change unless it
    `writes_files`. The `call_cache` holds what equal calls of other runs gave. `on_event` hears each event of its run.

    A child with a `form` makes one structured call, without tools; its answer is the JSON of the reply.
    """

    text: str
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    model: Model | str | None = None
    limits: Mapping[str, LimitValue] = field(default_factory=dict[str, LimitValue])
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

    @property
    def prompt(self) -> str:
        """Return the prompt of the child."""
        return "\n\n".join(part for part in (self.text, self.context) if part)


def _no_children(task: ChildTask) -> Awaitable[TurnResult]:
    del task
    raise ToolError("no child run can be begun here: the tool was called outside any conversation")


def _no_background(work: object, seconds: float) -> Outcome:
    del work, seconds
    raise ToolError(
        "nothing can go on in the background: the tool was called outside any conversation"
    )


@dataclass(frozen=True, slots=True)
class Emission:
    """An event on its way; it need not be awaited, but if it is, it raises what kept it from being recorded."""

    recorded: asyncio.Future[None] | None = None

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until a durable event is recorded; other events are delivered already."""
        if self.recorded is not None:
            yield from finish(self.recorded).__await__()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext(Generic[Deps]):
    """What a tool function gets if it has a parameter `ToolContext`.

    `idempotency_key` is the same when the same call runs again after a crash. `scratchpad` holds the turn's unsaved
    values, shared with the workflow and its hooks. `properties` are the bundle's, by dotted name. `workspace` has the
    files of the turn; what is written there is recorded with the result of the call. `deps` is the object given to
    `Harness.open`; no log, event or repr shows it.
    """

    call_id: str
    idempotency_key: str
    conversation: str
    turn_id: str
    user: str
    properties: Mapping[str, Json]
    scratchpad: MutableMapping[str, Any]
    on_progress: Callable[[str], None]
    on_spawn: Callable[[ChildTask], Awaitable[TurnResult]] = _no_children
    on_emit: Callable[[CustomEvent, bool], Emission] = lambda _event, _durable: Emission()
    workspace: Workspace = field(default_factory=lambda: Workspace(Timeline(), 1), compare=False)
    deps: Deps = field(default=cast("Any", None), repr=False, compare=False)

    def progress(self, text: str) -> None:
        """Report the progress of the call to whoever listens; nothing is recorded."""
        self.on_progress(text)

    def emit(self, name: str, data: object = None, *, durable: bool = False) -> Emission:
        """Emit an event of your own, in order with everything else the call emits.

        `data` is any JSON, pydantic or dataclass value. A `durable` event is a block, `event.custom`: it is recorded once this is
        awaited or, in a thread, once it returns. Other events are not recorded, like progress. The model sees neither.

        Raises:
            LooplineError: the name or the data is invalid, or the call has ended.
        """
        return self.on_emit(custom_event(name, data, self.call_id), durable)

    def ask_user(self, question: str) -> NoReturn:
        """Ask the user, and end the call as pending: this never returns.

        The value that the user gives to `resume` is the call's result; the tool does not run again for it.
        """
        raise AskUser(question)

    def spawn(
        self,
        text: str,
        *,
        instructions: str | None = None,
        tools: Iterable[str] | None = None,
        model: Model | str | None = None,
        limits: Mapping[str, LimitValue] | None = None,
        context: str = "",
    ) -> Awaitable[TurnResult]:
        """Start a child run for a task; await it for its result.

        Only async tools with the effect "meta" can use it. If such a call is resumed after a crash or a pause, its
        function runs again, and its n-th `spawn` means the same child run as before: one that has ended is not started
        again. Citations in its answer are `[1]`, `[2]`, …, in the order of its `sources`.

        Raises:
            ToolError: the tool may not spawn, or the child's code failed.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ToolError("only an async tool can begin a child run: write async def") from None
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
    """A program's call awaits approval, and nobody gave it while the program waited."""

    def __init__(self, tool: str, question: str) -> None:
        super().__init__(f"approval_required: {tool} awaits approval: {question}")
        self.tool = tool
        self.question = question


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxiedAnswer:
    """What a call gives to the program that made it; `code` is the status of a call that failed.

    `sections` are the texts that a tool such as `react.read` found, which `text` holds too.
    """

    call_id: str
    ok: bool
    text: str
    sections: tuple[str, ...] = ()
    artifact: Json = None
    code: str = ""


class ToolProxy(Protocol):
    """Calls of tools for a program; each is a call of the turn."""

    @property
    def names(self) -> Sequence[str]:
        """Return the tools that the program may call."""
        ...

    async def call(
        self, tool: str, arguments: JsonObject, *, approval_seconds: float
    ) -> ProxiedAnswer:
        """Run a call; an error of the tool is an answer.

        Raises:
            ApprovalRequired: the call awaits approval, and none was given in so many seconds.
            LooplineError: the program has ended, or the call could not be recorded.
        """
        ...


class NoProxy:
    """A proxy that refuses every call: nothing is there to record it."""

    names: Sequence[str] = ()

    async def call(
        self, tool: str, arguments: JsonObject, *, approval_seconds: float
    ) -> ProxiedAnswer:
        """Refuse the call."""
        del arguments, approval_seconds
        raise ToolError(f"{tool} cannot be called here: the program runs outside any conversation")


class ToolInvocation(Struct, frozen=True, kw_only=True, dict=True):
    """One call as the loop hands it to a tool: the context for a function, made when first needed, and the loop's own state.

    `on_outlived` gets a thread that still runs when the call is cut off. `on_question` asks the user while the call
    runs, with the schema of the answer; it returns None if nobody is there to answer. `make_proxy` makes the `proxy`,
    which runs the calls of a program. `begin_later` runs work in the background for at most the given number of seconds,
    and returns the call's result.
    """

    make_context: Callable[[], ToolContext[object]]
    timeline: Timeline
    view: View
    reader: Reader
    moment: Moment
    on_outlived: Callable[[Future[object]], None] = lambda _thread: None
    on_question: Callable[[str, Json], Awaitable[Json]] = _no_answer
    make_proxy: Callable[[], ToolProxy] = NoProxy
    begin_later: Callable[[Callable[[], Awaitable[Outcome]], float], Outcome] = _no_background

    @cached_property
    def context(self) -> ToolContext[object]:
        """Return the context of the call."""
        return self.make_context()

    @cached_property
    def proxy(self) -> ToolProxy:
        """Return the proxy for the calls of a program, made when first needed."""
        return self.make_proxy()


EVENT_BYTES = 2_000_000
"""Bytes of JSON that the data of an event may have."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


def custom_event(name: str, data: object, call_id: str = "") -> CustomEvent:
    """Return the event, with any JSON, pydantic or dataclass value as its data.

    Raises:
        LooplineError: the name is invalid, or the data is no JSON or too large.
    """
    if not _NAME.fullmatch(name):
        raise LooplineError(
            f"an event's name has 1 to 100 letters, digits, _ . : or -, which {name[:100]!r} has not"
        )
    try:
        value = as_json(data)
        size = len(dumps(value).encode())
    except (ValueError, TypeError, RecursionError) as error:
        raise LooplineError(f"the data of the event {name!r} is no JSON: {error}") from error
    if size > EVENT_BYTES:
        raise LooplineError(
            f"the data of the event {name!r} has {size:,} bytes, and may have {EVENT_BYTES:,}: keep it as a "
            "file or an artifact, and emit its ref"
        )
    return CustomEvent(name=name, data=value, call_id=call_id)


Work = Callable[[], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundCall:
    """A call whose work goes on in the background, for so many seconds at most."""

    conversation: ConversationKey
    turn: int
    call_id: str
    tool: str
    seconds: float


class Background(Protocol):
    """Runs work of calls that have ended, and gives each call one result, also after a crash."""

    def begin(self, call: BackgroundCall, work: Work) -> Outcome:
        """Begin the work, and return the result of the call itself.

        Raises:
            ToolError: no work can be begun here.
        """
        ...

    async def settle(self, conversation: ConversationKey, timeline: Timeline) -> None:
        """Give each call a result whose work is not done any more, and fold it into the timeline."""
        ...

    def follow(self, recorders: Mapping[ConversationKey, Recorder]) -> None:
        """Take the recorders of the turns that run: results are recorded beside these turns."""
        ...


class NoBackground:
    """No work goes on in the background here."""

    def begin(self, call: BackgroundCall, work: Work) -> Outcome:
        """Refuse."""
        del work
        raise ToolError(
            f"{call.tool} cannot go on in the background here: call it without background"
        )

    async def settle(self, conversation: ConversationKey, timeline: Timeline) -> None:
        """Do nothing."""

    def follow(self, recorders: Mapping[ConversationKey, Recorder]) -> None:
        """Do nothing."""
