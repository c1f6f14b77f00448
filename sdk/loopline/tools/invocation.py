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
)
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NoReturn, cast

from typing_extensions import TypeVar

from loopline.errors import LooplineError, ToolError
from loopline.models import Json, Model, dumps
from loopline.prompt import View
from loopline.reader import Reader
from loopline.timeline import CustomEvent, LimitValue, Moment, Timeline, TurnResult
from loopline.timeline.tasks import settled
from loopline.tools.outcome import as_json

Deps = TypeVar("Deps", covariant=True, default=None)


class AskUser(BaseException):
    """A tool has asked the user something: its call ends as pending, and the answer is its result.

    It is no `Exception`, so that no tool takes it for a failure of its own. Where a child run asks,
    `child` is the `cv:` ref of the block by which it does, and the answer goes to that.
    """

    def __init__(
        self, question: str, *, kind: Literal["question", "approval"] = "question", child: str = ""
    ) -> None:
        super().__init__(question)
        self.question = question
        self.kind: Literal["question", "approval"] = kind
        self.child = child


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTask:
    """What a child run is to do, and with what; what is not given is as the workflow has wired it.

    `text` is the child's prompt, with `context` below it. `tools` are names, or patterns such as `shop.*`,
    of the bundle's tools that it may call. `limits` are its own, as `say` takes them, and not those that
    the turn was asked with; but it has no more time, tokens and money than its parent has left. `model` is one, or
    the role of those it is asked of, such as `fast`.
    """

    text: str
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    model: Model | str | None = None
    limits: Mapping[str, LimitValue] = field(default_factory=dict[str, LimitValue])
    context: str = ""

    @property
    def prompt(self) -> str:
        """What the child is told."""
        return "\n\n".join(part for part in (self.text, self.context) if part)


def _no_children(task: ChildTask) -> Awaitable[TurnResult]:
    del task
    raise ToolError("no child run can be begun here: the tool was called outside any conversation")


@dataclass(frozen=True, slots=True)
class Emission:
    """An event on its way, which need not be awaited; awaited, it raises what kept it from being recorded."""

    recorded: asyncio.Future[None] | None = None

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until the event is recorded, come what may; one that is not durable was heard already."""
        if self.recorded is not None:
            yield from settled(self.recorded).__await__()


def _unheard(event: CustomEvent, durable: bool) -> Emission:
    del event, durable
    return Emission()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext(Generic[Deps]):
    """What a tool function that asks for one is given.

    `idempotency_key` is the same when the same call is run again after a crash. `scratchpad` holds the
    turn's unsaved values, shared with the workflow and its hooks. `properties` are the bundle's, by
    dotted name. `deps` is the object that `Harness.open` was given; no log, event or repr shows it.
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
    on_emit: Callable[[CustomEvent, bool], Emission] = _unheard
    deps: Deps = field(default=cast("Any", None), repr=False, compare=False)

    def progress(self, text: str) -> None:
        """Tell whoever watches how far the call has come; nothing is recorded."""
        self.on_progress(text)

    def emit(self, name: str, data: object = None, *, durable: bool = False) -> Emission:
        """Tell whoever listens of an event of your own, in its order among all that the call tells.

        `data` is any JSON, pydantic or dataclass value. A `durable` event is a block, `event.custom`, which is
        recorded once this is awaited or, in a thread, where nothing is awaited, once it returns. Others
        pass by, like progress. The model sees neither.

        Raises:
            LooplineError: the name or the data is wrong, or the call has ended.
        """
        return self.on_emit(custom_event(name, data, self.call_id), durable)

    def ask_user(self, question: str) -> NoReturn:
        """Ask the user, and end the call as pending: it never returns.

        What the user gives to `resume` is the call's result; the tool is not run again for it.
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
        """Begin a run of its own for a task; awaited, it gives what came of it.

        It is for async tools of the effect "meta". When such a call is carried on after a crash or a
        pause its function is called again, and the n-th `spawn` of it stands for the same child as
        before: one that has ended is not asked again. In its answer citations are `[1]`, `[2]`, …, by
        the order of its `sources`.

        Raises:
            ToolError: the tool may not, or the child's code failed.
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


def _let_it_run(thread: Future[object]) -> None:
    del thread


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInvocation:
    """One call as the loop hands it to a tool: the context of a function, and what the loop knows.

    `on_outlived` is told of a thread that still runs when the call is cut off.
    """

    context: ToolContext[object]
    timeline: Timeline
    view: View
    reader: Reader
    moment: Moment
    on_outlived: Callable[[Future[object]], None] = _let_it_run


EVENT_BYTES = 2_000_000
"""Bytes of JSON that the data of an event may have."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


def custom_event(name: str, data: object, call_id: str = "") -> CustomEvent:
    """Return the event, its data being any JSON, pydantic or dataclass value.

    Raises:
        LooplineError: the name has other characters or is too long, or the data is no JSON or too large.
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
