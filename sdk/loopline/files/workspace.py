"""The workspace of a turn: the files that a tool can read, and the changes that one call makes to them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from hashlib import sha256
from pathlib import PurePosixPath

from msgspec import structs

from loopline import timeline as tl
from loopline.errors import ToolError
from loopline.files.attachment import MB, decoded_text, detect_text, normalize_media_type, text_type
from loopline.files.formats import PDF_SIGNATURE, parse_image
from loopline.refs import FileRef
from loopline.timeline.workspace_paths import (
    MAX_DEPTH,
    TreeNames,
    WorkspacePath,
    is_pulled_path,
    parse_path,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceLimits:
    """The limits of `files/` and `outputs/` together: bytes of one file and of all, their number, and the names in a path."""

    file_bytes: int = 10 * MB
    tree_bytes: int = 64 * MB
    files: int = 2_000
    depth: int = MAX_DEPTH


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a tool makes: its path and its content.

    A path such as `report.pdf` is placed in `outputs/`; a path that begins with `files/` changes the project. An
    "internal" output is not shown to the user. `mime` is used if the type is not clear from the bytes and the name, such
    as "audio/wav".
    """

    path: str
    data: bytes | str = field(repr=False)
    visibility: tl.Visibility = "external"
    mime: str = ""
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """The change that writes a file, or removes it if `data` is None.

    `replaces` is the sha256 of the version from which the change was made, "" for a new file. If another call has changed
    the file since, the change is refused. If `replaces` is None, it is not checked. `mime` is used if the type is not
    clear from the bytes. If `executable` is None, it stays as it was.
    """

    path: WorkspacePath
    data: bytes | None = field(repr=False)
    visibility: tl.Visibility = "external"
    replaces: str | None = None
    mime: str = ""
    executable: bool | None = None


