"""Tools: the protocol of a tool, and the tools that are typed functions."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial, update_wrapper
from pathlib import Path
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
)

from msgspec import structs

from loopline.errors import BundleError, ToolError
from loopline.files import FileChange, OutputFile, change_of
from loopline.models import JsonObject, ToolSpec, dumps, well_formed
from loopline.timeline import Effect, Source, parent_name
from loopline.tools.invocation import AskUser, ToolInvocation
from loopline.tools.outcome import Outcome, Output, as_json
from loopline.tools.parameters import (
    Parameters,
    argument_error,
    check_names,
    deps_problem,
    read_parameters,
    read_result_form,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

P = ParamSpec("P")
R = TypeVar("R")

LONGEST_STEP_SECONDS = 1.0
"""The seconds between two awaits of a tool from which it is logged, because it blocks the event loop."""

logger: logging.Logger = logging.getLogger("loopline")

MAX_THREADS = 64
"""The number of synchronous tools that can run at the same time in a process."""
IN_BACKGROUND = (
    "\n\nIt runs in the background: the call ends at once, and the result comes later as a message."
)
"""The end of the description of a tool whose calls run in the background."""
NOTHING = "done"
"""The text of a result whose function returned None."""


class Tool(Protocol):
    """A tool that the loop can call."""

    @property
    def spec(self) -> ToolSpec:
        """The name, description and parameters for the model."""
        ...

    @property
    def effect(self) -> Effect:
        """The effect of a call, which decides which other calls may run at the same time."""
        ...

    def check(self, arguments: JsonObject) -> None:
        """Check the arguments.

        Raises:
            ToolError: an argument is invalid; the message names at least one.
        """
        ...

    def key(self, arguments: JsonObject) -> str:
        """Return the key of the data that a writing or meta call changes: calls with the same effect and key run in order.

        Raises:
            ToolError: the arguments are invalid.
        """
        ...

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Run the call.

        Raises:
            ToolError: the call was refused or failed; the message is for the model.
        """
        ...

    async def reconcile(self, arguments: JsonObject, call: ToolInvocation) -> Outcome | None:
        """Return the outcome of a call that had started before a crash; None if it is unknown."""
        ...


class RerunnableTool(ABC):
    """A tool whose calls can be run again after a crash, because they only read, or change only what the loop records."""

    spec: ToolSpec
    effect: Effect = "read"
    shared_key: str = ""
    """The key of all calls of the tool."""
    begins_children: bool = False
    """Whether the calls only start child runs."""

    def check(self, arguments: JsonObject) -> None:
        """Check that the arguments are in the schema of the tool, and that `parse` accepts them.

        Raises:
            ToolError: an argument is unknown or invalid.
        """
        check_names(self.spec, arguments)
        self.parse(arguments)

    def parse(self, arguments: JsonObject) -> object:
        """Convert the arguments to the values that `run` uses, or raise a ToolError that names the invalid argument."""
        return arguments

    def key(self, arguments: JsonObject) -> str:
        """Return the shared key."""
        del arguments
        return self.shared_key

    async def reconcile(self, arguments: JsonObject, call: ToolInvocation) -> Outcome | None:
        """Run the call again."""
        return await self.run(arguments, call)

    @abstractmethod
    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Run the call."""


class ToolFunction(Generic[P, R]):
    """A function that is a tool. It can be called like the function; `bind` makes the tool for the loop.

    `key` is a template for the key of a writing or meta call, such as `file:{path}`; without it, all calls of the tool
    have the same key. With `background` calls run in the background. `approve` says whether calls need the user's approval, and `people` from how many people. `client`
    says whether the client runs the calls. `declared` says whether an effect was given. `reconcile` is a function with some of the same
    parameters; it returns the result of a call that had started before a crash.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        effect: Effect | None,
        key: str,
        reconcile: Callable[..., Any] | None = None,
        approve: bool | Callable[..., Any] = False,
        people: int = 1,
        client: bool = False,
        background: bool = False,
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.effect: Effect = effect or "exclusive"
        self.declared: bool = effect is not None
        self.key = key
        self.reconcile = reconcile
        self.approve = approve
        self.people = people
        self.client = client
        self.background = background
        code = source_function(function)
        self.name: str = code.__name__
        self.location: str = find_location(code)
        self.description: str = well_formed(inspect.getdoc(code) or "")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name} at {self.location}>"

    def bind(self, alias: str) -> Tool:
        """Return the tool `<alias>.<function>`."""
        return BoundTool(function=self, alias=alias)

    @cached_property
    def parameters(self) -> Parameters:
        """The parameters of the function, read at their first use.

        Raises:
            BundleError: an annotation cannot be resolved, or has no JSON Schema.
        """
        return read_parameters(source_function(self.function), self.location, self.key)

    @cached_property
    def result_form(self) -> JsonObject | None:
        """The JSON Schema of the return type, None if the function has no return type, or returns None or any value.

        Raises:
            BundleError: the type cannot be resolved, or has no JSON Schema.
        """
        return read_result_form(source_function(self.function), self.location)


