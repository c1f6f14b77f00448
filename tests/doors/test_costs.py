"""What a conversation cost, on the command line: by request, turn and model, in a pipe, a terminal and JSON."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from loopline import Harness
from loopline.models import Model, Usage, dumps, find_model_facts
from loopline.testing import Call, FakeClock, Refuse, Say, ScriptedModel
from tests.doors.command import Loopline
from tests.doors.terminal import Terminal
from tests.support.child_runs import bundle
from tests.support.forged_documents import with_child

SONNET, GPT, OURS = "anthropic:claude-sonnet-5", "openai:gpt-5", "house:ours"


def used(fresh: int, output: int = 0, read: int = 0, written: int = 0) -> Usage:
    return Usage(
        input_tokens=fresh + read + written,
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=written,
    )


@pytest.fixture(scope="module")
def spent(tmp_path_factory: pytest.TempPathFactory) -> Loopline:
    """A conversation that a model refused, another led with a child run, and one without a price went on with."""
    folder = tmp_path_factory.mktemp("spent")
    price = find_model_facts(SONNET).price
    assert price is not None
    refusing = ScriptedModel(
        [Refuse(used(1_000)), Say("Seen.", usage=used(500, 100))], name=SONNET, price=price
    )
    leading = ScriptedModel(
        [
            Say("", Call("kin.ask", task="look"), usage=used(1_000, 200)),
            Say("Done.", usage=used(200, 100, read=2_000)),
        ],
        name=GPT,
    )

    async def say(*models: Model) -> None:
        (folder / ".loopline").mkdir(exist_ok=True)
        store = f"sqlite:///{folder}/.loopline/loopline.db"
        async with Harness.open(bundle, store=store, model=models, clock=FakeClock()) as harness:
            assert (await harness.conversation("c").say("go")).ok

    asyncio.run(say(refusing, leading))
    asyncio.run(say(ScriptedModel([Say("Hi.", usage=used(10, 10))], name=OURS)))
    return Loopline(folder)


def test_every_request_has_its_line_and_every_turn_and_model_its_sum(spent: Loopline) -> None:
    ran = spent("timeline", "c", "--cost")
    rows = [line.split("\t")[:5] for line in ran.out.splitlines()]
    assert rows == [
        ["1.1", "refusal", SONNET, "$0.00200", "1,000"],
        ["1.1", "decision", GPT, "≈$0.00325", "1,000"],
        ["1.1", "↳ decision", SONNET, "$0.00200", "500"],
        ["1.2", "decision", GPT, "≈$0.00150", "2,200"],
        ["turn_1", "4 requests", "", "≈$0.00875", "4,700"],
        ["2.1", "decision", OURS, "unknown", "10"],
        ["turn_2", "1 request", "", "unknown", "10"],
        ["model", "2 requests", SONNET, "$0.00400", "1,500"],
        ["model", "2 requests", GPT, "≈$0.00475", "3,200"],
        ["model", "1 request", OURS, "unknown", "10"],
        ["all", "5 requests", "", "≥≈$0.00875", "4,710"],
    ]
    assert "the price of 1 request is unknown" in ran.err
    assert "≈ 2 requests at the current price of the model" in ran.err


def test_one_turn_is_told_for_programs(spent: Loopline) -> None:
    value = spent("timeline", "c", "--cost", "--turn", "1", "--json").value
    assert [request["child"] for request in value["requests"]] == ["", "", "c~c1", ""]
    assert [request["cached"] for request in value["requests"]] == [0, 0, 0, 0.9091]
    assert [turn["turn_id"] for turn in value["turns"]] == ["turn_1"]
    assert value["all"]["cost"] == pytest.approx(0.00875)
    assert (value["all"]["unknown"], value["all"]["estimated"]) == (0, 2)


def test_of_a_child_run_that_was_forgotten_its_sum_is_left(spent: Loopline, tmp_path: Path) -> None:
    shutil.copytree(spent.folder / ".loopline", tmp_path / ".loopline")
    at = Loopline(tmp_path)
    at("forget", "c~c1", "--yes")
    rows = [line.split("\t")[:4] for line in at("timeline", "c", "--cost").out.splitlines()]
    assert rows[2] == ["1.1", "child", "c~c1", "$0.00200"]
    assert rows[4] == ["turn_1", "4 requests", "", "≈$0.00875"]


def test_the_costs_of_conversations_that_are_children_of_each_other_are_counted_once(
    tmp_path: Path,
) -> None:
    at = Loopline(tmp_path)
    for name, child in (("a~x", "b~x"), ("b~x", "a~x")):
        text = dumps(asyncio.run(with_child(child)))
        (tmp_path / "document.json").write_text(text, "utf-8")
        assert at("import", "document.json", "--as", name).code == 0
    value = at("timeline", "a~x", "--cost", "--json").value
    assert [request["child"] for request in value["requests"]] == ["", "", "b~x", "b~x"]


def test_in_a_narrow_terminal_models_go_without_their_providers(spent: Loopline) -> None:
    with Terminal(spent, "timeline", "c", "--cost", columns=80) as terminal:
        assert terminal.end() == 0
    first = next(line for line in terminal.text.splitlines() if line.startswith("1.1"))
    assert first.split()[1:4] == ["refusal", "claude-sonnet-5", "$0.00200"]
    assert max(map(len, terminal.text.splitlines())) <= 80


def test_a_turn_in_which_no_model_was_asked_is_a_wrong_use(spent: Loopline) -> None:
    ran = spent("timeline", "c", "--cost", "--turn", "7")
    assert (ran.code, "no request was sent in turn_7 of 'c'" in ran.err) == (2, True)


def test_what_a_cache_would_save_is_told_in_dollars(spent: Loopline) -> None:
    ran = spent("prompt", "-c", "c", "--cache", "anthropic")
    assert "the price of a model is unknown" in ran.err
    value = spent("prompt", "-c", "c", "--cache", "anthropic", "--model", SONNET, "--json").value
    assert value["cost"] == pytest.approx(sum(row["cost"] for row in value["rows"]))
    assert 0 < value["cost"] < value["cost_uncached"]
