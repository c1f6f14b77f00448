"""Vectors of an index: exact, kept for equal texts, resumed after a stop, and the same in memory and in files."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline.knowledge import IndexedFile
from loopline.knowledge.fts import About, Contents, FtsIndex, fill_index
from loopline.search import (
    Chunk,
    EmbeddingError,
    Index,
    IndexBase,
    Vector,
    VectorIndex,
    VectorStore,
)
from loopline.search.vector_files import VectorFiles
from tests.support.examples import examples
from tests.support.indexes import temporary_index
from tests.support.vectors_in_memory import MemoryVectors, WordEmbedder
from tests.support.warm_programs import warm_program

Open = Callable[[Path], VectorStore]
limits = st.integers(1, 9)
STORES: tuple[Open, ...] = (lambda _: MemoryVectors(), VectorFiles)


def chunks(count: int, start: int = 0) -> list[Chunk]:
    return [
        Chunk(
            path=f"{n}.md", title=f"title {n}", text=f"word{n} text\n", lines=(1, 1), kind="prose"
        )
        for n in range(start, start + count)
    ]


class CountingEmbedder(WordEmbedder):
    """Counts the texts that it embeds, and fails from a given one on."""

    batch = 8

    def __init__(self, fails_after: int = 10**9) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._fails_after = fails_after

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        if len(self.texts) + len(texts) > self._fails_after:
            raise EmbeddingError("the server is away")
        self.texts += texts
        return super().embed_passages(texts)


def go_on(done: int, total: int) -> bool:
    del done, total
    return True


def built(store: VectorStore, index: Index, name: str = "one") -> VectorIndex:
    vectors = store.build(name, WordEmbedder(), index, go_on)
    assert vectors is not None
    return vectors


@pytest.fixture(params=STORES, ids=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> VectorStore:
    opened: Open = request.param
    return opened(tmp_path)


def test_the_nearest_chunk_is_the_one_with_the_same_text(store: VectorStore) -> None:
    texts = chunks(50)
    vectors = built(store, temporary_index(texts))
    question = WordEmbedder().embed_passages(["title 7\nword7 text\n"])[0]
    first, second = vectors.nearest(question, limit=2)
    assert (first.number, round(first.similarity, 5)) == (8, 1.0)
    assert first.similarity >= second.similarity


def test_only_the_allowed_chunks_are_found(store: VectorStore) -> None:
    vectors = built(store, temporary_index(chunks(50)))
    question = WordEmbedder().embed_query("word7")
    assert {n.number for n in vectors.nearest(question, limit=9, among=[3, 4])} == {3, 4}
    assert vectors.nearest(question, limit=9, among=[]) == []


def test_an_index_without_chunks_has_vectors(store: VectorStore) -> None:
    assert built(store, temporary_index([])).nearest(WordEmbedder().embed_query("x"), limit=3) == []


def test_vectors_that_are_not_all_made_are_absent(store: VectorStore) -> None:
    index = temporary_index(chunks(50))
    assert store.open("one", WordEmbedder(), 50) is None
    assert store.build("one", CountingEmbedder(), index, lambda done, total: done < 20) is None
    assert store.open("one", WordEmbedder(), 50) is None


def test_a_stopped_build_goes_on_where_it_stopped(store: VectorStore) -> None:
    index = temporary_index(chunks(50))
    store.build("one", CountingEmbedder(), index, lambda done, total: done < 24)
    again = CountingEmbedder()
    assert store.build("one", again, index, go_on) is not None
    assert len(again.texts) == 50 - 24


def test_texts_that_an_earlier_commit_had_are_not_embedded_again(store: VectorStore) -> None:
    built(store, temporary_index(chunks(50)))
    again = CountingEmbedder()
    assert store.build("two", again, temporary_index(chunks(50, start=10)), go_on) is not None
    assert len(again.texts) == 10


def test_texts_that_an_unfinished_build_has_embedded_are_not_embedded_again(
    store: VectorStore,
) -> None:
    store.build(
        "one", CountingEmbedder(), temporary_index(chunks(50)), lambda done, total: done < 24
    )
    again = CountingEmbedder()
    vectors = store.build("two", again, temporary_index(chunks(50, start=10)), go_on)
    assert vectors is not None
    assert len(again.texts) == 50 - 14
    question = WordEmbedder().embed_passages(["title 20\nword20 text\n"])[0]
    assert vectors.nearest(question, limit=1)[0].number == 11


def test_vectors_of_an_index_with_another_number_of_chunks_count_as_absent(
    store: VectorStore,
) -> None:
    built(store, temporary_index(chunks(50)))
    assert store.open("one", WordEmbedder(), 49) is None
    assert store.open("one", WordEmbedder(), 50) is not None


def test_a_build_that_waits_for_another_can_be_stopped(tmp_path: Path) -> None:
    event, released = threading.Event(), threading.Event()

    def hold(done: int, total: int) -> bool:
        event.set()
        return released.wait(30) and go_on(done, total)

    index, store = temporary_index(chunks(50)), VectorFiles(tmp_path)
    holder = threading.Thread(target=store.build, args=("one", CountingEmbedder(), index, hold))
    holder.start()
    assert event.wait(30)
    assert store.build("two", CountingEmbedder(), index, lambda done, total: False) is None
    released.set()
    holder.join()


def test_an_embedder_that_fails_is_reported_and_loses_nothing(store: VectorStore) -> None:
    index = temporary_index(chunks(50))
    with pytest.raises(EmbeddingError, match="the server is away"):
        store.build("one", CountingEmbedder(fails_after=30), index, go_on)
    again = CountingEmbedder()
    store.build("one", again, index, go_on)
    assert len(again.texts) == 50 - 24


@given(st.lists(st.text(max_size=20), min_size=1, max_size=30), st.text(max_size=20), limits)
@examples(50)
def test_files_find_what_memory_finds(texts: list[str], query: str, limit: int) -> None:
    index = temporary_index(
        Chunk(path=f"{n}", title="", text=text, lines=(1, 1), kind="prose")
        for n, text in enumerate(texts)
    )
    question = WordEmbedder().embed_query(query)
    in_memory = built(MemoryVectors(), index).nearest(question, limit=limit)
    with TemporaryDirectory() as folder:
        in_files = built(VectorFiles(Path(folder)), index).nearest(question, limit=limit)
    assert [round(n.similarity, 4) for n in in_memory] == [round(n.similarity, 4) for n in in_files]


def test_a_torn_end_of_an_unfinished_build_is_made_again(tmp_path: Path) -> None:
    index = temporary_index(chunks(50))
    store = VectorFiles(tmp_path)
    store.build("one", CountingEmbedder(), index, lambda done, total: done < 24)
    (growing,) = tmp_path.glob("*.growing")
    with growing.open("r+b") as file:  # zeros, as a file system leaves them after a loss of power
        file.seek(-1024, 2)
        file.write(bytes(1024))
    again = CountingEmbedder()
    vectors = store.build("one", again, index, go_on)
    assert vectors is not None
    assert len(again.texts) == 50 - 16
    question = WordEmbedder().embed_passages(["title 23\nword23 text\n"])[0]
    assert vectors.nearest(question, limit=1)[0].number == 24


def test_damaged_vectors_count_as_absent(tmp_path: Path) -> None:
    index = temporary_index(chunks(50))
    store = VectorFiles(tmp_path)
    built(store, index)
    (complete,) = tmp_path.glob("*.vectors")
    complete.write_bytes(complete.read_bytes()[:-5])
    assert store.open("one", WordEmbedder(), 50) is None
    again = CountingEmbedder()
    assert store.build("one", again, index, go_on) is not None


def test_builders_of_the_same_vectors_wait_for_each_other(tmp_path: Path) -> None:
    index = temporary_index(chunks(200))
    embedders = [CountingEmbedder() for _ in range(4)]
    threads = [
        threading.Thread(target=VectorFiles(tmp_path).build, args=("one", embedder, index, go_on))
        for embedder in embedders
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(embedder.texts) for embedder in embedders) == [0, 0, 0, 200]


KILLED = """
import os, sys
from pathlib import Path
from loopline.search.vector_files import VectorFiles
from tests.knowledge.test_vectors import chunks
from tests.support.indexes import temporary_index
from tests.support.vectors_in_memory import WordEmbedder