@dataclass(frozen=True, kw_only=True)
class BoundTool:
    """A tool function with the alias of its bundle or module."""

    function: ToolFunction[..., Any]
    alias: str

    @cached_property
    def name(self) -> str:
        """The name `<alias>.<function>`."""
        return f"{self.alias}.{self.function.name}"

    @property
    def effect(self) -> Effect:
        """The effect of the function."""
        return self.function.effect

    @property
    def spec(self) -> ToolSpec:
        """The name, the docstring, and the JSON Schema of the parameters."""
        return self._spec

    @cached_property
    def _spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name,
            description=f"{self.function.description}{IN_BACKGROUND if self.function.background else ''}",
            parameters=self.function.parameters.schema,
        )

    def check(self, arguments: JsonObject) -> None:
        """Check the arguments.

        Raises:
            ToolError: an argument is invalid; the message names each of them.
        """
        self._validate(arguments)

    def key(self, arguments: JsonObject) -> str:
        """Return the key template filled with the arguments; without a template, the name of the tool.

        Raises:
            ToolError: the tool has a template, and the arguments are invalid.
        """
        if not self.function.key:
            return self.name
        validated = self._validate(arguments)
        names = self.function.parameters.fields
        values = {name: getattr(validated, field) for name, field in names.items()}
        return well_formed(self.function.key.format_map(values))

    async def reconcile(self, arguments: JsonObject, call: ToolInvocation) -> Outcome | None:
        """Call the function `reconcile` of the tool; return None if the tool has none, or it returns None.

        A call that the client runs waits for the client again. Exceptions of the function are raised unchanged.

        Raises:
            AskUser: the client runs the call.
            BundleError: the value that `reconcile` returned cannot be converted.
        """
        check = self.function.reconcile
        if self.function.client:
            return await self.run(arguments, call)
        if check is None:
            return None
        values = self._values(arguments, call)
        names = inspect.signature(check).parameters
        accepted = {name: values[name] for name in names if name in values}
        location = find_location(source_function(check))
        returned = await _call(self.name, check, accepted, call, location)
        try:
            return None if returned is None else self._convert(returned)
        except ToolError as error:
            raise BundleError(str(error)) from error  # not a failure of the call

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Call the function, in a thread if it is not async, and convert its return value.

        A call in the background ends at once, unless it is one of a child run, which ends with its turn.

        Raises:
            AskUser: the client runs the call.
            ToolError: the arguments are invalid, the function raised an exception, or its value cannot be converted.
        """
        if self.function.client:
            self._validate(arguments)
            raise AskUser.for_client(self.name, arguments, self.function.result_form)
        is_later = self.function.background and not call.is_background
        if is_later and parent_name(call.context.conversation) is None:
            self._validate(arguments)
            later = partial(self.run, arguments, structs.replace(call, is_background=True))
            may_repeat = self.effect == "read" or self.function.reconcile is not None
            return call.begin_later(later, None, may_repeat)
        values = self._values(arguments, call)
        try:
            function = self.function
            returned = await _call(self.name, function.function, values, call, function.location)
        except ToolError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # Ctrl-C raises this only in the main thread, where async functions run.
            if isinstance(error, KeyboardInterrupt) and _is_async(self.function.function):
                raise
            raise self._tool_error(error) from error
        return self._add_changes(self._convert(returned), call)

    def _add_changes(self, outcome: Outcome, call: ToolInvocation) -> Outcome:
        """Return the outcome together with the changes that the function made in the workspace.

        Raises:
            ToolError: there are changes or files, and the tool has the effect "read".
        """
        # Only the context gives access to the workspace; without one, it need not be made.
        has_context = bool(self.function.parameters.contexts)
        changes = call.context.workspace.changes if has_context else ()
        if not changes and not outcome.files:
            return outcome
        if self.effect == "read":
            raise self._fault(
                f"{self.name} wrote a file, which a tool with the effect 'read' may not: its author must change that"
            )
        return structs.replace(outcome, files=(*changes, *outcome.files))

    def _validate(self, arguments: JsonObject) -> BaseModel:
        """Return the validated arguments as a pydantic model; raise a ToolError that names each invalid argument."""
        try:
            validator = self.function.parameters.model.__pydantic_validator__
            validated: BaseModel = validator.validate_python(arguments)
        except Exception as error:
            raise self._validation_error(error) from error
        return validated

    def _validation_error(self, error: Exception) -> ToolError:
        """Convert an exception of the validation to an error for the model."""
        from pydantic import ValidationError

        if not isinstance(error, ValidationError):
            return self._tool_error(error)
        details = error.errors(include_url=False, include_context=False)
        names = list(self.function.parameters.fields)
        problems = "; ".join(argument_error(detail, names) for detail in details)
        return ToolError(well_formed(f"{self.name}: {problems}"))

    def _values(self, arguments: JsonObject, call: ToolInvocation) -> dict[str, Any]:
        """Return the values for the function's parameters, without those for which its default is used.

        Raises:
            ToolError: an argument is invalid.
        """
        parameters = self.function.parameters
        validated = self._validate(arguments)
        values = {
            name: getattr(validated, field)
            for name, field in parameters.fields.items()
            if name not in parameters.optional or field in validated.model_fields_set
        }
        for name in parameters.contexts:
            values[name] = call.context
        return values

    def _tool_error(self, error: BaseException) -> ToolError:
        """Convert an exception of the function to an error for the model, with a note that has the file and line."""
        failure = ToolError(well_formed(f"{type(error).__name__}: {error}".removesuffix(": ")))
        frames = traceback.extract_tb(error.__traceback__)
        folder = Path(source_function(self.function.function).__code__.co_filename).parent
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
        where = f"{own[-1].filename}:{own[-1].lineno}" if own else self.function.location
        failure.add_note(f"{self.name} failed at {where}")
        return failure

    def _fault(self, text: str) -> ToolError:
        """Return an error for a fault of the function's author, with a note that has the file and line."""
        fault = ToolError(text)
        fault.add_note(f"{text} at {self.function.location}")
        return fault

    def _convert(self, returned: object) -> Outcome:
        """Convert the return value to an outcome; raise a ToolError that names the fault if it is not allowed."""
        try:
            return _convert(returned)
        except Exception as error:
            raise self._fault(
                f"{self.name} returned a value that is not allowed, which its author must change: "
                f"{type(error).__name__}: {error}"
            ) from error


