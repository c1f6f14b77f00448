"""Paths of a workspace, as a model or a tool writes them: parsing, allowed names, and clashes between paths."""

from __future__ import annotations

import re
import unicodedata
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
_FORBIDDEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\\\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)
"""Controls, the backslash, lone surrogates, and invisible characters, such as those that change the text direction."""
_PULLED = re.compile(r"turn_[1-9][0-9]{0,9}/(?:files|outputs|attachments)/")
_GIT = re.compile(r"(?i)\.git(?:$|[ .:]|::)|git~\d+$")
"""A name that some file systems treat as `.git`."""


@dataclass(frozen=True, slots=True, order=True)
class WorkspacePath:
    """The area of a file and its path in the area, with `/` between the names."""

    area: WorkspaceArea
    path: str

    def __str__(self) -> str:
        return f"{self.area}/{self.path}"


def parse_path(text: str) -> WorkspacePath:
    """Parse `files/a.md`, `outputs/r.pdf`, `a.md` (which is in `files/`), or the `fi:` ref of such a file.

    A ref gives the same path in the running turn; its turn is ignored.

    Raises:
        ToolError: the text is not a path of a workspace, or the path cannot be written; the message says why.
    """
    path = text
    if text.startswith("fi:"):
        ref = parse(text)
        if not isinstance(ref, FileRef) or ref.area == "user.attachments":
            raise ToolError(f"{text!r} is not a file of the workspace: write files/<path>")
        path = f"{ref.area}/{ref.path}"
    area, slash, inner_path = path.partition("/")
    if is_pulled_path(path):
        raise ToolError(
            f"{text!r} is below the id of a turn: write files/<path> or outputs/<path>, which are those of the running "
            "turn; react.checkout brings a file of an older turn into files/"
        )
    if slash and area in ("files", "outputs"):
        return WorkspacePath(
            "files" if area == "files" else "outputs", check_names(inner_path, text)
        )
    if slash and area == "attachments":
        raise ToolError(f"{text!r}: attachments of the user cannot be changed; write below files/")
    return WorkspacePath("files", check_names(path, text))


def is_pulled_path(path: str) -> bool:
    """Return whether a path is below the id of a turn, as the paths of pulled files are: `turn_2/files/a.md`."""
    return _PULLED.match(path) is not None


def check_names(path: str, text: str) -> str:
    """Check a relative path in a workspace and return it; `text` is the original text, for the error message.

    Raises:
        ToolError: the path is not allowed; the message says why.
    """
    names = path.split("/")
    problem = _path_problem(path, names)
    if problem:
        raise ToolError(f"{text[:200]!r} is not a path of a workspace: {problem}")
    return path


def _path_problem(path: str, names: list[str]) -> str:
    """Return the first reason why the path or one of its names is not allowed; empty if the path is allowed."""
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
    """Return why a name is not allowed (missing, `.`, `..`, over 255 bytes, reserved by Git), or an empty text."""
    if name in ("", ".", ".."):
        return f"{name!r} is not a name of a file or a folder"
    if len(name.encode()) > NAME_BYTES:
        return f"a name has more than {NAME_BYTES} bytes"
    if _GIT.match(name):
        return f"{name!r} is a name that Git reserves"
    return ""


class TreeNames:
    """The names of the files and folders of a tree, to find clashes as paths are added.

    A folder and a file cannot have the same name. Two names must differ in more than their case, because some file
    systems ignore case.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, bool]] = {}

    def add(self, path: str) -> str:
        """Add a path and return ""; if it clashes with a path before, add nothing and return the problem."""
        parts = path.split("/")
        added = dict[str, tuple[str, bool]]()
        for end in range(1, len(parts) + 1):
            name = "/".join(parts[:end]), end == len(parts)
            before = self._seen.get(_fold_case(name[0]), name)
            if before[0] != name[0]:
                return f"{before[0]} and {name[0]} differ only in their case"
            if before != name:
                return f"{name[0]} would be both a file and a folder"
            added[_fold_case(name[0])] = name
        self._seen |= added
        return ""


def _fold_case(path: str) -> str:
    return path.lower() if path.isascii() else unicodedata.normalize("NFC", path.casefold())


def is_hosted(file: FileAdded) -> bool:
    """Return whether users can download a version, as they can download "external" outputs."""
    return file.area == "outputs" and file.visibility == "external"


def hosted_name(conversation: ConversationKey, turn_id: str, file: FileAdded) -> HostedRef:
    """Return the resource name of a version. The name locates the file; access is checked separately."""
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
