"""Which repository, which commit, and which of its folders make up a knowledge space."""

from __future__ import annotations

from dataclasses import dataclass

from loopline.errors import KnowledgeError


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeConfig:
    """The `knowledge` properties of a bundle.

    `ks:docs/x` is `<docs_root>/x`, and so on for src, deploy and tests. Only roots that are given are
    in the space; without any it is the whole tree under its own paths. A root of `.` is the whole tree.
    """

    repo: str = ""
    ref: str = "HEAD"
    docs_root: str = ""
    src_root: str = ""
    deploy_root: str = ""
    tests_root: str = ""
    validate_refs: bool = True


@dataclass(frozen=True, slots=True)
class Root:
    """A folder of the repository and the name it has in the space; `""` is the whole tree."""

    name: str
    folder: str


def roots(config: KnowledgeConfig) -> tuple[Root, ...]:
    """The roots that are given, the deepest first.

    Raises:
        KnowledgeError: a root leaves the repository.
    """
    given = (
        ("docs", config.docs_root),
        ("src", config.src_root),
        ("deploy", config.deploy_root),
        ("tests", config.tests_root),
    )
    found = [Root(name, _folder(name, folder)) for name, folder in given if folder.strip()]
    return tuple(sorted(found, key=lambda root: len(root.folder), reverse=True))


def space_path(roots: tuple[Root, ...], path: str) -> str | None:
    """Where a path of the repository is in the space; the deepest root wins; None if nowhere."""
    if not roots:
        return path
    for root in roots:
        rest = _below(path, root.folder)
        if rest is not None:
            return f"{root.name}/{rest}" if rest else root.name
    return None


def repository_path(roots: tuple[Root, ...], path: str) -> str | None:
    """Where a path of the space is in the repository; None if nowhere."""
    if not roots:
        return path
    for root in roots:
        rest = _below(path, root.name)
        if rest is not None:
            return "/".join(part for part in (root.folder, rest) if part)
    return None


def _below(path: str, folder: str) -> str | None:
    if not folder:
        return path
    if path == folder:
        return ""
    return path[len(folder) + 1 :] if path.startswith(f"{folder}/") else None


def _folder(name: str, given: str) -> str:
    folder = given.strip()
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    if folder.startswith("/") or ".." in parts:
        raise KnowledgeError(
            f"knowledge.{name}_root is {given!r}: write it relative to the top of the repository"
        )
    return "/".join(parts)
