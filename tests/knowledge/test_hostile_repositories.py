"""A repository is data: opening and reading it runs none of its programs and changes none of its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loopline.errors import KnowledgeError
from loopline.knowledge import KnowledgeConfig, KnowledgeSpace
from loopline.knowledge.fts import FtsIndexes
from loopline.knowledge.git import GitRepository
from tests.support.git_repositories import git
from tests.support.hostile_repositories import arm, arm_fully, hostile_repository, snapshot

from .conftest import GitFolder


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    return hostile_repository(tmp_path)


async def test_opening_searching_and_reading_a_repository_runs_nothing_of_it(
    hostile: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    arm_fully(hostile, ran)
    before = snapshot(hostile)
    space = KnowledgeSpace(
        GitRepository.open(str(hostile)), FtsIndexes(None), KnowledgeConfig(repo=str(hostile))
    )
    state = await space.ensure()
    passages = await space.search("text")
    assert (await space.read(passages[0].ref)).text == "text\n"
    assert state.uncommitted >= 0
    await space.close()
    assert not ran.exists()
    assert snapshot(hostile) == before


def test_a_lost_object_of_a_hostile_repository_is_not_fetched(
    hostile: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    arm(hostile, ran)
    blob = git(hostile, "rev-parse", "HEAD:a.md")
    (hostile / ".git/objects" / blob[:2] / blob[2:]).unlink()
    repository = GitRepository.open(str(hostile))
    with pytest.raises(KnowledgeError):
        list(repository.contents([blob]))
    with pytest.raises(KnowledgeError):
        repository.read(repository.resolve("HEAD"), "a.md")
    assert not ran.exists()


@pytest.mark.parametrize(
    "id", ["HEAD", "--help", "main", "", "a" * 39, "A" * 40, "HEAD\n", "^HEAD"]
)
def test_what_is_no_full_id_never_reaches_git_as_one(folder: GitFolder, id: str) -> None:
    folder.commit({"a.md": "one\n"})
    repository = GitRepository.open(str(folder.path))

    def read(id: str) -> object:
        return repository.read(id, "a.md")

    readings: list[Callable[[str], object]] = [repository.abbreviate, repository.entries, read]
    for reading in readings:
        with pytest.raises(KnowledgeError, match="not the full id"):
            reading(id)
    with pytest.raises(KnowledgeError, match="not the full id"):
        list(repository.contents([id]))
