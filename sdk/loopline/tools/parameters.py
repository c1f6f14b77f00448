"""The parameters of tools: JSON Schemas from the types of functions, and the checks of the arguments of a call."""

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
from loopline.models.json_schema import validator_of_schema, validator_text
from loopline.tools.invocation import ToolContext
from loopline.tools.outcome import finite

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails


_LONGEST_INPUT = 60


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a tool function.

    `fields` maps the parameters for arguments of the model to the fields of `model`, a pydantic model that validates
    them; those in `optional` have a default. `contexts` are the parameters that receive the `ToolContext`. `deps` are the
    types X of `ToolContext[X]`.
    """

    model: type[BaseModel]
    schema: JsonObject
    fields: Mapping[str, str]
    contexts: tuple[str, ...]
    optional: frozenset[str]
    deps: tuple[object, ...] = ()


def read_parameters(function: FunctionType, location: str, key: str) -> Parameters:
    """Build the model and the schema of a tool function from its annotations.

    `location` is the file and line for errors, `key` the template of the call's key.

    Raises:
        BundleError: an annotation cannot be resolved or has no JSON Schema, or the key names a context.
    """
    try:
        return _build_parameters(function, location, key)
    except BundleError:
        raise
    except Exception as error:
        raise BundleError(
            f"{location}: tool {function.__name__!r} has an annotation that cannot be used: {_first_sentence(error)} "
            "(use types with a JSON form, imported at run time)"
        ) from error


def read_result_form(function: FunctionType, location: str) -> JsonObject | None:
    """Return the JSON Schema of the return type of a function, None if it has none, or returns None or any value.

    Raises:
        BundleError: the type cannot be resolved, or has no JSON Schema.
    """
    from pydantic import TypeAdapter

    try:
        hints = get_type_hints(function, include_extras=True)
        if "return" not in hints or hints["return"] in (Any, NoneType, object):
            return None
        schema = TypeAdapter(hints["return"]).json_schema()
        validator_of_schema(schema, skip_unreadable=True)
    except Exception as error:
        raise BundleError(
            f"{location}: tool {function.__name__!r} returns a type that cannot be used: {_first_sentence(error)} "
            "(the client sends its result as JSON)"
        ) from error
    return schema


def _first_sentence(error: Exception) -> str:
    """Return the text of an error of pydantic without its advice, which authors of tools cannot follow."""
    return str(error).partition("\n")[0].partition(". ")[0]


def _build_parameters(function: FunctionType, location: str, key: str) -> Parameters:
    """Build the pydantic model and the schema of a tool function, and find its parameters for the context.

    `key` is the template of a call's key, such as `file:{path}`, and `location` begins the error messages.

    Raises:
        BundleError: the template names a parameter for the context.
        Exception: an annotation cannot be resolved, or does not have a JSON Schema.
    """
    from pydantic import ConfigDict, Field, create_model

    names = {"ToolContext": ToolContext, **function.__globals__}
    hints = get_type_hints(function, globalns=names, include_extras=True)
    parameters = signature(function).parameters
    found = {name: tuple(_contexts(hints[name])) for name in parameters}
    contexts = tuple(name for name in parameters if found[name])
    deps = tuple(kind for name in contexts for context in found[name] for kind in get_args(context))
    if wrong := [name for name in contexts if f"{{{name}" in key]:
        raise BundleError(f"{location}: the key of {function.__name__!r} names {wrong[0]!r}")
    # pydantic refuses names such as `json` and `_x`, so the fields have other names, and the parameters are aliases.
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
    """Return the schema of the model without titles, because they only repeat the names; infinite numbers become texts."""
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
    """Return an error message for the model about one argument, named by its dotted path.

    An unknown argument comes with the nearest of `parameters`; a wrong value is shown with at most 60 characters.
    """
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
    """Return the names, the most similar to `name` first, ignoring case."""
    lowered = name.lower()
    return sorted(
        names,
        key=lambda candidate: (
            -SequenceMatcher(None, lowered, candidate.lower()).ratio(),
            candidate,
        ),
    )


def deps_problem(deps: object, expected: object) -> str:
    """Return an error message if the dependencies do not have the expected type, otherwise "".

    A tool that expects None accepts any object, and does not use it.
    """
    if expected in (None, NoneType) or _matches(deps, expected):
        return ""
    wanted, actual = _type_name(expected), _type_name(type(deps))
    if actual == wanted:
        return (
            f"asks for deps of the type {wanted} of its own copy of the module, since the bundle was opened by its path: "
            "open the imported Bundle object instead, or have the bundle make the deps with Bundle(deps=…)"
        )
    actual = "none were given" if deps is None else f"was given a {actual}"
    return (
        f"asks for deps of the type {wanted}, and {actual}: pass them to Harness.open(…, deps=…), "
        "or have the bundle make them with Bundle(deps=…), as the command line needs it"
    )


def _matches(deps: object, expected: object) -> bool:
    """Return whether the object has the type. A type that `isinstance` does not support matches all objects except None."""
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
    if isinstance(expected, type) and not get_args(expected):
        return expected.__name__
    return str(expected)


def _contexts(hint: object) -> Iterator[object]:
    """Yield each `ToolContext` and `ToolContext[X]` in an annotation."""
    if hint is ToolContext or get_origin(hint) is ToolContext:
        yield hint
        return
    for part in get_args(hint):
        yield from _contexts(part)


QUERY: JsonObject = {"type": "string", "description": "What to look for."}
"""The schema of a query."""


def object_schema(properties: JsonObject, *required: str) -> JsonObject:
    """Return a JSON Schema for an object with these properties and without additional ones."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


