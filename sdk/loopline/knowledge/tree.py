"""The tree of a knowledge space: its configuration, its roots, and the files of a commit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property

from loopline.errors import KnowledgeError
from loopline.knowledge.repository import RepositoryFile

COMPARED_PATHS = 50
"""How many paths are compared letter by letter with a path that does not exist."""
COMMON_PATHS = 2_000
"""A part of names that more paths have does not help to find similar paths."""


ROOT_SETTINGS = ("docs_root", "src_root", "deploy_root", "tests_root")
"""The settings of the folders of a repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeConfig:
    """The `knowledge` properties of a bundle.

    `ks:docs/x` names the file `<docs_root>/x`, and so on for src, deploy and tests. The space contains only the
    configured roots. If no root is configured, it contains the whole tree under the paths of the repository. A root of
    `.` is the whole tree. `embedder` names a model for search by meaning, such as `local:FOLDER`. With `wait` the first
    turn waits until every passage has its vector. For several repositories, `repositories` has the configuration of
    each by name; `repo`, `ref` and the roots of this configuration are then ignored, and paths begin with the name:
    `ks:name/…`.
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
        folders = {setting: str(getattr(self, setting)) for setting in ROOT_SETTINGS}
        return {setting: folder for setting, folder in folders.items() if folder}


@dataclass(frozen=True, slots=True)
class Root:
    """A folder of the repository and its name in the space. The folder `""` is the whole tree."""

    name: str
    folder: str


def read_roots(config: KnowledgeConfig) -> tuple[Root, ...]:
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
    """Convert a path in the space to the path in the repository; None if it is outside all roots."""
    return _move(path, [(root.name, root.folder) for root in roots])


def _move(path: str, folders: list[tuple[str, str]]) -> str | None:
    """Replace the leading folder of a path by the target of the first pair with this source; None without one.

    Without pairs the path is returned unchanged.
    """
    if not folders:
        return path
    for source, target in folders:
        if not source or f"{path}/".startswith(f"{source}/"):
            rest = path[len(source) :].removeprefix("/")
            return "/".join(part for part in (target, rest) if part)
    return None


def _folder(setting: str, written: str) -> str:
    """Return the folder of a root without `.` and empty parts; raise KnowledgeError for an absolute path or `..`."""
    folder = written.strip()
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    if folder.startswith("/") or ".." in parts:
        raise KnowledgeError(
            f"knowledge.{setting} is {written!r}: write it relative to the top of the repository"
        )
    return "/".join(parts)


class Tree:
    """The files and folders of a commit, by path in the space. `files` is sorted like the entries of the repository."""

    def __init__(self, roots: tuple[Root, ...], entries: Iterable[RepositoryFile]) -> None:
        self._roots = roots
        self._all = {entry.path: entry for entry in entries}
        self.files: dict[str, RepositoryFile] = {}
        folders = [(root.folder, root.name) for root in roots]
        sources = {source for source, _ in folders}
        # A path is converted once for each folder, not for each file.
        folders_in_space: dict[str, str | None] = {}
        for path, entry in self._all.items():
            folder, _, name = path.rpartition("/")
            if folder not in folders_in_space:
                folders_in_space[folder] = _move(folder, folders)
            parent = folders_in_space[folder]
            if path in sources:  # a root that is a file
                path_in_space = _move(path, folders)
            elif parent is None:
                path_in_space = None
            else:
                path_in_space = f"{parent}/{name}" if parent else name
            if path_in_space is not None:
                self.files.setdefault(path_in_space, entry)
        self.folders: set[str] = _add_parents(path.rpartition("/")[0] for path in self.files)
        self._all_folders = _add_parents(folders_in_space)

    def check_roots(self) -> None:
        """Check that every configured root is a folder with files.

        Raises:
            KnowledgeError: a root is not; the message names its setting and the top folders.
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
        """Return the file at a path of the space, or None.

        If one root contains another, the path through either root finds the file.
        """
        if path in self.files:
            return self.files[path]
        inside = repository_path(self._roots, path)
        return None if inside is None else self._all.get(inside)

    def exists(self, path: str) -> bool:
        """Return True if a path of the repository is a file or folder, also outside the roots of the space."""
        return path in self._all or path in self._all_folders

    def has_top_folder(self, name: str) -> bool:
        """Return True if the repository or the space has a folder with this path; `name` is a single name."""
        return name in self._all_folders or name in self.folders

    def listing(self, folder: str) -> list[str] | None:
        """Return the space paths of a folder's direct children, folders first, with `/`; None if it is missing."""
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
        """Return up to five similar paths: files with the same name, or else paths that are spelled similarly."""
        name = path.rpartition("/")[2]
        named = [file for file in self.files if file.rpartition("/")[2] == name]
        if named:
            return sorted(named, key=len)[:5]
        shared = Counter[str]()
        for part in _name_parts(path):
            paths = self._paths_by_part.get(part, ())
            shared.update(paths if len(paths) <= COMMON_PATHS else ())
        similar = [found for found, _ in shared.most_common(COMPARED_PATHS)]
        return get_close_matches(path, similar, n=5, cutoff=0.5)

    def lacks(self, other: Tree) -> bool:
        """Return True if the repository has fewer files here than in the other tree: one of its paths is missing."""
        return bool(other._all.keys() - self._all.keys())

    @cached_property
    def _paths_by_part(self) -> Mapping[str, list[str]]:
        """The files and folders by parts of their paths: the parent folder, and each substring of 3 of the name."""
        # Comparing a path with every path of a large repository takes seconds.
        found = defaultdict[str, list[str]](list)
        for path in (*self.files, *self.folders):
            for part in _name_parts(path):
                found[part].append(path)
        return found


def _name_parts(path: str) -> set[str]:
    """Return the folder of a path, with a final slash, and each three characters of its name."""
    folder, _, name = path.rpartition("/")
    return {f"{folder}/", *(name[start : start + 3] for start in range(max(len(name) - 2, 1)))}


def _add_parents(paths: Iterable[str]) -> set[str]:
    """Return the folders and all folders that contain them, including "" for the top."""
    folders: set[str] = {""}
    for path in paths:
        folder = path
        while folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders
