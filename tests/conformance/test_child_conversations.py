"""What every log promises of child runs, which are known by their names alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from loopline.errors import ConflictError
from loopline.timeline import (
    NEW_TURN,
    ConversationKey,
    Entry,
    UserPrompt,
    child_depth,
    child_name,
    parent_name,
)
from loopline.timeline.log import TimelineLog

CHILDREN = ["c~c1", "c~c12.3", "c~c1~c2", "c~~c1", "a~b~c7", "~~c1", "a\nb~c1"]
OTHERS = [
    "c",
    "c~",
    "c~c",
    "~c1",
    "c~c1x",
    "c~d1",
    "c~C1",
    "c-fork-1",
    "c~c1-fork-1",
    "c1.2",
    "c~c 1",
]


async def begin(log: TimelineLog, names: Sequence[str], user: str = "ann") -> None:
    for name in names:
        entry = Entry(body=UserPrompt(text=name), turn=NEW_TURN)
        await log.append(ConversationKey(name=name, user=user), [entry], seen=0)


async def left(log: TimelineLog, names: Sequence[str], user: str = "ann") -> list[str]:
    """Those of the conversations that still hold something."""
    return [name for name in names if await log.read(ConversationKey(name=name, user=user))]


def test_a_childs_name_tells_its_parent_and_its_depth() -> None:
    first, second = child_name("c", "c7", 1), child_name("c", "c7", 2)
    assert (first, second) == ("c~c7", "c~c7.2")
    assert [parent_name(name) for name in ("c", first, second)] == [None, "c", "c"]
    assert [child_depth(name) for name in ("c", first, child_name(second, "c1", 1))] == [0, 1, 2]


async def test_children_are_not_listed_and_whatever_only_looks_like_one_is(
    log: TimelineLog,
) -> None:
    await begin(log, [*CHILDREN, *OTHERS])
    listed = [summary.conversation.name for summary in await log.conversations()]
    assert sorted(listed) == sorted(OTHERS)
    assert {parent_name(name) for name in OTHERS} == {None}


async def test_children_do_not_count_against_the_limit_of_a_list(log: TimelineLog) -> None:
    await begin(log, ["c", "d", *CHILDREN])
    assert len(await log.conversations(limit=2)) == 2


async def test_what_is_forgotten_takes_its_children_and_nobody_elses(log: TimelineLog) -> None:
    own, other_texts = (
        ["c", "c~c1", "c~c1~c2", "c~c1~c2~c1", "c~c3.2"],
        ["c~", "c~~c1", "d~c1", "c~d1"],
    )
    await begin(log, [*own, *other_texts])
    await begin(log, own, user="bob")
    await log.forget(ConversationKey(name="c", user="ann"))
    assert await left(log, own) == []
    assert await left(log, other_texts) == other_texts
    assert await left(log, own, user="bob") == own


async def test_a_child_may_be_forgotten_before_its_parent(log: TimelineLog) -> None:
    await begin(log, ["c", "c~c1", "c~c2"])
    await log.forget(ConversationKey(name="c~c1", user="ann"))
    assert await left(log, ["c", "c~c1", "c~c2"]) == ["c", "c~c2"]
    await log.forget(ConversationKey(name="c", user="ann"))
    assert await left(log, ["c", "c~c1", "c~c2"]) == []


async def test_a_fork_of_a_child_keeps_the_parent_unless_it_goes_too(log: TimelineLog) -> None:
    await begin(log, ["c", "c~c1"])
    key = ConversationKey(name="c", user="ann")
    await log.fork(structs.replace(key, name="c~c1"), structs.replace(key, name="f"), 1)
    await begin(log, ["f~c1"])
    with pytest.raises(ConflictError, match="forks f"):
        await log.forget(key)
    assert await left(log, ["c", "c~c1", "f"]) == ["c", "c~c1", "f"]
    await log.forget(key, cascade=True)
    assert await left(log, ["c", "c~c1", "f", "f~c1"]) == []
