"""What the tests of search and knowledge share: folders under git, and indexes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from loopline.knowledge import IndexStore, Repository
from loopline.knowledge.fts import FtsIndexes
from loopline.knowledge.git import GitRepository
from tests.support.memory_repository import MemoryRepository

Files = Mapping[str, str | bytes]
_AUTHOR = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class GitFolder:
    """A work tree that tests write to and commit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        ran = subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            env={**os.environ, **_AUTHOR},
            check=True,
            capture_output=True,
        )
        return ran.stdout.decode().strip()

    def write(self, files: Files) -> None:
        for name, text in files.items():
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def commit(self, files: Files) -> str:
        self.write(files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=change")
        return self.git("rev-parse", "HEAD")


class Writer:
    """A repository to be read through the port, and the means to commit to it."""

    def __init__(self, repository: Repository, commit: Callable[[Files], str]) -> None:
        self.repository = repository
        self.commit = commit


@pytest.fixture
def folder(tmp_path: Path) -> GitFolder:
    return GitFolder(tmp_path / "project")


@pytest.fixture(params=["memory", "git", "bare"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Writer:
    if request.param == "memory":
        memory = MemoryRepository("project")
        held: dict[str, str | bytes] = {}

        def commit(files: Files) -> str:
            held.update(files)
            return memory.commit(held)

        return Writer(memory, commit)
    work = GitFolder(tmp_path / "project")
    if request.param == "git":
        return Writer(GitRepository.open(str(work.path)), work.commit)
    bare = tmp_path / "bare" / "project.git"
    work.git("clone", "--quiet", "--bare", str(work.path), str(bare))

    def push(files: Files) -> str:
        made = work.commit(files)
        work.git("push", "--quiet", str(bare), "main")
        return made

    return Writer(GitRepository.open(str(bare)), push)


@pytest.fixture
def indexes(tmp_path: Path) -> IndexStore:
    return FtsIndexes(tmp_path / "indexes")