def check_deps(tools: Iterable[Tool], deps: object) -> None:
    """Check that the dependencies have the type X of each `ToolContext[X]` in the tools.

    Raises:
        BundleError: they are missing or have another type; the message names the tool, its file and its line.
    """
    for bound in tools:
        if not isinstance(bound, BoundTool):
            continue
        for expected in bound.function.parameters.deps:
            if problem := deps_problem(deps, expected):
                raise BundleError(f"{bound.function.location}: tool {bound.name!r} {problem}")


def source_function(function: Callable[..., Any]) -> FunctionType:
    """Return the function below other decorators.

    Raises:
        BundleError: the callable is not a function that was written with `def`.
    """
    written: object = inspect.unwrap(function)
    if not isinstance(written, FunctionType):
        raise BundleError(f"@tool is for functions written with def or async def: got {function!r}")
    return written


def find_location(function: FunctionType) -> str:
    """Return the file and line of a function, as error messages name them."""
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


class WatchedSteps(Generator[Any, Any, object]):
    """An awaitable that runs a tool's coroutine, and logs the first step that blocks the event loop for a second or more."""

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, object],
        *,
        name: str,
        location: str,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coroutine = coroutine
        self._name = name
        self._location = location
        self._elapsed = elapsed
        self._reported = False

    def __await__(self) -> Generator[Any, Any, object]:
        """Await the coroutine."""
        return self

    def send(self, value: Any, /) -> Any:
        """Run the next step with the value of the last await; log it if it takes `LONGEST_STEP_SECONDS` or more."""
        began = self._elapsed()
        try:
            return self._coroutine.send(value)
        finally:
            if (seconds := self._elapsed() - began) >= LONGEST_STEP_SECONDS:
                self._report(seconds)

    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> Any:
        """Run the next step with an exception, such as a cancellation; log it like `send`."""
        del val, tb  # `typ` is the exception itself
        began = self._elapsed()
        try:
            return self._coroutine.throw(typ)
        finally:
            if (seconds := self._elapsed() - began) >= LONGEST_STEP_SECONDS:
                self._report(seconds)

    def _report(self, seconds: float) -> None:
        """Log a warning that the tool blocked the event loop, once for each call."""
        if self._reported:
            return
        self._reported = True
        logger.warning(
            "%s blocked the event loop for %.1f s: write it with def instead of async def, so that it "
            "runs in a thread, or await what takes long (%s)",
            self._name,
            seconds,
            self._location,
        )


