"""Tools: typed functions made into something that a model can call.

`@tool` checks a function where it is written. What the model sees, a JSON Schema, is made when it is
first needed.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import string
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cache, cached_property, update_wrapper
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
    get_type_hints,
    overload,
)

from loopline.errors import BundleError, ToolError
from loopline.models import JsonObject, ToolSpec, dumps, well_formed
from loopline.timeline import Effect, Source
from loopline.tools.blocking import WatchedSteps
from loopline.tools.invocation import ToolContext, ToolInvocation
from loopline.tools.outcome import Outcome, Output, as_json, finite
from loopline.tools.parameters import deps_problem, deps_types, is_context

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

P = ParamSpec("P")
R = TypeVar("R")

EFFECTS: tuple[Effect, ...] = get_args(Effect)
MAX_THREADS = 64
"""Synchronous tools that run at once in a process."""
NOTHING = "done"
"""The text of a result whose function returned nothing."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_LONGEST_INPUT = 60


class Tool(Protocol):
    """Something the loop can call."""

    @property
    def spec(self) -> ToolSpec:
        """What the model sees of it."""
        ...

    @property
    def effect(self) -> Effect:
        """What it may do to the world, so which calls may run beside it."""
        ...

    def check(self, arguments: JsonObject) -> None:
        """Let good arguments pass.

        Raises:
            ToolError: the message names each argument that is wrong.
        """
        ...

    def key(self, arguments: JsonObject) -> str:
        """What a writing or meta call is about: calls of one effect with the same key keep their order.

        Raises:
            ToolError: the arguments are wrong.
        """
        ...

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Run it.

        Raises:
            ToolError: it refused or failed; the message is for the model.
        """
        ...

    async def reconcile(self, arguments: JsonObject, call: ToolInvocation) -> Outcome | None:
        """What became of a call that had begun when its runner was cut off; None when unknown."""
        ...


class ToolFunction(Generic[P, R]):
    """A function that is a tool: still called like the function, `bind` makes it the loop's.

    `key` is the template of what a writing call changes, or of what a meta call must not be beside;
    without one all calls of the tool share a key. `declared` says whether an effect was given.
    `reconcile`, a function with some of the same parameters, says what became of a call that was cut off.
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
        """What the function returns."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name} at {self.location}>"

    def bind(self, alias: str) -> Tool:
        """The tool `<alias>.<function>`."""
        return BoundTool(function=self, alias=alias)

    @cached_property
    def parameters(self) -> Parameters:
        """What the model gives and what the call gives, worked out once.

        Raises:
            BundleError: an annotation cannot be resolved, or has no JSON Schema.
        """
        return _parameters(self)


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
    """Make a typed function with a docstring into a tool, which can still be called directly.

    Without an effect it is "exclusive": nothing else runs beside it. `reconcile` takes some of the same parameters; after a crash it is asked what became of a call that
    had begun, and returns its result, or None when it cannot say.

    Raises:
        BundleError: the function cannot be a tool as it is written; the message names file and line.
    """

    def decorate(function: Callable[P, R]) -> ToolFunction[P, R]:
        _check_function(_source_function(function), effect or "exclusive", key)
        _check_reconcile(function, reconcile)
        return ToolFunction(function, effect=effect, key=key, reconcile=reconcile)

    return decorate if function is None else decorate(function)


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a function takes: `fields` maps its parameters to the model's, `contexts` are filled in.

    `deps` are the types that it wants the dependencies to be of.
    """

    model: type[BaseModel]
    schema: JsonObject
    fields: Mapping[str, str]
    contexts: tuple[str, ...]
    optional: frozenset[str]
    deps: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTool:
    """A tool function under its alias."""

    function: ToolFunction[..., Any]
    alias: str

    @property
    def name(self) -> str:
        """`<alias>.<function>`."""
        return f"{self.alias}.{self.function.name}"

    @property
    def effect(self) -> Effect:
        """As the function was decorated."""
        return self.function.effect

    @property
    def spec(self) -> ToolSpec:
        """The name, the docstring and the parameters as JSON Schema."""
        return ToolSpec(
            name=self.name,
            description=self.function.description,
            parameters=self.function.parameters.schema,
        )

    def check(self, arguments: JsonObject) -> None:
        """Let good arguments pass; else a ToolError names each bad one."""
        self._validated(arguments)

    def key(self, arguments: JsonObject) -> str:
        """The key template filled in with the arguments; without a template the tool's name."""
        if not self.function.key:
            return self.name
        validated = self._validated(arguments)
        names = self.function.parameters.fields
        values = {name: getattr(validated, field) for name, field in names.items()}
        return well_formed(self.function.key.format_map(values))

    async def reconcile(self, arguments: JsonObject, call: ToolInvocation) -> Outcome | None:
        """What the tool's own check says became of the call; None when there is none or it cannot say."""
        check = self.function.reconcile
        if check is None:
            return None
        values = self._values(self._validated(arguments))
        values |= dict.fromkeys(self.function.parameters.contexts, call.context)
        names = inspect.signature(check).parameters
        check_values = {name: values[name] for name in names if name in values}
        returned = await _call(self.name, check, check_values, call)
        try:
            return None if returned is None else self._outcome(returned)
        except ToolError as error:
            raise BundleError(str(error)) from error  # it says nothing of the call

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Call the function, in a thread unless it is async, and read what it returned."""
        values = self._values(self._validated(arguments))
        values |= dict.fromkeys(self.function.parameters.contexts, call.context)
        try:
            returned = await _call(self.name, self.function.function, values, call)
        except ToolError:
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(error) from error
        return self._outcome(returned)

    def _validated(self, arguments: JsonObject) -> BaseModel:
        from pydantic import ValidationError

        parameters = self.function.parameters
        try:
            return parameters.model.model_validate(arguments)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False)
            wrong = "; ".join(_complaint(detail, list(parameters.fields)) for detail in details)
            raise ToolError(well_formed(f"{self.name}: {wrong}")) from error
        except Exception as error:
            raise self._failure(error) from error

    def _values(self, validated: BaseModel) -> dict[str, Any]:
        """The arguments by parameter; one that was left out keeps the function's own default."""
        parameters = self.function.parameters
        return {
            name: getattr(validated, field)
            for name, field in parameters.fields.items()
            if field in validated.model_fields_set or name not in parameters.optional
        }

    def _failure(self, error: BaseException) -> ToolError:
        """The error as the model reads it, with a note that says where it comes from."""
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
            location = self.function.location
            raise ToolError(
                f"{self.name} returned what it may not, which its author must change at {location}: "
                f"{type(error).__name__}: {error}"
            ) from error


