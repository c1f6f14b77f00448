"""A turn seen as nodes and channels."""

from __future__ import annotations

from loopline.models import Usage
from loopline.react import channels, nodes
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import Timeline
from tests.support.scripted_conversation import talking


async def test_channels_are_reduced_from_the_blocks_of_a_turn() -> None:
    script = ScriptedModel(
        [
            Say("", Call("play.look"), usage=Usage(input_tokens=10, output_tokens=5)),
            Say("Done.", usage=Usage(input_tokens=20, output_tokens=10)),
        ]
    )
    async with talking(script) as talk:
        await talk.say("go")
        blocks = await talk.blocks()
    after_call = [block for block in blocks if block.seq <= 5]
    waiting = channels(Timeline(after_call), 1)
    ended_channels = channels(Timeline(blocks), 1)
    assert (waiting.turn, waiting.pending_tools) == (1, ("c1",))
    assert (ended_channels.turn, ended_channels.pending_tools, ended_channels.llm_response) == (
        2,
        (),
        "Done.",
    )
    assert (
        ended_channels.input_tokens,
        ended_channels.output_tokens,
        ended_channels.stop_reason,
    ) == (30, 15, "stop")
    assert ended_channels.messages[: len(waiting.messages)] == waiting.messages


async def test_every_step_of_a_turn_belongs_to_a_node() -> None:
    async with talking([Call("play.look"), "Done."]) as talk:
        await talk.say("go")
        walked = [node for node, _ in nodes(await talk.blocks())]
    assert walked == [
        "prepare",
        "call_llm",
        "route_after",
        "execute_tools",
        "prepare",
        "call_llm",
        "finalize",
        "finalize",
    ]
