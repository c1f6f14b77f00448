"""A form is strict where a schema leaves nothing open, and else what it was."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from loopline.models import JsonObject, Prompt, UserMessage, structured_llm_call
from loopline.models.json_schema import json_form
from loopline.testing import Raw, ScriptedModel


class Tin(BaseModel):
    """A tin of tea."""

    name: str
    grams: int = 100


class Shelf(BaseModel):
    """Tins."""

    tins: list[Tin]
    label: str | None = None


def test_every_object_of_a_strict_form_asks_for_all_it_names_and_for_nothing_else() -> None:
    made = json_form("shelf", Shelf.model_json_schema())
    shelf, tin = made.schema, made.schema["$defs"]
    assert made.strict
    assert (shelf["required"], shelf["additionalProperties"]) == (["tins", "label"], False)
    assert isinstance(tin, dict)
    assert isinstance(tin["Tin"], dict)
    assert (tin["Tin"]["required"], tin["Tin"]["additionalProperties"]) == (
        ["name", "grams"],
        False,
    )
    assert "default" not in str(made.schema)


OPEN: list[JsonObject] = [
    {"type": "object"},
    {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
    {"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}]}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object"}}}},
    {"anyOf": [{"type": "object", "properties": {}}]},
    {"type": "object", "properties": {}, "additionalProperties": {}},
    {"type": "object", "properties": {"a": {"type": ["object", "null"], "properties": {}}}},
    {"type": "object", "properties": {"a": {"type": ["array", "null"]}}},
    {"type": "object", "properties": {"a": True}},
    {"type": "object", "properties": {"a": {"type": "array", "items": True}}},
    {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, True]}}},
]


@pytest.mark.parametrize("schema", OPEN)
def test_a_schema_that_leaves_something_open_is_no_strict_form(schema: JsonObject) -> None:
    assert (json_form("it", schema).strict, json_form("it", schema).schema) == (False, schema)


async def test_a_model_that_takes_a_schema_is_given_it_in_place_of_any_object() -> None:
    model = ScriptedModel(
        [Raw('{"name": "Assam", "grams": 5}')], tool_choice=False, json_schema=True
    )
    result = await structured_llm_call(
        model, Prompt(system="", messages=(UserMessage(text="Tea?"),)), Tin
    )
    options = model.requests[0].options
    assert result.value == Tin(name="Assam", grams=5)
    assert options.json_form == json_form("reply", Tin.model_json_schema())
    assert not options.json_object