class Workspace:
    """The files of the running turn: `files/…`, `outputs/…`, the user's `attachments/…`, and pulled files `turn_3/files/…`.

    Its state is that at the beginning of the call, with the call's own changes. They are recorded together with the result
    of the call; if the call fails, they are discarded.
    """

    def __init__(
        self,
        timeline: tl.Timeline,
        number: int,
        *,
        beside: Sequence[tl.Block] = (),
        limits: WorkspaceLimits | None = None,
    ) -> None:
        self._number = number
        self.limits: WorkspaceLimits = limits or WorkspaceLimits()
        self._timeline = timeline
        self._changes: dict[str, FileChange] = {}
        self._beside: dict[str, tl.Block] = {}
        for block in beside:
            if path := path_when_pulled(block):
                self._beside[path] = block

    def __repr__(self) -> str:
        return f"<workspace of {tl.turn_id(self._number)}: {len(self.paths())} files>"

    @property
    def changes(self) -> Sequence[FileChange]:
        """The changes of the call so far."""
        return tuple(self._changes.values())

    def paths(self, below: str = "") -> list[str]:
        """Return the paths of all files, or of those in a folder such as `files/src`, in sorted order.

        Attachments and pulled files are included, files that the call has removed are not.
        """
        removed = {path for path, change in self._changes.items() if change.data is None}
        paths = {*self._recorded, *self._changes, *self._attached, *self._beside} - removed
        folder = below.strip("/")
        return sorted(
            path for path in paths if not folder or path == folder or path.startswith(f"{folder}/")
        )

    def read(self, path: str) -> bytes:
        """Return the bytes of a file, as the call has changed it so far.

        Raises:
            ToolError: the file does not exist, or the path is not allowed.
        """
        if path in self._beside:
            return _bytes_of(self._beside[path])
        is_own = not path.startswith("attachments/") and not is_pulled_path(path)
        name = str(parse_path(path)) if is_own else path
        change = self._changes.get(name)
        if change is not None and change.data is not None:
            return change.data
        if change is None and name in self._recorded:
            return tl.workspace.file_bytes(file_version(self._recorded[name]))
        attached = self._attached.get(name)
        if attached is None:
            raise ToolError(f"no file {name!r} in the workspace: {self._nearest(name)}")
        return tl.workspace.file_bytes(attached)

    def read_text(self, path: str) -> str:
        """Return the text of a file.

        Raises:
            ToolError: the file does not exist, or is not UTF-8.
        """
        data = self.read(path)
        text = decoded_text(data)
        if text is None:
            detected = detect_text(data)
            encoding = "" if detected is None else f", but probably in {detected.charset}"
            raise ToolError(f"{path} is not a text in UTF-8{encoding}")
        return text

    def find(self, path: WorkspacePath) -> bytes | None:
        """Return the bytes of a file; None if it does not exist."""
        return self.read(str(path)) if str(path) in self else None

    def __contains__(self, path: str) -> bool:
        change = self._changes.get(path)
        return path in self._recorded if change is None else change.data is not None

    def ref(self, path: str) -> str:
        """Return the pinned ref of the recorded version of a file; "" if the file was not recorded before the call.

        Changes of the call are ignored. Attachments and pulled files have refs too.
        """
        attached = self._attached.get(path)
        if attached is not None:
            return f"fi:{tl.turn_id(self._number)}.user.{path}"
        block = self._recorded.get(path) or self._beside.get(path)
        return block.ref if block else ""

    def visibility(self, path: str) -> tl.Visibility | None:
        """Return the visibility of the recorded version of a file; None if the file was not recorded before the call."""
        block = self._recorded.get(path)
        return None if block is None else file_version(block).visibility

    def is_executable(self, path: WorkspacePath) -> bool:
        """Return whether a file is executable; false if it does not exist."""
        if str(path) not in self:
            return False
        change = self._changes.get(str(path))
        block = self._recorded.get(str(path))
        if change is not None and change.executable is not None:
            return change.executable
        return block is not None and file_version(block).executable

    def write(
        self,
        path: str,
        data: bytes | str,
        *,
        visibility: tl.Visibility = "external",
        executable: bool | None = None,
    ) -> None:
        """Write a file; it is recorded when the call succeeds. If `executable` is None, it stays as it was.

        Raises:
            ToolError: the path or the size is not allowed.
        """
        content = data.encode() if isinstance(data, str) else bytes(data)
        self._change(parse_path(path), content, visibility, executable)

    def remove(self, path: str) -> None:
        """Remove a file; its recorded versions can still be read by their refs.

        Raises:
            ToolError: the file does not exist, or is not below `files/` or `outputs/`.
        """
        parsed = parse_path(path)
        if str(parsed) not in self:
            raise ToolError(f"no file {str(parsed)!r} to remove: {self._nearest(str(parsed))}")
        self._change(parsed, None, "external")

    def _change(
        self,
        path: WorkspacePath,
        data: bytes | None,
        visibility: tl.Visibility,
        executable: bool | None = None,
    ) -> None:
        """Check the size and stage a change with the sha256 of the recorded version; it replaces an earlier change.

        If `data` is None, the file is removed. If `executable` is None, the flag of the earlier change is used.

        Raises:
            ToolError: the file is too large or its path has too many names.
        """
        check_size(path, data, self.limits)
        recorded = self._recorded.get(str(path))
        staged = self._changes.get(str(path))
        if executable is None and staged is not None:
            executable = staged.executable
        replaces = "" if recorded is None else file_version(recorded).sha256
        self._changes[str(path)] = FileChange(
            path=path, data=data, visibility=visibility, replaces=replaces, executable=executable
        )

    @cached_property
    def _recorded(self) -> Mapping[str, tl.Block]:
        """The newest recorded versions by path, as they are at the first use in the call."""
        tree = self._timeline.files
        outputs = tree.outputs_of(self._number)
        return {
            **{f"files/{path}": block for path, block in tree.files.items()},
            **{f"outputs/{path}": block for path, block in outputs.items()},
        }

    @cached_property
    def _attached(self) -> Mapping[str, tl.UserAttachment]:
        """The files that the user attached in this turn, by path."""
        return {
            f"attachments/{file.name}": file
            for file in self._timeline.find_attachments(self._number)
        }

    def _nearest(self, path: str) -> str:
        paths = self.paths()
        nearest = get_close_matches(path, paths, n=4, cutoff=0.3) or paths[:4]
        return f"near it are {', '.join(nearest)}" if nearest else "it is empty"


def path_when_pulled(block: tl.Block) -> str:
    """Return the path of a pulled file of an older turn, such as `turn_3/files/a.py`; "" if the block is not a file."""
    ref = block.name
    if not isinstance(ref, FileRef):
        return ""
    return f"{ref.turn_id}/{ref.area.removeprefix('user.')}/{ref.path}"


