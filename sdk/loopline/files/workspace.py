"""The workspace of a turn: its files as a tool sees them, and the changes that one call makes to them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from hashlib import sha256
from pathlib import PurePosixPath

from msgspec import structs

from loopline.errors import ToolError
from loopline.files.attachment import MB, decoded_text, stated_type, text_type
from loopline.files.formats import PDF_SIGNATURE, parse_image
from loopline.refs import FileRef
from loopline.timeline import (
    Block,
    FileAdded,
    FileBody,
    FileRemoved,
    Timeline,
    UserAttachment,
    Visibility,
    WorkspaceArea,
    attachments,
    turn_id,
    workspace,
)
from loopline.timeline.workspace_paths import (
    MAX_DEPTH,
    TreeNames,
    WorkspacePath,
    find_clash,
    is_pulled_path,
    parse_path,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceLimits:
    """The limits of a tree, `files/` and `outputs/` together: bytes of a file and of all, how many there are, names in a path."""

    file_bytes: int = 10 * MB
    tree_bytes: int = 64 * MB
    files: int = 2_000
    depth: int = MAX_DEPTH


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a tool makes: its path and its content.

    A path such as `report.pdf` stands in `outputs/`; one that begins with `files/` changes the project. An "internal"
    output is for the agent alone. `mime` is its type where neither its bytes nor its name say it, such as "audio/wav".
    """

    path: str
    data: bytes | str = field(repr=False)
    visibility: Visibility = "external"
    mime: str = ""
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A file is written, or removed if `data` is None.

    `replaces` is the sha256 of the version that it was made from, "" if there was none; if another call has changed
    the file since, the change is refused. None replaces whatever is there. `mime` is the type that its maker gives it;
    what images and PDFs are is told by their bytes. Whether it is `executable` stays as it was if this is None.
    """

    path: WorkspacePath
    data: bytes | None = field(repr=False)
    visibility: Visibility = "external"
    replaces: str | None = None
    mime: str = ""
    executable: bool | None = None


class Workspace:
    """The files of the running turn: `files/…`, `outputs/…`, the user's `attachments/…`, and `turn_3/files/…` if pulled.

    It is as the call finds it. What is written or removed is recorded together with the result of the call, or not at
    all if the call fails; the call itself sees it at once.
    """

    def __init__(
        self,
        timeline: Timeline,
        number: int,
        *,
        beside: Sequence[Block] = (),
        limits: WorkspaceLimits | None = None,
    ) -> None:
        self._number = number
        self.limits: WorkspaceLimits = limits or WorkspaceLimits()
        self._timeline = timeline
        self._changes: dict[str, FileChange] = {}
        self._beside: dict[str, Block] = {}
        for block in beside:
            if path := path_beside(block):
                self._beside[path] = block

    def __repr__(self) -> str:
        return f"<workspace of {turn_id(self._number)}: {len(self.paths())} files>"

    @property
    def changes(self) -> Sequence[FileChange]:
        """Return what the call has changed so far."""
        return tuple(self._changes.values())

    def paths(self, below: str = "") -> list[str]:
        """Return the paths of all files, or of those in a folder such as `files/src`, sorted."""
        removed = {path for path, change in self._changes.items() if change.data is None}
        paths = {*self._recorded, *self._changes, *self._attached, *self._beside} - removed
        folder = below.strip("/")
        return sorted(
            path for path in paths if not folder or path == folder or path.startswith(f"{folder}/")
        )

    def read(self, path: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            ToolError: there is no such file.
        """
        if path in self._beside:
            return _bytes_of(self._beside[path])
        is_own = not path.startswith("attachments/") and not is_pulled_path(path)
        name = str(parse_path(path)) if is_own else path
        change = self._changes.get(name)
        if change is not None and change.data is not None:
            return change.data
        if change is None and name in self._recorded:
            return workspace.file_bytes(version_in(self._recorded[name]))
        attached = self._attached.get(name)
        if attached is None:
            raise ToolError(f"no file {name!r} in the workspace: {self._nearest(name)}")
        return attachments.content(attached)

    def read_text(self, path: str) -> str:
        """Return the text of a file.

        Raises:
            ToolError: there is no such file, or it is no text in UTF-8.
        """
        text = decoded_text(self.read(path))
        if text is None:
            raise ToolError(f"{path} is no text in UTF-8")
        return text

    def find(self, path: WorkspacePath) -> bytes | None:
        """Return the bytes of a file, None if there is none."""
        return self.read(str(path)) if str(path) in self else None

    def __contains__(self, path: str) -> bool:
        change = self._changes.get(path)
        return path in self._recorded if change is None else change.data is not None

    def ref(self, path: str) -> str:
        """Return the pinned ref of a file as the call found it, "" if there was none."""
        attached = self._attached.get(path)
        if attached is not None:
            return f"fi:{turn_id(self._number)}.user.{path}"
        block = self._recorded.get(path) or self._beside.get(path)
        return block.ref if block else ""

    def visibility(self, path: str) -> Visibility | None:
        """Return who sees a file as the call found it, None if there was none."""
        block = self._recorded.get(path)
        return None if block is None else version_in(block).visibility

    def is_executable(self, path: WorkspacePath) -> bool:
        """Return whether a file is a program; False if there is none."""
        change, block = self._changes.get(str(path)), self._recorded.get(str(path))
        if change is not None and change.executable is not None:
            return change.executable
        return block is not None and version_in(block).executable

    def write(
        self,
        path: str,
        data: bytes | str,
        *,
        visibility: Visibility = "external",
        executable: bool | None = None,
    ) -> None:
        """Write a file; it is recorded when the call succeeds. It stays executable, or not, if nothing is said of it.

        Raises:
            ToolError: the path or the size is not allowed.
        """
        content = data.encode() if isinstance(data, str) else bytes(data)
        self._change(parse_path(path), content, visibility, executable)

    def remove(self, path: str) -> None:
        """Remove a file; its versions can still be read.

        Raises:
            ToolError: there is no such file.
        """
        named = parse_path(path)
        if str(named) not in self:
            raise ToolError(f"no file {str(named)!r} to remove: {self._nearest(str(named))}")
        self._change(named, None, "external")

    def _change(
        self,
        path: WorkspacePath,
        data: bytes | None,
        visibility: Visibility,
        executable: bool | None = None,
    ) -> None:
        check_size(path, data, self.limits)
        recorded, staged = self._recorded.get(str(path)), self._changes.get(str(path))
        if executable is None and staged is not None:
            executable = staged.executable
        replaces = "" if recorded is None else version_in(recorded).sha256
        self._changes[str(path)] = FileChange(
            path=path, data=data, visibility=visibility, replaces=replaces, executable=executable
        )

    @cached_property
    def _recorded(self) -> Mapping[str, Block]:
        """The newest versions, as they are when the call first asks."""
        tree = self._timeline.files
        files, outputs = dict(tree.files), dict(tree.outputs_of(self._number))
        return {
            f"{area}/{path}": block
            for area, blocks in (("files", files), ("outputs", outputs))
            for path, block in blocks.items()
        }

    @cached_property
    def _attached(self) -> Mapping[str, UserAttachment]:
        """Return the files that the user attached in this turn."""
        return {
            f"attachments/{file.name}": file
            for file in self._timeline.find_attachments(self._number)
        }

    def _nearest(self, path: str) -> str:
        paths = self.paths()
        nearest = get_close_matches(path, paths, n=4, cutoff=0.3) or paths[:4]
        return f"near it are {', '.join(nearest)}" if nearest else "it is empty"


