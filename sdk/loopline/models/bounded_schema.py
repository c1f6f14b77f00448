"""JSON Schemas from outside: refused if they cannot be used, else checked with patterns of RE2 and in bounded work.

`jsonschema` searches with `re`, whose time may grow exponentially, and follows references without an end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

from loopline.errors import LooplineError
from loopline.models.json import Json, JsonObject, dumps
from loopline.models.patterns import Expression, compile_pattern

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator
    from referencing import Resource
    from referencing._core import Resolver

MAX_DEPTH = 40
"""Schemas inside each other."""
SCHEMA_STEPS, VALUE_STEPS, STEP_CHARACTERS = 3_000, 8, 100
"""Steps that a check may take: for the schema, more for each value in the arguments, and one for so many characters. A
step is one keyword applied to one value and takes 6 µs (`python -m tests.bench.stalls --only schema`)."""
CHECKED_BYTES = 1_000_000
"""Bytes of schemas that references name at places of their own."""
_SEARCH_STEP = 2_000
"""Instructions times bytes of a search that count as a step."""
_COMPILE_STEP = 20
"""Instructions that are compiled within a step."""
_COMPARED = 16
"""Values that are compared within a step."""
_MESSAGE_STEP = 512
"""Characters of an error message that are written within a step."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_OBJECTS = ("dependentSchemas", "dependencies")

REASON_CHARACTERS = 200
"""Characters of a schema that an error shows."""

_Keyword = Callable[[Any, Any, Any, Any], "Iterator[ValidationError] | None"]
_Extend = Callable[["type[Validator]", Mapping[str, _Keyword]], "type[Validator]"]


class UnusableSchema(LooplineError):
    """A schema cannot be used to check values; the message says why."""


class TooManySteps(LooplineError):
    """A value was not checked to its end, because its schema makes that too much work."""