def _bytes_of(block: tl.Block) -> bytes:
    body = block.body
    file = body if isinstance(body, tl.UserAttachment) else file_version(block)
    return tl.workspace.file_bytes(file)


def file_version(block: tl.Block) -> tl.FileAdded:
    """Return the body of a block, which must be a version of a file.

    Raises:
        TypeError: the block is not a version of a file.
    """
    if not isinstance(block.body, tl.FileAdded):
        raise TypeError(f"{block.ref} is not a version of a file")
    return block.body


def check_size(path: WorkspacePath, data: bytes | None, limits: WorkspaceLimits) -> None:
    """Check the size of a file and the number of names in its path.

    Raises:
        ToolError: a limit is exceeded.
    """
    if data is not None and len(data) > limits.file_bytes:
        raise ToolError(
            f"{path} has {len(data):,} bytes, and a file may have {limits.file_bytes:,}: nothing was written"
        )
    depth = path.path.count("/") + 1
    if data is not None and depth > limits.depth:
        raise ToolError(
            f"{path} has {depth} names, and may have {limits.depth}: nothing was written"
        )


def change_of(file: OutputFile) -> FileChange:
    """Convert a file of a tool to a change; a path without an area is placed in `outputs/`.

    Raises:
        ToolError: the path is not allowed.
    """
    first = file.path.partition("/")[0]
    path = file.path if first in ("files", "outputs", "attachments") else f"outputs/{file.path}"
    data = file.data.encode() if isinstance(file.data, str) else bytes(file.data)
    return FileChange(
        path=parse_path(path),
        data=data,
        visibility=file.visibility,
        mime=file.mime,
        executable=file.executable or None,
    )


def file_bodies(
    timeline: tl.Timeline,
    number: int,
    changes: Sequence[FileChange],
    call_id: str = "",
    *,
    limits: WorkspaceLimits,
) -> list[tl.FileBody]:
    """Return the bodies that record the changes in turn `number`, without changes that do not have an effect.

    Raises:
        ToolError: another call has changed a file since, a path clashes with another, or a limit is exceeded; none of
            the changes can be recorded.
    """
    if not changes:
        return []
    tree = timeline.files
    current = _current_files(timeline, number)
    versions: dict[WorkspacePath, int] = {}
    bodies: list[tl.FileBody] = []
    for change in changes:
        before = current.get(change.path)
        _check_unchanged(change, before)
        if change.data is None:
            if before is not None:
                bodies.append(
                    tl.FileRemoved(area=change.path.area, path=change.path.path, call_id=call_id)
                )
                del current[change.path]
            continue
        check_size(change.path, change.data, limits)
        count = versions.get(change.path) or tree.version(
            number, change.path.area, change.path.path
        )
        executable = change.executable
        if executable is None:
            executable = before is not None and before.executable
        added = structs.replace(
            make_version(change, change.data, count + 1, call_id), executable=executable
        )
        if before is not None and _content(before) == _content(added):
            continue
        versions[change.path] = added.version
        current[change.path] = added
        bodies.append(added)
    _check_tree(current, limits)
    return bodies


def sort_changes(
    timeline: tl.Timeline, number: int, changes: Sequence[FileChange], *, limits: WorkspaceLimits
) -> tuple[list[FileChange], list[str]]:
    """Return the changes that can be recorded in a turn together, and an error message for each other change.

    Removals come first, because written files may need the space of removed files.
    """
    current = _current_files(timeline, number)
    sizes = {path: file.size for path, file in current.items()}
    recordable: list[FileChange] = []
    problems: list[str] = []
    tree: _TreeSize | None = None
    for change in sorted(changes, key=lambda change: change.data is not None):
        try:
            _check_unchanged(change, current.get(change.path))
            check_size(change.path, change.data, limits)
        except ToolError as error:
            problems.append(str(error))
            continue
        problem = ""
        if change.data is None:
            sizes.pop(change.path, None)
        else:
            tree = tree or _TreeSize(sizes, limits)
            problem = tree.add(change.path, len(change.data))
        if problem:
            problems.append(problem)
        else:
            recordable.append(change)
    return recordable, problems


