"""Tools: typed functions made into something that a model can call.

`@tool` checks a function where it is written. What the model sees, a JSON Schema, is made when it is
first needed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import string
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, update_wrapper
from pathlib import Path
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    get_args,
    overload,
)

from msgspec import structs

from loopline.errors import BundleError, ToolError
from loopline.files import OutputFile, change_of
from loopline.models import JsonObject, ToolSpec, dumps, well_formed
from loopline.timeline import Effect, Source
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome, Output, as_json
from loopline.tools.parameters import (
    Parameters,
    argument_error,
    deps_problem,
    nearest_first,
    read_parameters,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

P = ParamSpec("P")
R = TypeVar("R")

EFFECTS: tuple[Effect, ...] = get_args(Effect)
LONGEST_STEP_SECONDS = 1.0
"""Seconds that a tool may block the event loop between two awaits before it is logged."""

logger: logging.Logger = logging.getLogger("loopline")

MAX_THREADS = 64
"""Synchronous tools that may run at once in a process."""
NOTHING = "done"
"""The text of a result whose function returned None."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Tool(Protocol):
    """Something the loop can call."""

    @property
    def spec(self) -> ToolSpec:
        """Return what the model sees of it."""
        ...

    @property
    def effect(self) -> Effect:
        """Return what it may do to the world, and so which calls may run beside it."""
        ...

    def check(self, arguments: JsonObject) -> None:
        """Check the arguments.

        Raises:
            ToolError: the message names each argument that is wrong.
        """
        ...

    def key(self, arguments: JsonObject) -> str:
        """Return what a writing or meta call changes: calls of one effect with the same key keep their order.

        Raises:
            ToolError: the arguments are wrong.
        """
        ...

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Run the call.

        Raises:
            ToolError: it refused or failed; the message is for the model.
        """
        ...

    async def reconcile(self, arguments: JsonObject, call: ToolInvocation) -> Outcome | None:
        """Return the outcome of a call that was cut off after its start, or None if it is unknown."""
        ...


class RerunnableTool(ABC):
    """A tool whose call is run again after a crash: it only reads, or its result holds all it does."""

    effect: Effect = "read"
    shared_key: str = ""
    """The key of all its calls: those of one meta tool keep their order."""
    begins_children: bool = False
    """Whether all that its calls do is begin child runs."""

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
    """A function that is a tool: it is still called like the function, and `bind` gives the loop its tool.

    `key` is the template of what a writing call changes, or of what a meta call must not run beside; without one all calls
    of the tool share a key. `declared` says whether an effect was given. `reconcile`, a function with some of the same
    parameters, returns the outcome of a call that was cut off.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        effect: Effect | None,
        key: str,
        reconcile: Callable[..., Any] | None = None,
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.effect: Effect = effect or "exclusive"
        self.declared: bool = effect is not None
        self.key = key
        self.reconcile = reconcile
        code = _source_function(function)
        self.name: str = code.__name__
        self.location: str = _location_of(code)
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
        """Return the parameters, read once.

        Raises:
            BundleError: an annotation cannot be resolved, or has no JSON Schema.
        """
        return read_parameters(_source_function(self.function), self.location, self.key)


