"""On a bundle without a knowledge space the default model lists the tools, each with a line to try."""

from __future__ import annotations

import shlex

from loopline.models import Json, JsonObject, Prompt, Reply, ToolSpec, UserMessage, extract_json
from loopline.offline import OfflineModel

FIND = ToolSpec(
    name="shop.find",
    description="Find goods by name.\n\nLonger words follow.",
    parameters={
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "limit": {"type": "integer", "default": 5},
            "sort": {"type": "string", "enum": ["price", "name"]},
        },
        "required": ["name", "sort"],
    },
)
PLAN = ToolSpec(name="react.plan", description="Keep a plan.", parameters={"type": "object"})


async def said(*tools: ToolSpec, system: str = "Bundle: shop") -> str:
    message = UserMessage(text="[ar:turn_1.user.prompt]\nIs there any tea?")
    prompt = Prompt(system=system, tools=tools, messages=(message,))
    reply = [event async for event in OfflineModel().stream(prompt)][-1]
    assert isinstance(reply, Reply)
    assert reply.calls == ()
    return reply.text


def commands(answer: str) -> list[list[str]]:
    lines = [line.strip() for line in answer.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("loopline tool")]


async def arguments(**properties: Json) -> JsonObject:
    """What the line to try passes to a tool with these required properties."""
    schema: JsonObject = {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
    }
    tool = ToolSpec(name="a.b", description="", parameters=schema)
    value = extract_json(commands(await said(tool))[0][-1])
    assert value is not None
    return value


async def test_each_tool_of_the_bundle_has_its_purpose_and_a_line_to_try() -> None:
    answer = await said(PLAN, FIND)

    assert "`shop.find`: Find goods by name." in answer
    assert commands(answer) == [
        ["loopline", "tool", "shop", "shop.find", '{"name":"name","sort":"price"}']
    ]
    assert "react.plan" not in answer


async def test_it_says_that_it_is_not_a_language_model() -> None:
    assert "offline — a deterministic reader, not a language model" in await said(FIND)


async def test_a_bundle_whose_name_is_not_known_is_written_as_a_word_to_replace() -> None:
    assert commands(await said(FIND, system="You help."))[0][2] == "BUNDLE"


async def test_a_bundle_name_with_a_space_is_quoted_for_the_shell() -> None:
    assert commands(await said(FIND, system="Rules.\nBundle: my shop"))[0][2] == "my shop"


async def test_a_bundle_without_tools_is_said_to_have_none() -> None:
    answer = await said(PLAN)

    assert "neither a knowledge space to read nor tools" in answer
    assert "not a language model" in answer


async def test_an_apostrophe_in_an_argument_survives_the_shell() -> None:
    found = await arguments(name={"type": "string", "default": "Ann's tea"})

    assert found == {"name": "Ann's tea"}


async def test_arguments_follow_types_enums_defaults_and_examples() -> None:
    found = await arguments(
        count={"type": "integer"},
        price={"type": "number", "minimum": 2},
        gift={"type": "boolean"},
        size={"enum": ["small", "large"]},
        colour={"type": "string", "examples": ["green"]},
        tags={"type": "array", "items": {"type": "string"}},
        box={"type": "object", "properties": {"wide": {"type": "integer"}}},
        day={"type": "string", "format": "date"},
        note={"anyOf": [{"type": "string"}, {"type": "null"}]},
    )

    assert found == {
        "count": 1,
        "price": 2,
        "gift": True,
        "size": "small",
        "colour": "green",
        "tags": ["tags"],
        "box": {"wide": 1},
        "day": "2025-01-31",
        "note": "note",
    }


async def test_a_reference_inside_the_schema_is_followed() -> None:
    tool = ToolSpec(
        name="a.b",
        description="",
        parameters={
            "type": "object",
            "properties": {"one": {"$ref": "#/$defs/One"}},
            "required": ["one"],
            "$defs": {"One": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        },
    )

    assert commands(await said(tool))[0][-1] == '{"one":{"id":1}}'


async def test_a_schema_that_holds_itself_comes_to_an_end() -> None:
    tool = ToolSpec(
        name="a.b",
        description="",
        parameters={
            "type": "object",
            "properties": {"node": {"$ref": "#"}},
            "required": ["node"],
        },
    )

    assert commands(await said(tool))[0][:4] == ["loopline", "tool", "shop", "a.b"]