def path_beside(block: Block) -> str:
    """Return the path at which a file of an older turn stands beside those of this one, "" if it is no file."""
    ref = block.name
    if not isinstance(ref, FileRef):
        return ""
    return f"{ref.turn_id}/{ref.area.removeprefix('user.')}/{ref.path}"


def _bytes_of(block: Block) -> bytes:
    body = block.body
    if isinstance(body, UserAttachment):
        return attachments.content(body)
    return workspace.file_bytes(version_in(block))


def version_in(block: Block) -> FileAdded:
    """Return the version that a block of a tree holds."""
    if not isinstance(block.body, FileAdded):
        raise TypeError(f"{block.ref} holds no version of a file")
    return block.body


def check_size(path: WorkspacePath, data: bytes | None, limits: WorkspaceLimits) -> None:
    """Refuse a file that is too large.

    Raises:
        ToolError: the message has both sizes.
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
    """Return the change that a tool's file makes; without an area it stands in `outputs/`.

    Raises:
        ToolError: its path is not allowed.
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
    timeline: Timeline,
    number: int,
    changes: Sequence[FileChange],
    call_id: str = "",
    *,
    limits: WorkspaceLimits,
) -> list[FileBody]:
    """Return the bodies that record the changes in a turn, all or none; a file that stays as it is has none.

    Raises:
        ToolError: another call has changed a file since, a path clashes with another, or a limit is passed.
    """
    if not changes:
        return []
    tree, current = timeline.files, _current_files(timeline, number)
    versions: dict[WorkspacePath, int] = {}
    bodies: list[FileBody] = []
    for change in changes:
        before = current.get(change.path)
        _check_unchanged(change, before)
        if change.data is None:
            bodies += _removal(change, before, call_id)
            current.pop(change.path, None)
            continue
        check_size(change.path, change.data, limits)
        count = versions.get(change.path) or tree.version(
            number, change.path.area, change.path.path
        )
        stays = before is not None and before.executable
        executable = stays if change.executable is None else change.executable
        added = structs.replace(
            file_added(change, change.data, count + 1, call_id), executable=executable
        )
        if before is not None and _is_same(before, added):
            continue
        versions[change.path] = added.version
        current[change.path] = added
        bodies.append(added)
    _check_tree(current, limits)
    return bodies