def limit_schema(default: int, limit: int) -> JsonObject:
    """Return a JSON Schema for an integer of at most `limit`."""
    return {"type": "integer", "maximum": limit, "default": default}


def check_names(spec: ToolSpec, arguments: JsonObject) -> None:
    """Check that all arguments are properties of the tool's schema.

    Raises:
        ToolError: one is not; the message names it and lists the properties, the most similar one first.
    """
    properties: Json = spec.parameters.get("properties")
    fields = list(properties) if isinstance(properties, dict) else []
    for name in arguments:
        if name not in fields:
            raise ToolError(f"{spec.name} has no field {name!r}: {nearest_first(name, fields)}")


def text_argument(
    arguments: JsonObject, name: str, expected: str = "a string that is not empty"
) -> str:
    """Return a required string argument, which must not be blank.

    Raises:
        ToolError: the argument is missing, blank or not a string; the message has the description `expected`.
    """
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ToolError(f"{name} must be {expected}")
    return value


def optional_text(arguments: JsonObject, name: str) -> str:
    """Return an optional string argument without surrounding whitespace; "" if it is missing or null.

    Raises:
        ToolError: the argument is not a string.
    """
    value = arguments.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ToolError(f"{name} must be a string")
    return value.strip()


def boolean_argument(arguments: JsonObject, name: str) -> bool:
    """Return an optional boolean argument; false if it is missing.

    Raises:
        ToolError: the argument is null, or not a boolean.
    """
    value = arguments.get(name, False)
    if not isinstance(value, bool):
        raise ToolError(f"{name} must be true or false")
    return value


def list_argument(
    arguments: JsonObject, name: str, expected: str, *, least: int = 1, most: int | None = None
) -> list[str]:
    """Return an argument that is a list of `least` to `most` strings; a missing or null argument counts as an empty list.

    Raises:
        ToolError: the argument is not such a list; the message has the description `expected`.
    """
    value: Json = arguments.get(name) or []
    items = value if isinstance(value, list) else [None]
    texts = [item for item in items if isinstance(item, str)]
    too_many = most is not None and len(texts) > most
    if len(texts) != len(items) or len(texts) < least or too_many:
        raise ToolError(f"{name} must be {expected}")
    return texts


def integer_argument(arguments: JsonObject, name: str, default: int, limit: int) -> int:
    """Return an integer argument from 1 to `limit`; `default` if it is missing.

    Raises:
        ToolError: the argument is null, or not such an integer.
    """
    value = arguments.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise ToolError(f"{name} must be an integer from 1 to {limit}")
    return value


def fraction_argument(arguments: JsonObject, name: str) -> float:
    """Return a number argument from 0 to 1; 0 if it is missing.

    Raises:
        ToolError: the argument is null, or not such a number.
    """
    value = arguments.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ToolError(f"{name} must be a number from 0 to 1")
    return float(value)


def names_argument(arguments: JsonObject, name: str, allowed: list[str]) -> list[str]:
    """Return an argument that is a list of allowed names, without duplicates; all of them if it is missing.

    Raises:
        ToolError: a name is not allowed, or the argument is not a list of names.
    """
    if arguments.get(name) is None:
        return allowed
    chosen = list_argument(arguments, name, f"a list of names from {allowed}")
    for item in chosen:
        if item not in allowed:
            raise ToolError(f"{name}: there is no {item!r}, only {nearest_first(item, allowed)}")
    return list(dict.fromkeys(chosen))
