"""What every log promises of whole conversations: forks of them, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from loopline import timeline as tl
from loopline.errors import ConflictError, LeaseLost, StoreError
from loopline.timeline.log import TimelineLog

HERE = tl.ConversationKey(name="here")
FORK = tl.ConversationKey(name="fork")
AGAIN = tl.ConversationKey(name="again")


def prompt(text: str) -> tl.Entry:
    return tl.Entry(body=tl.UserPrompt(text=text), turn=tl.NEW_TURN)


def followup(text: str, turn: int = 1) -> tl.Entry:
    return tl.Entry(body=tl.UserFollowup(text=text), turn=turn)


def texts(blocks: Sequence[tl.Block]) -> list[str]:
    return [
        block.body.text
        for block in blocks
        if isinstance(block.body, tl.UserPrompt | tl.UserFollowup)
    ]


async def tell(log: TimelineLog, conversation: tl.ConversationKey, *said: str) -> None:
    """Say each in a turn of its own."""
    for text in said:
        summary = await log.find(conversation)
        await log.append(conversation, [prompt(text)], seen=summary.head if summary else 0)


# Forks


async def test_a_fork_shows_the_very_blocks_up_to_its_place(log: TimelineLog) -> None:
    await tell(log, HERE, "one", "two", "three")
    await log.fork(HERE, FORK, 2)
    assert list(await log.read(FORK)) == list(await log.read(HERE))[:2]


async def test_what_is_appended_to_either_later_is_not_in_the_other(log: TimelineLog) -> None:
    await tell(log, HERE, "one", "two")
    await log.fork(HERE, FORK, 1)
    await tell(log, HERE, "here")
    await tell(log, FORK, "fork")
    assert texts(await log.read(HERE)) == ["one", "two", "here"]
    assert texts(await log.read(FORK)) == ["one", "fork"]


async def test_places_turns_and_numbers_of_a_fork_go_on_from_its_base(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("one"), followup("a"), prompt("two")], seen=0)
    await log.append(HERE, [prompt("three")], seen=3)
    await log.fork(HERE, FORK, 2)
    await log.append(FORK, [followup("b"), prompt("other two")], seen=2)
    blocks = await log.read(FORK, after=1)
    assert [(block.seq, block.turn, block.n) for block in blocks] == [
        (2, 1, 1),
        (3, 1, 2),
        (4, 2, 1),
    ]


async def test_a_fork_is_read_after_a_place_and_up_to_a_limit(log: TimelineLog) -> None:
    await tell(log, HERE, "1", "2", "3")
    await log.fork(HERE, FORK, 2)
    await tell(log, FORK, "4", "5")
    assert texts(await log.read(FORK, after=1)) == ["2", "4", "5"]
    assert texts(await log.read(FORK, after=1, limit=2)) == ["2", "4"]
    assert texts(await log.read(FORK, limit=1)) == ["1"]
    assert texts(await log.read(FORK, limit=0)) == []
    assert texts(await log.read(FORK, after=3)) == ["5"]


async def test_an_append_to_a_fork_returns_what_was_not_seen_of_its_base(
    log: TimelineLog,
) -> None:
    await tell(log, HERE, "1", "2")
    await log.fork(HERE, FORK, 2)
    assert texts(await log.append(FORK, [prompt("3")], seen=1)) == ["2", "3"]


async def test_a_fork_of_a_fork_shows_what_that_shows(log: TimelineLog) -> None:
    await tell(log, HERE, "1", "2", "3")
    await log.fork(HERE, FORK, 2)
    await tell(log, FORK, "4", "5")
    await log.fork(FORK, AGAIN, 3)
    await tell(log, AGAIN, "6")
    await tell(log, FORK, "7")
    assert texts(await log.read(AGAIN)) == ["1", "2", "4", "6"]
    short = tl.ConversationKey(name="short")
    await log.fork(AGAIN, short, 1)
    await tell(log, short, "8")
    assert texts(await log.read(short)) == ["1", "8"]


async def test_a_fork_is_a_conversation_of_its_own(log: TimelineLog) -> None:
    await tell(log, HERE, "one", "two", "three")
    await log.fork(HERE, FORK, 2)
    summary, fork = await log.find(HERE), await log.find(FORK)
    assert summary is not None
    assert fork is not None
    assert summary.uid != fork.uid
    assert (fork.title, fork.head, fork.turns) == ("one", 2, 2)
    assert fork.started_at == summary.started_at
    assert fork.last_activity_at == (await log.read(FORK))[-1].ts
    assert {found_summary.conversation for found_summary in await log.conversations()} == {
        HERE,
        FORK,
    }


async def test_a_key_of_the_base_is_free_in_the_fork(log: TimelineLog) -> None:
    await log.append(HERE, [prompt("one")], seen=0, key="k")
    await log.fork(HERE, FORK, 1)
    await log.append(FORK, [prompt("two")], seen=1, key="k")
    assert texts(await log.read(FORK)) == ["one", "two"]


async def test_a_fork_has_terms_of_its_own(log: TimelineLog) -> None:
    await tell(log, HERE, "one")
    async with log.lease(HERE):
        await log.fork(HERE, FORK, 1)
        async with log.lease(FORK, wait=False) as term:
            assert term == 1


@pytest.mark.parametrize("seq", [-1, 0, 3])
async def test_a_fork_begins_at_a_place_that_is_there(log: TimelineLog, seq: int) -> None:
    await tell(log, HERE, "one", "two")
    with pytest.raises(StoreError, match=f"no block {seq} in conversation 'here': it has 1 to 2"):
        await log.fork(HERE, FORK, seq)
    with pytest.raises(StoreError, match="does not exist"):
        await log.fork(AGAIN, FORK, 1)
    assert await log.find(FORK) is None


async def test_a_fork_begins_only_once(log: TimelineLog) -> None:
    await tell(log, HERE, "one")
    await log.fork(HERE, FORK, 1)
    with pytest.raises(ConflictError, match="'fork' has begun already"):
        await log.fork(HERE, FORK, 1)
    with pytest.raises(ConflictError, match="'here' has begun already"):
        await log.fork(HERE, HERE, 1)


async def test_a_fork_stays_with_its_owner(log: TimelineLog) -> None:
    await tell(log, HERE, "one")
    with pytest.raises(StoreError, match="stays with its owner"):
        await log.fork(HERE, tl.ConversationKey(name="fork", user="other"), 1)


async def test_a_fork_while_others_append_shows_a_whole_beginning(log: TimelineLog) -> None:
    await tell(log, HERE, "0")
    forks = [tl.ConversationKey(name=f"f{number}") for number in range(5)]

    async def produce() -> None:
        for number in range(1, 30):
            await log.append(HERE, [prompt(str(number))], seen=number)

    producing = asyncio.create_task(produce())
    for fork in forks:
        summary = await log.find(HERE)
        assert summary is not None
        await log.fork(HERE, fork, summary.head)
        assert texts(await log.read(fork)) == [str(number) for number in range(summary.head)]
    await producing


# Forgetting


async def test_nothing_is_read_of_what_was_forgotten(log: TimelineLog) -> None:
    await tell(log, HERE, "one", "two")
    await log.forget(HERE)
    assert await log.read(HERE) == []
    assert await log.find(HERE) is None
    assert await log.conversations() == []


async def test_it_is_known_when_a_conversation_was_forgotten(log: TimelineLog) -> None:
    await tell(log, HERE, "one")
    assert await log.forgotten(HERE) is None
    (block,) = await log.read(HERE)
    await log.forget(HERE)
    at = await log.forgotten(HERE)
    assert at is not None
    assert at >= block.ts
    await log.forget(HERE)
    assert await log.forgotten(HERE) == at


async def test_a_forgotten_conversation_is_named_until_nothing_is_left_of_it(
    log: TimelineLog,
) -> None:
    child, other = tl.ConversationKey(name="here~c1"), tl.ConversationKey(name="other", user="ann")
    for key in (HERE, child, other):
        await tell(log, key, "one")
    assert await log.forgetting() == []
    await log.forget(HERE)
    await log.forget(other)
    await log.forget(other)
    assert sorted(key.name for key in await log.forgetting()) == ["here", "here~c1", "other"]
    await log.finish_forgetting([HERE, child])
    assert await log.forgetting() == [other]
    await log.finish_forgetting([HERE, other])
    assert await log.forgetting() == []


async def test_a_forgotten_conversation_never_begins_again(log: TimelineLog) -> None:
    await tell(log, HERE, "one")
    await tell(log, AGAIN, "one")
    await log.forget(HERE)
    with pytest.raises(StoreError, match="'here' was forgotten"):
        await log.append(HERE, [prompt("two")], seen=0)
    with pytest.raises(StoreError, match="'here' was forgotten"):
        await log.lease(HERE).__aenter__()
    with pytest.raises(StoreError, match="'here' was forgotten"):
        await log.fork(HERE, FORK, 1)
    with pytest.raises(ConflictError, match="'here' has begun"):
        await log.fork(AGAIN, HERE, 1)
    assert await log.read(HERE) == []


async def test_a_runner_of_what_was_forgotten_is_refused(log: TimelineLog) -> None:
    await tell(log, HERE, "one")
    async with log.lease(HERE) as term:
        await log.forget(HERE)
        with pytest.raises(LeaseLost):
            await log.append(HERE, [tl.Entry(body=tl.Notes(text="x"), turn=1)], seen=1, term=term)
    assert await log.read(HERE) == []


async def test_forgetting_what_never_began_changes_nothing(log: TimelineLog) -> None:
    await log.forget(HERE)
    assert await log.forgotten(HERE) is None
    await tell(log, HERE, "one")
    assert texts(await log.read(HERE)) == ["one"]


async def test_forgetting_one_conversation_leaves_the_others(log: TimelineLog) -> None:
    await tell(log, HERE, "here")
    await tell(log, AGAIN, "again")
    await log.forget(HERE)
    assert texts(await log.read(AGAIN)) == ["again"]
    await tell(log, AGAIN, "more")
    assert texts(await log.read(AGAIN)) == ["again", "more"]


async def test_what_a_fork_still_shows_is_not_forgotten(log: TimelineLog) -> None:
    await tell(log, HERE, "one", "two")
    await log.fork(HERE, FORK, 1)
    await log.fork(HERE, AGAIN, 2)
    with pytest.raises(ConflictError, match="shares blocks with its forks again, fork"):
        await log.forget(HERE)
    assert texts(await log.read(HERE)) == ["one", "two"]
    await log.forget(FORK)
    await log.forget(AGAIN)
    await log.forget(HERE)
    assert await log.conversations() == []


async def test_a_fork_is_forgotten_without_its_parent(log: TimelineLog) -> None:
    await tell(log, HERE, "one", "two")
    await log.fork(HERE, FORK, 1)
    await tell(log, FORK, "more")
    await log.forget(FORK)
    assert await log.read(FORK) == []
    assert texts(await log.read(HERE)) == ["one", "two"]


async def test_with_cascade_every_fork_goes_too(log: TimelineLog) -> None:
    other_key = tl.ConversationKey(name="other")
    await tell(log, other_key, "other")
    await tell(log, HERE, "one", "two")
    await log.fork(HERE, FORK, 1)
    await tell(log, FORK, "three")
    await log.fork(FORK, AGAIN, 2)
    assert {*await log.forks(HERE)} == {"fork", "again"}
    await log.forget(HERE, cascade=True)
    assert await log.forks(HERE) == []
    assert [summary.conversation for summary in await log.conversations()] == [other_key]
    assert await log.forgotten(FORK) == await log.forgotten(AGAIN) == await log.forgotten(HERE)


async def test_with_cascade_a_fork_that_shows_none_of_it_stays(log: TimelineLog) -> None:
    await tell(log, HERE, "one", "two")
    await log.fork(HERE, FORK, 1)
    await tell(log, FORK, "three")
    await log.fork(FORK, AGAIN, 1)
    assert await log.forks(FORK) == []
    await log.forget(FORK, cascade=True)
    assert {summary.conversation for summary in await log.conversations()} == {HERE, AGAIN}
