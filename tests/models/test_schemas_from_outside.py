"""A schema from outside is refused, or a value is checked against it in bounded work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf, nan

import pytest
from jsonschema import Draft202012Validator, ValidationError, validate

from loopline.models import Json, JsonObject, SchemaMismatch
from loopline.models.bounded_schema import UnusableSchema, check_schema
from loopline.models.json_schema import convert_scalars, validator_of_schema
from tests.support.hostile_schemas import PATTERNS, TEXTS, UNUSABLE, arguments
from tests.support.slow_patterns import superlinear

TREE: JsonObject = arguments(name={"type": "string"}, inner={"$ref": "#"})
ROWS: JsonObject = arguments(
    rows={
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"maxLength": 3}},
            "required": ["a"],
            "additionalProperties": False,
        },
    }
)
FORKED: JsonObject = {
    "anyOf": [{"properties": {"c": {"$ref": "#"}}, "required": [name]} for name in ("x", "y")]
}


def fits(schema: JsonObject, value: Json) -> bool:
    return passes(validator_of_schema(schema), value)


def passes(validate: Callable[[Json], Json], value: Json) -> bool:
    try:
        validate(value)
    except SchemaMismatch:
        return False
    return True


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_pattern_of_a_schema_takes_more_time_than_the_text_is_long(pattern: str) -> None:
    value = validator_of_schema(arguments(a={"pattern": pattern}))
    name = validator_of_schema({"patternProperties": {pattern: {}}, "additionalProperties": False})
    for text in TEXTS:
        assert not superlinear(lambda made: passes(value, {"a": made}), text)
        assert not superlinear(lambda made: passes(name, {made: 1}), text)


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_schema_that_cannot_be_used_is_refused_with_the_reason(name: str) -> None:
    schema, reason = UNUSABLE[name]
    with pytest.raises(UnusableSchema) as refused:
        check_schema(schema)
    assert reason in str(refused.value)


@pytest.mark.parametrize("pattern", ["^(?!x)a", "\ud800"])
def test_a_pattern_that_re2_cannot_read_is_refused_or_not_checked(pattern: str) -> None:
    schema = arguments(a={"type": "string", "pattern": pattern})
    with pytest.raises(UnusableSchema, match="not a regular expression of RE2"):
        check_schema(schema)
    assert passes(validator_of_schema(schema, skip_unreadable=True), {"a": "b"})


def test_a_pattern_of_names_with_a_surrogate_is_refused() -> None:
    with pytest.raises(UnusableSchema, match="surrogates not allowed"):
        check_schema({"patternProperties": {"\ud800": {}}}, skip_unreadable=True)


@pytest.mark.parametrize("factor", [inf, nan, 10**400], ids=["inf", "nan", "long"])
def test_a_factor_that_is_no_float_is_refused(factor: float) -> None:
    with pytest.raises(UnusableSchema, match="its multipleOf is too large"):
        check_schema({"multipleOf": factor})
    with pytest.raises(UnusableSchema, match="its divisibleBy is too large"):
        check_schema({"$schema": "http://json-schema.org/draft-03/schema#", "divisibleBy": factor})


@pytest.mark.parametrize(
    "value", [10**400, -(10**400), inf, nan], ids=["long", "low", "inf", "nan"]
)
def test_a_number_that_cannot_be_divided_by_the_factor_does_not_fit(value: float) -> None:
    with pytest.raises(SchemaMismatch, match=r"^a: .*(cannot be divided by|…)"):
        validator_of_schema(arguments(a={"multipleOf": 0.5}))({"a": value})


def test_a_schema_with_a_draft_that_is_not_a_url_is_refused() -> None:
    with pytest.raises(UnusableSchema, match="is not a URL"):
        check_schema({"$schema": "http://["})


MANY_ROWS: list[Json] = [{"a": 1, "b": "x"} for _ in range(2_000)]
CASES: list[tuple[JsonObject, Json]] = [
    (TREE, {"name": "a", "inner": {"inner": {"name": "b"}}}),
    (TREE, {"inner": {"inner": {"name": 1}}}),
    (ROWS, {"rows": MANY_ROWS}),
    (ROWS, {"rows": [{"a": -1}]}),
    (ROWS, {"rows": [{"a": 1, "c": 1, "d": 1}]}),
    (arguments(a={"pattern": "^[a-z]{2,4}$"}), {"a": "abcd"}),
    (arguments(a={"pattern": "^[a-z]{2,4}$"}), {"a": "abcde"}),
    (arguments(a={"pattern": "é+"}), {"a": "caféé"}),
    (arguments(a={"uniqueItems": True}), {"a": [{"b": 1, "c": 2}, {"c": 2, "b": 1}]}),
    (arguments(a={"uniqueItems": True}), {"a": [1, True, "1", [1]]}),
    (arguments(a={"enum": [1, "b", None]}), {"a": None}),
    (arguments(a={"oneOf": [{"type": "string"}, {"const": 3}]}), {"a": 3}),
    ({"patternProperties": {"^x-": {"type": "string"}}, "minProperties": 1}, {"x-a": 1}),
    (
        {"patternProperties": {"^x-": True}, "additionalProperties": {"type": "null"}},
        {"x-a": 1, "b": None},
    ),
    (arguments({"x": {"a": {"type": "string"}}}, a={"$ref": "#/x/a"}), {"a": 1}),
    ({"properties": {"$ref": {"type": "string"}, "$schema": {}}}, {"$ref": 1}),
    ({"prefixItems": [{}], "unevaluatedItems": False}, [1, 2]),
    ({"not": {"required": ["a"]}}, {"a": 1}),
]


@pytest.mark.parametrize(("schema", "value"), CASES)
def test_a_value_fits_or_not_as_jsonschema_says(schema: JsonObject, value: Json) -> None:
    try:
        validate(value, schema, cls=Draft202012Validator)
    except ValidationError:
        assert not fits(schema, value)
    else:
        assert fits(schema, value)


@pytest.mark.parametrize(
    ("schema", "name", "depth", "reason"),
    [
        (FORKED, "c", 30, "the schema takes more than 3,248 steps to check it"),
        (TREE, "inner", sys.getrecursionlimit(), "it is nested too deeply for its schema"),
    ],
)
def test_a_value_that_takes_too_much_work_does_not_fit(
    schema: JsonObject, name: str, depth: int, reason: str
) -> None:
    value: Json = 1
    for _ in range(depth):
        value = {name: value}
    with pytest.raises(SchemaMismatch) as refused:
        validator_of_schema(schema)(value)
    assert str(refused.value) == reason


def below(frames: int, work: Callable[[], bool]) -> bool:
    """What the work returns with that many more frames on the stack."""
    return below(frames - 1, work) if frames else work()


def test_a_value_that_is_nested_too_deeply_does_not_fit_wherever_the_recursion_ends() -> None:
    value: Json = {}
    for _ in range(180):
        value = {"inner": value}
    validate = validator_of_schema(TREE)
    assert not any(below(frames, lambda: passes(validate, value)) for frames in range(12))


def test_converting_texts_in_a_value_that_is_nested_too_deeply_is_an_error() -> None:
    value: Json = "3"
    for _ in range(sys.getrecursionlimit()):
        value = {"inner": value}
    with pytest.raises(SchemaMismatch, match="it is nested too deeply for its schema"):
        convert_scalars(value, TREE)


@pytest.mark.parametrize(
    ("value", "schema", "converted"),
    [
        ("3", {"type": "integer"}, 3),
        (" -4 ", {"type": ["integer", "null"]}, -4),
        ("3.5", {"anyOf": [{"type": "number"}, {"type": "null"}]}, 3.5),
        ("true", {"type": "boolean"}, True),
        ("three", {"type": "integer"}, "three"),
        ("3.5", {"type": "integer"}, "3.5"),
        ("9" * 5_000, {"type": "integer"}, "9" * 5_000),
        ("3", {"type": ["string", "integer"]}, "3"),
        ("3", {}, "3"),
        ({"a": "3", "b": "3"}, {"properties": {"a": {"type": "integer"}}}, {"a": 3, "b": "3"}),
        ([{"a": "1"}], {"items": {"properties": {"a": {"type": "integer"}}}}, [{"a": 1}]),
    ],
)
def test_a_text_is_converted_only_where_the_schema_has_no_texts(
    value: Json, schema: JsonObject, converted: Json
) -> None:
    assert convert_scalars(value, schema) == converted
