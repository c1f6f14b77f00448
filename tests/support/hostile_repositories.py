"""Repositories that name a program wherever their configuration can name one."""

from __future__ import annotations

from pathlib import Path

from tests.support.git_repositories import commit, git

HOOKS = ("post-index-change", "reference-transaction", "post-checkout", "fsmonitor-watchman")


def program(path: Path, ran: Path) -> str:
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


def hostile_repository(folder: Path) -> Path:
    """Make a repository whose attributes call for a program wherever one may run."""
    inner, outer = folder / "inner", folder / "project"
    commit(inner, {"x.md": "x\n", ".gitattributes": "* filter=evil\n"})
    attributes = "*.md filter=evil diff=evil merge=evil\nb.md filter=a=b\nc.md filter=more\n"
    commit(outer, dict.fromkeys(("a.md", "b.md", "c.md"), "text\n"))
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", str(inner), "in")
    commit(outer, {".gitattributes": attributes})
    return outer


def arm_fully(folder: Path, ran: Path) -> None:
    """Have the repository and its submodule name programs, and make git look at every file again."""
    arm(folder, ran)
    for setting in ("filter.evil.clean", "filter.evil.process", "core.fsmonitor"):
        git(folder / "in", "config", setting, str(folder / ".git/evil"))
    touch(folder)


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The bytes of every file below a folder, and when they were written."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
