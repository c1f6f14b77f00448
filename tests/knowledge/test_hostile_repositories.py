"""A repository is data: opening and reading it runs none of its programs and changes none of its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from loopline.adapters.fts import FtsIndexes
from loopline.adapters.git import GitRepository
from loopline.errors import KnowledgeError
from loopline.knowledge import KnowledgeConfig, KnowledgeSpace
from tests.support.repository import git

from .conftest import GitFolder
from .test_git import snapshot

HOOKS = ("post-index-change", "reference-transaction", "post-checkout", "fsmonitor-watchman")


def program(path: Path, ran: Path) -> str:
    """Write a program that says in `ran` that it ran."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "$0" >> {ran}\ncat\n')
    path.chmod(0o755)
    return str(path)


def arm(folder: Path, ran: Path) -> None:
    """Have a repository name a program wherever its configuration can name one."""
    evil = program(folder / ".git/evil", ran)
    for name in ("evil", "a=b", "with space", "dots.clean"):
        for setting in ("clean", "smudge", "process"):
            git(folder, "config", f"filter.{name}.{setting}", evil)
        git(folder, "config", f"filter.{name}.required", "true")
    for setting in (
        *("core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "core.askPass"),
        *("core.alternateRefsCommand", "diff.external", "diff.evil.textconv", "diff.evil.command"),
        *("merge.evil.driver", "gpg.program", "credential.helper", "remote.origin.uploadpack"),
        *("alias.status", "alias.config", "alias.cat-file", "uploadpack.packObjectsHook"),
    ):
        git(folder, "config", setting, f"!{evil}" if setting.startswith("alias") else evil)
    for hook in HOOKS:
        program(folder / f".git/hooks/{hook}", ran)
    git(folder, "config", "includeIf.gitdir:**.path", "more")
    (folder / ".git/more").write_text(f'[filter "more"]\n\tclean = {evil}\n\tprocess = {evil}\n')
    git(folder, "config", "remote.origin.url", str(folder))
    git(folder, "config", "remote.origin.promisor", "true")
    git(folder, "config", "log.showSignature", "true")


def touch(folder: Path) -> None:
    """Make git look at the contents of every file again."""
    for path in folder.rglob("*"):
        if path.is_file() and ".git" not in path.relative_to(folder).parts:
            path.write_text(path.read_text())


@pytest.fixture
def hostile(folder: GitFolder, tmp_path: Path) -> Path:
    """The folder of a repository that names a program wherever one may run."""
    inner = GitFolder(tmp_path / "inner")
    inner.commit({"x.md": "x\n", ".gitattributes": "* filter=evil\n"})
    attributes = "*.md filter=evil diff=evil merge=evil\nb.md filter=a=b\nc.md filter=more\n"
    folder.commit(dict.fromkeys(("a.md", "b.md", "c.md"), "text\n"))
    git(folder.path, "-c", "protocol.file.allow=always", "submodule", "add", str(inner.path), "in")
    folder.commit({".gitattributes": attributes})
    return folder.path


async def test_opening_searching_and_reading_a_repository_runs_nothing_of_it(
    hostile: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    arm(hostile, ran)
    for setting in ("filter.evil.clean", "filter.evil.process", "core.fsmonitor"):
        git(hostile / "in", "config", setting, str(hostile / ".git/evil"))
    touch(hostile)
    before = snapshot(hostile)
    space = KnowledgeSpace(
        GitRepository.open(str(hostile)), FtsIndexes(None), KnowledgeConfig(repo=str(hostile))
    )
    state = await space.ensure()
    found = await space.search("text")
    assert (await space.read(found[0].ref)).text == "text\n"
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
