"""A turn that waits for its user, at the command."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, Harness, tool
from loopline.events import Delta
from loopline.guards import ask_before
from loopline.testing import Call, ScriptedModel
from loopline.timeline import ToolResult
from tests.doors.command import Loopline, write
from tests.support import programs


def test_a_paused_turn_says_what_it_waits_for_and_how_to_carry_it_on(asker: Loopline) -> None:
    ran = asker("run", "asker", "shopping", "-c", "a")
    assert ran.code == 1
    assert "? c1 shop.buy asks: Which tea?" in ran.err
    assert "? c2 shop.buy asks: Buy milk?" in ran.err
    assert "loopline run asker --answer c1=yes --answer c2=yes -c a" in ran.pasted


def test_another_process_carries_it_on_in_any_order(asker: Loopline) -> None:
    asker("run", "asker", "shopping", "-c", "a")
    half = asker("run", "asker", "-c", "a", "--answer", "c2=yes", "--json")
    assert half.code == 1
    assert half.value["exit_reason"] == "paused"
    assert [call["call_id"] for call in half.value["pending"]] == ["c1"]
    whole = asker("run", "asker", "-c", "a", "--answer", "c1=green")
    assert (whole.code, whole.out.strip()) == (0, "green and bought milk")


DESK = """
from pydantic import BaseModel
from loopline import Bundle, tool
from loopline.models import ToolMessage
from loopline.testing import Call, Say, ScriptedModel

class Place(BaseModel):
    city: str
    floor: int

@tool(effect="read", client=True)
def find(who: str) -> Place:
    'Find somebody.'
    ...

@tool(effect="write", key="cups", approve=True)
def pour(tea: str, cups: int) -> str:
    'Pour tea.'
    return f"{cups} cups of {tea}"

def reply(request):
    results = [message.text for message in request.messages if isinstance(message, ToolMessage)]
    if not results:
        return Say("", Call("desk.find", who="ann's"), Call("desk.pour", tea="oolong", cups=9))
    return Say(" / ".join(text.partition("\\n")[2] for text in results))