@overload
def tool(function: Callable[P, R], /) -> ToolFunction[P, R]: ...
@overload
def tool(
    *, effect: Effect | None = None, key: str = "", reconcile: Callable[..., Any] | None = None
) -> Callable[[Callable[P, R]], ToolFunction[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    effect: Effect | None = None,
    key: str = "",
    reconcile: Callable[..., Any] | None = None,
) -> ToolFunction[P, R] | Callable[[Callable[P, R]], ToolFunction[P, R]]:
    """Make a typed function with a docstring into a tool; the function can still be called directly.

    Without an effect it is "exclusive": nothing else runs beside it. `reconcile` takes some of the same parameters.
    After a crash it returns the result of a call that had started, or None if it does not know the result.

    Raises:
        BundleError: the function cannot be a tool as it is written; the message names file and line.
    """

    def decorate(function: Callable[P, R]) -> ToolFunction[P, R]:
        source = _source_function(function)
        wrong = (
            _wrong_effect(effect or "exclusive", key)
            or _wrong_function(source)
            or _wrong_key(key, inspect.signature(source))
        )
        if wrong:
            raise BundleError(f"{_location_of(source)}: tool {source.__name__!r} {wrong}")
        _check_reconcile(function, reconcile)
        return ToolFunction(function, effect=effect, key=key, reconcile=reconcile)

    return decorate if function is None else decorate(function)


@dataclass(frozen=True, kw_only=True)
class BoundTool:
    """A tool function under its alias."""

    function: ToolFunction[..., Any]
    alias: str

    @cached_property
    def name(self) -> str:
        """Return `<alias>.<function>`."""
        return f"{self.alias}.{self.function.name}"

    @property
    def effect(self) -> Effect:
        """Return the effect of the function."""
        return self.function.effect

    @property
    def spec(self) -> ToolSpec:
        """Return the name, the docstring and the parameters as JSON Schema."""
        return self._spec

    @cached_property
    def _spec(self) -> ToolSpec:
        return ToolSpec(
            name=self.name,
            description=self.function.description,
            parameters=self.function.parameters.schema,
        )

    def check(self, arguments: JsonObject) -> None:
        """Check the arguments; a ToolError names each bad one."""
        self._validated(arguments)

    def key(self, arguments: JsonObject) -> str:
        """Return the key template filled with the arguments, or the tool's name without a template."""
        if not self.function.key:
            return self.name
        validated = self._validated(arguments)
        names = self.function.parameters.fields
        values = {name: getattr(validated, field) for name, field in names.items()}
        return well_formed(self.function.key.format_map(values))

    async def reconcile(self, arguments: JsonObject, call: ToolInvocation) -> Outcome | None:
        """Return what the tool's own check says of the call, or None if there is no check or it does not know."""
        check = self.function.reconcile
        if check is None:
            return None
        values = self._values(arguments, call)
        names = inspect.signature(check).parameters
        accepted = {name: values[name] for name in names if name in values}
        location = _location_of(_source_function(check))
        returned = await _call(self.name, check, accepted, call, location)
        try:
            return None if returned is None else self._outcome(returned)
        except ToolError as error:
            raise BundleError(str(error)) from error  # it says nothing of the call

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Call the function, in a thread unless it is async, and convert its value."""
        values = self._values(arguments, call)
        try:
            function = self.function
            returned = await _call(self.name, function.function, values, call, function.location)
        except ToolError:
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(error) from error
        return self._with_files(self._outcome(returned), call)

    def _with_files(self, outcome: Outcome, call: ToolInvocation) -> Outcome:
        """Return the outcome with what the function changed in its workspace."""
        # A function that is not given the context has no way to its workspace.
        has_context = bool(self.function.parameters.contexts)
        changes = call.context.workspace.changes if has_context else ()
        if not changes and not outcome.files:
            return outcome
        if self.effect == "read":
            raise ToolError(
                f"{self.name} wrote a file, which a tool with the effect 'read' may not: its author must change "
                f"that at {self.function.location}"
            )
        return structs.replace(outcome, files=(*changes, *outcome.files))

    def _validated(self, arguments: JsonObject) -> BaseModel:
        try:
            validator = self.function.parameters.model.__pydantic_validator__
            validated: BaseModel = validator.validate_python(arguments)
        except Exception as error:
            raise self._refusal(error) from error
        return validated

    def _refusal(self, error: Exception) -> ToolError:
        """Return the error for the model when its arguments are not taken."""
        from pydantic import ValidationError

        if not isinstance(error, ValidationError):
            return self._failure(error)
        details, names = (
            error.errors(include_url=False, include_context=False),
            self.function.parameters.fields,
        )
        wrong = "; ".join(argument_error(detail, list(names)) for detail in details)
        return ToolError(well_formed(f"{self.name}: {wrong}"))

    def _values(self, arguments: JsonObject, call: ToolInvocation) -> dict[str, Any]:
        """Return the values by parameter, without those left to the function's defaults."""
        parameters, validated = self.function.parameters, self._validated(arguments)
        values = {
            name: getattr(validated, field)
            for name, field in parameters.fields.items()
            if name not in parameters.optional or field in validated.model_fields_set
        }
        for name in parameters.contexts:
            values[name] = call.context
        return values

    def _failure(self, error: BaseException) -> ToolError:
        """Return the error for the model, with a note that names its file and line."""
        failure = ToolError(well_formed(f"{type(error).__name__}: {error}".removesuffix(": ")))
        frames = traceback.extract_tb(error.__traceback__)
        folder = Path(_source_function(self.function.function).__code__.co_filename).parent
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
        where = f"{own[-1].filename}:{own[-1].lineno}" if own else self.function.location
        failure.add_note(f"{self.name} failed at {where}")
        return failure

    def _outcome(self, returned: object) -> Outcome:
        try:
            return _outcome(returned)
        except Exception as error:
            raise ToolError(
                f"{self.name} returned what it may not, which its author must change at "
                f"{self.function.location}: {type(error).__name__}: {error}"
            ) from error


def check_deps(tools: Iterable[Tool], deps: object) -> None:
    """Check the dependencies against what each of the tools asks for with `ToolContext[X]`.

    Raises:
        BundleError: they are missing or of another type; the message names tool, file and line.
    """
    for bound in tools:
        if not isinstance(bound, BoundTool):
            continue
        for expected in bound.function.parameters.deps:
            if wrong := deps_problem(deps, expected):
                raise BundleError(f"{bound.function.location}: tool {bound.name!r} {wrong}")


def _source_function(function: Callable[..., Any]) -> FunctionType:
    """Return the function as its author wrote it, below other decorators.

    Raises:
        BundleError: it is another kind of callable.
    """
    written: object = inspect.unwrap(function)
    if not isinstance(written, FunctionType):
        raise BundleError(f"@tool is for functions written with def or async def: got {function!r}")
    return written


def _location_of(function: FunctionType) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _wrong_effect(effect: str, key: str) -> str:
    if effect not in EFFECTS:
        nearest = nearest_first(effect, EFFECTS)[0]
        return f"has the effect {effect!r}, nearest is {nearest!r}: one of {', '.join(EFFECTS)}"
    if key and effect not in ("write", "meta"):
        return f'has a key but the effect {effect!r}: a key goes with effect="write" or "meta"'
    return ""


def _wrong_function(function: FunctionType) -> str:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "is a generator: return the whole value"
    if not inspect.getdoc(function):
        return "has no docstring: the model reads it to know what the tool is for"
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in _NAMED:
            return f"takes {name!r} without its name: give it a name that every call can write"
        if parameter.annotation is parameter.empty:
            return f"has no type for {name!r}: annotate it"
    return ""


def _check_reconcile(function: Callable[..., Any], check: Callable[..., Any] | None) -> None:
    """Refuse a check with parameters that its tool does not have."""
    if check is None:
        return
    parameters = list(inspect.signature(function).parameters)
    for name in inspect.signature(check).parameters:
        if name not in parameters:
            raise BundleError(
                f"{_location_of(_source_function(check))}: reconcile takes {name!r}, which its tool does "
                f"not: {nearest_first(name, parameters)}"
            )


def _wrong_key(key: str, signature: inspect.Signature) -> str:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(key) if name is not None]
    except ValueError as error:
        return f"has the key {key!r}, which is no template: {error}"
    for name in names:
        if name not in signature.parameters:
            parameters = nearest_first(name, signature.parameters)
            return (
                f"has the key {key!r}, but no parameter {name!r}: its parameters are {parameters}"
            )
    return ""


