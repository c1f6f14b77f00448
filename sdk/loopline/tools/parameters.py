"""The parameters of tool functions: their JSON Schema, and the dependencies that they ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from inspect import Parameter, signature
from types import FunctionType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from loopline.errors import BundleError, ToolError
from loopline.models import Json, JsonObject, ToolSpec
from loopline.models.json_schema import validator_text
from loopline.tools.invocation import ToolContext
from loopline.tools.outcome import finite

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails


_LONGEST_INPUT = 60


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a tool function.

    `fields` maps those that the model gives to fields of `model`; `contexts` take the call's context; `deps` are the
    types that the dependencies must have.
    """

    model: type[BaseModel]
    schema: JsonObject
    fields: Mapping[str, str]
    contexts: tuple[str, ...]
    optional: frozenset[str]
    deps: tuple[object, ...] = ()


def read_parameters(function: FunctionType, location: str, key: str) -> Parameters:
    """Return the parameters of a tool function whose key template is `key`.

    Raises:
        BundleError: an annotation cannot be resolved or has no JSON Schema, or the key names a context.
    """
    try:
        return _modelled(function, location, key)
    except BundleError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise BundleError(
            f"{location}: tool {function.__name__!r} has an annotation that cannot be used: {reason} "
            "(use types with a JSON form, imported at run time)"
        ) from error


def _modelled(function: FunctionType, location: str, key: str) -> Parameters:
    from pydantic import ConfigDict, Field, create_model

    names = {"ToolContext": ToolContext, **function.__globals__}
    hints = get_type_hints(function, globalns=names, include_extras=True)
    parameters = signature(function).parameters
    contexts = tuple(name for name in parameters if is_context(hints[name]))
    deps = tuple(kind for name in contexts for kind in deps_types(hints[name]))
    if wrong := [name for name in contexts if f"{{{name}" in key]:
        raise BundleError(f"{location}: the key of {function.__name__!r} names {wrong[0]!r}")
    # A parameter may be called `json` or `_x`, which pydantic refuses: so fields have names of ours, and aliases.
    from_model = [name for name in parameters if name not in contexts]
    optional = frozenset(
        name for name in from_model if parameters[name].default is not Parameter.empty
    )
    fields = {name: f"p{number}_{name.strip('_')}" for number, name in enumerate(from_model)}
    definitions: dict[str, Any] = {
        field: (hints[name], Field(parameters[name].default, alias=name))
        if name in optional
        else (hints[name], Field(alias=name))
        for name, field in fields.items()
    }
    config = ConfigDict(extra="forbid", protected_namespaces=())
    model = create_model(function.__name__, __config__=config, **definitions)
    return Parameters(model, _schema(model), fields, contexts, optional, deps)


def _schema(model: type[BaseModel]) -> JsonObject:
    """Return the schema without titles, which only repeat the names."""
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


def argument_error(detail: ErrorDetails, parameters: list[str]) -> str:
    """Return what is wrong with one argument, by its dotted name."""
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
            return f"{name!r}: {validator_text(detail['msg'])}, got {shown}"


def nearest_first(name: str, names: Iterable[str]) -> list[str]:
    """Return the names, those most like `name` first."""
    lowered = name.lower()
    return sorted(
        names,
        key=lambda candidate: (
            -SequenceMatcher(None, lowered, candidate.lower()).ratio(),
            candidate,
        ),
    )


def is_context(hint: object) -> bool:
    """Return whether a parameter with this annotation takes the call's context."""
    return next(_contexts(hint), None) is not None


def deps_types(hint: object) -> tuple[object, ...]:
    """Return each X of a `ToolContext[X]` in the annotation."""
    return tuple(part for context in _contexts(hint) for part in get_args(context))


def deps_problem(deps: object, expected: object) -> str:
    """Return how the object differs from the expected type and what to do, or "" if it does not.

    A tool that expects None accepts any object and uses none.
    """
    if expected in (None, NoneType) or _matches(deps, expected):
        return ""
    actual = "none were given" if deps is None else f"was given a {_type_name(type(deps))}"
    return (
        f"asks for deps of the type {_type_name(expected)}, and {actual}: pass them to Harness.open(…, deps=…), "
        "or have the bundle make them with Bundle(deps=…), as the command line needs it"
    )


