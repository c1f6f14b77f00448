"""Steps of a workflow: each is recorded with its result, which a resumed turn reads instead of running the step again."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from msgspec import structs

from loopline import timeline as tl
from loopline.bundle.loop import as_async
from loopline.clock import Clock, elapsed_ms
from loopline.errors import LooplineError, StepFailed, StepInterrupted, StoreBusy, StoreError
from loopline.models import OutputType, SchemaMismatch, dumps, well_formed, well_formed_json
from loopline.names import author_error, check_choice, check_type, describe
from loopline.tools import AskUser, ToolFunction

StepEffect = Literal["read", "write"]
STEP_BYTES = 2_000_000
"""The largest result of a step, in bytes of JSON."""
MOST_STEPS = 10_000
"""The most steps of a turn."""
LONGEST_NAME = 200
LOOK_SECONDS = 0.2
"""How often a workflow whose step runs looks for a stop of another process."""
_UNTYPED = (Any, object, inspect.Signature.empty)
EFFECT_UNKNOWN = (
    "its process has gone after it had begun, and it is not begun again: whether it took effect is unknown. If it only "
    'reads, or may run twice, write effect="read"; else pass reconcile=, a function that finds the result'
)


class StepRunner:
    """The steps of one run of a workflow. A name may be used once in a turn."""

    def __init__(self, recorder: tl.Recorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._names: set[str] = set()
        self._running: dict[str, asyncio.Event] = {}
        self._question: AskUser | None = None
        self._watch: asyncio.Task[None] | None = None

    def claim(self, name: str) -> None:
        """Check the name of a new step, and mark the name as used in this turn.

        Raises:
            BundleError: the name is empty, too long or used already, or the turn has too many steps.
            AskUser: another step waits for the user, so no further step may start.
        """
        if self._question is not None:
            raise self._question
        check_type(name, str, "the name of a step", "a text")
        if not name.strip() or len(name) > LONGEST_NAME:
            raise author_error(
                f"the name of a step is a text of 1 to {LONGEST_NAME} characters, not {describe(name)}"
            )
        if name in self._names:
            raise author_error(
                f"this turn has a step {name!r} already: each step needs its own name, by which its result is found "
                'again, such as f"price {tea}" in a loop'
            )
        if len(self._names) >= MOST_STEPS:
            raise author_error(f"a turn may have {MOST_STEPS:,} steps: put more into one step")
        self._names.add(name)

    @contextmanager
    def running(self, name: str) -> Generator[None]:
        """Count a step as running inside the context; meanwhile the log is polled for stops by other processes."""
        ended = self._running[name] = asyncio.Event()
        if self._watch is None:
            self._watch = asyncio.create_task(self._look_for_stops())
        try:
            yield
        finally:
            self._running.pop(name, None)  # it is not there while the step is paused
            ended.set()
            if not self._running:
                self._end_watch()

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _look_for_stops(self) -> None:
        """Poll the log every `LOOK_SECONDS` until cancelled, so that a stop by another process reaches this turn."""
        recorder = self._recorder
        while True:
            # Not by the port's clock: other processes live in the time of this machine.
            await asyncio.sleep(LOOK_SECONDS)
            if recorder.quiet_seconds >= LOOK_SECONDS:
                with suppress(StoreBusy):  # the next look tries again
                    await recorder.newest_steer_after(recorder.timeline.seq)

    async def pause(self, name: str, question: AskUser) -> None:
        """Store the question of this step, so that no further step starts, and wait until no other step runs."""
        self._question = self._question or question
        own = self._running.pop(name, None)
        while self._running:
            await asyncio.wait(
                [asyncio.ensure_future(ended.wait()) for ended in self._running.values()]
            )
        if own is not None:
            self._running[name] = own

    async def record_stop(self, name: str) -> None:
        """Record that a running step was cancelled; not if the turn was handed over, or is left to wait for the user."""
        if self._question is None:
            with suppress(LooplineError):
                stopped = tl.StepEnded(name=name, status="stopped", error=tl.STEP_CUT_OFF)
                await self._recorder.record(stopped)

    async def run(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        effect: StepEffect | None,
        reconcile: Callable[..., Any] | None,
    ) -> Any:
        """Run a step, or return its recorded result; the start and the end of a step are recorded.

        A step that was begun before a crash runs again if it only reads; otherwise `reconcile` is called for its result.

        Raises:
            AskUser: another step waits for the user.
            BundleError: the name, the effect or the type of the result is not allowed, or the tool needs approval.
            StepFailed: the function raised an exception, its result is not allowed, or the step was cancelled.
            StepInterrupted: the process of the step has gone, and its effect is unknown.
        """
        self.claim(name)
        name = well_formed(name)
        if effect is not None:
            check_choice(effect, get_args(StepEffect), "effect of a step")
        stored: tl.Effect = effect or "exclusive"
        called = function
        while isinstance(called, partial):
            called = called.func
        if isinstance(called, ToolFunction):
            if called.approve:
                raise author_error(
                    f"the step {name!r}: its tool has approve=, and a step asks nobody: have an agent call the tool "
                    "with self.run, or pass a function that is not a tool"
                )
            stored = effect or called.effect
            reconcile = reconcile or _bind_alike(called.reconcile, function)
        result = _ResultType(name, function)
        turn = self._recorder.turn
        if (ended := turn.ended_steps.get(name)) is not None:
            return result.read(ended)
        if name not in turn.open_steps:
            await self._recorder.record(tl.StepStarted(name=name, effect=stored))
            return await self._run(name, partial(as_async(function), *arguments), result)
        if stored == "read":
            return await self._run(name, partial(as_async(function), *arguments), result)
        if reconcile is None:
            return await self._end_interrupted(name)
        find = partial(as_async(reconcile), *arguments)
        return await self._run(name, find, result, is_search=True)

    async def _run(
        self,
        name: str,
        work: Callable[[], Awaitable[Any]],
        result: _ResultType,
        *,
        is_search: bool = False,
    ) -> Any:
        """Call `work`, record the end of the step, and return the result; with `is_search`, None means unknown.

        Raises:
            StepFailed: the function raised an exception, or its result cannot be recorded.
            StepInterrupted: with `is_search`, the result is not known.
        """
        recorder = self._recorder
        start = self._clock.elapsed()
        # The process may have been suspended since its last append.
        await recorder.check_lease()
        if recorder.turn.stopped:
            raise asyncio.CancelledError
        try:
            with self.running(name):
                value = await work()
        except asyncio.CancelledError:
            await self.record_stop(name)
            raise
        except StoreError:
            raise
        except (Exception, SystemExit) as error:
            text = well_formed(f"{type(error).__name__}: {error}".removesuffix(": "))
            await self._end(tl.StepEnded(name=name, status="failed", error=text), start)
            raise StepFailed(name, text) from error
        if is_search and value is None:
            return await self._end_interrupted(name)
        try:
            text = result.dump(value)
        except SchemaMismatch as error:
            await self._end(tl.StepEnded(name=name, status="failed", error=str(error)), start)
            raise StepFailed(name, str(error)) from error
        ended = tl.StepEnded(name=name, value=text)
        await self._end(ended, start)
        return result.read(ended)

    async def _end(self, ended: tl.StepEnded, start: float) -> None:
        elapsed = elapsed_ms(self._clock, start)
        await self._recorder.record(structs.replace(ended, elapsed_ms=elapsed))

    async def _end_interrupted(self, name: str) -> Any:
        """Record that the effect of a step is unknown, and raise StepInterrupted."""
        ended = tl.StepEnded(name=name, status="interrupted", error=EFFECT_UNKNOWN)
        await self._recorder.record(ended)
        raise StepInterrupted(name, EFFECT_UNKNOWN)


class _ResultType:
    """The type of a step's result: that which its function is annotated to return, otherwise JSON."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._type: OutputType[Any] | None = None
        kind = _return_type(name, function)
        if kind in _UNTYPED or isinstance(kind, TypeVar):
            return
        try:
            self._type = OutputType(kind)
        except LooplineError as error:
            raise author_error(
                f"the step {name!r} returns {kind!r}, which cannot be recorded: {error}"
            ) from None

    def dump(self, value: object) -> str:
        """Return the result as JSON; raise SchemaMismatch if it is too large, not JSON, or not of the annotated type."""
        text = _dump_json(value) if self._type is None else self._type.dump(value)
        size = len(text.encode())
        if size > STEP_BYTES:
            raise SchemaMismatch(
                f"its result has {size:,} bytes, and may have {STEP_BYTES:,}: store it with self.keep(name, value) or as "
                "a file, and return the ref"
            )
        return text

    def read(self, ended: tl.StepEnded) -> Any:
        """Return the recorded result; raise the error of a step that failed or was interrupted."""
        if ended.status == "interrupted":
            raise StepInterrupted(self._name, ended.error)
        if ended.status != "ok":
            raise StepFailed(self._name, ended.error)
        if self._type is None:
            return json.loads(ended.value)
        try:
            return self._type.read(ended.value)
        except SchemaMismatch as error:
            problem = f"its recorded result is not {self._type.schema.name}: {error}"
            raise StepFailed(self._name, problem) from error