_is_async = lru_cache(maxsize=1_024)(inspect.iscoroutinefunction)


async def _call(
    name: str,
    function: Callable[..., Any],
    values: Mapping[str, Any],
    call: ToolInvocation,
    location: str,
) -> object:
    """Await an async function, or run another function in a thread for tools.

    If the thread returns an awaitable, it is awaited. If the call is cancelled while the thread runs, the thread is passed
    to `call.on_outlived`. Exceptions of the function are raised unchanged.
    """
    if _is_async(function):
        return await WatchedSteps(function(**values), name=name, location=location)
    context = copy_context()
    thread = _threads(os.getpid()).submit(context.run, _in_thread, function, values)
    try:
        returned = await asyncio.wrap_future(thread)
    except asyncio.CancelledError:
        if not thread.cancel():
            call.on_outlived(thread)
        raise
    if not inspect.isawaitable(returned):
        return returned
    awaited: object = await returned
    return awaited


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the threads for tools of a process; other work of the process uses other threads, so slow tools do not delay it."""
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=f"loopline-tool-{process}")


def _in_thread(function: Callable[..., Any], values: Mapping[str, Any]) -> object:
    try:
        return function(**values)
    except StopIteration as error:  # a future cannot have this exception, and would never be done
        raise RuntimeError("StopIteration").with_traceback(error.__traceback__) from error


def _convert(returned: object) -> Outcome:
    """Convert a return value to an outcome: the fields of an `Output`, and any other value as text.

    Raises:
        TypeError: a source is not a `Source`, or a file not an `OutputFile`.
        ValueError: a value cannot be converted to JSON.
        ToolError: the path of a file is not allowed.
    """
    if not isinstance(returned, Output):
        return Outcome(text=_to_text(returned))
    text: object = returned.text
    return Outcome(
        text=_to_text(text),
        sources=tuple(_repair_source(source) for source in returned.sources),
        files=tuple(_to_change(file) for file in returned.files),
        artifact=as_json(returned.artifact),
        answer=returned.answer,
    )


def _to_change(file: object) -> FileChange:
    if not isinstance(file, OutputFile):
        raise TypeError(f"the files of an Output are OutputFile(…), not {file!r}")
    return change_of(file)


def _to_text(returned: object) -> str:
    """Return a text with its lone surrogates escaped, `done` for None, and the JSON of another value."""
    if returned is None:
        return NOTHING
    return well_formed(returned) if isinstance(returned, str) else dumps(as_json(returned))


def _repair_source(source: object) -> Source:
    """Return the source with lone surrogates in its texts escaped; raise a TypeError for another type."""
    if not isinstance(source, Source):
        raise TypeError(f"the sources of an Output are Source(…), not {source!r}")
    fields = structs.asdict(source).items()
    texts = {name: well_formed(value) for name, value in fields if isinstance(value, str)}
    return structs.replace(source, **texts)