def sort_changes(
    timeline: Timeline, number: int, changes: Sequence[FileChange], *, limits: WorkspaceLimits
) -> tuple[list[FileChange], list[str]]:
    """Return the changes that can be recorded in a turn together, and why each of the others cannot.

    Files that are removed make room for those that are written.
    """
    current = _current_files(timeline, number)
    sizes = {path: file.size for path, file in current.items()}
    fitting, problems = list[FileChange](), list[str]()
    room: _Room | None = None
    for change in sorted(changes, key=lambda change: change.data is not None):
        problem = _refusal(change, current.get(change.path), limits)
        if not problem and change.data is None:
            sizes.pop(change.path, None)
        elif not problem and change.data is not None:
            room = room or _Room(sizes, limits)
            problem = room.take(change.path, len(change.data))
        if problem:
            problems.append(problem)
        else:
            fitting.append(change)
    return fitting, problems


class _Room:
    """What a tree has room for, beside the files in it."""

    def __init__(self, sizes: dict[WorkspacePath, int], limits: WorkspaceLimits) -> None:
        self._sizes = sizes
        self._limits = limits
        self._total = sum(sizes.values())
        self._names = TreeNames()
        for path in sizes:
            self._names.add(str(path))

    def take(self, path: WorkspacePath, size: int) -> str:
        """Add or replace a file, unless there is no room for it; return why there is none."""
        total = self._total + size - self._sizes.get(path, 0)
        if total > self._limits.tree_bytes:
            return f"{path} has no room: the workspace may have {self._limits.tree_bytes:,} bytes"
        if path not in self._sizes and len(self._sizes) >= self._limits.files:
            return f"{path} has no room: the workspace may have {self._limits.files:,} files"
        problem = self._names.add(str(path))
        if not problem:
            self._total, self._sizes[path] = total, size
        return problem


def _refusal(change: FileChange, before: FileAdded | None, limits: WorkspaceLimits) -> str:
    """Return why a change cannot be recorded, whatever room there is."""
    try:
        _check_unchanged(change, before)
        check_size(change.path, change.data, limits)
    except ToolError as error:
        return str(error)
    return ""


def _current_files(timeline: Timeline, number: int) -> dict[WorkspacePath, FileAdded]:
    """Return the newest versions in the tree of a turn."""
    tree = timeline.files
    areas: tuple[tuple[WorkspaceArea, Mapping[str, Block]], ...] = (
        ("files", tree.files),
        ("outputs", tree.outputs_of(number)),
    )
    return {
        WorkspacePath(area, path): version_in(block)
        for area, blocks in areas
        for path, block in blocks.items()
    }


def _is_same(before: FileAdded, added: FileAdded) -> bool:
    return (before.sha256, before.visibility, before.executable) == (
        added.sha256,
        added.visibility,
        added.executable,
    )


def _check_unchanged(change: FileChange, before: FileAdded | None) -> None:
    actual = "" if before is None else before.sha256
    if change.replaces is not None and change.replaces != actual:
        raise ToolError(
            f"{change.path} was changed by another call at the same time: nothing was written; read it again"
        )


def _removal(change: FileChange, before: FileAdded | None, call_id: str) -> list[FileBody]:
    if before is None:
        return []
    return [FileRemoved(area=change.path.area, path=change.path.path, call_id=call_id)]


def _check_tree(
    tree: Mapping[WorkspacePath, FileAdded],
    limits: WorkspaceLimits,
) -> None:
    total = workspace.total_size(tree.values())
    if len(tree) > limits.files:
        raise ToolError(
            f"the workspace would have {len(tree):,} files, and may have {limits.files:,}: nothing was written"
        )
    if total > limits.tree_bytes:
        raise ToolError(
            f"the workspace would have {total:,} bytes, and may have {limits.tree_bytes:,}: nothing was written"
        )
    problem = find_clash([str(path) for path in tree])
    if problem:
        raise ToolError(f"{problem}: nothing was written")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedData:
    """The type of some bytes, and their text or a line that describes them; an image has its pixels."""

    mime: str
    text: str
    is_text: bool
    width: int = 0
    height: int = 0
    moves: bool = False


def describe_data(name: str, data: bytes, stated: str = "") -> DescribedData:
    """Return what bytes are, by their content and, where that does not say it, by a stated type or the file's name."""
    image, text = parse_image(data), decoded_text(data)
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
        mime = attachments.PDF if data.startswith(PDF_SIGNATURE) else stated_type(stated)
        return DescribedData(mime=mime, text=f"{mime}, {len(data):,} bytes", is_text=False)
    return DescribedData(mime=text_type(PurePosixPath(name).name, stated), text=text, is_text=True)


def file_added(change: FileChange, data: bytes, version: int, call_id: str = "") -> FileAdded:
    """Return the body of a new version, with the type that its bytes have."""
    path, described = change.path, describe_data(change.path.path, data, change.mime)
    return FileAdded(
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
