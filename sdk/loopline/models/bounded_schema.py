"""JSON Schemas from outside, checked before use; values are validated in a bounded number of steps, with RE2.

`jsonschema` alone is not safe: its patterns use `re`, which may take exponential time, and it follows circular references.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from itertools import islice
from sys import float_info
from typing import TYPE_CHECKING, Any

from loopline.errors import LooplineError
from loopline.models.json import Json, JsonObject, dumps, object_in, text_in
from loopline.models.patterns import Expression, compile_pattern

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator
    from referencing import Resource
    from referencing._core import Resolver

MAX_DEPTH = 40
"""The most levels of nested schemas."""
_TOO_DEEP = f"it has schemas more than {MAX_DEPTH} levels deep"
SCHEMA_STEPS = 3_000
"""The steps that a validation may take for any value. A step is one keyword applied to one value, and takes 6 µs
(`python -m tests.bench.stalls --only schema`)."""
VALUE_STEPS = 8
"""The additional steps for each value inside the validated value."""
STEP_CHARACTERS = 100
"""The characters of texts in the validated value that allow one additional step."""
CHECKED_BYTES = 1_000_000
"""The most bytes of schemas that only references name, because no keyword does."""
_SEARCH_STEP = 2_000
"""The instructions times bytes of a search that count as a step."""
_COMPILE_STEP = 20
"""The instructions of a compiled pattern that count as a step."""
_COMPARED = 16
"""The compared values that count as a step."""
_MESSAGE_STEP = 512
"""The characters of an error message that count as a step."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_OBJECTS = ("dependentSchemas", "dependencies")

REASON_CHARACTERS = 200
"""The most characters of a schema in an error message."""

_Keyword = Callable[[Any, Any, Any, Any], "Iterator[ValidationError] | None"]
_Extend = Callable[["type[Validator]", Mapping[str, _Keyword]], "type[Validator]"]


class UnusableSchema(LooplineError):
    """A schema cannot be used to validate values; the message has the reason."""


class TooManySteps(LooplineError):
    """The validation of a value was stopped, because it takes too many steps."""


