"""Files of a turn: the bodies that hold their versions, and the fold that says which files a turn has."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

from msgspec import Struct

WorkspaceArea = Literal["files", "outputs"]
Visibility = Literal["external", "internal"]


class FileAdded(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version of a file: `files` are the project, `outputs` what a turn produced.

    `version` counts from 1 for each path in each turn. `size` is in bytes, `sha256` in hexadecimal. A file in UTF-8
    has its `text`, any other its bytes in base64 as `data`. `width` and `height` are an image's pixels. An `executable` one
    is a program. An "internal" output is for the agent alone. `call_id` names the call that made it, empty if a workflow did.
    """

    area: WorkspaceArea
    path: str
    version: int
    mime: str
    size: int
    sha256: str
    text: str = ""
    data: str = ""
    width: int = 0
    height: int = 0
    visibility: Visibility = "external"
    executable: bool = False
    call_id: str = ""
    type: ClassVar[Literal["file.added"]] = "file.added"


class FileRemoved(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file is no longer in the tree of its turn and of later ones; its versions can still be read."""

    area: WorkspaceArea
    path: str
    call_id: str = ""
    type: ClassVar[Literal["file.removed"]] = "file.removed"


class FilesPulled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Files of older turns stand beside those of this turn, and cannot be changed; `refs` are their pinned refs."""

    refs: tuple[str, ...]
    call_id: str = ""
    type: ClassVar[Literal["file.pulled"]] = "file.pulled"


FileBody = FileAdded | FileRemoved | FilesPulled


def file_bytes(file: FileAdded) -> bytes:
    """Return the bytes of a version."""
    return b64decode(file.data) if file.data else file.text.encode()


def describe_file(file: FileAdded) -> str:
    """Return one line with the version's type, its pixels, and its size."""
    pixels = f", {file.width}×{file.height} pixels" if file.width else ""
    program = ", executable" if file.executable else ""
    return f"{file.mime}{pixels}, {file.size:,} bytes{program}"


class FileBlock(Protocol):
    """The part of a block that the fold reads."""

    @property
    def turn(self) -> int:
        """Return the number of the turn."""
        ...


B = TypeVar("B", bound=FileBlock)
"""The blocks that a tree holds."""


class FileTree(Struct, Generic[B]):
    """The newest versions by path, the last changed last: the project as the last turn left it, the outputs of each turn.

    `versions` are the numbers of the newest versions, by turn, area and path. `pulled` are the refs of older files that
    stand beside those of a turn.
    """

    files: dict[str, B] = {}
    outputs: dict[int, dict[str, B]] = {}
    versions: dict[tuple[int, WorkspaceArea, str], int] = {}

    pulled: dict[int, dict[str, None]] = {}
    _sizes: dict[tuple[int, str], int] = {}
    _totals: dict[int, int] = {}

    def take(self, block: B, body: FileBody) -> None:
        """Fold one more block."""
        match body:
            case FileAdded(area=area, path=path, version=version, size=size):
                self._remove(area, block.turn, path)
                self._area(area, block.turn)[path] = block
                self.versions[block.turn, area, path] = version
                place = _PROJECT if area == "files" else block.turn
                self._sizes[place, path] = size
                self._totals[place] = self._totals.get(place, 0) + size
            case FileRemoved(area=area, path=path):
                self._remove(area, block.turn, path)
            case FilesPulled(refs=refs):
                self.pulled.setdefault(block.turn, {}).update(dict.fromkeys(refs))

    def _area(self, area: WorkspaceArea, turn: int) -> dict[str, B]:
        return self.files if area == "files" else self.outputs.setdefault(turn, {})

    def _remove(self, area: WorkspaceArea, turn: int, path: str) -> None:
        if self._area(area, turn).pop(path, None) is not None:
            place = _PROJECT if area == "files" else turn
            self._totals[place] -= self._sizes.pop((place, path), 0)

    def size_at(self, turn: int) -> int:
        """Return the bytes of the project and of the turn's outputs together."""
        return self._totals.get(_PROJECT, 0) + self._totals.get(turn, 0)

    def newest_at(self, turn: int, count: int) -> list[B]:
        """Return the files of the project and of the turn's outputs that were changed last, at least `count` of each area."""
        outputs = self.outputs.get(turn, {})
        return [
            area[path]
            for area in (self.files, outputs)
            for path in list(islice(reversed(area), count))[::-1]
        ]

    def version(self, turn: int, area: WorkspaceArea, path: str) -> int:
        """Return the number of the newest version that the turn made of a file, 0 if it made none."""
        return self.versions.get((turn, area, path), 0)

    def start_empty(self, turn: int) -> None:
        """Leave out the files of earlier turns: this one begins with none."""
        for path, block in list(self.files.items()):
            if block.turn < turn:
                self._remove("files", block.turn, path)

    def outputs_of(self, turn: int) -> Mapping[str, B]:
        """Return the outputs of that turn by path."""
        return self.outputs.get(turn, {})


_PROJECT = 0
"""The place of the project beside the turns, which count from 1."""
EMPTY_START = "empty"
"""The value of the option `workspace` with which a turn begins without files."""


def begins_empty(limits: Mapping[str, object]) -> bool:
    """Return whether a turn with these options begins without the files of earlier turns."""
    return ("workspace", EMPTY_START) in limits.items()


def total_size(files: Iterable[FileAdded]) -> int:
    """Return the bytes of these files together."""
    return sum(file.size for file in files)