def check_deps(tools: Iterable[Tool], deps: object) -> None:
    """Let dependencies pass that are what each of the tools asks for with `ToolContext[X]`.

    Raises:
        BundleError: they are missing or of another type; the message names tool, file and line.
    """
    for bound in tools:
        if not isinstance(bound, BoundTool):
            continue
        for expected in bound.function.parameters.deps:
            if wrong := deps_problem(deps, expected):
                location = bound.function.location
                raise BundleError(f"{location}: tool {bound.name!r} {wrong}")


def nearest_first(name: str, names: Iterable[str]) -> list[str]:
    """The names, the most like `name` first."""
    lowered = name.lower()
    return sorted(
        names,
        key=lambda candidate: (
            -SequenceMatcher(None, lowered, candidate.lower()).ratio(),
            candidate,
        ),
    )


def _source_function(function: Callable[..., Any]) -> FunctionType:
    """The function as its author wrote it, below other decorators.

    Raises:
        BundleError: it is something else that can be called.
    """
    written: object = inspect.unwrap(function)
    if not isinstance(written, FunctionType):
        raise BundleError(f"@tool is for functions written with def or async def: got {function!r}")
    return written


def _location_of(function: FunctionType) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _check_function(function: FunctionType, effect: str, key: str) -> None:
    for wrong in (
        _wrong_effect(effect, key),
        _wrong_function(function),
        _wrong_key(key, inspect.signature(function)),
    ):
        if wrong:
            raise BundleError(f"{_location_of(function)}: tool {function.__name__!r} {wrong}")


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
    """Refuse a check that asks for what its tool is not given."""
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