def _matches(deps: object, expected: object) -> bool:
    """Return whether the object may be of the type; a type that `isinstance` refuses matches all but None."""
    origin = get_origin(expected)
    if expected is Any or isinstance(expected, TypeVar):
        return True
    if origin is Annotated:
        return _matches(deps, get_args(expected)[0])
    if origin in (Union, UnionType):
        return any(_matches(deps, part) for part in get_args(expected))
    if deps is None:
        return expected in (None, NoneType, object)
    kind = origin or expected
    try:
        return not isinstance(kind, type) or isinstance(deps, kind)
    except TypeError:
        return True


def _type_name(expected: object) -> str:
    return (
        expected.__name__
        if isinstance(expected, type) and not get_args(expected)
        else str(expected)
    )


def _contexts(hint: object) -> Iterator[object]:
    """Yield `ToolContext`, or each `ToolContext[X]`, in an annotation."""
    if hint is ToolContext or get_origin(hint) is ToolContext:
        yield hint
        return
    for part in get_args(hint):
        yield from _contexts(part)


QUERY: JsonObject = {"type": "string", "description": "What to look for."}
"""The schema of a query."""


def object_schema(properties: JsonObject, *required: str) -> JsonObject:
    """Return the schema of arguments with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


def limit_schema(default: int, limit: int) -> JsonObject:
    """Return the schema of a whole number from 1 to `limit`."""
    return {"type": "integer", "minimum": 1, "maximum": limit, "default": default}


def check_names(spec: ToolSpec, arguments: JsonObject, hint: str = "") -> None:
    """Refuse fields that the tool does not have.

    Raises:
        ToolError: the message names the field, and gives the hint, or else the fields there are.
    """
    properties: Json = spec.parameters.get("properties")
    fields = list(properties) if isinstance(properties, dict) else []
    for name in arguments:
        if name not in fields:
            raise ToolError(
                f"{spec.name} has no field {name!r}: {hint or nearest_first(name, fields)}"
            )


def text_argument(
    arguments: JsonObject, name: str, expected: str = "a text that is not empty"
) -> str:
    """Return a text that is not empty.

    Raises:
        ToolError: the argument is missing, empty or no text; the message says what was `expected`.
    """
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ToolError(f"{name}: {expected}")
    return value


def optional_text(arguments: JsonObject, name: str) -> str:
    """Return a text, empty by default.

    Raises:
        ToolError: the argument is no text.
    """
    value = arguments.get(name, "")
    if not isinstance(value, str):
        raise ToolError(f"{name}: a text")
    return value.strip()


def integer_argument(arguments: JsonObject, name: str, default: int, limit: int) -> int:
    """Return a whole number from 1 to `limit`.

    Raises:
        ToolError: the argument is anything else.
    """
    value = arguments.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise ToolError(f"{name}: a whole number from 1 to {limit}")
    return value


def fraction_argument(arguments: JsonObject, name: str) -> float:
    """Return a number from 0 to 1, 0 by default.

    Raises:
        ToolError: the argument is anything else.
    """
    value = arguments.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ToolError(f"{name}: a number from 0 to 1")
    return float(value)


def names_argument(arguments: JsonObject, name: str, allowed: list[str]) -> list[str]:
    """Return some of the allowed names, each once, or all of them by default.

    Raises:
        ToolError: a name is not allowed, or the argument is no list of names.
    """
    value = arguments.get(name)
    if value is None:
        return allowed
    chosen = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    if not isinstance(value, list) or not chosen or len(chosen) != len(value):
        raise ToolError(f"{name}: a list of names, which are {allowed}")
    for item in chosen:
        if item not in allowed:
            raise ToolError(f"{name}: there is no {item!r}, only {nearest_first(item, allowed)}")
    return list(dict.fromkeys(chosen))


def copied_arguments(arguments: JsonObject) -> JsonObject:
    """Return a copy that shares no list and no object."""
    return {name: _copied_value(value) for name, value in arguments.items()}


def _copied_value(value: Json) -> Json:
    match value:
        case list():
            return [_copied_value(item) for item in value]
        case dict():
            return copied_arguments(value)
        case _:
            return value
