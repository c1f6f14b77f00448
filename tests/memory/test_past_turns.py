"""The memory of past turns follows the log and finds turns by words, by order and by time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from loopline import LooplineError
from loopline import timeline as tl
from loopline.harness.spaces import open_memory
from loopline.memory import ConversationMemory, Owner, Target
from loopline.memory.turn_file import MemoryFile
from loopline.testing import FakeClock
from loopline.timeline.prompt_blocks import RangeSummary
from tests.support.past_turns import NOW, blocks_of
from tests.support.round_starts import round_start

TEA = tl.ConversationKey(name="tea", user="ann")
ANN = Owner.of(TEA)


class Talk:
    """A log with one conversation about tea, and its memory."""

    def __init__(self) -> None:
        self.clock = FakeClock(NOW)
        self.log = tl.MemoryLog(self.clock)
        self.index = MemoryFile()
        self.memory = ConversationMemory(self.log, lambda: self.index, self.clock)

    async def tell(self, *turns: str, name: str = "tea", days_ago: float = 1) -> None:
        bodies: list[list[tl.Body]] = [
            [tl.UserPrompt(text=text), tl.Completion(text=f"Noted {n}.")]
            for n, text in enumerate(turns)
        ]
        started = NOW - timedelta(days=days_ago)
        await self.log.restore(ANN.key(name), blocks_of(bodies, started))

    async def turns(self, query: str = "", **filters: Any) -> list[str]:
        hits = await self.memory.search(query, user="ann", **filters)
        return [f"{hit.conversation}/{hit.turn_id}" for hit in hits]


class RoundReadsCounted(tl.MemoryLog):
    """A log that counts how often starts of rounds are read."""

    round_reads = 0

    async def read(
        self, conversation: tl.ConversationKey, *, types: Sequence[str] = (), **options: Any
    ) -> Sequence[tl.Block]:
        self.round_reads += tl.RoundStart.type in types
        return await super().read(conversation, types=types, **options)


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    talk = Talk()
    yield talk
    await talk.memory.close()


async def test_a_turn_is_found_by_words_of_its_prompt_or_answer(talk: Talk) -> None:
    await talk.tell("My oolong steeps at 90 degrees", "Where is Darjeeling?")
    hit, *rest = await talk.memory.search("how hot was the oolong", user="ann")
    assert (hit.turn_id, rest) == ("turn_1", [])
    assert hit.ref == "cv:tea/ar:turn_1.user.prompt"
    assert hit.text == "My oolong steeps at 90 degrees"
    assert 0 < hit.score <= 1


async def test_what_is_said_later_is_found_by_the_next_search(talk: Talk) -> None:
    await talk.tell("green tea")
    assert await talk.turns("coffee") == []
    await talk.log.append(
        TEA, [tl.Entry(body=tl.UserPrompt(text="coffee"), turn=tl.NEW_TURN)], seen=2
    )
    assert await talk.turns("coffee") == ["tea/turn_2"]


async def test_refs_in_the_conversation_that_asks_are_short(talk: Talk) -> None:
    await talk.tell("green tea")
    (hit,) = await talk.memory.search("green", user="ann", conversation="tea")
    assert hit.ref == "ar:turn_1.user.prompt"


async def test_a_turn_is_found_by_its_order_in_words(talk: Talk) -> None:
    await talk.tell("green", "black", "white")
    assert await talk.turns("what was the second turn about") == ["tea/turn_2"]
    assert await talk.turns("my 3rd question") == ["tea/turn_3"]
    assert await talk.turns(ordinal="last") == ["tea/turn_3"]
    assert await talk.turns(ordinal=-2) == ["tea/turn_2"]


async def test_the_latest_of_two_equal_texts_comes_first(talk: Talk) -> None:
    await talk.tell("green tea", name="old", days_ago=60)
    await talk.tell("some green tea", name="new", days_ago=2)
    assert await talk.turns("green tea", limit=1) == ["new/turn_1"]


async def test_a_far_better_match_comes_before_a_newer_one(talk: Talk) -> None:
    await talk.tell("the samovar from Tula leaks at the tap", name="old", days_ago=200)
    await talk.tell("the tap in the kitchen", name="new", days_ago=0.5)
    assert await talk.turns("samovar tap leaks", limit=1) == ["old/turn_1"]


async def test_a_search_is_limited_to_days(talk: Talk) -> None:
    await talk.tell("green tea", name="old", days_ago=60)
    await talk.tell("green tea", name="new", days_ago=2)
    assert await talk.turns("tea", days=30) == ["new/turn_1"]
    assert await talk.turns("tea", until=NOW - timedelta(days=30)) == ["old/turn_1"]


async def test_a_search_is_limited_to_a_conversation(talk: Talk) -> None:
    await talk.tell("green tea")
    await talk.tell("black tea", name="other")
    assert await talk.turns("tea", scope="conversation", conversation="other") == ["other/turn_1"]


async def test_notes_files_and_summaries_are_targets(talk: Talk) -> None:
    file = tl.UserAttachment(
        name="list.txt", mime="text/plain", size=6, sha256="", data="", text="assam"
    )
    bodies: list[list[tl.Body]] = [
        [
            tl.UserPrompt(text="buy tea"),
            file,
            tl.Notes(text="[P] likes assam"),
            RangeSummary(covers=1, first_turn=1, last_turn=1, text="They spoke of assam."),
        ]
    ]
    await talk.log.restore(TEA, blocks_of(bodies, NOW))
    targets: list[tuple[Target, str]] = [
        ("attachment", "cv:tea/fi:turn_1.user.attachments/list.txt"),
        ("notes", "cv:tea/ar:turn_1.react.notes.1"),
        ("summary", "cv:tea/su:turn_1.conv.range.summary.1"),
    ]
    for target, ref in targets:
        (hit,) = await talk.memory.search("assam", user="ann", targets=[target])
        assert hit.ref == ref
    assert await talk.turns("assam", targets=["user"]) == []


async def test_a_long_text_is_found_with_an_excerpt_around_the_match(talk: Talk) -> None:
    filler = "nothing of note here. " * 1_000
    await talk.tell(f"{filler}The lapsang is smoky. {filler}")
    (hit,) = await talk.memory.search("lapsang", user="ann")
    assert "The lapsang is smoky." in hit.text
    assert len(hit.text) < 700
    assert "#C" in hit.ref


async def test_recalled_input_is_not_remembered(talk: Talk) -> None:
    await talk.tell("green tea")
    entries = [tl.Entry(body=tl.UserPrompt(text="my secret"), turn=tl.NEW_TURN)]
    await talk.log.append(TEA, entries, seen=2)
    assert await talk.turns("secret") == ["tea/turn_2"]
    await talk.log.append(TEA, [tl.Entry(body=tl.UserRecalled(said=3), turn=2)], seen=3)
    assert await talk.turns("secret") == []


async def test_input_that_a_round_took_before_it_was_recalled_stays(talk: Talk) -> None:
    start = round_start(takes=(1,), model="", protocol="", renderer=0)
    bodies: list[list[tl.Body]] = [
        [tl.UserPrompt(text="secret"), start, tl.UserRecalled(said=1), tl.UserFollowup(text="more")]
    ]
    await talk.log.restore(TEA, blocks_of(bodies, NOW))
    assert await talk.turns("secret") == ["tea/turn_1"]


async def test_each_of_many_recalls_is_looked_up_and_the_rounds_are_read_once() -> None:
    log = RoundReadsCounted(FakeClock(NOW))
    turn: list[tl.Body] = []
    for number in range(50):
        said = len(turn) + 1
        start = round_start(takes=(said if number % 2 else 0,), model="", protocol="", renderer=0)
        turn += [tl.UserPrompt(text=f"tea {number}"), start, tl.UserRecalled(said=said)]
    await log.restore(TEA, blocks_of([turn], NOW))
    memory = ConversationMemory(log, MemoryFile, FakeClock(NOW))
    hits = await memory.search("tea", user="ann", limit=100)
    await memory.close()
    assert {hit.text for hit in hits} <= {f"tea {number}" for number in range(1, 50, 2)}
    assert hits
    assert log.round_reads == 1


async def test_searches_at_the_same_time_open_one_index(talk: Talk) -> None:
    opened = list[MemoryFile]()

    def open_index() -> MemoryFile:
        time.sleep(0.01)
        opened.append(MemoryFile())
        return opened[-1]

    await talk.tell("green tea")
    memory = ConversationMemory(talk.log, open_index, talk.clock)
    found = await asyncio.gather(*(memory.search("tea", user="ann") for _ in range(5)))
    await memory.close()
    assert [[hit.turn_id for hit in hits] for hits in found] == [["turn_1"]] * 5
    assert len(opened) == 1


async def test_a_forgotten_conversation_is_not_found(talk: Talk) -> None:
    await talk.tell("green tea")
    assert await talk.turns("tea") == ["tea/turn_1"]
    await talk.log.forget(TEA)
    assert await talk.turns("tea") == []
    assert await talk.index.read_progress(ANN) == {}


async def test_a_fork_shows_a_shared_text_once(talk: Talk) -> None:
    await talk.tell("green tea")
    await talk.log.fork(TEA, ANN.key("fork"), 2)
    assert len(await talk.turns("green")) == 1
    assert await talk.turns("green", conversation="fork") == ["fork/turn_1"]


async def test_child_runs_are_not_remembered(talk: Talk) -> None:
    await talk.tell("green tea", name="tea~c1")
    assert await talk.turns("tea") == []


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"limit": 0}, "limit is 0"),
        ({"scope": "world"}, "unknown scope 'world'"),
        ({"scope": "conversation"}, "name it with conversation="),
        ({"targets": ["diary"]}, "unknown target in"),
        ({"days": 0}, "days is 0"),
        ({"days": float("nan")}, "days is nan"),
        ({"half_life_days": 0}, "half_life_days is 0"),
        ({"since": NOW.replace(tzinfo=None)}, "need a time zone"),
        ({"ordinal": "umpteenth"}, "'umpteenth' is not an ordinal"),
    ],
)
async def test_a_wrong_filter_is_named(talk: Talk, filters: dict[str, Any], message: str) -> None:
    with pytest.raises(LooplineError, match=message):
        await talk.turns("tea", **filters)


async def test_a_damaged_index_is_filled_again_by_the_search_that_meets_it(tmp_path: Path) -> None:
    talk = Talk()
    await talk.tell("green tea")
    (tmp_path / "m").write_bytes(b"no database" * 500)
    memory = ConversationMemory(talk.log, lambda: MemoryFile(tmp_path / "m"), talk.clock)
    assert [hit.turn_id for hit in await memory.search("tea", user="ann")] == ["turn_1"]
    await memory.close()


async def test_the_index_of_a_store_is_a_file_beside_it(tmp_path: Path) -> None:
    talk = Talk()
    await talk.tell("green tea")
    memory = open_memory(talk.log, talk.log, tmp_path / "talk.db", talk.clock)
    assert not list_names(tmp_path)
    await memory.search("tea", user="ann")
    await memory.close()
    assert list_names(tmp_path) == ["talk.db-memory"]


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