class WatchedSteps(Generator[Any, Any, object]):
    """The steps of a tool's coroutine; the first that blocks the event loop for long is logged with its tool."""

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
        """Take the next step."""
        began = self._elapsed()
        try:
            return self._coroutine.send(value)
        finally:
            if (seconds := self._elapsed() - began) >= LONGEST_STEP_SECONDS:
                self._report(seconds)

    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> Any:
        """Take the next step with this error, such as a cancellation."""
        del val, tb  # an awaiting coroutine passes the error itself
        began = self._elapsed()
        try:
            return self._coroutine.throw(typ)
        finally:
            if (seconds := self._elapsed() - began) >= LONGEST_STEP_SECONDS:
                self._report(seconds)

    def _report(self, seconds: float) -> None:
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
    """Return the process's own threads for tools, so that slow ones hold up nothing else."""
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=f"loopline-tool-{process}")


def _in_thread(function: Callable[..., Any], values: Mapping[str, Any]) -> object:
    try:
        return function(**values)
    except StopIteration as error:  # a future cannot carry it, and would wait for ever
        raise RuntimeError("StopIteration").with_traceback(error.__traceback__) from error


def _outcome(returned: object) -> Outcome:
    if not isinstance(returned, Output):
        return Outcome(text=_text(returned))
    text: object = returned.text
    sources = tuple(_source(source) for source in returned.sources)
    files = tuple(change_of(_file(file)) for file in returned.files)
    artifact, answer = as_json(returned.artifact), returned.answer
    return Outcome(text=_text(text), sources=sources, files=files, artifact=artifact, answer=answer)


def _file(file: object) -> OutputFile:
    if not isinstance(file, OutputFile):
        raise TypeError(f"the files of an Output are OutputFile(…), not {file!r}")
    return file


def _text(returned: object) -> str:
    match returned:
        case None:
            return NOTHING
        case str():
            return well_formed(returned)
        case _:
            return dumps(as_json(returned))


def _source(source: object) -> Source:
    if not isinstance(source, Source):
        raise TypeError(f"the sources of an Output are Source(…), not {source!r}")
    return structs.replace(
        source,
        url=well_formed(source.url),
        title=well_formed(source.title),
        path=well_formed(source.path),
        text=well_formed(source.text),
        commit=well_formed(source.commit),
        published_time_iso=well_formed(source.published_time_iso),
        favicon_url=well_formed(source.favicon_url),
    )