def _dump_json(value: object) -> str:
    """Return a JSON value as text; raise SchemaMismatch if it would not be the same when it is read again."""
    try:
        text = dumps(well_formed_json(cast("Any", value)))
        if json.loads(text) != value:
            raise ValueError("the value is another one")
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaMismatch(
            f"it returned {describe(value)}, which is not a JSON value: annotate the return type of its function, such as "
            "-> Order or -> tuple[str, int]"
        ) from error
    return text


def _bind_alike(
    reconcile: Callable[..., Any] | None, function: Callable[..., Any]
) -> Callable[..., Any] | None:
    """Bind the arguments of `function` to `reconcile`, if `function` is a `functools.partial`."""
    if reconcile is None or not isinstance(function, partial):
        return reconcile
    return partial(reconcile, *function.args, **function.keywords)


def _return_type(name: str, function: Callable[..., Any]) -> Any:
    """Return the annotated return type of a function, for an awaitable that of its value; `Signature.empty` without one.

    Raises:
        BundleError: the annotation cannot be resolved.
    """
    target: Any = function
    while isinstance(target, partial | ToolFunction):
        target = target.func if isinstance(target, partial) else target.function
    target = inspect.unwrap(target)
    if not inspect.isroutine(target):
        target = type(target).__call__
    annotations = getattr(target, "__annotations__", {})
    if "return" not in annotations:
        return inspect.Signature.empty
    holder = SimpleNamespace(__annotations__={"return": annotations["return"]})
    try:
        hints = get_type_hints(
            holder, getattr(target, "__globals__", {}), _closure(target), include_extras=True
        )
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise author_error(
            f"the return type {annotations['return']!r} of the step {name!r} cannot be resolved ({error}): define it at "
            "the top of its module"
        ) from None
    kind = hints["return"]
    origin = get_origin(kind) or kind
    if isinstance(origin, type) and issubclass(origin, Awaitable):
        return (inspect.Signature.empty, *get_args(kind))[-1]
    return kind


def _closure(function: Any) -> dict[str, Any]:
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or not cells:
        return {}
    return dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True))
