"""Shared files: agents that begin with their caller's `files/`, and whose changes come back to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loopline.files import FileChange
from loopline.refs import FileRef
from loopline.timeline import (
    Block,
    BodyUnion,
    FileAdded,
    ReflectionDue,
    RunChild,
    Timeline,
    child_name,
    turn_id,
    turn_number,
    workspace,
)
from loopline.timeline.workspace_paths import WorkspacePath
from loopline.tools import ToolInvocation

_REFLECTIONS = BodyUnion[ReflectionDue](ReflectionDue)


async def child_timeline(conversation: str, call: ToolInvocation) -> Timeline | None:
    """Return all of the conversation of a run that has ended; None if it cannot be read."""
    view = None if call.reader.lookup is None else await call.reader.lookup(conversation)
    return None if view is None else await view.full()


async def reflections_below(call: ToolInvocation) -> tuple[ReflectionDue, ...]:
    """Return the lessons that are due after runs that the call's own runs have begun, in the order in which those began.

    Nobody follows the conversation of a child run, so what is due there is recorded by its caller too, up to the
    conversation of the user.
    """
    turn = call.timeline.turn(turn_number(call.context.turn_id))
    due: list[ReflectionDue] = []
    for link in turn.children.values():
        own = link.call_id == call.context.call_id
        timeline = await child_timeline(link.conversation, call) if own else None
        if timeline is not None:
            due += [body for _, body in _REFLECTIONS.among(timeline.blocks) if body.agent]
    return tuple(due)


_FILES = BodyUnion[FileAdded](FileAdded)
_LINKS = BodyUnion[RunChild](RunChild)


@dataclass(frozen=True, slots=True)
class _LeftFiles:
    """The `files/` of the run of an agent: those that it began with, and those that it has left."""

    agent: str
    base: Mapping[str, FileAdded]
    after: Mapping[str, FileAdded]


@dataclass(slots=True, kw_only=True)
class SharedFiles:
    """The `files/` of a call: as it found them, and as agents whose runs have ended have left theirs."""

    call: ToolInvocation
    start: Mapping[str, FileAdded]
    left: dict[str, _LeftFiles] = field(default_factory=dict[str, _LeftFiles])

    @classmethod
    def of(cls, call: ToolInvocation) -> SharedFiles:
        """Return the files that a call has found."""
        return cls(call=call, start=files_of(call.timeline))

    async def take(self, agent: str, number: int) -> None:
        """Take over what an agent has left in the child run of that number, which has ended."""
        context = self.call.context
        name = child_name(context.conversation, context.call_id, number)
        timeline = await child_timeline(name, self.call)
        if timeline is not None:
            base = {
                file.path: file
                for block, file in _FILES.among(timeline.blocks)
                if not block.round and file.area == "files"
            }
            self.left[name] = _LeftFiles(agent, base, files_of(timeline))

    @property
    def merged(self) -> MergedFiles:
        """Return the files with the changes of all these agents, taken in the order of their ends in the log.

        So a call that is resumed, whose agents return in another order, takes the same of two changes of one file.
        """
        merged = MergedFiles(start=self.start, tree=dict(self.start))
        if self.left:
            for _, link in _LINKS.among(self.call.timeline.blocks):
                if link.reason and link.conversation in self.left:
                    merged.take(link.conversation, self.left[link.conversation])
        return merged


@dataclass(slots=True, kw_only=True)
class MergedFiles:
    """The `files/` of a call with the changes of its agents.

    `conflicts` are files that two agents have changed, each without the change of the other; the first change counts.
    """

    start: Mapping[str, FileAdded]
    tree: dict[str, FileAdded]
    conflicts: list[str] = field(default_factory=list[str])

    @property
    def seeds(self) -> tuple[FileChange, ...]:
        """Return what an agent that begins now begins with."""
        return tuple(_change(path, file) for path, file in self.tree.items())

    def take(self, conversation: str, left: _LeftFiles) -> None:
        """Take over what an agent has changed since it began; what another has changed meanwhile stays."""
        for path in [*left.after, *(left.base.keys() - left.after.keys())]:
            before, changed = left.base.get(path), left.after.get(path)
            current = self.tree.get(path)
            if _same(before, changed) or _same(current, changed):
                continue
            if not _same(before, current):
                ref = FileRef(turn_id=turn_id(1), area="files", path=path)
                self.conflicts.append(
                    f"files/{path} was also changed by {left.agent}, and stays without that change: "
                    f"cv:{conversation}/{ref}"
                )
            elif changed is None:
                del self.tree[path]
            else:
                self.tree[path] = changed

    @property
    def changes(self) -> Sequence[FileChange]:
        """Return the changes of all agents, as the call records them."""
        written = [
            _change(path, file, self._digest(path))
            for path, file in self.tree.items()
            if not _same(self.start.get(path), file)
        ]
        removed = [
            FileChange(path=WorkspacePath("files", path), data=None, replaces=self._digest(path))
            for path in self.start
            if path not in self.tree
        ]
        return [*removed, *written]

    def _digest(self, path: str) -> str:
        file = self.start.get(path)
        return "" if file is None else file.sha256


def files_of(timeline: Timeline) -> dict[str, FileAdded]:
    """Return the newest versions in `files/`, by path."""
    blocks: Mapping[str, Block] = timeline.files.files
    return {path: file for path, block in blocks.items() for _, file in _FILES.among([block])}


def _change(path: str, file: FileAdded, replaces: str | None = None) -> FileChange:
    return FileChange(
        path=WorkspacePath("files", path),
        data=workspace.file_bytes(file),
        visibility=file.visibility,
        replaces=replaces,
        mime=file.mime,
        executable=file.executable,
    )


def _same(first: FileAdded | None, second: FileAdded | None) -> bool:
    if first is None or second is None:
        return first is second
    return (first.sha256, first.executable) == (second.sha256, second.executable)
