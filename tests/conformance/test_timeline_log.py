"""What every timeline log promises."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, cast

import pytest

from loopline.errors import ConflictError, LeaseLost, LooplineError, StoreError
from loopline.models import JsonObject
from loopline.timeline import (
    NEW_TURN,
    Block,
    Body,
    Completion,
    ConversationKey,
    ConversationLimits,
    ConversationSummary,
    Entry,
    Exit,
    Feedback,
    MemoryLog,
    Notes,
    TimelineLog,
    ToolCalled,
    ToolResult,
    TurnHeader,
    Unknown,
    UnsoundBody,
    UserFollowup,
    UserPrompt,
    UserRecalled,
)
from loopline.timeline.log import HeadMoved
from tests.conformance.conftest import Opening

HERE = ConversationKey(name="here")
THERE = ConversationKey(name="there")


def prompt(text: str) -> Entry:
    return Entry(body=UserPrompt(text=text), turn=NEW_TURN)


def followup(text: str) -> Entry:
    return Entry(body=UserFollowup(text=text), turn=1)


def notes(text: str, *, turn: int = 1) -> Entry:
    return Entry(body=Notes(text=text), turn=turn, round=1)


def texts(blocks: Sequence[Block]) -> list[str]:
    return [
        block.body.text for block in blocks if isinstance(block.body, UserPrompt | UserFollowup)
    ]


def seqs(blocks: Sequence[Block]) -> list[int]:
    return [block.seq for block in blocks]


async def run_once(log: TimelineLog, conversation: ConversationKey) -> int:
    """A runner comes and goes."""
    async with log.lease(conversation) as term:
        return term


# Appending


async def test_a_block_has_the_body_the_turn_and_the_round_it_was_appended_with(
    log: TimelineLog,
) -> None:
    async with log.lease(HERE) as term:
        said, noted = await log.append(HERE, [prompt("hello"), notes("so")], seen=0, term=term)
    assert (said.body, said.turn, said.round, said.term) == (UserPrompt(text="hello"), 1, 0, term)
    assert (noted.body, noted.turn, noted.round, noted.term) == (Notes(text="so"), 1, 1, term)


async def test_blocks_are_read_as_they_were_returned(log: TimelineLog) -> None:
    first = await log.append(HERE, [prompt("hello"), followup("and")], seen=0)
    second = await log.append(HERE, [followup("also")], seen=2)
    assert list(await log.read(HERE)) == [*first, *second]


async def test_a_block_was_kept_at_a_whole_millisecond_in_utc(log: TimelineLog) -> None:
    (block,) = await log.append(HERE, [prompt("hello")], seen=0)
    assert block.ts.utcoffset() is not None
    assert not block.ts.utcoffset()
    assert block.ts.microsecond % 1000 == 0


async def test_places_are_dense_whoever_writes(log: TimelineLog) -> None:
    async def produce(name: str) -> None:
        for number in range(10):
            await log.append(HERE, [prompt(f"{name}{number}"), followup(name)], seen=0)

    await asyncio.gather(*map(produce, "abc"))
    assert seqs(await log.read(HERE)) == list(range(1, 61))


async def test_the_entries_of_an_append_stay_together(log: TimelineLog) -> None:
    async def produce(name: str) -> None:
        for _ in range(10):
            await log.append(HERE, [prompt(name), followup(name)], seen=0)

    await asyncio.gather(*map(produce, "abc"))
    kept_texts = texts(await log.read(HERE))
    assert kept_texts[::2] == kept_texts[1::2]


async def test_an_append_returns_what_others_appended_since(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("mine")], seen=0)
    await log.append(HERE, [followup("theirs")], seen=1)
    assert texts(await log.append(HERE, [followup("mine again")], seen=1)) == [
        "theirs",
        "mine again",
    ]


async def test_an_append_of_nothing_only_reads(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("one"), followup("two")], seen=0)
    assert texts(await log.append(HERE, [], seen=1)) == ["two"]
    assert await log.append(THERE, [], seen=0) == []
    assert await log.find(THERE) is None


@pytest.mark.parametrize(
    "body",
    [
        Notes(text="\ud800"),
        ToolCalled(call_id="c1", tool="t", arguments={"x": float("nan")}),
        ToolCalled(call_id="c1", tool="t", arguments=cast("JsonObject", {"x": {1, 2}})),
        ToolCalled(call_id="c1", tool="t", arguments=cast("JsonObject", {1: "one"})),
        Notes(text=cast("str", 5)),
        Exit(reason=cast("Literal['complete']", "tired")),
        Unknown(stored_type="user.prompt", version=1, stored='{"text":"not unknown at all"}'),
        Unknown(stored_type="later", version=1, stored="\ud800"),
    ],
)
async def test_a_body_that_could_not_be_read_again_is_refused_with_all_beside_it(
    log: TimelineLog, body: Body
) -> None:
    entries = [prompt("hello"), Entry(body=body, turn=1)]
    async with log.lease(HERE) as term:
        with pytest.raises(UnsoundBody):
            await log.append(HERE, entries, seen=0, term=term)
    assert await log.read(HERE) == []


async def test_entries_that_open_a_turn_share_it(log: TimelineLog) -> None:
    opened = [prompt("one"), Entry(body=UserFollowup(text="two"), turn=NEW_TURN)]
    assert [block.turn for block in await log.append(HERE, opened, seen=0)] == [1, 1]
    assert [block.turn for block in await log.append(HERE, opened, seen=2)] == [2, 2]


async def test_a_block_is_numbered_among_those_of_its_type_in_its_turn(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("one"), followup("a"), followup("b")], seen=0)
    await log.append(HERE, [prompt("two"), followup("still of the first turn")], seen=3)
    blocks = await log.read(HERE)
    assert [(b.turn, b.type, b.n) for b in blocks] == [
        (1, "user.prompt", 1),
        (1, "user.followup", 1),
        (1, "user.followup", 2),
        (2, "user.prompt", 1),
        (1, "user.followup", 3),
    ]


async def test_a_body_nobody_here_knows_is_kept_as_it_is(log: TimelineLog) -> None:
    later = Unknown(stored_type="react.dream", version=7, stored='{"of": ["sheep"]}')
    async with log.lease(HERE) as term:
        await log.append(HERE, [Entry(body=later, turn=1)] * 2, seen=0, term=term)
    blocks = await log.read(HERE)
    assert [(b.body, b.type, b.n) for b in blocks] == [
        (later, "react.dream", 1),
        (later, "react.dream", 2),
    ]


# The head


async def test_an_append_for_the_head_is_refused_once_others_have_appended(
    log: TimelineLog,
) -> None:
    await log.append(HERE, [prompt("one")], seen=0, at_head=True)
    with pytest.raises(HeadMoved):
        await log.append(HERE, [followup("two")], seen=0, at_head=True)
    assert seqs(await log.append(HERE, [followup("two")], seen=1, at_head=True)) == [2]
    assert texts(await log.read(HERE)) == ["one", "two"]


# Keys


async def test_a_repeated_key_appends_nothing_again(log: TimelineLog) -> None:
    first = await log.append(HERE, [prompt("once")], seen=0, key="k")
    assert await log.append(HERE, [prompt("twice")], seen=0, key="k") == first
    assert texts(await log.read(HERE)) == ["once"]


async def test_a_repeated_key_returns_what_came_after_its_first_outcome_too(
    log: TimelineLog,
) -> None:
    await log.append(HERE, [prompt("once")], seen=0, key="k")
    await log.append(HERE, [followup("theirs")], seen=1)
    assert texts(await log.append(HERE, [prompt("twice")], seen=0, key="k")) == ["once", "theirs"]


async def test_a_key_leads_to_the_last_block_of_its_append(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("one"), followup("two")], seen=0, key="k")
    await log.append(HERE, [followup("three")], seen=2)
    await log.append(HERE, [prompt("again")], seen=3, key="k")
    assert await log.appended(HERE, "k") == 2
    assert [await log.appended(HERE, ""), await log.appended(HERE, "other")] == [None, None]
    assert await log.appended(THERE, "k") is None


async def test_keys_lead_to_the_turns_of_their_appends_in_one_read(log: TimelineLog) -> None:
    assert await log.turns_of(HERE, ["k"]) == {}
    await log.append(HERE, [prompt("one"), followup("two")], seen=0, key="k")
    await log.append(HERE, [prompt("three")], seen=2, key="ö'\"")
    await log.append(THERE, [prompt("there")], seen=0, key="other")
    assert await log.turns_of(HERE, ["k", "ö'\"", "other", ""]) == {"k": 1, "ö'\"": 2}
    assert await log.turns_of(HERE, []) == {}


async def test_a_key_counts_in_its_conversation_alone(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("here")], seen=0, key="k")
    await log.append(THERE, [prompt("there")], seen=0, key="k")
    assert texts(await log.read(THERE)) == ["there"]


async def test_without_a_key_the_same_is_appended_again(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("same")], seen=0)
    await log.append(HERE, [prompt("same")], seen=1)
    assert texts(await log.read(HERE)) == ["same", "same"]


async def test_a_key_of_a_refused_append_is_still_free(log: TimelineLog) -> None:
    with pytest.raises(LeaseLost):
        await log.append(HERE, [notes("mine")], seen=0, key="k")
    await log.append(HERE, [prompt("hello")], seen=0, key="k")
    assert texts(await log.read(HERE)) == ["hello"]


# Terms and leases


@pytest.mark.parametrize(
    "body", [Notes(text="x"), Completion(text="x"), Feedback(reaction="ok", origin="machine")]
)
async def test_without_a_term_only_the_user_is_heard(log: TimelineLog, body: Body) -> None:
    with pytest.raises(LeaseLost):
        await log.append(HERE, [Entry(body=body, turn=1)], seen=0)
    assert await log.read(HERE) == []


async def test_the_user_is_heard_at_any_time(log: TimelineLog) -> None:
    liked = Entry(body=Feedback(reaction="ok"), turn=1)
    async with log.lease(HERE):
        await log.append(HERE, [prompt("one"), followup("two"), liked], seen=0)
    assert [block.term for block in await log.read(HERE)] == [0, 0, 0]


async def test_a_refused_append_keeps_none_of_its_entries(log: TimelineLog) -> None:
    with pytest.raises(LeaseLost):
        await log.append(HERE, [prompt("hello"), notes("so")], seen=0)
    assert await log.read(HERE) == []
    assert await log.find(HERE) is None


async def test_every_runner_has_a_newer_term(log: TimelineLog) -> None:
    terms = [await run_once(log, HERE) for _ in range(3)]
    assert terms == [1, 2, 3]
    assert await run_once(log, THERE) == 1


async def test_a_runner_whose_term_is_over_is_refused(log: TimelineLog) -> None:
    old = await run_once(log, HERE)
    new = await run_once(log, HERE)
    with pytest.raises(LeaseLost):
        await log.append(HERE, [notes("old")], seen=0, term=old)
    assert seqs(await log.append(HERE, [notes("new")], seen=0, term=new)) == [1]


async def test_a_lease_stands_until_a_later_one_has_begun(log: TimelineLog) -> None:
    assert not await log.holds(HERE, 0)
    assert not await log.holds(HERE, 1)
    async with log.lease(HERE) as old:
        assert await log.holds(HERE, old)
        assert not await log.holds(HERE, old + 1)
        assert not await log.holds(THERE, old)
    async with log.lease(HERE) as new:
        assert await log.holds(HERE, new)
        assert not await log.holds(HERE, old)


async def test_a_second_runner_waits_for_the_first(log: TimelineLog) -> None:
    order = list[str]()

    async def wait_for_it() -> None:
        async with log.lease(HERE):
            order.append("second")

    async with log.lease(HERE):
        second = asyncio.create_task(wait_for_it())
        await asyncio.sleep(0.02)
        order.append("first")
    await second
    assert order == ["first", "second"]


async def test_a_second_runner_that_does_not_wait_is_told(log: TimelineLog) -> None:
    async with log.lease(HERE):
        with pytest.raises(ConflictError):
            await log.lease(HERE, wait=False).__aenter__()
    assert await run_once(log, HERE) == 2


async def test_one_runner_does_not_keep_another_conversation_waiting(log: TimelineLog) -> None:
    async with log.lease(HERE), log.lease(THERE, wait=False) as term:
        assert term == 1


async def test_a_runner_that_fails_gives_the_lease_back(log: TimelineLog) -> None:
    with pytest.raises(ZeroDivisionError):
        async with log.lease(HERE):
            raise ZeroDivisionError
    async with log.lease(HERE, wait=False) as term:
        assert term == 2


async def test_a_runner_that_gives_up_waiting_takes_nothing(log: TimelineLog) -> None:
    async with log.lease(HERE):
        waiting = asyncio.create_task(run_once(log, HERE))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert await run_once(log, HERE) == 2


# Reading


async def test_reading_goes_on_after_a_place_and_up_to_a_limit(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("1"), followup("2"), followup("3"), followup("4")], seen=0)
    assert texts(await log.read(HERE, after=1)) == ["2", "3", "4"]
    assert texts(await log.read(HERE, after=1, limit=2)) == ["2", "3"]
    assert texts(await log.read(HERE, limit=0)) == []
    assert texts(await log.read(HERE, after=9)) == []


@pytest.mark.parametrize(
    ("types", "places"),
    [
        (["user.prompt"], [1, 5]),
        (["user"], [1, 2, 5]),
        (["react.notes", "user.followup"], [2, 3]),
        (["react"], [3, 4]),
        (["react.dream"], [4]),
        (["react.not", "us", "user.prompt.more", ""], []),
        ([], [1, 2, 3, 4, 5]),
    ],
)
async def test_a_type_stands_for_itself_and_for_those_below_it(
    log: TimelineLog, types: Sequence[str], places: Sequence[int]
) -> None:
    later = Entry(body=Unknown(stored_type="react.dream", version=1, stored="{}"), turn=1)
    async with log.lease(HERE) as term:
        said = [prompt("1"), followup("2"), notes("3"), later, prompt("5")]
        await log.append(HERE, said, seen=0, term=term)
    assert seqs(await log.read(HERE, types=types)) == places


async def test_one_turn_can_be_read(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("1"), followup("2")], seen=0)
    await log.append(HERE, [prompt("3"), followup("4")], seen=2)
    assert seqs(await log.read(HERE, turn=1)) == [1, 2, 4]
    assert seqs(await log.read(HERE, turn=2)) == [3]
    assert seqs(await log.read(HERE, turn=3)) == []


async def test_the_limit_counts_what_the_filters_leave(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("1"), followup("2"), followup("3"), followup("4")], seen=0)
    blocks = await log.read(HERE, types=["user.followup"], turn=1, after=2, limit=1)
    assert texts(blocks) == ["3"]
    assert texts(await log.read(HERE, types=["user.followup"], limit=2)) == ["2", "3"]


async def test_the_last_are_those_that_the_filters_leave(log: TimelineLog) -> None:
    said = [prompt("1"), followup("2"), followup("3"), prompt("4"), followup("5")]
    await log.append(HERE, said, seen=0)
    assert texts(await log.read(HERE, last=2)) == ["4", "5"]
    assert texts(await log.read(HERE, last=9, after=3)) == ["4", "5"]
    assert texts(await log.read(HERE, types=["user.followup"], last=2)) == ["3", "5"]
    assert texts(await log.read(HERE, types=["user.followup"], turn=1, last=1)) == ["5"]
    assert texts(await log.read(HERE, limit=3, last=2)) == ["2", "3"]
    assert texts(await log.read(HERE, last=0)) == []


async def test_single_blocks_can_be_read_besides(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("1"), followup("2"), prompt("3"), followup("4")], seen=0)
    assert texts(await log.read(HERE, after=3, also=[2, 1, 2])) == ["1", "2", "4"]
    assert texts(await log.read(HERE, after=2, also=[0, 1, 3, 99], limit=1)) == ["1", "3"]
    assert texts(await log.read(HERE, after=2, also=[2], types=["user.prompt"])) == ["2", "3"]
    assert texts(await log.read(HERE, also=[1, 2])) == ["1", "2", "3", "4"]
    assert texts(await log.read(HERE, after=9, also=[4])) == ["4"]


async def test_what_a_fork_shows_of_others_is_read_from_the_end_and_besides(
    log: TimelineLog,
) -> None:
    await log.append(HERE, [prompt("1"), followup("2"), prompt("3"), followup("4")], seen=0)
    await log.fork(HERE, THERE, 3)
    await log.append(THERE, [followup("mine"), prompt("last")], seen=3)
    assert texts(await log.read(THERE, last=3)) == ["3", "mine", "last"]
    assert texts(await log.read(THERE, types=["user.followup"], last=2)) == ["2", "mine"]
    assert texts(await log.read(THERE, after=4, also=[4, 2])) == ["2", "mine", "last"]


async def test_what_a_fork_shows_of_others_is_filtered_too(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("1"), followup("2"), prompt("3"), followup("4")], seen=0)
    await log.fork(HERE, THERE, 3)
    await log.append(THERE, [followup("mine"), prompt("last")], seen=3)
    assert texts(await log.read(THERE, types=["user.prompt"])) == ["1", "3", "last"]
    assert texts(await log.read(THERE, types=["user.followup"], limit=2)) == ["2", "mine"]
    assert texts(await log.read(THERE, types=["user.prompt"], after=1, limit=1)) == ["3"]


async def test_nothing_is_read_of_a_conversation_that_never_began(log: TimelineLog) -> None:
    assert await log.read(HERE) == []


@pytest.mark.parametrize(
    "other",
    [
        ConversationKey(name="other"),
        ConversationKey(name="here", user="other"),
        ConversationKey(name="here", project="other"),
        ConversationKey(name="here", tenant="other"),
    ],
)
async def test_conversations_of_other_names_users_projects_and_tenants_are_apart(
    log: TimelineLog, other: ConversationKey
) -> None:
    await log.append(HERE, [prompt("here")], seen=0)
    await log.append(other, [prompt("other")], seen=0)
    assert texts(await log.read(HERE)) == ["here"]
    assert texts(await log.read(other)) == ["other"]


# What is known of conversations


async def test_a_conversation_that_never_began_is_not_found(log: TimelineLog) -> None:
    assert await log.find(HERE) is None
    assert await log.conversations() == []


async def test_a_lease_alone_begins_no_conversation(log: TimelineLog) -> None:
    await run_once(log, HERE)
    assert await log.find(HERE) is None
    assert await log.conversations() == []


async def test_a_conversation_is_known_by_what_it_holds(log: TimelineLog) -> None:
    await run_once(log, HERE)
    first = await log.append(HERE, [prompt("  What  is\nthis?"), followup("tell")], seen=0)
    last = await log.append(HERE, [prompt("And that?")], seen=2)
    summary = await log.find(HERE)
    assert summary is not None
    assert (summary.conversation, summary.head, summary.turns) == (HERE, 3, 2)
    assert summary.title == "What is this?"
    assert (summary.started_at, summary.last_activity_at) == (first[0].ts, last[-1].ts)


async def test_a_title_has_no_nul(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("\0 What\0is this?\0")], seen=0)
    summary = await log.find(HERE)
    assert summary is not None
    assert summary.title == "What is this?"


async def test_the_uid_of_a_conversation_is_its_own_for_ever(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("here")], seen=0)
    await log.append(THERE, [prompt("there")], seen=0)
    summary = await log.find(HERE)
    await log.append(HERE, [prompt("more")], seen=1)
    here_summary, other_summary = await log.find(HERE), await log.find(THERE)
    assert summary is not None
    assert here_summary is not None
    assert other_summary is not None
    assert here_summary.uid == summary.uid != other_summary.uid


async def test_a_conversation_that_begins_without_a_prompt_has_no_title(log: TimelineLog) -> None:
    await log.append(HERE, [followup("and")], seen=0)
    await log.append(HERE, [prompt("hello")], seen=1)
    summary = await log.find(HERE)
    assert summary is not None
    assert summary.title == ""


async def test_a_recalled_prompt_leaves_no_turn_unfinished_unless_its_turn_has_started(
    log: TimelineLog,
) -> None:
    async with log.lease(HERE) as term:

        async def unfinished_after(entry: Entry) -> bool:
            """Append a block, and return whether the conversation may have an unfinished turn."""
            await log.append(HERE, [entry], seen=0, term=term)
            return [each.conversation for each in await log.unfinished()] == [HERE]

        assert await unfinished_after(prompt("one"))
        assert await unfinished_after(prompt("two"))
        assert await unfinished_after(Entry(body=UserRecalled(said=1), turn=2))  # another prompt
        assert await unfinished_after(Entry(body=UserRecalled(said=2), turn=2))
        assert not await unfinished_after(Entry(body=Exit(reason="complete"), turn=1))
        assert await unfinished_after(prompt("three"))
        assert await unfinished_after(prompt("four"))
        assert await unfinished_after(Entry(body=UserRecalled(said=7), turn=4))
        header = TurnHeader(bundle="tea", model="m", protocol="native")
        assert await unfinished_after(Entry(body=header, turn=3))
        assert await unfinished_after(Entry(body=UserRecalled(said=6), turn=3))  # too late
        assert not await unfinished_after(Entry(body=Exit(reason="complete"), turn=3))


async def test_conversations_are_listed_the_one_active_last_first(log: TimelineLog) -> None:
    for conversation in (HERE, THERE, HERE):
        await asyncio.sleep(0.002)
        await log.append(conversation, [prompt("hello")], seen=0)
    listed = await log.conversations()
    assert [summary.conversation for summary in listed] == [HERE, THERE]
    assert listed == [await log.find(HERE), await log.find(THERE)]


async def test_the_conversations_of_one_user_can_be_listed(log: TimelineLog) -> None:
    mine, theirs = ConversationKey(name="a", user="me"), ConversationKey(name="a", user="they")
    await log.append(mine, [prompt("mine")], seen=0)
    await log.append(theirs, [prompt("theirs")], seen=0)
    assert [summary.conversation for summary in await log.conversations(user="me")] == [mine]
    assert await log.conversations(user="nobody") == []


async def test_conversations_are_listed_by_user_project_and_tenant(log: TimelineLog) -> None:
    a = ConversationKey(name="a", user="me", project="p", tenant="t")
    b = ConversationKey(name="b", user="me", project="p")
    c = ConversationKey(name="c", user="they", tenant="t")
    for conversation in (a, b, c):
        await log.append(conversation, [prompt("hello")], seen=0)

    def named(found: Sequence[ConversationSummary]) -> set[str]:
        return {summary.conversation.name for summary in found}

    assert named(await log.conversations(project="p")) == {"a", "b"}
    assert named(await log.conversations(tenant="t")) == {"a", "c"}
    assert named(await log.conversations(user="me", project="p", tenant="t")) == {"a"}
    assert await log.conversations(user="they", project="p") == []


async def test_conversations_are_listed_by_when_they_were_active_last(log: TimelineLog) -> None:
    names = [ConversationKey(name=name) for name in "abcd"]
    for conversation in names:
        await asyncio.sleep(0.002)
        await log.append(conversation, [prompt("hello")], seen=0)
    d, c, b, a = await log.conversations()
    assert await log.conversations(limit=2) == [d, c]
    assert await log.conversations(limit=0) == []
    assert await log.conversations(before=c.last_activity_at) == [b, a]
    assert await log.conversations(before=c.last_activity_at, limit=1) == [b]
    assert await log.conversations(after=b.last_activity_at) == [d, c]
    between = await log.conversations(after=a.last_activity_at, before=d.last_activity_at)
    assert between == [c, b]


@pytest.mark.parametrize("micro", [1, 999])
async def test_a_moment_within_a_millisecond_comes_after_its_blocks(
    log: TimelineLog, micro: int
) -> None:
    (block,) = await log.append(HERE, [prompt("hello")], seen=0)
    just_after = block.ts + timedelta(microseconds=micro)
    assert len(await log.conversations(before=just_after)) == 1
    assert await log.conversations(after=just_after) == []
    just_before = block.ts - timedelta(microseconds=micro)
    assert await log.conversations(before=just_before) == []
    assert len(await log.conversations(after=just_before)) == 1


async def test_a_log_may_be_closed_twice(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("hello")], seen=0)
    await log.close()
    await log.close()


async def test_a_large_body_comes_back_whole(log: TimelineLog) -> None:
    result = ToolResult(call_id="c1", tool="t", text="é\0\n" * 100_000)
    async with log.lease(HERE) as term:
        await log.append(HERE, [Entry(body=result, turn=1)], seen=0, term=term)
    (block,) = await log.read(HERE)
    assert block.body == result


# Many at once


async def test_a_refused_append_fails_none_of_those_made_at_the_same_time(log: TimelineLog) -> None:
    sent_blocks = [log.append(HERE, [prompt(str(number))], seen=0) for number in range(5)]
    refused = log.append(HERE, [prompt("half"), notes("mine")], seen=0, key="k")
    other_blocks = log.append(THERE, [prompt("there")], seen=0)
    *kept, refusal, begun = await asyncio.gather(
        *sent_blocks, refused, other_blocks, return_exceptions=True
    )
    assert isinstance(refusal, LeaseLost)
    assert [len(blocks) for blocks in kept if isinstance(blocks, list)] == [1, 2, 3, 4, 5]
    assert not isinstance(begun, BaseException)
    assert seqs(begun) == [1]
    assert texts(await log.read(HERE)) == ["0", "1", "2", "3", "4"]


async def test_a_key_used_twice_at_the_same_time_is_kept_once(log: TimelineLog) -> None:
    twice = [log.append(HERE, [prompt("once")], seen=0, key="k") for _ in range(2)]
    first, second = await asyncio.gather(*twice)
    assert list(first) == list(second) == list(await log.read(HERE))


async def test_a_text_that_no_database_holds_fails_only_its_own_append(log: TimelineLog) -> None:
    odd = log.append(ConversationKey(name="\ud800"), [prompt("odd")], seen=0)
    fine = log.append(HERE, [prompt("fine")], seen=0)
    await asyncio.gather(odd, fine, return_exceptions=True)
    assert texts(await log.read(HERE)) == ["fine"]


async def test_conversations_that_begin_at_the_same_time_are_apart(log: TimelineLog) -> None:
    keys = [ConversationKey(name=f"c{number}") for number in range(40)]
    for step in range(3):
        await asyncio.gather(*(log.append(c, [prompt(c.name)], seen=step) for c in keys))
    for conversation in keys:
        blocks = await log.read(conversation)
        assert texts(blocks) == [conversation.name] * 3
        assert [(block.seq, block.turn, block.n) for block in blocks] == [
            (1, 1, 1),
            (2, 2, 1),
            (3, 3, 1),
        ]


# Limits


@pytest.mark.parametrize("limits", [ConversationLimits(blocks=3), ConversationLimits(bytes=60)])
async def test_a_full_conversation_takes_nothing_new_and_keeps_what_has_begun(
    opening: Opening, limits: ConversationLimits
) -> None:
    log = await opening(limits)
    async with log.lease(HERE) as term:
        await log.append(HERE, [prompt("x" * 20), notes("y" * 20), notes("z")], seen=0, term=term)
        with pytest.raises(StoreError, match="'here' is full: it has 3 blocks"):
            await log.append(HERE, [prompt("more")], seen=3)
        blocks = await log.append(HERE, [notes("the end of it")], seen=3, term=term)
        assert seqs(blocks) == [4]


@pytest.mark.parametrize("limits", [ConversationLimits(blocks=5), ConversationLimits(bytes=130)])
async def test_a_warning_is_logged_once_when_a_conversation_is_nearly_full(
    opening: Opening, limits: ConversationLimits, caplog: pytest.LogCaptureFixture
) -> None:
    log = await opening(limits)
    with caplog.at_level(logging.WARNING, "loopline"):
        for seen, told in [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)]:
            await log.append(HERE, [prompt("x" * 15)], seen=seen)
            assert len(caplog.records) == told
    assert "conversation 'here' is nearly full: it has 4 blocks of at most" in caplog.text


async def test_what_is_longer_than_the_limits_is_not_restored(
    opening: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = await MemoryLog().append(THERE, [prompt("one"), followup("two")], seen=0)
    log = await opening(ConversationLimits(blocks=1))
    with pytest.raises(StoreError, match="'here' is too long for this store: it has 2 blocks"):
        await log.restore(HERE, blocks)
    assert await log.read(HERE) == []
    await log.restore(HERE, blocks[:1])
    assert "'here' is nearly full" in caplog.text
    with pytest.raises(StoreError, match="'here' is full"):
        await log.append(HERE, [prompt("three")], seen=1)


async def test_a_fork_is_as_long_as_what_it_shows(opening: Opening) -> None:
    log = await opening(ConversationLimits(bytes=80))
    for seen in range(4):
        await log.append(HERE, [prompt("x" * 15)], seen=seen)
    await log.fork(HERE, THERE, 3)
    with pytest.raises(
        StoreError, match="'here' is full: it has 4 blocks of at most 1,000,000, and"
    ):
        await log.append(HERE, [prompt("more")], seen=4)
    await log.append(THERE, [prompt("x" * 15)], seen=3)
    with pytest.raises(
        StoreError, match="'there' is full: it has 4 blocks of at most 1,000,000, and"
    ):
        await log.append(THERE, [prompt("more")], seen=4)


def test_limits_leave_room_for_something() -> None:
    with pytest.raises(LooplineError, match="cannot start: both limits must be 1 or more"):
        ConversationLimits(blocks=0)