def _parameters(function: ToolFunction[..., Any]) -> Parameters:
    try:
        return _modelled(function)
    except BundleError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise BundleError(
            f"{function.location}: tool {function.name!r} has an annotation that cannot be used: "
            f"{reason} (what a tool takes must be JSON, and its types imported at run time)"
        ) from error


def _modelled(function: ToolFunction[..., Any]) -> Parameters:
    from pydantic import ConfigDict, Field, create_model

    written = _source_function(function.function)
    names = {"ToolContext": ToolContext, **written.__globals__}
    hints = get_type_hints(written, globalns=names, include_extras=True)
    signature = inspect.signature(written).parameters
    contexts = tuple(name for name in signature if is_context(hints[name]))
    deps = tuple(kind for name in contexts for kind in deps_types(hints[name]))
    if wrong := [name for name in contexts if f"{{{name}" in function.key]:
        raise BundleError(f"{function.location}: the key of {function.name!r} names {wrong[0]!r}")
    # A field's own name is ours, since a parameter may be called `json` or `_x`; the alias is its name.
    given_by_model = [name for name in signature if name not in contexts]
    fields = {name: f"p{number}_{name.strip('_')}" for number, name in enumerate(given_by_model)}
    definitions: dict[str, Any] = {
        field: (hints[name], Field(alias=name))
        if signature[name].default is inspect.Parameter.empty
        else (hints[name], Field(signature[name].default, alias=name))
        for name, field in fields.items()
    }
    config = ConfigDict(extra="forbid", protected_namespaces=())
    model = create_model(function.name, __config__=config, **definitions)
    optional = frozenset(
        name for name in given_by_model if signature[name].default is not inspect.Parameter.empty
    )
    return Parameters(model, _schema(model), fields, contexts, optional, deps)


def _schema(model: type[BaseModel]) -> JsonObject:
    """The schema, without the titles that only say again what a name says."""
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

    class Quiet(GenerateJsonSchema):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.ignored_warning_kinds = set(get_args(JsonSchemaWarningKind))

    schema = model.model_json_schema(schema_generator=Quiet)
    del schema["title"]
    for described in schema["properties"].values():
        described.pop("title", None)
    return {name: finite(value) for name, value in schema.items()}


def _complaint(detail: ErrorDetails, parameters: list[str]) -> str:
    """What is wrong with one argument, by its dotted name."""
    name = ".".join(map(str, detail["loc"]))
    match detail["type"]:
        case "missing":
            return f"{name!r} is missing"
        case "extra_forbidden" if len(detail["loc"]) == 1 and parameters:
            nearest = nearest_first(name, parameters)
            return f"{name!r} is not a parameter, nearest is {nearest[0]!r}: it takes {parameters}"
        case "extra_forbidden":
            return f"{name!r} is not a parameter: leave it out"
        case _:
            value = repr(detail["input"])
            shown = value if len(value) <= _LONGEST_INPUT else f"{value[:_LONGEST_INPUT]}…"
            return f"{name!r}: {detail['msg']}, got {shown}"


async def _call(
    name: str, function: Callable[..., Any], values: Mapping[str, Any], call: ToolInvocation
) -> object:
    if inspect.iscoroutinefunction(function):
        return await WatchedSteps(
            function(**values), name=name, location=_location_of(_source_function(function))
        )
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
    """Threads for tools alone: slow ones keep nobody else waiting. A forked process has its own."""
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
    artifact, answer = as_json(returned.artifact), returned.answer
    return Outcome(text=_text(text), sources=sources, artifact=artifact, answer=answer)


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
    return replace(
        source,
        url=well_formed(source.url),
        title=well_formed(source.title),
        path=well_formed(source.path),
        text=well_formed(source.text),
        commit=well_formed(source.commit),
        published_time_iso=well_formed(source.published_time_iso),
        favicon_url=well_formed(source.favicon_url),
    )