bundle = Bundle(id="desk", tools=[find, pour], model=ScriptedModel([reply] * 2, strict=False))
"""


@pytest.fixture
def desk(tmp_path: Path) -> Loopline:
    """The command beside a bundle with a tool that the client runs, and one that needs approval."""
    write(tmp_path, {"desk.py": DESK})
    return Loopline(tmp_path)


def test_a_run_prints_the_lines_that_answer_a_client_call_and_an_approval(desk: Loopline) -> None:
    ran = desk("run", "desk.py", "Where?", "-c", "a")
    answer, edit = ran.pasted[-2:]
    assert '--answer \'c1={"city":"city","floor":1}\' --answer c2=yes -c a' in answer
    assert '--answer \'c2=yes {"tea":"oolong","cups":9}\' -c a' in edit
    edited = desk.paste(edit.replace("9", "2"))
    assert edited.code == 1  # the client's call still waits
    done = desk.paste(edited.pasted[-1])
    assert done.code == 0
    assert '{"city":"city","floor":1} / The user approved' in done.out
    assert "\n2 cups of oolong" in done.out


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ("no, too many cups", "The user's reason: no, too many cups"),
        ("always", "9 cups of oolong"),
        ('{"approved": true, "arguments": {"tea": "mint", "cups": 1}}', "1 cups of mint"),
    ],
)
def test_an_approval_is_answered_in_full_on_the_command_line(
    desk: Loopline, answer: str, result: str
) -> None:
    desk("run", "desk.py", "Where?", "-c", "a")
    place = '{"city": "Rome", "floor": "2"}'
    ran = desk("run", "desk.py", "-c", "a", "--answer", f"c2={answer}", "--answer", f"c1={place}")
    assert result in ran.out


def test_what_is_no_answer_is_refused_and_nothing_runs(asker: Loopline) -> None:
    asker("run", "asker", "shopping", "-c", "a")
    unclear = asker("run", "asker", "-c", "a", "--answer", "c2=maybe")
    assert "error: c2 awaits approval: answer yes or no, not 'maybe'" in unclear.err
    unknown = asker("run", "asker", "-c", "a", "--answer", "c9=yes")
    assert "error: no call 'c9' waits for an answer: those that wait are c1, c2" in unknown.err
    written = asker("run", "asker", "-c", "a", "--answer", "yes")
    assert written.code == 2
    assert "--answer takes CALL=VALUE" in written.err
    starts = [block for block in asker.blocks("a") if block["type"] == "react.tool.start"]
    assert len(starts) == 1  # the one that asked


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("No, wait", "did not approve of this call. The user's reason: No, wait Do not"),
        ("no", "did not approve of this call. Do not"),
        (
            "I want oat milk",
            "did not approve of this call. The user's reason: I want oat milk Do not",
        ),
    ],
)
def test_in_a_chat_the_next_line_is_the_answer_and_any_text_but_yes_denies(
    asker: Loopline, line: str, result: str
) -> None:
    ran = asker("chat", "asker", "-c", "b", stdin=f"shopping\ngreen\nyes please\n{line}\n")
    assert ran.code == 0
    assert "answer yes or no, not 'yes please'" in ran.err
    assert f"green and The user {result}" in ran.out


def test_approvals_are_listed_across_conversations_with_the_lines_that_give_them(
    desk: Loopline,
) -> None:
    assert "no call waits for approval" in desk("approvals").err
    for name, user in (("a", "ann"), ("b", "bob")):
        desk("run", "desk.py", "Where?", "-c", name, "--user", user)
    listed = desk("approvals")
    assert [line.partition(": ")[0].partition(" ")[2] for line in listed.out.splitlines()] == [
        "c2 of b (bob)",
        "c2 of a (ann)",
    ]
    assert "May desk.pour run with" in listed.out
    [row] = json.loads(desk("approvals", "--user", "ann", "--json").out)
    assert (row["conversation"], row["arguments"]) == ("a", {"tea": "oolong", "cups": 9})
    assert len(desk("approvals", "--user", "ann").out.splitlines()) == 1
    given = desk.paste(listed.pasted[1].replace("BUNDLE", "desk.py"))
    assert "? c1 desk.find" in given.err
    assert "(ann)" not in desk("approvals").out


@tool(effect="write", key="till")
def sell(tea: str) -> str:
    """Sell tea."""
    return f"sold {tea}"


class Careful(BaseWorkflow):
    """A workflow that asks before each sale."""

    guards = (ask_before("till.sell"),)


TILL = Bundle(
    id="till", workflow=Careful, tools=[sell], configuration=programs.bundle(sell).defaults
)


async def test_the_line_for_an_open_call_answers_it_in_its_project_and_tenant(
    tmp_path: Path,
) -> None:
    loopline, store = Loopline(tmp_path), f"sqlite:///{tmp_path}/talk.db"
    program = programs.python('print(await tools.call("till.sell", tea="oolong"))')
    model = ScriptedModel([program, "Done."])
    async with Harness.open(TILL, store=store, model=model) as harness:
        talk = harness.conversation("c1", user="ann", project="tea", tenant="acme")
        async for event in talk.stream("go"):
            if isinstance(event, Delta) and event.type == "pending":
                listed = await asyncio.to_thread(loopline, "approvals", "--store", store)
                given = await asyncio.to_thread(loopline.paste, listed.pasted[0])
                assert given.code == 0, given.err
                assert listed.pasted[0].endswith("--user ann --project tea --tenant acme")
                assert "c1-1 of c1 (acme/tea/ann)" in listed.out
        [result] = [
            block.body for block in await talk.blocks() if isinstance(block.body, ToolResult)
        ]
    assert "sold oolong" in result.text


async def test_a_paused_call_in_a_project_that_no_run_has_is_listed_without_a_line(
    tmp_path: Path,
) -> None:
    loopline, store = Loopline(tmp_path), f"sqlite:///{tmp_path}/talk.db"
    model = ScriptedModel([Call("till.sell", tea="oolong")] * 2)
    async with Harness.open(TILL, store=store, model=model) as harness:
        await harness.conversation("a", user="ann", project="tea", tenant="acme").say("go")
        await harness.conversation("b", user="bob").say("go")
    listed = loopline("approvals", "--store", store)
    assert [line.partition(": ")[0].partition(" ")[2] for line in listed.out.splitlines()] == [
        "c1 of b (bob)",
        "c1 of a (acme/tea/ann)",
    ]
    [line] = listed.pasted
    assert line.startswith("loopline run BUNDLE --answer c1=yes -c b ")