class Mortal(WordEmbedder):
    batch = 8
    def embed_passages(self, texts):
        if any(f"word{sys.argv[2]} " in text for text in texts):
            os.kill(os.getpid(), 9)
        return super().embed_passages(texts)

VectorFiles(Path(sys.argv[1])).build("one", Mortal(), temporary_index(chunks(100)), lambda *_: True)
"""


@pytest.mark.parametrize("fatal", [0, 30, 99])
def test_a_killed_build_ends_as_one_that_was_not_killed(tmp_path: Path, fatal: int) -> None:
    command = warm_program("-c", KILLED, str(tmp_path / "killed"), str(fatal))
    assert subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode == -9
    index = temporary_index(chunks(100))
    for name in ("killed", "whole"):
        VectorFiles(tmp_path / name).build("one", CountingEmbedder(), index, go_on)
    (killed,) = (tmp_path / "killed").glob("*.vectors")
    (whole,) = (tmp_path / "whole").glob("*.vectors")
    assert killed.read_bytes() == whole.read_bytes()


class ContinuedIndex(FtsIndex):
    """An index that was made from the one called `one`; counts the chunks that are read."""

    def __init__(self, texts: Sequence[Chunk], changed: frozenset[int]) -> None:
        database = sqlite3.connect(":memory:", check_same_thread=False)
        files = {text.path: [text] for text in texts}

        def read(paths: Sequence[str]) -> Iterator[IndexedFile]:
            return (IndexedFile(path, "", files[path]) for path in paths)

        fill_index(database, Contents("two", dict.fromkeys(files, ""), read, repr))
        about = About("two", "", len(texts), IndexBase("one", changed))
        super().__init__(database, about, None, os.open(os.devnull, os.O_RDONLY))
        self.numbers_read: list[int] = []

    def read(self, numbers: Sequence[int]) -> list[Chunk]:
        self.numbers_read += numbers
        return super().read(numbers)


def test_vectors_of_the_index_before_are_taken_over_without_reading_their_texts(
    tmp_path: Path,
) -> None:
    store, texts = VectorFiles(tmp_path), chunks(100)
    built(store, temporary_index(texts))
    [other] = chunks(1, 500)
    moved = [*texts[:19], other, *texts[20:90]]
    index, embedder = ContinuedIndex(moved, frozenset({20})), CountingEmbedder()
    vectors = store.build("two", embedder, index, go_on)
    assert index.numbers_read == list(range(17, 25))  # one batch
    assert embedder.texts == ["title 500. word500 text"]
    assert vectors is not None
    numbers, query = list(range(1, 91)), WordEmbedder().embed_query("title 500 and word3")
    expected = built(MemoryVectors(), temporary_index(moved)).similarities(query, numbers)
    assert vectors.similarities(query, numbers) == pytest.approx(expected, abs=1e-6)
