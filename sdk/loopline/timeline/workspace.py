"""Files of a turn: the bodies with their versions, and the fold of the files that a turn has."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

from msgspec import Struct

WorkspaceArea = Literal["files", "outputs"]
Visibility = Literal["external", "internal"]


class FileAdded(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version of a file in an area: `files` is the project, `outputs` the results of a turn.

    `version` counts from 1 for each path in each turn. `size` is in bytes, `sha256` in hexadecimal. A file in UTF-8 has
    its content in `text`, any other file in `data`, in base64. `width` and `height` are an image's pixels. An
    `executable` file is a program. An "internal" output is not shown to users. `call_id` is the call that created it,
    empty if a workflow did.
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
    """The removal of a file from its turn and from later turns; its versions can still be read."""

    area: WorkspaceArea
    path: str
    call_id: str = ""
    type: ClassVar[Literal["file.removed"]] = "file.removed"


class FilesPulled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Files of older turns, by their pinned refs, that this turn can read below `turn_<n>/` and cannot change."""

    refs: tuple[str, ...]
    call_id: str = ""
    type: ClassVar[Literal["file.pulled"]] = "file.pulled"


FileBody = FileAdded | FileRemoved | FilesPulled


def file_bytes(file: FileAdded) -> bytes:
    """Return the content of a version."""
    return b64decode(file.data) if file.data else file.text.encode()


def describe_file(file: FileAdded) -> str:
    """Return one line with the MIME type, the pixels of an image, the size, and whether it is executable."""
    pixels = f", {file.width}×{file.height} pixels" if file.width else ""
    program = ", executable" if file.executable else ""
    return f"{file.mime}{pixels}, {file.size:,} bytes{program}"


class FileBlock(Protocol):
    """The part of a block that `FileTree` reads."""

    @property
    def turn(self) -> int:
        """The number of the turn."""
        ...


B = TypeVar("B", bound=FileBlock)
"""The type of the blocks in a tree."""


class FileTree(Struct, Generic[B]):
    """The newest version of each file: the project after the last folded block, and the outputs of each turn.

    Both are by path, the last changed file last. `versions` are the numbers of the newest versions, by turn, area and
    path. `pulled` are the refs of pulled files by turn.
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
        """Return the last `count` changed files of the project, then the last `count` changed outputs of the turn."""
        outputs = self.outputs.get(turn, {})
        return [
            area[path]
            for area in (self.files, outputs)
            for path in list(islice(reversed(area), count))[::-1]
        ]

    def version(self, turn: int, area: WorkspaceArea, path: str) -> int:
        """Return the number of the newest version of a file in the turn, 0 without one."""
        return self.versions.get((turn, area, path), 0)

    def start_empty(self, turn: int) -> None:
        """Remove the files of earlier turns from the project, for a turn that starts without files."""
        for path, block in list(self.files.items()):
            if block.turn < turn:
                self._remove("files", block.turn, path)

    def outputs_of(self, turn: int) -> Mapping[str, B]:
        """Return the outputs of the turn by path."""
        return self.outputs.get(turn, {})


_PROJECT = 0
"""The key of the project in the sums of sizes; turns have their number, from 1."""
EMPTY_START = "empty"
"""The value of the option `workspace` for a turn that starts without files."""


def total_size(files: Iterable[FileAdded]) -> int:
    """Return the sum of the sizes of these files, in bytes."""
    return sum(file.size for file in files)
