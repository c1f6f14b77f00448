"""A tool of a server that cannot be used is left out with the reason, and the other tools of its server stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopline.models import Json, JsonObject
from loopline.testing import Call, Say, ScriptedModel
from tests.mcp.served import Served, follow, notices_in, plain, results_in
from tests.support.hostile_schemas import PATTERNS, UNUSABLE, arguments

READS: JsonObject = {"readOnlyHint": True}
OBJECT = arguments()
LOOK_AROUND = arguments(a={"type": "string", "pattern": "^(?!b)"})


def listed(name: str, schema: Json = OBJECT, **fields: Json) -> JsonObject:
    return {"name": name, "inputSchema": schema, "annotations": READS, **fields}


WRONG: dict[str, tuple[Json, str]] = {
    **{name: (listed(name, schema), reason) for name, (schema, reason) in UNUSABLE.items()},
    "output": (
        listed("output", outputSchema=UNUSABLE["remote"][0]),
        "does not have a target in it",
    ),
    "described": (
        listed("described", description=5),
        "description: Input should be a valid string",
    ),
    "bare": ({"name": "bare"}, "inputSchema: Field required"),
    "array": (listed("array", {"type": "array"}), "inputSchema.type: Input should be 'object'"),
    "big": (listed("big", arguments(a={"title": "x" * 100_000})), "more than 100,000"),
    "a tool without a name": (5, "Input should be"),
    "task": (listed("task", execution={"taskSupport": "required"}), "it runs only as a task"),
    "two words": (listed("two words"), "its name has other characters"),
}


def serve(folder: Path, tools: list[Json], **env: str) -> Served:
    """Declare a server with these tools and one that works."""
    file = folder / "tools.json"
    file.write_text(json.dumps([*tools, listed("work")]), "utf-8")
    return Served(folder).declare({"one": plain("works", TOOLS=str(file), **env)})


@pytest.mark.parametrize("name", WRONG)
async def test_a_tool_that_cannot_be_used_is_left_out_alone(name: str, tmp_path: Path) -> None:
    tool, reason = WRONG[name]
    served = serve(tmp_path, [tool])
    async with served.open(ScriptedModel([Call("mcp.one.work"), Say("Done.")])) as harness:
        talk = harness.conversation("c1")
        assert (await talk.say("Go!")).answer == "Done."
        blocks = await talk.blocks()
        offered = await harness.server_tools()
    assert [result.text for result in results_in(blocks)] == ["worked"]
    [notice] = notices_in(blocks)
    assert notice.code == "mcp_unavailable"
    assert notice.text.startswith(
        f"The MCP server 'one' has tools that are left out, because they cannot be used: {name!r}: "
    )
    assert reason in notice.text
    assert (offered.problems, [tool.spec.name for tool in offered.tools]) == (
        (notice.text,),
        ["mcp.one.work"],
    )


@pytest.mark.parametrize(
    "tool", [listed("half", description="a\ud800b"), {**listed("x"), "\ud800": 1}, "\udfff"]
)
async def test_half_a_character_costs_a_server_no_other_tool(tool: Json, tmp_path: Path) -> None:
    [result] = await serve(tmp_path, [tool]).calls(Call("mcp.one.work"))
    assert result.text == "worked"


async def test_a_later_process_still_knows_why_a_tool_is_left_out(tmp_path: Path) -> None:
    serve(tmp_path, [WRONG["remote"][0]])
    served, found = Served(tmp_path, in_memory=False), list[tuple[str, ...]]()
    for _ in range(2):
        async with served.open(ScriptedModel([])) as harness:
            found.append((await harness.server_tools()).problems)
    assert "'remote'" in found[0][0]
    assert found[0] == found[1]


async def test_a_notice_names_five_tools_and_counts_the_rest(tmp_path: Path) -> None:
    served = serve(tmp_path, [listed(f"t{number}", {"$ref": "#"}) for number in range(30)])
    async with served.open(ScriptedModel([])) as harness:
        [problem] = (await harness.server_tools()).problems
    assert (problem.count("inputSchema"), problem.endswith("; and 25 more.")) == (5, True)


async def test_the_arguments_of_a_call_are_checked_by_re2(tmp_path: Path) -> None:
    tools = [
        listed(f"t{number}", arguments(a={"pattern": pattern}))
        for number, pattern in enumerate(PATTERNS)
    ]
    served = serve(tmp_path, [*tools, listed("look", LOOK_AROUND)])
    calls = [Call(f"mcp.one.t{number}", a="a" * 40 + "? ") for number in range(len(PATTERNS))]
    others = [Call("mcp.one.look", a="b"), Call("mcp.one.look", a=1)]
    async with served.open(ScriptedModel([Say("", *calls, *others), Say("Done.")])) as harness:
        talk = harness.conversation("c1")
        await talk.say("Go!", select_tools=False)
        texts = [result.text for result in results_in(await talk.blocks())]
    assert len([text for text in texts if "does not match" in text]) == len(PATTERNS)
    assert texts.count("worked") == 1  # of the look-around, which the server alone checks
    assert "mcp.one.look: a: 1 is not of type 'string'" in texts


@pytest.mark.parametrize(
    ("structured", "text"),
    [
        ('{"a": "aaaa"}', "worked"),
        (f'{{"a": "{"a" * 40}!"}}', "does not match '^(a+)+$'"),
        ('{"a": 1}', "1 is not of type 'string'"),
        ("", "work has an output schema, but gave no structured result"),
    ],
)
async def test_a_structured_result_is_checked_by_re2(
    structured: str, text: str, tmp_path: Path
) -> None:
    output = arguments(a={"type": "string", "pattern": "^(a+)+$"})
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([listed("work", outputSchema=output)]), "utf-8")
    served = Served(tmp_path).declare(
        {"one": plain("works", TOOLS=str(file), STRUCTURED=structured)}
    )
    [result] = await served.calls(Call("mcp.one.work"))
    assert text in result.text


@pytest.mark.parametrize(
    ("form", "outcome"),
    [
        (arguments(kind={"type": "string", "pattern": "^(a+)+$"}), {"action": "cancel"}),
        (arguments(kind={"$ref": "#/$defs/a"}), "requestedSchema: its reference '#/$defs/a'"),
    ],
)
async def test_the_form_of_a_question_is_checked_by_re2(
    form: JsonObject, outcome: Json, tmp_path: Path
) -> None:
    served = Served(tmp_path).declare({"one": plain("asks", FORM=json.dumps(form))})
    async with served.open(ScriptedModel([Call("mcp.one.work"), Say("Done.")])) as harness:
        talk = harness.conversation("c1")
        async for event in follow(talk):
            talk.answer(event.call_id, {"kind": "a" * 40 + "!"})
        [result] = results_in(await talk.blocks())
    assert str(outcome) in result.text or json.loads(result.text) == outcome
