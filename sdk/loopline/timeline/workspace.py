"""Files of a turn: the bodies with their versions, and the fold of the files that a turn has."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from msgspec import Struct

from loopline.errors import LooplineError
from loopline.timeline.attachments import UserAttachment

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


def file_bytes(file: FileAdded | UserAttachment) -> bytes:
    """Return the content of a version of a file, or of an attached file.

    Raises:
        ValueError: its `data` is not valid base64.
    """
    return b64decode(file.data) if file.data else file.text.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFile:
    """A file that a turn made or changed: its pinned ref, its path as `name`, its MIME type, and its size in bytes.

    `body` is its stored version, None if it was not fetched.
    """

    ref: str
    name: str
    type: str
    size: int
    body: FileAdded | None = field(default=None, repr=False, compare=False)

    async def read(self) -> bytes:
        """Return the content.

        Raises:
            LooplineError: it was not fetched from the server.
        """
        if self.body is None:
            raise LooplineError(f"the content of {self.ref} was not fetched: read the ref instead")
        return file_bytes(self.body)


def describe_file(file: FileAdded) -> str:
    """Return one line with the MIME type, the pixels of an image, the size, and whether it is executable."""
    pixels = f", {file.width}×{file.height} pixels" if file.width else ""
    program = ", executable" if file.executable else ""
    return f"{file.mime}{pixels}, {file.size:,} bytes{program}"


EMPTY_START = "empty"
"""The value of the option `workspace` for a turn that starts without files."""