class _Work:
    """The remaining steps of one validation, and the compiled patterns of its schema."""

    def __init__(self, patterns: dict[str, Expression | None], steps: int) -> None:
        self._patterns = patterns
        self._steps = self._left = steps

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooManySteps(f"the schema takes more than {self._steps:,} steps to check it")

    def fits(self, pattern: str, text: str) -> bool:
        """Return whether a pattern matches in a text; a pattern that RE2 does not support matches in every text.

        The compilation and the search spend steps, and raise `TooManySteps` if too few are left.
        """
        if pattern not in self._patterns:
            expression = None
            with suppress(LooplineError):
                expression = compile_pattern(pattern)
            self._patterns[pattern] = expression
            self.spend(expression.programsize // _COMPILE_STEP if expression else 0)
        expression = self._patterns[pattern]
        if expression is None:
            return True
        data = text.encode("utf-8", "replace")
        self.spend(1 + expression.programsize * len(data) // _SEARCH_STEP)
        return expression.search(data) is not None


# jsonschema calls the keywords without a place for our own state, so a context variable carries it.
_work: ContextVar[_Work] = ContextVar("_work")


def check_schema(schema: JsonObject, *, skip_unreadable: bool = False) -> None:
    """Check that a schema can be used to validate values. This may take a second for 100 KB, so call it in a thread.

    With `skip_unreadable`, a `pattern` that RE2 does not support, such as one with look-around, is allowed, and
    ignored in validations.

    Raises:
        UnusableSchema: the schema is not a valid JSON Schema, or nested more than 40 levels deep; a reference is
            remote, circular or without a target; RE2 does not support a pattern; an inner schema has a `$schema`; it
            has both `patternProperties` and `unevaluatedProperties`; more than 3,000 schemas apply to one value; its
            `$schema` or an `$id` is not a URL; a `multipleOf` is too large for a float; or the targets of references
            that are not in keywords for schemas have over a million characters together.
    """
    try:
        _check_form(_draft(schema), schema)
        _SchemaWalk(schema, skip_unreadable=skip_unreadable).check()
    except RecursionError as error:
        raise UnusableSchema(_TOO_DEEP) from error
    except ValueError as error:
        raise UnusableSchema("its $schema or an $id in it is not a URL") from error


def find_errors(schema: JsonObject) -> Callable[[Json, int], list[ValidationError]]:
    """Return a function that validates a value and returns its first errors; its second argument is their maximum number.

    The schema must have passed `check_schema`. The function raises `TooManySteps`, and `RecursionError` for a value that is
    nested too deeply.
    """
    from referencing import Registry

    # For a schema with `$schema`, jsonschema would choose its own validator, which searches with `re`.
    without_draft = {name: value for name, value in schema.items() if name != "$schema"}
    validator = _limit_validator(_draft(schema))(without_draft, registry=Registry[Any]())
    patterns: dict[str, Expression | None] = {}

    def find(value: Json, limit: int) -> list[ValidationError]:
        """Return at most `limit` errors; raise `TooManySteps` if the check exceeds the steps for the value's size."""
        values, characters = _size(value)
        steps = SCHEMA_STEPS + VALUE_STEPS * values + characters // STEP_CHARACTERS
        token = _work.set(_Work(patterns, steps))
        try:
            return list(islice(validator.iter_errors(value), limit))
        except BaseException as error:
            # If the recursion limit is reached while rpds compares two keys, its Rust code raises a BaseException of a
            # type that cannot be imported.
            if type(error).__name__ == "PanicException":
                raise RecursionError("the recursion limit was reached in rpds") from error
            raise
        finally:
            _work.reset(token)

    return find


def _draft(schema: JsonObject) -> type[Validator]:
    from jsonschema.validators import Draft202012Validator, validator_for

    if not isinstance(schema.get("$schema", ""), str):
        raise UnusableSchema("its $schema is not a text")
    return validator_for(schema, default=Draft202012Validator)


def _check_form(draft: type[Validator], schema: Json) -> None:
    """Raise `UnusableSchema` if a schema is not valid in its draft; its patterns are not compiled with `re`."""
    from referencing import Registry

    validator = draft(draft.META_SCHEMA, registry=Registry[Any]())
    error = next(iter(validator.iter_errors(schema)), None)
    if error is not None:
        raise UnusableSchema(f"it is not a JSON Schema: {error.message[:REASON_CHARACTERS]}")


@cache
def _limit_validator(draft: type[Validator]) -> type[Validator]:
    """Return the validator of a draft that counts the steps of every keyword, and uses RE2 for patterns."""
    extend: _Extend = import_module("jsonschema.validators").extend
    keywords: dict[str, _Keyword] = {**draft.VALIDATORS}
    own: dict[str, _Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
        "multipleOf": _multiple_of,
        "divisibleBy": _multiple_of,
    }
    keywords |= {name: keyword for name, keyword in own.items() if name in keywords}
    return extend(draft, {name: _count_steps(name, keyword) for name, keyword in keywords.items()})


def _count_steps(name: str, keyword: _Keyword) -> _Keyword:
    """Return the keyword with its steps counted: it raises `TooManySteps` if the validation has too few left."""

    def count(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        work = _work.get()
        work.spend(1 + _cost(name, value, instance))
        for error in keyword(validator, value, instance, schema) or ():
            work.spend(1 + len(error.message) // _MESSAGE_STEP)
            yield error

    return count


def _cost(name: str, value: Json, instance: Json) -> int:
    """Return the steps of the keyword `name` with this `value` for an instance, without those of schemas in it."""
    if name in {"enum", "const"}:
        return _size(value)[0] // _COMPARED
    if name == "uniqueItems":
        return _size(instance)[0] // _COMPARED
    if name in {"unevaluatedItems", "unevaluatedProperties"} and isinstance(instance, list | dict):
        return len(instance) ** 2 // _COMPARED  # jsonschema searches a list for each item
    return len(value) // _COMPARED if isinstance(value, list | dict) else 0


def _size(value: Json) -> tuple[int, int]:
    """Return the number of values in a value, including itself, and the number of characters in its texts."""
    values = characters = 0
    waiting: list[Json] = [value]
    while waiting:
        item = waiting.pop()
        values += 1
        if isinstance(item, str):
            characters += len(item)
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            characters += sum(map(len, item))
            waiting += item.values()
    return values, characters


def _pattern(_: Any, pattern: str, instance: Json, schema: Any) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError

    del schema
    if isinstance(instance, str) and not _work.get().fits(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: JsonObject, instance: Json, schema: Any
) -> Iterator[ValidationError]:
    """Yield the errors of the properties with a name that a pattern matches; RE2 searches the names."""
    del schema
    if isinstance(instance, dict):
        work = _work.get()
        for pattern, inner in patterns.items():
            for name, value in instance.items():
                if work.fits(pattern, name):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, inner: Json, instance: Json, schema: JsonObject
) -> Iterator[ValidationError]:
    """Yield errors of properties that the schema does not name; forbidden ones share one error with all names."""
    from jsonschema.exceptions import ValidationError

    if not isinstance(instance, dict):
        return
    work = _work.get()
    unexpected: list[str] = []
    properties = object_in(schema, "properties")
    patterns = object_in(schema, "patternProperties")
    for name, value in instance.items():
        if name in properties or any(work.fits(pattern, name) for pattern in patterns):
            continue
        if inner is False:
            unexpected.append(repr(name))
        else:
            yield from validator.descend(value, inner, path=name)
    if unexpected:
        verb = "was" if len(unexpected) == 1 else "were"
        names = ", ".join(sorted(unexpected))
        yield ValidationError(f"Additional properties are not allowed ({names} {verb} unexpected)")


def _unique_items(_: Any, unique: bool, instance: Json, schema: Any) -> Iterator[ValidationError]:
    """Yield an error if two items of a list have the same JSON, with sorted keys; 1 and 1.0 differ."""
    from jsonschema.exceptions import ValidationError

    del schema
    if unique and isinstance(instance, list):
        different = {json.dumps(item, sort_keys=True) for item in instance}
        if len(different) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _multiple_of(
    validator: Any, factor: float, instance: Json, schema: JsonObject
) -> Iterator[ValidationError]:
    """Yield an error if a number is not a multiple, or if it is too large to divide it as a float."""
    from jsonschema import Draft202012Validator, ValidationError

    divide = Draft202012Validator.VALIDATORS["multipleOf"]
    try:
        yield from divide(validator, factor, instance, schema)
    except (OverflowError, ValueError):
        yield ValidationError(f"{instance!r} cannot be divided by {factor}")


class _SchemaWalk:
    """A walk through every schema in a document that may apply to a value, including the targets of references.

    `_in_place` maps the id of each visited schema to the schemas that apply to the same value.
    """

    def __init__(self, schema: JsonObject, *, skip_unreadable: bool) -> None:
        from referencing import Registry
        from referencing.jsonschema import DRAFT202012, specification_with

        self._draft = _draft(schema)
        draft_name = text_in(schema, "$schema")
        self._specification = specification_with(draft_name, default=DRAFT202012)
        self._root = self._specification.create_resource(schema)
        self._resolver = Registry[Any]().resolver_with_root(self._root)
        self._skip_unreadable = skip_unreadable
        self._in_place: dict[int, list[Json]] = {}
        self._is_unevaluated = self._has_patterns = False
        self._known = set[int]()
        self._checked = 0

    def check(self) -> None:
        """Check every schema; raise `UnusableSchema` if a schema cannot be used."""
        waiting = [(self._root, self._resolver, 0)]
        self._remember_schemas(self._root)
        while waiting:
            resource, resolver, depth = waiting.pop()
            schema: Json = resource.contents
            if not isinstance(schema, dict) or id(schema) in self._in_place:
                continue
            if depth > MAX_DEPTH:
                raise UnusableSchema(_TOO_DEEP)
            self._check_one(schema)
            self._in_place[id(schema)] = in_place = list(_schemas_in_place(schema))
            for reference in _REFERENCES:
                if isinstance(name := schema.get(reference), str):
                    target, target_resolver = self._look_up(name, resolver)
                    in_place.append(target.contents)
                    waiting.append((target, target_resolver, depth))
            for inner in resource.subresources():
                waiting.append((inner, resolver.in_subresource(inner), depth + 1))
        if self._is_unevaluated and self._has_patterns:
            raise UnusableSchema("it has both patternProperties and unevaluatedProperties")
        self._check_steps()

    def _remember_schemas(self, resource: Resource[Any]) -> None:
        """Store the ids of a schema and the schemas in it, because the check of its form covered them.

        Raises:
            UnusableSchema: they are nested more than 40 levels deep.
        """
        waiting = [(resource, 0)]
        while waiting:
            inner, depth = waiting.pop()
            self._known.add(id(inner.contents))
            if depth > MAX_DEPTH:
                raise UnusableSchema(_TOO_DEEP)
            waiting += [(each, depth + 1) for each in inner.subresources()]

    def _check_one(self, schema: JsonObject) -> None:
        """Raise `UnusableSchema` for an inner `$schema`, a huge factor, or a pattern that RE2 does not support.

        With `skip_unreadable` this applies to the patterns of `patternProperties` only. The use of
        `patternProperties` and `unevaluatedProperties` is recorded.
        """
        if "$schema" in schema and schema is not self._root.contents:
            raise UnusableSchema("a schema inside it has its own $schema")
        for name in ("multipleOf", "divisibleBy"):
            factor = schema.get(name)
            if isinstance(factor, int | float) and not factor <= float_info.max:
                raise UnusableSchema(f"its {name} is too large")
        self._is_unevaluated |= "unevaluatedProperties" in schema
        self._has_patterns |= "patternProperties" in schema
        required = list(object_in(schema, "patternProperties"))
        pattern = text_in(schema, "pattern")
        if pattern and not self._skip_unreadable:
            required.append(pattern)
        for text in required:
            try:
                compile_pattern(text)
            except LooplineError as error:
                raise UnusableSchema(f"its pattern {error}") from error

    def _look_up(
        self, reference: str, resolver: Resolver[Any]
    ) -> tuple[Resource[Any], Resolver[Any]]:
        """Return the target of a reference and its resolver; raise `UnusableSchema` if the target is not a schema."""
        from referencing.exceptions import Unresolvable

        try:
            found = resolver.lookup(reference)
            contents: Json = found.contents
            target = self._specification.create_resource(contents)
        except (Unresolvable, ValueError, TypeError, LookupError, AttributeError) as error:
            raise UnusableSchema(
                f"its reference {reference[:REASON_CHARACTERS]!r} does not have a target in it"
            ) from error
        if not isinstance(contents, dict | bool):
            raise UnusableSchema(
                f"the target of its reference {reference[:REASON_CHARACTERS]!r} is not a schema"
            )
        if id(contents) not in self._known:  # it is in a field that is not a keyword for schemas
            self._check_again(target)
        return target, found.resolver

    def _check_again(self, target: Resource[Any]) -> None:
        """Check the form of a target that is not in a keyword for schemas.

        Raises:
            UnusableSchema: the form is not valid, or all such targets together have more than a million characters.
        """
        self._checked += len(dumps(target.contents))
        if self._checked > CHECKED_BYTES:
            raise UnusableSchema(
                "too many of its references have targets outside of its definitions"
            )
        _check_form(self._draft, target.contents)
        self._remember_schemas(target)

    def _check_steps(self) -> None:
        """Raise `UnusableSchema` for circular references, or if over 3,000 schemas apply to one value."""
        steps: dict[int, int] = {}

        def count(schema_id: int) -> int:
            """Return the number of schemas for one value; raise `UnusableSchema` above the limit or for a circle."""
            if schema_id not in steps:
                steps[schema_id] = 0
                applied = self._in_place.get(schema_id, ())
                steps[schema_id] = 1 + sum(count(id(schema)) for schema in applied)
                if steps[schema_id] > SCHEMA_STEPS:
                    raise UnusableSchema(
                        f"it applies more than {SCHEMA_STEPS:,} schemas to one value"
                    )
            if not steps[schema_id]:
                raise UnusableSchema("one of its references is circular")
            return steps[schema_id]

        for schema_id in self._in_place:
            count(schema_id)


def _schemas_in_place(schema: JsonObject) -> Iterator[Json]:
    """Yield the schemas in a schema that apply to the same value as the schema itself."""
    for name in _IN_PLACE_LISTS:
        if isinstance(listed := schema.get(name), list):
            yield from listed
    for name in _IN_PLACE:
        if name in schema:
            yield schema[name]
    for name in _IN_PLACE_OBJECTS:
        if isinstance(named := schema.get(name), dict):
            yield from named.values()
