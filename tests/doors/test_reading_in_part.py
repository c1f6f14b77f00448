"""A long conversation and a full store are read in part: filtered, page by page, and verified."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from loopline import Store
from tests.doors.bundles import OTHER_QUESTION, QUESTION
from tests.doors.command import Loopline
from tests.doors.conftest import Talked
from tests.doors.terminal import Terminal

NAME = "tea_guide-1"


def places(out: str) -> list[int]:
    return [int(line.partition("\t")[0]) for line in out.splitlines()]


def test_pages_make_the_whole(talked: Talked) -> None:
    whole = places(talked.loopline("timeline").out)
    numbers, after = list[int](), 0
    while True:
        page = talked.loopline("timeline", "--limit", "20", "--after", str(after))
        numbers += places(page.out)
        if "there are more" not in page.err:
            break
        assert f"there are more: --after {numbers[-1]}" in page.err
        after = numbers[-1]
    assert numbers == whole


def test_several_types_are_named_at_once(talked: Talked) -> None:
    out = talked.loopline("timeline", "--types", "user,assistant").out
    types = [line.split("\t")[3] for line in out.splitlines()]
    assert types == ["user.prompt", "assistant.completion"] * 2
    again = talked.loopline("timeline", "--types", "user", "--types", "assistant.completion").out
    assert again == out


def test_a_page_as_json_says_where_the_next_one_begins(talked: Talked) -> None:
    page = talked.loopline("timeline", "--types", "user", "--limit", "1", "--json").value
    assert [block["body"]["text"] for block in page["blocks"]] == [QUESTION]
    assert (page["conversation_id"], page["turn_ids"]) == (NAME, ["turn_1", "turn_2"])
    after = str(page["next_after"])
    remaining_value = talked.loopline(
        "timeline", "--types", "user", "--after", after, "--json"
    ).value
    assert [block["body"]["text"] for block in remaining_value["blocks"]] == [OTHER_QUESTION]
    assert remaining_value["next_after"] is None


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_type_that_is_written_wrong_names_the_nearest(
    talked: Talked, more: tuple[str, ...]
) -> None:
    ran = talked.loopline("timeline", "--types", "react.tol", *more)
    assert ran.code == 2
    assert (ran.value["error_type"] if more else ran.out) == ("UsageError" if more else "")
    assert "there is no block of the type 'react.tol': nearest is 'react.tool'" in ran.err


def test_a_type_like_no_other_is_told_with_what_types_begin(talked: Talked) -> None:
    ran = talked.loopline("timeline", "--types", "nosuch")
    assert "there is no block of the type 'nosuch': types begin with approval, artifact," in ran.err
    assert ran.err.rstrip().endswith("turn, user, workflow")


def test_what_does_not_go_together_is_a_wrong_use(talked: Talked) -> None:
    rows = [
        ("--list", "--turn", "1"),
        ("--list", "--verify"),
        ("--list", NAME),
        ("--active-after", "2026-01-01"),
        ("--verify", "--types", "user"),
        ("--list", "--active-before", "soon"),
    ]
    for arguments in rows:
        ran = talked.loopline("timeline", *arguments)
        assert (arguments, ran.code, ran.out) == (arguments, 2, "")
        assert "error: " in ran.err, arguments


def listed(loopline: Loopline, *arguments: str) -> list[dict[str, Any]]:
    value: list[dict[str, Any]] = json.loads(
        loopline("timeline", "--list", "--json", *arguments).out
    )
    return value


def test_a_full_store_is_listed_page_by_page(slow: Loopline) -> None:
    for name, user in (("a", "ann"), ("b", "bob"), ("c", "ann")):
        slow("run", "slow", "hello", "-c", name, "--user", user)
    names = [row["conversation"] for row in listed(slow)]
    assert names == ["c", "b", "a"]
    assert [row["conversation"] for row in listed(slow, "--user", "ann")] == ["c", "a"]
    page = slow("timeline", "--list", "--limit", "2")
    assert [line.split("\t")[0] for line in page.out.splitlines()] == ["c", "b"]
    option, moment = page.err.split()[-2:]
    assert [row["conversation"] for row in listed(slow, option, moment)] == ["a"]
    assert [row["conversation"] for row in listed(slow, "--active-after", moment)] == ["c"]
    assert listed(slow, "--project", "other") == listed(slow, "--tenant", "other") == []
    assert (slow("timeline", "--list", "--user", "eve").err) == "no such conversation\n"


def test_answers_are_verified_by_their_sources(talked: Talked) -> None:
    value = talked.loopline("timeline", "--verify", "--json").value
    assert [record["turn_id"] for record in value["answers"]] == ["turn_1", "turn_2"]
    for answer in value["answers"]:
        assert sum(answer["counts"].values()) == len(answer["cited"]) > 0
        assert {sentence["support"] for sentence in answer["cited"]} == {"supported"}
    lines = talked.loopline("timeline", "--verify", "--turn", "2").out.splitlines()
    assert lines[0].startswith("ar:turn_2.assistant.completion.1  ")
    assert {line.split("\t")[0] for line in lines[1:]} == {"supported"}
    assert talked.loopline("timeline", "--verify", "--turn", "9").code == 2


@pytest.mark.parametrize(
    "arguments", [("--verify",), ("--limit", "9"), ("--list",), ("--types", "source,react.tool")]
)
def test_nothing_is_wider_than_a_small_terminal(talked: Talked, arguments: tuple[str, ...]) -> None:
    with Terminal(talked.loopline, "timeline", *arguments, columns=80) as terminal:
        assert terminal.end() == 0
        assert max(len(line.rstrip()) for line in terminal.text.splitlines()) <= 80


def test_the_rate_of_the_users_reactions_is_told_behind_the_blocks(slow: Loopline) -> None:
    for _ in range(3):
        assert slow("run", "slow", "hello", "-c", "judged").code == 0
    assert "satisfaction" not in slow("timeline", "judged").err

    async def judge() -> None:
        store = f"sqlite:///{slow.folder}/.loopline/loopline.db"
        async with Store.open(store) as opened:
            talk = opened.conversation("judged")
            await talk.feedback("turn_1", "ok")
            await talk.feedback("turn_2", "not_ok")
            await talk.feedback("turn_3", "neutral")
            await talk.feedback("turn_3", None)

    asyncio.run(judge())
    assert "satisfaction: 50% (1 of 2 judged turns)" in slow("timeline", "judged").err
