"""How fast passages are embedded and a space of many is searched: `python -m tests.bench.retrieval.speed`.

The passages are those of the Django source that `tests/bench/ten_questions.py` asks about, again under other names if
`--passages` is more than it has. They are indexed as in a space without an embedder, and queries are timed. `--embedder ''` ends there.
A sample of the passages is embedded; what all would take is computed from it. A query is timed with its embedding, over vectors that are drawn: a search
costs the same whatever they say. Run it alone on the machine; where that cannot be, `--cpu` and OPENBLAS_NUM_THREADS=1
count the time that the process had on one core.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml
from pydantic import TypeAdapter

from loopline.harness.spaces import load_embedder
from loopline.knowledge.fts import FtsIndexes
from loopline.search import STATIC_KEY, Chunk, Embedder, Index, VectorIndex, passage_text, search
from loopline.search.static_vectors import load_static_embedder
from loopline.search.vector_files import VectorMatrix
from tests.bench.program import Row, print_rows, read_options
from tests.bench.retrieval.__main__ import DEFAULT_EMBEDDER, QUESTIONS, Tree, passages_of
from tests.bench.ten_questions import source_repository
from tests.support.indexes import index_of_chunks

PASSAGES, SAMPLE, RESULTS = 38_000, 2_000, 5
PACKAGE, VERSION = "Django", "5.2.8"
Clock = Callable[[], float]


def source_passages(count: int) -> list[Chunk]:
    """The first `count` passages of copies of the source tree, without those of its repository's own files."""
    every = passages_of(source_repository(PACKAGE, VERSION))
    once = [part for part in every if not part.path.startswith(".git/")]
    copies = count // len(once)
    further = [
        replace(part, path=f"copy_{n}/{part.path}", text=f"{n}. {part.text}")
        for n in range(1, copies + 1)
        for part in once
    ]
    return [*once, *further][:count]


def index_figures(
    store: FtsIndexes, folder: Path, passages: Sequence[Chunk], clock: Clock
) -> tuple[Index, list[Row]]:
    """The index of the passages without an embedder, and its time, memory and bytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = clock()
    index = index_of_chunks(store, "speed", passages)
    seconds = clock() - began
    index.similar("load the vectors", limit=1, numbers=(), among=None)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return index, [
        Row(f"{index.size:,} passages are indexed", seconds, "s"),
        Row("memory more, while it was indexed", memory / 1_000, "MB"),
        Row("the index", size / 1_000_000, "MB"),
    ]


def embedding_figures(
    embedder: Embedder, passages: Sequence[Chunk], sample: int, clock: Clock
) -> list[Row]:
    texts = [passage_text(part) for part in passages[:: max(len(passages) // sample, 1)]][:sample]
    embedder.embed_passages(texts[: embedder.batch])
    began = clock()
    for start in range(0, len(texts), embedder.batch):
        embedder.embed_passages(texts[start : start + embedder.batch])
    rate = len(texts) / (clock() - began)
    minutes = len(passages) / rate / 60
    all_passages = f"{len(passages):,} passages embedded, extrapolated"
    return [
        Row(f"embedded, of {len(texts):,}", rate, "passages a second"),
        Row(all_passages, minutes, "minutes", "11, by PyTorch"),
    ]


def query_figures(
    embedder: Embedder,
    index: Index,
    vectors: VectorIndex,
    questions: Sequence[str],
    clock: Clock,
) -> list[Row]:
    """The milliseconds of a hybrid query and of its parts."""
    whole, embedding, words = list[float](), list[float](), list[float]()
    for question in questions:
        began = clock()
        vector = embedder.embed_query(question)
        embedded = clock()
        search(question, index, vectors, vector, limit=RESULTS)
        ended = clock()
        search(question, index, limit=RESULTS)
        embedding.append(embedded - began)
        whole.append(ended - began)
        words.append(clock() - ended)
    return [
        figure
        for name, seconds, goals in (
            ("hybrid query, its embedding included", whole, ("20", "40")),
            ("embedding of a query", embedding, ("", "")),
            ("query by words", words, ("", "")),
        )
        for figure in _quantiles(name, seconds, goals)
    ]


def _quantiles(name: str, seconds: Sequence[float], goals: tuple[str, str]) -> list[Row]:
    milliseconds = [1_000 * value for value in seconds]
    p95 = statistics.quantiles(milliseconds, n=20)[-1]
    return [
        Row(f"{name}: p50", statistics.median(milliseconds), "ms", goals[0]),
        Row(f"{name}: p95", p95, "ms", goals[1]),
    ]


def drawn_vectors(size: int, dimensions: int) -> VectorMatrix:
    """Vectors of length 1 in any direction."""
    rows = np.random.default_rng(7).normal(size=(size, dimensions)).astype(np.float32)
    return VectorMatrix((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32))


def main() -> None:
    arguments = read_options(
        __doc__,
        embedder=DEFAULT_EMBEDDER,
        passages=PASSAGES,
        sample=SAMPLE,
        cpu=False,
        json=False,
    )
    clock = time.process_time if arguments.cpu else time.perf_counter
    trees = TypeAdapter(list[Tree]).validate_python(yaml.safe_load(QUESTIONS.read_text()))
    questions = [question.ask for tree in trees for question in tree.questions]
    passages = source_passages(arguments.passages)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = FtsIndexes(folder, load=load_static_embedder, vectors_key=STATIC_KEY)
        index, figures = index_figures(store, folder, passages, clock)
        seconds = list[float]()
        for question in questions:
            began = clock()
            search(question, index, limit=RESULTS)
            seconds.append(clock() - began)
        figures += _quantiles("query without an embedder", seconds, ("", ""))
        if arguments.embedder:
            embedder = load_embedder(arguments.embedder, folder=None, environment={})
            vectors = drawn_vectors(index.size, embedder.dimensions)
            figures += query_figures(embedder, index, vectors, questions, clock)
            figures += embedding_figures(embedder, passages, arguments.sample, clock)
    print_rows(figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