class _TreeSize:
    """The sizes and names of the files in a tree, to which files are added within the limits."""

    def __init__(self, sizes: dict[WorkspacePath, int], limits: WorkspaceLimits) -> None:
        self._sizes = sizes
        self._limits = limits
        self._total = sum(sizes.values())
        self._names = TreeNames()
        for path in sizes:
            self._names.add(str(path))

    def add(self, path: WorkspacePath, size: int) -> str:
        """Add or replace a file and return ""; if it exceeds a limit or its path clashes, return an error message."""
        total = self._total + size - self._sizes.get(path, 0)
        if total > self._limits.tree_bytes:
            return f"{path} has no room: the workspace may have {self._limits.tree_bytes:,} bytes"
        if path not in self._sizes and len(self._sizes) >= self._limits.files:
            return f"{path} has no room: the workspace may have {self._limits.files:,} files"
        problem = self._names.add(str(path))
        if not problem:
            self._total = total
            self._sizes[path] = size
        return problem


def _current_files(timeline: tl.Timeline, number: int) -> dict[WorkspacePath, tl.FileAdded]:
    """Return the newest versions of `files/`, and of the `outputs/` of a turn."""
    tree = timeline.files
    areas: tuple[tuple[tl.WorkspaceArea, Mapping[str, tl.Block]], ...] = (
        ("files", tree.files),
        ("outputs", tree.outputs_of(number)),
    )
    return {
        WorkspacePath(area, path): file_version(block)
        for area, blocks in areas
        for path, block in blocks.items()
    }


def _content(file: tl.FileAdded) -> tuple[str, tl.Visibility, bool]:
    return file.sha256, file.visibility, file.executable


def _check_unchanged(change: FileChange, before: tl.FileAdded | None) -> None:
    """Raise a ToolError if the current version of the file is not the one that the change replaces."""
    actual = "" if before is None else before.sha256
    if change.replaces is not None and change.replaces != actual:
        raise ToolError(
            f"{change.path} was changed by another call at the same time: nothing was written; read it again"
        )


def _check_tree(tree: Mapping[WorkspacePath, tl.FileAdded], limits: WorkspaceLimits) -> None:
    """Raise a ToolError if the files exceed the limits of a tree, or if two paths clash."""
    total = sum(file.size for file in tree.values())
    if len(tree) > limits.files:
        raise ToolError(
            f"the workspace would have {len(tree):,} files, and may have {limits.files:,}: nothing was written"
        )
    if total > limits.tree_bytes:
        raise ToolError(
            f"the workspace would have {total:,} bytes, and may have {limits.tree_bytes:,}: nothing was written"
        )
    names = TreeNames()
    for path in tree:
        if problem := names.add(str(path)):
            raise ToolError(f"{problem}: nothing was written")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedData:
    """The media type of some bytes, and their text; `text` of other data is a line with the type and the size.

    `width` and `height` are the pixels of an image, `moves` says that it is animated.
    """

    mime: str
    text: str
    is_text: bool
    width: int = 0
    height: int = 0
    moves: bool = False


def describe_data(name: str, data: bytes, stated: str = "") -> DescribedData:
    """Detect the type of bytes from their content; if that is not enough, from the media type `stated` or the file's name."""
    image = parse_image(data)
    text = decoded_text(data)
    if image is not None:
        size = f"{image.mime}, {image.width}×{image.height} pixels, {len(data):,} bytes"
        return DescribedData(
            mime=image.mime,
            text=size,
            is_text=False,
            width=image.width,
            height=image.height,
            moves=image.animated,
        )
    if data.startswith(PDF_SIGNATURE) or text is None:
        mime = (
            tl.attachments.PDF if data.startswith(PDF_SIGNATURE) else normalize_media_type(stated)
        )
        return DescribedData(mime=mime, text=f"{mime}, {len(data):,} bytes", is_text=False)
    return DescribedData(mime=text_type(PurePosixPath(name).name, stated), text=text, is_text=True)


def make_version(change: FileChange, data: bytes, version: int, call_id: str = "") -> tl.FileAdded:
    """Return the body that records `data` as a version of the file, with the detected type and the sha256.

    A file of the project is always "external". The flag `executable` of the change is not used.
    """
    path = change.path
    described = describe_data(path.path, data, change.mime)
    return tl.FileAdded(
        area=path.area,
        path=path.path,
        version=version,
        mime=described.mime,
        size=len(data),
        sha256=sha256(data).hexdigest(),
        text=described.text if described.is_text else "",
        data="" if described.is_text else b64encode(data).decode(),
        width=described.width,
        height=described.height,
        visibility=change.visibility if path.area == "outputs" else "external",
        call_id=call_id,
    )
