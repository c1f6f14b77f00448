"""Shared files: agents start with a copy of their caller's `files/`, and their changes are merged into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loopline import timeline as tl
from loopline.files import FileChange
from loopline.refs import FileRef
from loopline.timeline.workspace_paths import WorkspacePath
from loopline.tools import ToolInvocation

_REFLECTIONS = tl.BodyUnion[tl.ReflectionDue](tl.ReflectionDue)


async def child_timeline(conversation: str, call: ToolInvocation) -> tl.Timeline | None:
    """Return the whole timeline of the conversation of a child run; None if it cannot be read."""
    view = None if call.reader.lookup is None else await call.reader.lookup(conversation)
    return None if view is None else await view.full()


async def child_reflections(call: ToolInvocation) -> tuple[tl.ReflectionDue, ...]:
    """Return the requests for lessons in the conversations of the call's child runs, in the order in which the runs began.

    Each caller records the requests of its child runs again, because lessons are written only for conversations of users.
    """
    turn = call.timeline.turn(tl.turn_number(call.context.turn_id))
    due: list[tl.ReflectionDue] = []
    for link in turn.children.values():
        if link.call_id != call.context.call_id:
            continue
        timeline = await child_timeline(link.conversation, call)
        if timeline is not None:
            due += [body for _, body in _REFLECTIONS.among(timeline.blocks) if body.agent]
    return tuple(due)


_FILES = tl.BodyUnion[tl.FileAdded](tl.FileAdded)
_LINKS = tl.BodyUnion[tl.RunChild](tl.RunChild)


@dataclass(frozen=True, slots=True)
class _AgentFiles:
    """The `files/` of an agent's run by path: `base` at its start, `after` at its end."""

    agent: str
    base: Mapping[str, tl.FileAdded]
    after: Mapping[str, tl.FileAdded]


@dataclass(slots=True, kw_only=True)
class SharedFiles:
    """The `files/` of a call: at its start, and those of its agents' ended runs by conversation."""

    call: ToolInvocation
    start: Mapping[str, tl.FileAdded]
    ended: dict[str, _AgentFiles] = field(default_factory=dict[str, _AgentFiles])

    @classmethod
    def of(cls, call: ToolInvocation) -> SharedFiles:
        """Return the files of a call at its start."""
        return cls(call=call, start=files_of(call.timeline))

    async def take(self, agent: str, number: int) -> None:
        """Read the files of the child run with that number, which has ended, from its conversation, and store them in `ended`.

        If the conversation cannot be read, its files are left out.
        """
        context = self.call.context
        name = tl.child_name(context.conversation, context.call_id, number)
        timeline = await child_timeline(name, self.call)
        if timeline is not None:
            base = {
                file.path: file
                for block, file in _FILES.among(timeline.blocks)
                if not block.round and file.area == "files"
            }
            self.ended[name] = _AgentFiles(agent, base, files_of(timeline))

    @property
    def merged(self) -> MergedFiles:
        """The files with the changes of all ended runs, applied in the order in which the log has their ends.

        The order of the log is the same when the call is resumed, so of two changes to one file the same one is kept.
        """
        merged = MergedFiles(start=self.start, tree=dict(self.start))
        if self.ended:
            for _, link in _LINKS.among(self.call.timeline.blocks):
                if link.reason and link.conversation in self.ended:
                    merged.apply(link.conversation, self.ended[link.conversation])
        return merged


@dataclass(slots=True, kw_only=True)
class MergedFiles:
    """The `files/` of a call with the changes of its agents.

    `conflicts` are messages about files that two agents have changed independently; the first change is kept.
    """

    start: Mapping[str, tl.FileAdded]
    tree: dict[str, tl.FileAdded]
    conflicts: list[str] = field(default_factory=list[str])

    @property
    def seeds(self) -> tuple[FileChange, ...]:
        """The files that the workspace of the next agent has at its start."""
        return tuple(_change(path, file) for path, file in self.tree.items())

    def apply(self, conversation: str, files: _AgentFiles) -> None:
        """Apply the changes of an agent's run; a file that was changed since the run began stays, as a conflict."""
        for path in [*files.after, *(files.base.keys() - files.after.keys())]:
            before = files.base.get(path)
            changed = files.after.get(path)
            current = self.tree.get(path)
            if _same(before, changed) or _same(current, changed):
                continue
            if not _same(before, current):  # another agent has changed it since this run began
                ref = FileRef(turn_id=tl.turn_id(1), area="files", path=path)
                self.conflicts.append(
                    f"files/{path} was also changed by {files.agent}, and stays without that change: "
                    f"cv:{conversation}/{ref}"
                )
            elif changed is None:
                del self.tree[path]
            else:
                self.tree[path] = changed

    @property
    def changes(self) -> Sequence[FileChange]:
        """The changes from the files at the start of the call to the merged files; removed files first."""
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


def files_of(timeline: tl.Timeline) -> dict[str, tl.FileAdded]:
    """Return the newest version of each file in `files/`, by path."""
    blocks: Mapping[str, tl.Block] = timeline.files.files
    return {path: file for path, block in blocks.items() for _, file in _FILES.among([block])}


def _change(path: str, file: tl.FileAdded, replaces: str | None = None) -> FileChange:
    """Return the change that writes this version to `files/<path>` in place of the version `replaces`."""
    return FileChange(
        path=WorkspacePath("files", path),
        data=tl.workspace.file_bytes(file),
        visibility=file.visibility,
        replaces=replaces,
        mime=file.mime,
        executable=file.executable,
    )


def _same(first: tl.FileAdded | None, second: tl.FileAdded | None) -> bool:
    if first is None or second is None:
        return first is second
    return (first.sha256, first.executable) == (second.sha256, second.executable)
