"""The tree of a knowledge space: its configuration, its roots, and the files of a commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from loopline.errors import KnowledgeError
from loopline.knowledge.repository import RepositoryFile


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeConfig:
    """The `knowledge` properties of a bundle.

    `ks:docs/x` is `<docs_root>/x`, and so on for src, deploy and tests. Only configured roots are in
    the space; without any it is the whole tree under its own paths. A root of `.` is the whole tree.
    `embedder` names a model that passages are found by in other words, such as `local:FOLDER`; with `wait` the first
    turn waits until every passage has its vector. `repositories` has a configuration for each of several repositories
    by its name; then the others' own settings are not used, and `ks:name/…` names the files of one.
    """

    repo: str = ""
    ref: str = "HEAD"
    docs_root: str = ""
    src_root: str = ""
    deploy_root: str = ""
    tests_root: str = ""
    validate_refs: bool = True
    embedder: str = ""
    wait: bool = False
    repositories: Mapping[str, KnowledgeConfig] = field(
        default_factory=dict[str, "KnowledgeConfig"]
    )

    @property
    def folders(self) -> dict[str, str]:
        """The folders of the configured roots, by their settings."""
        folders = {
            "docs_root": self.docs_root,
            "src_root": self.src_root,
            "deploy_root": self.deploy_root,
            "tests_root": self.tests_root,
        }
        return {setting: folder for setting, folder in folders.items() if folder}


@dataclass(frozen=True, slots=True)
class Root:
    """A folder of the repository and the name it has in the space; `""` is the whole tree."""

    name: str
    folder: str


def configured_roots(config: KnowledgeConfig) -> tuple[Root, ...]:
    """Return the configured roots, the deepest first.

    Raises:
        KnowledgeError: a root leaves the repository.
    """
    roots = [
        Root(setting.removesuffix("_root"), _folder(setting, folder))
        for setting, folder in config.folders.items()
        if folder.strip()
    ]
    return tuple(sorted(roots, key=lambda root: len(root.folder), reverse=True))


def repository_path(roots: tuple[Root, ...], path: str) -> str | None:
    """Return the path in the repository of a path of the space; None if it has none."""
    return _moved(path, [(root.name, root.folder) for root in roots])


def _moved(path: str, folders: list[tuple[str, str]]) -> str | None:
    """Return the path below the second of the first pair of folders whose first it is in."""
    if not folders:
        return path
    for source, target in folders:
        below = _below(path, source)
        if below is not None:
            return "/".join(part for part in (target, below) if part)
    return None


def _below(path: str, folder: str) -> str | None:
    if not folder:
        return path
    if path == folder:
        return ""
    return path[len(folder) + 1 :] if path.startswith(f"{folder}/") else None


def _folder(setting: str, written: str) -> str:
    folder = written.strip()
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    if folder.startswith("/") or ".." in parts:
        raise KnowledgeError(
            f"knowledge.{setting} is {written!r}: write it relative to the top of the repository"
        )
    return "/".join(parts)


class Tree:
    """The files and folders of a commit by their path in the space."""

    def __init__(self, roots: tuple[Root, ...], entries: Iterable[RepositoryFile]) -> None:
        self._roots = roots
        self._all = {entry.path: entry for entry in entries}
        self.files: dict[str, RepositoryFile] = {}
        folders = [(root.folder, root.name) for root in roots]
        sources = {source for source, _ in folders}
        places: dict[str, str | None] = {}
        for path, entry in self._all.items():
            folder, _, name = path.rpartition("/")
            if folder not in places:
                places[folder] = _moved(folder, folders)
            place = places[folder]
            where = None if place is None else f"{place}/{name}" if place else name
            if path in sources:  # a root that is a file
                where = _moved(path, folders)
            if where is not None:
                self.files.setdefault(where, entry)
        self.folders: set[str] = _folders(self.files)
        self._all_folders = _with_parents(places)

    def check_roots(self) -> None:
        """Check that every root has files.

        Raises:
            KnowledgeError: a root has none; the message names its setting and the folders there are.
        """
        for root in self._roots:
            if root.folder and root.folder not in self._all_folders:
                problem = (
                    "is a file" if root.folder in self._all else "does not exist at this commit"
                )
                top = sorted(folder for folder in self._all_folders if folder and "/" not in folder)
                raise KnowledgeError(
                    f"knowledge.{root.name}_root is {root.folder!r}, which {problem}; "
                    f"top folders are {', '.join(top) or 'none'}"
                )

    def find(self, path: str) -> RepositoryFile | None:
        """Return the file at a path of the space, through any root, even one that another lies in."""
        if path in self.files:
            return self.files[path]
        inside = repository_path(self._roots, path)
        return None if inside is None else self._all.get(inside)

    def exists(self, path: str) -> bool:
        """Return whether a path of the repository, in the space or not, is a file or folder."""
        return path in self._all or path in self._all_folders

    def has_top_folder(self, name: str) -> bool:
        """Return whether a folder of that name stands at the top of the repository or of the space."""
        return name in self._all_folders or name in self.folders

    def listing(self, folder: str) -> list[str] | None:
        """Return the names directly in a folder of the space, folders with a slash; None if there is no such folder."""
        if folder not in self.folders:
            return None
        start = f"{folder}/" if folder else ""
        names: set[str] = set()
        for path in self.files:
            if path.startswith(start):
                head, slash, _ = path[len(start) :].partition("/")
                names.add(f"{start}{head}{slash}")
        return sorted(names, key=lambda name: (not name.endswith("/"), name))

    def nearest(self, path: str) -> list[str]:
        """Return up to five paths that may have been meant."""
        name = path.rpartition("/")[2]
        named = [file for file in self.files if file.rpartition("/")[2] == name]
        if named:
            return sorted(named, key=len)[:5]
        return get_close_matches(path, [*self.files, *self.folders], n=5, cutoff=0.5)


def _folders(paths: Iterable[str]) -> set[str]:
    """Return all folders that the paths lie in."""
    return _with_parents(path.rpartition("/")[0] for path in paths)


def _with_parents(paths: Iterable[str]) -> set[str]:
    """Return the folders and all that they lie in."""
    folders: set[str] = {""}
    for path in paths:
        folder = path
        while folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders
