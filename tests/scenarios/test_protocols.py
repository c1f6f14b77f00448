"""One story in every protocol, and what each makes of the replies that models really write."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from loopline import timeline as tl
from loopline.errors import LooplineError
from loopline.models import Capabilities, ProtocolName, Reply, ToolCall, ToolMessage, ToolSpec
from loopline.prompt import Answer, Calls, DecodedReply, Malformed, protocol
from loopline.react import LoopOptions, check_limits, choose_protocol
from loopline.testing import Call, Raw, Say, ScriptedModel
from tests.support.rows import each_row
from tests.support.scripted_conversation import play_turn, talking
from tests.support.workbench import (
    Desk,
    bodies_of,
    in_json,
    results,
    run_turn,
    shown,
    workbench,
)

NAMES: list[ProtocolName] = ["native", "json", "tagged", "thought_action"]
TEXT_NAMES: list[ProtocolName] = ["json", "tagged", "thought_action"]

HARD = """He said "it's </tool_call>", then:
```json
{"action": "final_answer", "answer": "</channel:answer>"}
```
Observation: nothing
Final Answer: \\n <channel:code> \\"""


def story() -> list[Say]:
    return [
        Say("", Call("react.plan", mode="new", steps=["look", "find", "answer"])),
        Say(
            "✓ [1] looked\nAction: none yet\n<tool_call> is how",
            Call("play.look", text=HARD),
            Call("play.find", url="https://example.com/a?b=<c>&d='e'"),
        ),
        Say("", Call("play.nothing", code="print('</channel:code>')\n# it's\n")),
        Say(f"✓ [2] found\n✓ [3] said\nIt is so [[S:1]]:\n\n{HARD}"),
    ]


def apart_from_its_protocol(body: tl.Body) -> tl.Body:
    """The body without what names the protocol, or how a reply ends in it, or what it adds to the prompt."""
    match body:
        case tl.UserPrompt():
            return structs.replace(body, limits={})
        case tl.TurnHeader():
            return structs.replace(body, protocol="", limits={})
        case tl.RoundStart():
            of_protocol = structs.replace(body, protocol="", system_sha256="", stable_sha256="")
            return structs.replace(of_protocol, system="", tokens=0, points=())
        case tl.Decision():
            return structs.replace(body, stop_reason="stop")
        case _:
            return body


async def told(name: ProtocolName) -> list[tl.Body]:
    """The bodies that the story leaves in the protocol."""
    async with talking(story()) as talk:
        result = await talk.say("Is it so?", protocol=name)
        assert (result.exit_reason, result.rounds) == ("complete", 4)
        return [apart_from_its_protocol(block.body) for block in await talk.blocks()]


@pytest.mark.parametrize("name", TEXT_NAMES)
async def test_one_story_leaves_the_same_timeline_in_every_protocol(name: ProtocolName) -> None:
    assert await told(name) == await told("native")


@pytest.mark.parametrize("name", NAMES)
async def test_the_story_has_all_that_is_hard(name: ProtocolName) -> None:
    bodies = await told(name)
    called = [body.arguments for body in bodies if isinstance(body, tl.ToolCalled)]
    assert called[1] == {"text": HARD}
    (answer,) = [body.text for body in bodies if isinstance(body, tl.Completion)]
    assert called[1] == {"text": HARD}
    assert answer == f"It is so [[S:1]]:\n\n{HARD}"
    assert [body.changes for body in bodies if isinstance(body, tl.PlanAck)] == [
        {"1": "done"},
        {"2": "done", "3": "done"},
    ]


@pytest.mark.parametrize("name", TEXT_NAMES)
async def test_as_text_tools_are_told_in_the_system_text_and_results_from_the_users_side(
    name: ProtocolName,
) -> None:
    script = ScriptedModel([Call("play.look", text="tea"), "Tea."])
    async with talking(script) as talk:
        assert (await talk.say("go", protocol=name)).answer == "Tea."
    first, last = script.requests
    assert (first.tools, first.options.protocol, first.options.json_object) == ((), name, False)
    assert '"properties":{"text":' in first.system
    assert "[tc:turn_1.c1.result]\nseen tea" in str(last.messages[-1])


@pytest.mark.parametrize("name", TEXT_NAMES)
async def test_what_cannot_be_read_is_asked_for_once_more_and_then_taken_as_it_is(
    name: ProtocolName,
) -> None:
    odd = [Raw("<tool_call name='x'>no</tool_call>"), Raw("<tool_call name='x'>never</tool_call>")]
    result, blocks = await play_turn(odd, protocol=name)
    (notice,) = [block.body for block in blocks if isinstance(block.body, tl.Notice)]
    (answer,) = [block.body for block in blocks if isinstance(block.body, tl.Completion)]
    assert "Write " in notice.text
    assert (result.rounds, result.ok, answer.flag) == (2, True, "unparsed")
    assert result.answer == "<tool_call name='x'>never</tool_call>"


async def test_an_invented_observation_is_kept_apart_and_never_shown_to_the_model() -> None:
    invented = (
        'Thought: I look.\nAction: play.look\nAction Input: {"text": "tea"}\n'
        "Observation: there is none\nThought: So.\nFinal Answer: There is no tea."
    )
    model = ScriptedModel([Raw(invented), "Tea."])
    async with talking(model) as talk:
        result = await talk.say("go", protocol="thought_action")
        assert (result.answer, result.rounds) == ("Tea.", 2)
        (first, _) = [b.body for b in await talk.blocks() if isinstance(b.body, tl.Decision)]
    assert first.discarded == invented[invented.index("Observation") :]
    assert "there is none" not in str(model.requests[1])


TWO = (
    ToolCall(name="a", arguments={"x": 1}),
    ToolCall(name="b", arguments={"y": "</tool_call>"}),
)

TAGGED: list[tuple[str, DecodedReply]] = [
    ("It is so.", Answer("", "It is so.")),
    ("I think.\n<channel:answer>So.</channel:answer>", Answer("I think.", "So.")),
    ("<channel:thinking>hm</channel:thinking>So.", Answer("", "So.", "hm")),
    ("<channel:thinking>a</channel:thinking> <channel:thinking>b</channel:thinking>So.",
     Answer("", "So.", "a\nb")),
    ("<channel:answer>never closed", Answer("", "never closed")),
    ("<channel:canvas># Tea</channel:canvas><channel:answer>So [[S:1]].</channel:answer>",
     Answer("", "# Tea\n\nSo [[S:1]].")),
    ('I look. <tool name="@a" args="{\\"x\\": 1}"/>', Calls("I look.", TWO[:1])),
    ("<TOOL args='{\"x\": 1}' name='a'></TOOL>", Calls("", TWO[:1])),
    ("<channel:answer>Write <\\tool name='a'/> or <tools>.</channel:answer>",
     Answer("", "Write <tool name='a'/> or <tools>.")),
    ('I look.<tool_call name="a">{"x":1}</tool_call><tool_call name="b">{"y":"</tool_call>"}'
     "</tool_call>", Calls("I look.", TWO)),
    ('<tool_call name="a" args=\'{"x": 1}\'/> <TOOL_CALL args="{\\"y\\": \\"</tool_call>\\"}" '
     "name=b ></tool_call>", Calls("", TWO)),
    ('<tool_call args="{&quot;x&quot;: 1}" name=\'a\' />', Calls("", TWO[:1])),
    ('```xml\n<tool_call>\n```json\n{"name": "a", "arguments": {"x": 1}}\n```\n</tool_call>\n```',
     Calls("", TWO[:1])),
    ('<tool_call name="a">{"x": 1}', Calls("", TWO[:1])),
    ('<tool_call name="a"/>', Calls("", (ToolCall(name="a", arguments={}),))),
    ('<tool_call name="a">null</tool_call>', Calls("", (ToolCall(name="a", arguments={}),))),
    ('<tool_call name="a">{"x":1}</tool_call><channel:answer>So.</channel:answer>',
     Calls("", TWO[:1], discarded="So.")),
    ('<channel:decision>```json\n{"action": "call_tool", "notes": "n", "tool": "a", '
     '"arguments": {"x": 1}}\n```</channel:decision>', Calls("n", TWO[:1])),
    ('<channel:decision>{"action": "final_answer", "notes": "n", "answer": "So."}</channel:decision>',
     Answer("n", "So.")),
    ('<tool_call name="a">{}</tool_call><channel:code>```python\nprint("</channel:code>")\n```\n'
     "</channel:code>",
     Calls("", (ToolCall(name="a", arguments={"code": 'print("</channel:code>")'}),))),
]  # fmt: skip
THOUGHT: list[tuple[str, DecodedReply]] = [
    ("Thought: hm\nFinal Answer: So.\nAction: none", Answer("hm", "So.\nAction: none")),
    ("**Thought:** hm\n**Final Answer:** **So.**", Answer("hm", "**So.**")),
    ("Final Answer:So.", Answer("", "So.")),
    ("Action: a\nFinal Answer: So.", Answer("", "So.", discarded="Action: a")),
    ("I look.\nThought: now\nAction: `a`\nAction Input: ```json\n{\"x\": 1}\n```",
     Calls("I look.\nnow", TWO[:1])),
    ('Action: a\nAction Input: {"x": 1}\nAction: b\nAction Input: {"y": "</tool_call>"}\n'
     "Observation: 7\nAction: c\nAction Input: {}",
     Calls("", TWO, discarded="Observation: 7\nAction: c\nAction Input: {}")),
    ("Observation: old\nThought: now\nAction: a\nAction Input: {\n\"x\":\n1}",
     Calls("now", TWO[:1], discarded="old")),
    ('Action: a\nAction Input: {"x": 1}\nThat will do.\nFinal Answer: So.',
     Calls("", TWO[:1], discarded="\nThat will do.\n\nSo.")),
    ('Thought: hm\nInput: mine\nAction: a\n**Input:** {"x": 1}', Calls("hm\nInput: mine", TWO[:1])),
    ('Action: a\nInput: {"x": 1}\nThought: x\nInput: {}', Calls("x\nInput: {}", TWO[:1])),
    ('Action: a\nAction Input: {"x": "one\nAction: b"}',
     Calls("", (ToolCall(name="a", arguments={"x": "one\nAction: b"}),))),
    ("Action: a\nAction Input: None", Calls("", (ToolCall(name="a", arguments={}),))),
    ("Thought: x\n\\Action: y\nFinal Answer: z", Answer("x\nAction: y", "z")),
]  # fmt: skip
BESIDE = (
    '{"action":"call_tool","tool":"a","arguments":{"x":1}} {"action":"final_answer","answer":"?"}'
)
TWO_CALLS = (
    'First {"action":"call_tool","notes":"one","tool":"a","arguments":{"x":1}} then '
    '{"action":"call_tool","tool":"b","arguments":{"y":"</tool_call>"}}'
)
PROSE = 'I will send {"x": …}:\n{"action": "final_answer", "answer": "So."}'
MORE = '{"action": "final_answer", "why": "it is so", "answer": "So."}'
JSON: list[tuple[str, DecodedReply]] = [
    ('{"answer": "So."}', Answer("", "So.")),
    ('{"action": "done", "answer": "So."}', Answer("", "So.")),
    ('{"answer": "So."}{"answer": "Or so."}',
     Answer("", "So.", discarded='{"answer": "So."}{"answer": "Or so."}')),
    ('{"action": "call_tool", "tool": "a", "arguments": {"x": 1}}', Calls("", TWO[:1])),
    ('{"action": "call_tool", "tool": "a", "arguments": null}',
     Calls("", (ToolCall(name="a", arguments={}),))),
    (TWO_CALLS, Calls("one", TWO, discarded=TWO_CALLS)),
    (BESIDE, Calls("", TWO[:1], discarded=BESIDE)),
    (PROSE, Answer("", "So.", discarded=PROSE)),
    (MORE, Answer("", "So.", discarded=MORE)),
    ('```json\n{"action": "final_answer", "notes": "n", "answer": " So. "}\n```\n'
     '{"action": "final_answer", "notes": "m", "answer": "And so."}', Answer("n\nm", "So.\n\nAnd so.")),
]  # fmt: skip
CASES = [
    *[("tagged", *case) for case in TAGGED],
    *[("thought_action", *case) for case in THOUGHT],
    *[("json", *case) for case in JSON],
]


@each_row(CASES)
def test_a_reply_is_read(name: ProtocolName, text: str, decided: DecodedReply) -> None:
    assert protocol(name).decode(Reply(text=text)) == decided


ODD_CALLS = [
    '[tool_call: a {"x": 1}]',
    "So:\n<function=a>{}</function>",
    '<invoke name="a"></invoke>',
    '[w.look {"text": "a"}]',
    'I look.\n[w.look: {"text": "a"}]',
    '<toolcall name="w.look">{"text": "a"}</toolcall>',
    '<ToolCall>{"text": "a"}',
    '<tool-call name="w.look">{}</tool-call>',
    '&lt;tool_call name="w.look"&gt;{"text": "a"}&lt;/tool_call&gt;',
    '&#60;tool_call name="w.look"&#62;{}',
    'w.look({"text": "a"})',
    '```\nw.look({"text": "a"})\n```',
    'w.look {"text": "a"}',
    '@w.look({"text": "a"})',
    "<|python_tag|>w.look(text='a')",
    '<|tool_call|>{"x": 1}',
    'Action: w.look\nAction Input: {"text": "a"}',
    "**Action:** `w.look`",
    'Action: w.look({"text": "a"})',
    'Action Input: {"text": "a"}',
]


@each_row(
    [
        "Call play.look, then answer.",
        "Action: restart the server.",
        "See a.b.c: it has {x}.",
        "print(a.b) prints {}",
        "[docs.md] has it",
        "An action input is text.",
    ]
)
def test_prose_without_a_tag_is_an_answer(text: str) -> None:
    assert protocol("tagged").decode(Reply(text=text)) == Answer("", text)


@each_row([
        ("tagged", "", "neither a call nor an answer"),
        ("tagged", "<channel:thinking>hm</channel:thinking>", "neither"),
        ("tagged", "<channel:answer> </channel:answer>", "neither"),
        ("tagged", '<tool_call name="a">{"x": 1', "'a' are not a complete JSON object"),
        ("tagged", '<tool_call name="a">{"x": 1}</tool_call', "text after"),
        ("tagged", '<tool_call name="a">', "not closed"),
        ("tagged", '<tool_call name="a', "not closed"),
        ("tagged", "<tool_call>{}</tool_call>", "no name"),
        ("tagged", '<tool_call name="a">[1]</tool_call>', "not a complete JSON object"),
        ("tagged", '<tool_call name="a">{}</tool_call><channel:code>x', "not closed"),
        ("tagged", "<channel:code>x</channel:code>", "needs a call"),
        ("tagged", "<channel:decision>I look.</channel:decision>", "no JSON object"),
        ("tagged", '<agent_call agent="coder" task="mend it"/>', "no agents to call"),
        ("tagged", '<tool_call name="a">{}</tool_call><agent_call agent="coder">mend', "no agents"),
        ("tagged", '{"tool_call": "a", "args": {"x": 1}}', "a call in an unknown form"),
        ("tagged", 'I look.\n```json\n{"name": "a", "arguments": {"x": 1}}\n```', "a call in an unknown"),
        *[("tagged", call, "a call in an unknown form") for call in ODD_CALLS],
        ("tagged", "<tool>a</tool>", "not a complete JSON object"),
        ("thought_action", "It is so.", "neither an Action nor a Final Answer"),
        ("thought_action", "Thought: hm", "neither"),
        ("thought_action", "Final Answer: ", "neither"),
        ("thought_action", "Action: a", "no Action Input"),
        ("thought_action", "Action: a\nObservation: 1\nFinal Answer: x", "no Action Input"),
        ("thought_action", "Action: a\nAction: b\nAction Input: {}", "'a' has no Action Input"),
        ("thought_action", "Action Input: {}", "needs an Action"),
        ("thought_action", 'Action: a\nAction Input: {"x": 1', "not a complete JSON object"),
        ("thought_action", "Action: a\nAction Input: tea", "not a complete JSON object"),
        ("json", '{"action": "call_tool", "arguments": {"action": "final_answer", "answer": "x"},}',
         "is broken: "),
        ("json", '{"action": "call_tool", "text": "a "quote" {"action": "final_answer", "answer": "x"}"}',
         "broken"),
        ("json", '{"action": "call_tool", "arguments": {"action": "final_answer", "answer": "x"}',
         "broken"),
        ("json", '{"notes": "a "b"", "arguments": {"action": "final_answer", "answer": "x"}}', "broken"),
        ("json", '{"action": "call_tool", "tool": "a", "arguments": "x"}', "must be a JSON object"),
    ])  # fmt: skip
def test_a_reply_that_cannot_be_read_says_why(name: ProtocolName, text: str, problem: str) -> None:
    decided = protocol(name).decode(Reply(text=text))
    assert isinstance(decided, Malformed)
    assert decided.raw == text
    assert problem in decided.problem


@pytest.mark.parametrize("name", TEXT_NAMES)
def test_a_manual_names_every_tool_with_its_schema(name: ProtocolName) -> None:
    tool = ToolSpec(name="shop.find", description="Find it.", parameters={"type": "object"})
    assert '- shop.find: Find it.\n  {"type":"object"}' in protocol(name).manual([tool])
    assert protocol(name).manual([]).endswith("Tools:\n(no tools)")


def test_an_observation_is_marked_as_one() -> None:
    message = ToolMessage(call_id="c1", name="a", text="seen")
    assert str(protocol("thought_action").render_result(message)) == "user: Observation: seen"


@each_row(
    [
        ("auto", Capabilities(), "native"),
        ("auto", Capabilities(tool_call=False, json_mode=True), "json"),
        ("auto", Capabilities(tool_call=False), "tagged"),
        ("native", Capabilities(tool_call=False, json_mode=True), "json"),
        ("native", Capabilities(tool_call=False), "tagged"),
        ("json", Capabilities(), "json"),
        ("tagged", Capabilities(), "tagged"),
        ("thought_action", Capabilities(tool_call=False), "thought_action"),
    ]
)
def test_the_protocol_goes_by_what_was_asked_for_and_what_the_model_can_do(
    question: ProtocolName, capabilities: Capabilities, chosen: ProtocolName
) -> None:
    model = ScriptedModel([], tool_call=capabilities.tool_call, json_mode=capabilities.json_mode)
    assert choose_protocol(LoopOptions(protocol=question), model).name == chosen


def test_a_protocol_that_is_none_is_refused_with_those_there_are() -> None:
    odd: Any = {"protocol": "xml"}
    with pytest.raises(LooplineError, match="one of auto, native, json, tagged, thought_action"):
        check_limits(odd)


async def test_a_turn_in_one_protocol_is_followed_by_one_in_another() -> None:
    script = ScriptedModel([*story(), "Still so."])
    async with talking(script) as talk:
        await talk.say("Is it so?", protocol="tagged")
        result = await talk.say("And now?", protocol="thought_action")
        starts = [b.body for b in await talk.blocks() if isinstance(b.body, tl.RoundStart)]
        prompts = [b for b in await talk.blocks() if isinstance(b.body, tl.UserPrompt)]
    assert (result.answer, len(prompts)) == ("Still so.", 2)
    assert starts[-1].opened_by == "protocol,instructions"
    assert "Action: play.look" in str(script.requests[-1])
    assert "<channel:answer>" not in str(script.requests[-1].messages).replace(HARD, "")


@pytest.mark.parametrize("able", [True, False])
async def test_json_is_asked_of_the_provider_only_if_it_can_see_to_it(able: bool) -> None:
    model = ScriptedModel(["Done."], tool_call=False, json_mode=able)
    await run_turn(model, protocol="json")
    assert model.requests[0].options.json_object is able


async def test_what_cannot_be_read_is_asked_for_anew_and_costs_a_round() -> None:
    model = in_json([Raw("hm, no object"), "Read."])
    result, _ = await run_turn(model)
    assert (result.answer, result.rounds, len(model.requests)) == ("Read.", 2, 2)
    assert "hm, no object" in shown(model.requests[1])
    assert "has no JSON object" in shown(model.requests[1])


@pytest.mark.parametrize(
    ("protocol", "broken"),
    [
        ("tagged", '<tool_call name="w.look">{</tool_call><tool_call name="w.big">{</tool_call>'),
        ("thought_action", "Action: w.look\nAction Input: {text"),
        ("json", '{"action": "call_tool", "tool": "w.look", "arguments": {'),
    ],
)
async def test_calls_that_are_all_broken_are_repaired_and_never_an_answer(
    protocol: ProtocolName, broken: str
) -> None:
    result, blocks = await run_turn([Raw(broken), "Done."], workbench(protocol=protocol))
    (notice,) = bodies_of(blocks, tl.Notice)
    assert (result.answer, result.rounds, notice.code) == ("Done.", 2, "malformed_reply")


async def test_reasoning_beside_an_object_without_notes_is_kept() -> None:
    _, blocks = await run_turn(in_json([Say("Done.", thinking="because")]))
    (thought,) = bodies_of(blocks, tl.Thinking)
    assert thought.text == "because"


async def test_wrong_arguments_never_reach_the_tool_and_the_field_is_named() -> None:
    desk, model = Desk(), ScriptedModel([Call("w.look", ticks="many"), "Sorry."])
    await run_turn(model, workbench(desk))
    (told,) = results(model.requests[1])
    assert (told.ok, "ticks" in told.text, desk.began) == (False, True, [])


async def test_without_a_bound_repairs_go_on_until_the_last_round() -> None:
    result, _ = await run_turn(
        in_json([Raw(f"odd {n}") for n in range(4)]), repairs=None, max_iterations=4
    )
    assert (result.answer, result.rounds) == ("odd 3", 4)
