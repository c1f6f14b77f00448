"""Paths of a workspace: where a file stands in the tree of a turn, as text from a model or a tool."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from loopline.errors import ToolError
from loopline.refs import FileRef, HostedRef, parse
from loopline.timeline.log import ConversationKey
from loopline.timeline.workspace import FileAdded, WorkspaceArea

NAME_BYTES = 255
PATH_BYTES = 1_024
MAX_DEPTH = 32
Folder = Literal["files", "outputs", "attachments"]
FOLDERS: tuple[Folder, ...] = ("files", "outputs", "attachments")
_FORBIDDEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\\\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)
"""Controls, the backslash, lone surrogates, and characters that hide or reorder others."""
_PULLED = re.compile(r"turn_[1-9][0-9]{0,9}/(?:files|outputs|attachments)/")
_GIT = re.compile(r"(?i)\.git(?:$|[ .:]|::)|git~\d+$")
"""A name that some file systems take for `.git`."""


@dataclass(frozen=True, slots=True, order=True)
class WorkspacePath:
    """The path of a file: its area, and its path in it, with `/` between the names."""

    area: WorkspaceArea
    path: str

    def __str__(self) -> str:
        return f"{self.area}/{self.path}"


def parse_path(text: str) -> WorkspacePath:
    """Return the path that a model or a tool means: `files/a.md`, `outputs/r.pdf`, `a.md`, or a ref of such a file.

    Without an area it is in `files/`. A ref names the file in the running turn, whatever turn it is of.

    Raises:
        ToolError: it is no path of a workspace; the message says why.
    """
    path = _path_of_ref(text) if text.startswith("fi:") else text
    area, slash, inner_path = path.partition("/")
    if is_pulled_path(path):
        raise ToolError(
            f"{text!r} is a file of an older turn: react.checkout brings it into files/"
        )
    if slash and area in ("files", "outputs"):
        return WorkspacePath(
            "files" if area == "files" else "outputs", check_names(inner_path, text)
        )
    if slash and area == "attachments":
        raise ToolError(f"{text!r}: what the user attached cannot be changed; write below files/")
    return WorkspacePath("files", check_names(path, text))


def is_pulled_path(path: str) -> bool:
    """Return whether a path is that of a pulled file, which stands below the name of its turn."""
    return _PULLED.match(path) is not None


def _path_of_ref(text: str) -> str:
    ref = parse(text)
    if not isinstance(ref, FileRef) or ref.area == "user.attachments":
        raise ToolError(f"{text!r} names no file of the workspace: write files/<path>")
    return f"{ref.area}/{ref.path}"


def check_names(path: str, text: str) -> str:
    """Return a relative path if each of its names may stand in a workspace; `text` is what the error quotes.

    Raises:
        ToolError: a name is not allowed; the message says why.
    """
    names = path.split("/")
    problem = _path_problem(path, names)
    if problem:
        raise ToolError(f"{text[:200]!r} is no path of a workspace: {problem}")
    return path


def _path_problem(path: str, names: list[str]) -> str:
    if path.startswith("/"):
        return "it is absolute; write files/<path> or outputs/<path>"
    if len(names) > MAX_DEPTH:
        return f"it has {len(names)} names, and may have {MAX_DEPTH}"
    if _FORBIDDEN.search(path):
        return "it has a control, a backslash or an invisible character"
    if len(path.encode()) > PATH_BYTES:
        return f"it has more than {PATH_BYTES:,} bytes"
    if unicodedata.normalize("NFC", path) != path:
        return "its characters are not composed (Unicode NFC)"
    problems = (_name_problem(name) for name in names)
    return next((problem for problem in problems if problem), "")


def _name_problem(name: str) -> str:
    if name in ("", ".", ".."):
        return f"{name!r} is no name of a file or a folder"
    if len(name.encode()) > NAME_BYTES:
        return f"a name has more than {NAME_BYTES} bytes"
    if _GIT.match(name):
        return f"{name!r} is a name that Git keeps for itself"
    return ""


def find_clash(paths: Collection[str]) -> str:
    """Return what speaks against a tree of these paths, "" if nothing does.

    A folder and a file cannot have one name, and two names may not differ in their case alone: on some file systems
    they are one.
    """
    names = TreeNames()
    return next((problem for path in paths if (problem := names.add(path))), "")


class TreeNames:
    """The names of a tree, to which paths are added one after the other."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, bool]] = {}

    def add(self, path: str) -> str:
        """Add a path, unless something speaks against it; return that."""
        parts = path.split("/")
        added = dict[str, tuple[str, bool]]()
        for end in range(1, len(parts) + 1):
            name = "/".join(parts[:end]), end == len(parts)
            before = self._seen.get(_fold_case(name[0]), name)
            if before != name:
                return _describe_clash(before, name)
            added[_fold_case(name[0])] = name
        self._seen |= added
        return ""


def _describe_clash(first: tuple[str, bool], second: tuple[str, bool]) -> str:
    if first[0] == second[0]:
        return f"{first[0]} is a file, and would be a folder too"
    return f"{first[0]} and {second[0]} differ only in their case"


def _fold_case(path: str) -> str:
    return path.lower() if path.isascii() else unicodedata.normalize("NFC", path.casefold())


def is_hosted(file: FileAdded) -> bool:
    """Return whether a version is one for users: an output that is not for the agent alone."""
    return file.area == "outputs" and file.visibility == "external"


def hosted_name(conversation: ConversationKey, turn_id: str, file: FileAdded) -> HostedRef:
    """Return the resource name of a version. It locates the file, and gives no right to read it."""
    return HostedRef(
        tenant=conversation.tenant,
        project=conversation.project,
        stage="file",
        user_id=conversation.user,
        conversation=conversation.name,
        turn_id=turn_id,
        role="assistant",
        path=f"{file.version}/{file.path}",
    )
