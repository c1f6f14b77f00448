"""Long conversations for the web page: many rounds with summaries, children and approvals; many calls at once; many turns."""

from __future__ import annotations

from collections.abc import Sequence

from loopline import Bundle, Harness
from loopline.testing import Call, Say, ScriptedModel
from tests.support.page_conversations import TEA

WINDOW = 24_000
CHILD_EVERY, ORDER_EVERY = 25, 40
GUIDE = Bundle(id="guide", instructions="You answer questions about tea.")


def marathon_script(rounds: int) -> Sequence[Say | str]:
    """Return the script of a turn of so many rounds; the child runs take their answers from it too."""
    script: list[Say | str] = []
    for number in range(1, rounds):
        if number % CHILD_EVERY == 0:
            script.append(Say("I have somebody check it.", Call("tea.ask", task=f"task {number}")))
            script.append(f"The child's answer {number}.")
        elif number % ORDER_EVERY == 0:
            script.append(Say("I order.", Call("tea.order", tea="sencha", grams=number)))
        else:
            script.append(Say(f"Round {number}.", Call("tea.large", characters=900 + number)))
    return [*script, "I am done."]


async def write_marathon(url: str, rounds: int) -> None:
    """Write `marathon`: one turn of so many rounds in a small window, with summaries, child runs and approvals."""
    model = ScriptedModel(
        marathon_script(rounds),
        strict=False,
        window=WINDOW,
        aux={"summary": ["Goal: know the teas. So far many leaves were read."] * 99},
    )
    most = rounds + 10
    async with Harness.open(TEA, store=url, model=model) as harness:
        talk = harness.conversation("marathon")
        result = await talk.say("Read everything.", max_iterations=most)
        while result.pending:
            values = {call.call_id: True for call in result.pending}
            result = await talk.resume(values, max_iterations=most)
        assert result.answer == "I am done.", result


async def write_parallel(url: str, calls: int) -> None:
    wanted = [Call("tea.price", of=f"tea {number}") for number in range(calls)]
    model = ScriptedModel([Say("", *wanted), "Done."], strict=False)
    async with Harness.open(TEA, store=url, model=model) as harness:
        talk = harness.conversation("parallel")
        result = await talk.say("What does everything cost?", max_calls_per_reply=calls)
        assert result.answer == "Done.", result


async def write_turns(url: str, turns: int) -> None:
    """Write `turns`: so many turns of one round each, seven blocks a turn."""
    script = [Say(f"Answer {number}. " + "Tea is a plant. " * 12) for number in range(turns)]
    model = ScriptedModel(script, strict=False, window=4_000_000, thinking=True)
    async with Harness.open(GUIDE, store=url, model=model) as harness:
        talk = harness.conversation("turns")
        for number in range(turns):
            await talk.say(f"Question {number} about tea, at some length.")
