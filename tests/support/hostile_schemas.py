"""Schemas that a hostile server sends: patterns whose search takes exponential time, and schemas that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

from loopline.models import Json, JsonObject

_REPEATED = (
    *("(a+)+", "(a*)*", "(a|a)*", "(a|aa)+", "(a+a+)+", "(a+a*)+", "([a-z]+)*", "(a?){30}a{30}"),
    *(r"(\w+\s?)*", "(.*a){12}", "(a{1,3}){1,30}", "((a+)+)+", "(a|b|ab)*", "(x*a*)*", "(a|a?)+"),
    *("(?:a+)+", "([a-zA-Z0-9]+)+", "(a+b?)*", "(aa?)+", r"(\S+)*"),
)
PATTERNS = tuple(f"^{word}{end}" for word, end in product(_REPEATED, ("$", "b$", "!x")))
"""Sixty patterns, each of which takes `re` exponential time for one of `TEXTS`."""
TEXTS: tuple[Callable[[int], str], ...] = (
    lambda length: "a" * length + "!",
    lambda length: "a" * length,
    lambda length: "ab" * (length // 2) + "!",
)


def arguments(defined: JsonObject | None = None, /, **properties: Json) -> JsonObject:
    """Return the schema of arguments that have these properties, with what else the document defines."""
    return {"type": "object", "properties": properties, **(defined or {})}


def _nested(levels: int) -> JsonObject:
    schema: JsonObject = {}
    for _ in range(levels):
        schema = arguments(a=schema)
    return schema


def _doubled(number: int) -> JsonObject:
    following: JsonObject = {"$ref": f"#/$defs/d{number + 1}"}
    return {"allOf": [following, following]}


_DOUBLED: JsonObject = {f"d{number}": _doubled(number) for number in range(30)}
UNUSABLE: Mapping[str, tuple[JsonObject, str]] = {
    "remote": (arguments(a={"$ref": "https://example.com/a"}), "does not have a target in it"),
    "missing": (arguments(a={"$ref": "#/$defs/a"}), "does not have a target in it"),
    "broken": (arguments(a={"$ref": "http://[/a"}), "does not have a target in it"),
    "metaschema": (
        arguments(a={"$ref": "https://json-schema.org/draft/2020-12/schema"}),
        "does not have a target in it",
    ),
    "text": (arguments({"$defs": {"a": "b"}}, a={"$ref": "#/$defs/a"}), "not a JSON Schema"),
    "itself": ({"type": "object", "$ref": "#"}, "is circular"),
    "circle": (
        arguments(
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}},
            a={"$ref": "#/$defs/a"},
        ),
        "is circular",
    ),
    "laughs": (
        arguments({"$defs": {**_DOUBLED, "d30": {}}}, a={"$ref": "#/$defs/d0"}),
        "more than 3,000 schemas to one value",
    ),
    "deep": (_nested(60), "more than 40 levels deep"),
    "draft": (
        arguments(a={"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}),
        "has its own $schema",
    ),
    "names": (
        {"type": "object", "patternProperties": {"(?=a)b": {}}, "additionalProperties": False},
        "not a regular expression of RE2",
    ),
    "unevaluated": (
        {"type": "object", "patternProperties": {"a": {}}, "unevaluatedProperties": False},
        "both patternProperties and unevaluatedProperties",
    ),
    "elsewhere": (
        arguments({"x": {"a": {"type": 5}}}, a={"$ref": "#/x/a"}),
        "not a JSON Schema",
    ),
    "type": (arguments(a={"type": "tea"}), "not a JSON Schema"),
    "factor": (arguments(a={"multipleOf": 10**400}), "multipleOf is too large"),
    "address": (
        arguments({"$id": "https://example.com/a"}, a={"$id": "http://["}),
        "is not a URL",
    ),
}
"""Schemas that cannot be used, and a part of the reason."""