class _Work:
    """The steps that are left for the value that is checked now, and the patterns of its schema."""

    def __init__(self, patterns: dict[str, Expression | None], steps: int) -> None:
        self._patterns = patterns
        self._steps = self._left = steps

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooManySteps(f"the schema takes more than {self._steps:,} steps to check it")

    def fits(self, pattern: str, text: str) -> bool:
        """Return whether a pattern is found in a text; one that RE2 cannot read is found in every text."""
        if pattern not in self._patterns:
            self._patterns[pattern] = expression = _readable(pattern)
            self.spend(expression.programsize // _COMPILE_STEP if expression else 0)
        expression = self._patterns[pattern]
        if expression is None:
            return True
        data = text.encode("utf-8", "replace")
        self.spend(1 + expression.programsize * len(data) // _SEARCH_STEP)
        return expression.search(data) is not None


_work: ContextVar[_Work] = ContextVar("_work")


def check_schema(schema: JsonObject, *, skip_unreadable: bool = False) -> None:
    """Check that values can be checked against a schema. This may take a second for 100 KB: do it in a thread.

    With `skip_unreadable` a `pattern` that RE2 cannot read, such as one with look-around, is allowed and not checked later.

    Raises:
        UnusableSchema: it is no JSON Schema, it is nested too deeply, one of its references leads out of it, nowhere or
            back to itself, or one of its patterns is no regular expression of RE2.
    """
    try:
        _check_form(_draft(schema), schema)
        _SchemaWalk(schema, skip_unreadable=skip_unreadable).check()
    except RecursionError as error:
        raise UnusableSchema(_too_deep()) from error


def find_errors(schema: JsonObject) -> Callable[[Json, int], list[ValidationError]]:
    """Return a function of a value that finds its first errors, at most as many as its second argument says.

    The schema has passed `check_schema`. The function raises `TooManySteps`, and `RecursionError` for a value that is
    nested too deeply.
    """
    from referencing import Registry

    # A schema that names its draft would be given to the validator of jsonschema that searches with `re`.
    unnamed = {name: value for name, value in schema.items() if name != "$schema"}
    validator = _bounded(_draft(schema))(unnamed, registry=Registry[Any]())
    patterns: dict[str, Expression | None] = {}

    def find(value: Json, limit: int) -> list[ValidationError]:
        values, characters = _size(value)
        steps = SCHEMA_STEPS + VALUE_STEPS * values + characters // STEP_CHARACTERS
        token = _work.set(_Work(patterns, steps))
        try:
            return list(islice(validator.iter_errors(value), limit))
        finally:
            _work.reset(token)

    return find


def _readable(pattern: str) -> Expression | None:
    try:
        return compile_pattern(pattern)
    except LooplineError:
        return None


def _draft(schema: JsonObject) -> type[Validator]:
    from jsonschema.validators import Draft202012Validator, validator_for

    if not isinstance(schema.get("$schema", ""), str):
        raise UnusableSchema("its $schema is no text")
    return validator_for(schema, default=Draft202012Validator)


def _check_form(draft: type[Validator], schema: Json) -> None:
    """Check that a schema is one of its draft; jsonschema's own check would compile its patterns with `re`."""
    from referencing import Registry

    validator = draft(draft.META_SCHEMA, registry=Registry[Any]())
    error = next(iter(validator.iter_errors(schema)), None)
    if error is not None:
        raise UnusableSchema(f"it is no JSON Schema: {error.message[:REASON_CHARACTERS]}")


@cache
def _bounded(draft: type[Validator]) -> type[Validator]:
    """Return the validator of a draft with every keyword counted, and without `re`."""
    extend: _Extend = import_module("jsonschema.validators").extend
    keywords: dict[str, _Keyword] = {**draft.VALIDATORS}
    own: dict[str, _Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    keywords |= {name: keyword for name, keyword in own.items() if name in keywords}
    counted = {name: _counted(name, keyword) for name, keyword in keywords.items()}
    return extend(draft, counted)


def _counted(name: str, keyword: _Keyword) -> _Keyword:
    def count(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        work = _work.get()
        work.spend(1 + _cost(name, value, instance))
        for error in keyword(validator, value, instance, schema) or ():
            work.spend(1 + len(error.message) // _MESSAGE_STEP)
            yield error

    return count


def _cost(name: str, value: Json, instance: Json) -> int:
    """Return the steps that a keyword takes beside those of the schemas in it."""
    if name in {"enum", "const"}:
        return _size(value)[0] // _COMPARED
    if name == "uniqueItems":
        return _size(instance)[0] // _COMPARED
    if name in {"unevaluatedItems", "unevaluatedProperties"} and isinstance(instance, list | dict):
        return len(instance) ** 2 // _COMPARED  # jsonschema looks for each item in a list of items
    return len(value) // _COMPARED if isinstance(value, list | dict) else 0


def _size(value: Json) -> tuple[int, int]:
    """Return the number of values in a value, itself among them, and of characters in its texts."""
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
    from jsonschema.exceptions import ValidationError

    if not isinstance(instance, dict):
        return
    work, unexpected = _work.get(), list[str]()
    named, patterns = schema.get("properties"), schema.get("patternProperties")
    for name, value in instance.items():
        if isinstance(named, dict) and name in named:
            continue
        if isinstance(patterns, dict) and any(work.fits(pattern, name) for pattern in patterns):
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
    from jsonschema.exceptions import ValidationError

    del schema
    if unique and isinstance(instance, list):
        different = {json.dumps(item, sort_keys=True) for item in instance}
        if len(different) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


class _SchemaWalk:
    """A walk through every schema in a document that is applied to a value, those that it refers to among them."""

    def __init__(self, schema: JsonObject, *, skip_unreadable: bool) -> None:
        from referencing import Registry
        from referencing.jsonschema import DRAFT202012, specification_with

        self._draft = _draft(schema)
        named = schema.get("$schema")
        self._specification = specification_with(
            named if isinstance(named, str) else "", default=DRAFT202012
        )
        self._root = self._specification.create_resource(schema)
        self._resolver = Registry[Any]().resolver_with_root(self._root)
        self._skip_unreadable = skip_unreadable
        self._in_place: dict[int, list[Json]] = {}
        self._is_unevaluated = self._has_patterns = False
        self._known = set[int]()
        self._checked = 0

    def check(self) -> None:
        """Check every schema.

        Raises:
            UnusableSchema: one cannot be used.
        """
        waiting = [(self._root, self._resolver, 0)]
        self._remember_schemas(self._root)
        while waiting:
            resource, resolver, depth = waiting.pop()
            schema: Json = resource.contents
            if not isinstance(schema, dict) or id(schema) in self._in_place:
                continue
            if depth > MAX_DEPTH:
                raise UnusableSchema(_too_deep())
            self._check_one(schema)
            self._in_place[id(schema)] = in_place = list(_schemas_in_place(schema))
            for reference in _REFERENCES:
                if isinstance(name := schema.get(reference), str):
                    target, schema_id = self._look_up(name, resolver)
                    in_place.append(target.contents)
                    waiting.append((target, schema_id, depth))
            for inner in resource.subresources():
                waiting.append((inner, resolver.in_subresource(inner), depth + 1))
        if self._is_unevaluated and self._has_patterns:
            raise UnusableSchema("it has both patternProperties and unevaluatedProperties")
        self._check_steps()

    def _remember_schemas(self, resource: Resource[Any]) -> None:
        """Remember the schemas that were checked with the one that they are in."""
        waiting = [(resource, 0)]
        while waiting:
            inner, depth = waiting.pop()
            self._known.add(id(inner.contents))
            if depth > MAX_DEPTH:
                raise UnusableSchema(_too_deep())
            waiting += [(each, depth + 1) for each in inner.subresources()]

    def _check_one(self, schema: JsonObject) -> None:
        if "$schema" in schema and schema is not self._root.contents:
            raise UnusableSchema("a schema inside it has a $schema of its own")
        self._is_unevaluated |= "unevaluatedProperties" in schema
        patterns = schema.get("patternProperties")
        self._has_patterns |= patterns is not None
        required = list(patterns) if isinstance(patterns, dict) else []
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and not self._skip_unreadable:
            required.append(pattern)
        for text in required:
            try:
                compile_pattern(text)
            except LooplineError as error:
                raise UnusableSchema(f"its pattern {error}") from error

    def _look_up(
        self, reference: str, resolver: Resolver[Any]
    ) -> tuple[Resource[Any], Resolver[Any]]:
        from referencing.exceptions import Unresolvable

        try:
            found = resolver.lookup(reference)
            contents: Json = found.contents
            target = self._specification.create_resource(contents)
        except (Unresolvable, ValueError, TypeError, LookupError, AttributeError) as error:
            raise UnusableSchema(
                f"its reference {reference[:REASON_CHARACTERS]!r} leads nowhere in it"
            ) from error
        if not isinstance(contents, dict | bool):
            raise UnusableSchema(f"its reference {reference[:REASON_CHARACTERS]!r} names no schema")
        if id(contents) not in self._known:  # at a place that no keyword names
            self._check_again(target)
        return target, found.resolver

    def _check_again(self, target: Resource[Any]) -> None:
        self._checked += len(dumps(target.contents))
        if self._checked > CHECKED_BYTES:
            raise UnusableSchema("too many of its references name schemas at places of their own")
        _check_form(self._draft, target.contents)
        self._remember_schemas(target)

    def _check_steps(self) -> None:
        """Check that no reference leads back to itself, and how many schemas apply to the same value."""
        steps: dict[int, int] = {}

        def count(schema_id: int) -> int:
            if schema_id not in steps:
                steps[schema_id] = 0
                applied = self._in_place.get(schema_id, ())
                steps[schema_id] = 1 + sum(count(id(schema)) for schema in applied)
                if steps[schema_id] > SCHEMA_STEPS:
                    raise UnusableSchema(
                        f"it applies more than {SCHEMA_STEPS:,} schemas to one value"
                    )
            if not steps[schema_id]:
                raise UnusableSchema("one of its references leads back to itself")
            return steps[schema_id]

        for schema_id in self._in_place:
            count(schema_id)


def _schemas_in_place(schema: JsonObject) -> Iterator[Json]:
    """Yield the schemas in a schema that are applied to the same value as itself."""
    for name in _IN_PLACE_LISTS:
        if isinstance(listed := schema.get(name), list):
            yield from listed
    for name in _IN_PLACE:
        if name in schema:
            yield schema[name]
    for name in _IN_PLACE_OBJECTS:
        if isinstance(named := schema.get(name), dict):
            yield from named.values()


def _too_deep() -> str:
    return f"it has schemas more than {MAX_DEPTH} levels deep"
