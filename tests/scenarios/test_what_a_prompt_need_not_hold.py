"""What a prompt leaves out: base64 wherever it stands, and texts that it shows already."""

from __future__ import annotations

import json
from base64 import b64encode
from random import Random

import pytest
from msgspec import structs

from loopline.models import AssistantMessage, ToolMessage
from loopline.reader import source_row
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Block, SourceAdded, Timeline
from tests.support.scenario_bundle import bundle
from tests.support.scripted_conversation import talking
from tests.support.workbench import at_work, shown

PICTURE = b64encode(Random(7).randbytes(3_300)).decode()


async def test_base64_is_left_out_of_what_the_user_says_of_answers_and_of_arguments() -> None:
    call = Call("w.command", text=PICTURE)
    model = ScriptedModel([Say(f"Notes: {PICTURE}", call), f"It is {PICTURE}", "Seen."])
    async with at_work(model) as talk:
        await talk.say(f"Look: {PICTURE}")
        await talk.say("And?")
        prompt, answer = await talk.read(
            ["ar:turn_1.user.prompt", "ar:turn_1.assistant.completion"]
        )
    for request in model.requests:
        assert PICTURE not in shown(request)
    last = shown(model.requests[-1])
    texts = ("ar:turn_1.user.prompt", "tc:turn_1.c1.call", "ar:turn_1.react.notes", "ar:turn_1.a")
    for ref in texts:
        assert f"[base64, {len(PICTURE)} characters: {ref}" in last
    assert (PICTURE in prompt.text, PICTURE in answer.text) == (True, True)


async def test_arguments_of_a_running_turn_are_shown_whole_however_long() -> None:
    text = "green tea " * 400
    model = ScriptedModel([Call("w.command", text=text), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
    [call] = [
        call
        for message in model.requests[1].messages
        if isinstance(message, AssistantMessage)
        for call in message.calls
    ]
    assert call.arguments == {"text": text}


async def test_base64_is_left_out_of_the_pool_of_sources() -> None:
    find = Say("", Call("w.find", url="https://a.org"))
    async with at_work(ScriptedModel([find, "So [[S:1]]."])) as talk:
        await talk.say("go")
        blocks = [with_picture(block) for block in await talk.blocks()]
    assert source_row(1, Timeline(blocks))["text"] == (
        f"A picture: [base64, {len(PICTURE)} characters: https://a.org]"
    )


def with_picture(block: Block) -> Block:
    match block.body:
        case SourceAdded(source=source) as added:
            seen = structs.replace(source, text=f"A picture: {PICTURE}")
            return structs.replace(block, body=structs.replace(added, source=seen))
        case _:
            return block


@pytest.mark.parametrize(
    "path",
    [
        "ar:turn_1.user.prompt",
        "ar:turn_1.user.prompt.1#C1-C9",
        "ar:turn_1.react.notes.1",
        "ar:turn_1.assistant.completion",
        "tc:turn_1.c1.call",
        "tc:turn_1.c1.result",
    ],
)
async def test_what_the_prompt_shows_whole_is_not_printed_again(path: str) -> None:
    calls: list[Entry] = [
        Say("Looking at herons.", Call("life.look", size=900)),
        "That was a heron.",
    ]
    model = ScriptedModel([*calls, Call("react.read", paths=[path]), "So."])
    async with talking(model, bundle=bundle) as talk:
        await talk.say("What is grey and stands in water?")
        await talk.say("Again?")
    *_, read = [m for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    status = json.loads(read.text.splitlines()[1])
    assert len(status["exists_in_visible_context"]) == 1
    assert len(read.text.splitlines()) == 2


async def test_what_the_prompt_shows_in_part_is_printed_whole() -> None:
    path, clock = "tc:turn_1.c1.result", FakeClock()
    looks: list[Entry] = [Call("life.look", size=900), "One.", "Two.", "Three."]
    model = ScriptedModel([*looks, Call("react.read", paths=[path]), "So."])
    async with at_work(model, bundle, clock=clock) as talk:
        for _ in range(3):
            await talk.say("go")
        clock.advance(900)
        await talk.say("What was it?")
    first, read = [m for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert f"the rest is {path}#C401-C" in first.text
    assert json.loads(read.text.splitlines()[1])["exists_in_visible_context"] == []
    assert len(read.text) > 900
