"""Checkpoints: they list the older blocks that are still needed, and a conversation opens from these alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loopline.refs import ArtifactRef, BlockRef, CallRef, FileRef, PlanRef, Ref, SummaryRef
from loopline.timeline import bodies
from loopline.timeline.blocks import Block, BodyUnion, input_seq_of
from loopline.timeline.codec import body_types
from loopline.timeline.log import ConversationKey, TimelineLog
from loopline.timeline.open_calls import BackgroundWork
from loopline.timeline.plan import Plan, Plans
from loopline.timeline.prompt_blocks import Checkpoint, ModelOverflowed, RoundStart
from loopline.timeline.sources import SourceAdded
from loopline.timeline.timeline import FileTree, TakenBody, Timeline, take_file, turn_number
from loopline.timeline.turn_state import OverflowLessons
from loopline.timeline.workspace import FileAdded, FileBody, FileRemoved, FilesPulled

Learned = Mapping[str, tuple[float, ...]]

CarriedBody = (
    Plan
    | SourceAdded
    | bodies.TextKept
    | bodies.Imported
    | bodies.ToolResult
    | bodies.Feedback
    | bodies.TurnHeader
    | FileBody
    | bodies.ModeChanged
    | bodies.Schedule
)
WaitingBody = (
    TakenBody | bodies.CustomEvent | bodies.BackgroundStop | ModelOverflowed | bodies.Decision
)
"""These bodies and those of `CarriedBody` decide what a checkpoint carries."""
_CARRIED = BodyUnion[CarriedBody](CarriedBody)
_WAITING = BodyUnion[WaitingBody](WaitingBody)
_ROUNDS = BodyUnion[RoundStart](RoundStart)
SaidBody = bodies.InputBody | bodies.Feedback | bodies.Exit
"""The bodies that a turn may have before a runner starts it."""
_SAID = BodyUnion[SaidBody](SaidBody)
CourseBody = bodies.TurnHeader | bodies.Exit | bodies.ToolCalled | bodies.ToolResult
_COURSE = BodyUnion[CourseBody](CourseBody)


async def open_timeline(log: TimelineLog, conversation: ConversationKey) -> Timeline:
    """Read a conversation from its newest checkpoint on, and return its timeline.

    It is read in full if it has no checkpoint, or if the checkpoint covers unknown types of blocks. The folds are those
    of the full conversation, but turns that ended before the checkpoint are missing. `History` reads the blocks that
    the timeline does not have.
    """
    for block in await log.read(conversation, types=["conv.checkpoint"], last=1):
        base = block.body
        if isinstance(base, Checkpoint) and base.covers < block.seq and _is_known(base):
            blocks = await log.read(conversation, after=base.covers, also=base.carries)
            return Timeline(blocks, base)
    return Timeline(await log.read(conversation))


def trimmed(timeline: Timeline) -> Timeline:
    """Return the timeline from its newest checkpoint on; the same timeline if that checkpoint is its base or unknown."""
    newest = timeline.checkpoint
    if newest.covers <= timeline.base.covers or not _is_known(newest):
        return timeline
    return Timeline([*timeline.at(newest.carries), *timeline.after(newest.covers)], newest)


async def reaching(
    log: TimelineLog, conversation: ConversationKey, timeline: Timeline, turn: int
) -> Timeline:
    """Return the timeline if it has that turn in full, else read the full conversation.

    A turn that ended before the checkpoint is not in the timeline.
    """
    existing = timeline.turns.get(turn)
    if not timeline.base.covers or (existing is not None and existing.prompt is not None):
        return timeline
    return Timeline(await log.read(conversation))


def _is_known(base: Checkpoint) -> bool:
    """Return whether this version of Loopline knows every body type before the checkpoint."""
    return body_types().keys() >= set(base.types)


def checkpoint_seq(timeline: Timeline, start: int) -> int:
    """Return the seq for a new checkpoint when prompts show the blocks after `start`; 0 if no seq is possible.

    The checkpoint is directly before the last turn that started up to `start`.
    """
    covered = timeline.checkpoint.covers
    for block in reversed(timeline.between(covered, start)):
        if block.n == 1 and isinstance(block.body, bodies.TurnHeader):
            return block.seq - 1 if block.seq - 1 > covered else 0
    return 0


def checkpoint(timeline: Timeline, covers: int, learned: Learned) -> Checkpoint | None:
    """Return a checkpoint that covers the blocks up to `covers`, after the newest checkpoint; it also stores `learned`.

    None if a turn or a call that started after the newest checkpoint is open at `covers`, or if the new checkpoint
    would not reduce the number of blocks to read. The result depends only on the blocks up to `covers`, and is the same
    for a full timeline and one that was opened from a checkpoint.
    """
    before = timeline.checkpoint
    since = timeline.between(before.covers, covers)
    matter = _CarriedBlocks(timeline.at(before.carries), since, before.plans)
    carries = tuple(sorted(matter.seqs()))
    if _has_open_work(since) or covers - len(carries) <= before.covers - len(before.carries):
        return None
    texts = list(before.texts)
    for _, start in _ROUNDS.among(since):
        texts += [start.system_sha256] if start.system else []
        texts += [start.tools_sha256] if start.tools else []
    return Checkpoint(
        covers=covers,
        carries=carries,
        calls=before.calls + sum(isinstance(block.body, bodies.ToolCalled) for block in since),
        texts=tuple(dict.fromkeys(texts)),
        types=tuple(sorted({*before.types, *(block.type for block in since)})),
        plans=matter.plans.started,
        learned=dict(learned),
        carries_background=True,
    )


class _CarriedBlocks:
    """The fold that selects the blocks up to a checkpoint that no later block makes obsolete."""

    def __init__(self, carried: Sequence[Block], since: Sequence[Block], plans: int) -> None:
        self._blocks = [*carried, *since]
        self.plans: Plans = Plans()
        self._snapshots: dict[str, int] = {}
        self._judged: dict[int, int] = {}
        self._always: list[int] = []
        self._newest: dict[type[bodies.Body], int] = {}
        self._background = BackgroundWork()
        self._pending: dict[int, Block] = {}
        self._files = FileTree()
        self._overflows = OverflowLessons()
        for block in carried:
            self._take(block)
        self.plans.started = plans
        for block in since:
            self._take(block)

    def seqs(self) -> set[int]:
        """Return the seqs of the blocks that the checkpoint carries."""
        calls = self._background.calls
        lessons = self._overflows.by_model.values()
        return {
            *self._always,
            *self._newest.values(),
            *self._judged.values(),
            *map(self._snapshots.__getitem__, self.plans.latest),
            *(lesson.seq for lesson in lessons if lesson.body.named),
            *(block.seq for block in self._files.files.values()),
            *(block.seq for block, _ in calls.values()),
            *(seq for call_id, seq in self._background.stops.items() if call_id in calls),
            *self._waiting(),
        }

    def _take(self, block: Block) -> None:
        body = block.body
        if _WAITING.has(body):
            self._take_waiting(block, body)
        elif _CARRIED.has(body):
            self._take_carried(block, body)

    def _take_carried(self, block: Block, body: CarriedBody) -> None:
        """Fold plans, sources, texts, imports, feedback, settings and files; note the seqs that must be carried.

        A tool result is carried only if it shows the same text under several refs of knowledge. Of the headers with a
        knowledge space only the newest is carried.
        """
        match body:
            case Plan(snapshot=snapshot):
                self.plans.take(snapshot)
                self._snapshots[snapshot.plan_id] = block.seq
            case SourceAdded() | bodies.TextKept() | bodies.Imported():
                self._always.append(block.seq)
            case bodies.ToolResult(shows=shows):
                self._always += [block.seq] if _has_repeated_text(shows) else []
            case bodies.Feedback(origin=origin):
                self._newest[bodies.Feedback] = block.seq
                if origin == "user":
                    self._judged[block.turn] = block.seq
            case bodies.TurnHeader(knowledge=knowledge):
                take_file(self._files, block)
                if knowledge is not None:
                    self._newest[bodies.TurnHeader] = block.seq
            case FileAdded() | FileRemoved() | FilesPulled():
                take_file(self._files, block)
            case bodies.ModeChanged() | bodies.Schedule():
                self._newest[type(body)] = block.seq

    def _take_waiting(self, block: Block, body: WaitingBody) -> None:
        """Fold pending input, background calls without a result, and requests that were too long."""
        match body:
            case ModelOverflowed() | bodies.Decision():
                self._overflows.take(block, body)
            case bodies.CustomEvent() | bodies.BackgroundStop():
                self._background.take(block, body)
            case bodies.UserPrompt() | bodies.UserFollowup() | bodies.UserSteer():
                self._pending[block.seq] = block
            case bodies.BackgroundResult():
                self._pending[block.seq] = block
                self._background.take(block, body)
            case bodies.UserRecalled(said=said):
                self._pending.pop(said, None)
            case RoundStart(takes=takes):
                self._overflows.take(block, body)
                for seq in takes:
                    self._pending.pop(seq, None)

    def _waiting(self) -> set[int]:
        """Return the seqs of pending inputs, and of the older blocks that are needed with them.

        These are their attachments, the user's blocks and exits of turns with a pending prompt, and the rounds and
        recalls that refer to a block of the result.
        """
        pending = self._pending
        prompted = {
            block.turn for block in pending.values() if isinstance(block.body, bodies.UserPrompt)
        }
        seqs = {
            block.seq
            for block in self._blocks
            if (block.turn in prompted and _SAID.has(block.body)) or input_seq_of(block) in pending
        }
        seqs |= pending.keys()
        return seqs | {block.seq for block in self._blocks if _takes_or_recalls(block, seqs)}


def _takes_or_recalls(block: Block, seqs: set[int]) -> bool:
    body = block.body
    if isinstance(body, bodies.UserRecalled):
        return body.said in seqs
    return isinstance(body, RoundStart) and not seqs.isdisjoint(body.takes)


def _has_repeated_text(shows: Sequence[tuple[str, str]]) -> bool:
    """Return whether the same text was shown under two pinned refs of knowledge, of which only one has its text."""
    digests = [digest for name, digest in shows if name.startswith("ks:") and "@" in name]
    return len(set(digests)) < len(digests)


def _has_open_work(blocks: Iterable[Block]) -> bool:
    """Return whether a turn that has its header in these blocks has not ended, or a call in them has no result."""
    turns = set[int]()
    calls = set[str]()
    for block, body in _COURSE.among(blocks):
        match body:
            case bodies.TurnHeader():
                turns.add(block.turn)
            case bodies.Exit():
                turns.discard(block.turn)
            case bodies.ToolCalled(call_id=call_id):
                calls.add(call_id)
            case bodies.ToolResult(call_id=call_id):
                calls.discard(call_id)
    return bool(turns or calls)


class History:
    """Access to the blocks of a conversation that its timeline does not have.

    The full conversation is read at most once and cached in the timeline.
    """

    def __init__(self, log: TimelineLog, conversation: ConversationKey, timeline: Timeline) -> None:
        self._log = log
        self._conversation = conversation
        self._timeline = timeline

    async def full(self) -> Timeline:
        """Return the timeline of all blocks of the conversation up to the `seq` of the present timeline.

        The first call reads the log if the timeline has a base; later calls extend the cached timeline.
        """
        timeline = self._timeline
        if not timeline.base.covers:
            return timeline
        full = timeline.full
        if full is None:
            blocks = await self._log.read(self._conversation, limit=timeline.base.covers)
            full = timeline.full = Timeline(blocks)
        full.extend(timeline.after(full.seq))
        return full

    async def containing(self, ref: Ref) -> Timeline:
        """Return a timeline whose `find` gives the same result for the ref as the timeline of all blocks."""
        match ref:
            case FileRef(area="files", turn_id=turn_id, version=None):
                turn = self._timeline.turns.get(turn_number(turn_id))
                is_after_base = turn is not None and turn.header is not None
                return self._timeline if is_after_base else await self.full()
            case (
                BlockRef(turn_id=turn_id)
                | CallRef(turn_id=turn_id)
                | ArtifactRef(turn_id=turn_id)
                | SummaryRef(turn_id=turn_id)
                | FileRef(turn_id=turn_id)
            ):
                return await self._open_with_turn(turn_number(turn_id))
            case PlanRef() if self._timeline.find(ref) is None:
                return Timeline(await self.read_type("react.plan"))
            case _:
                return self._timeline

    async def read_type(self, kind: str) -> Sequence[Block]:
        """Return every block of the stored type `kind`, also those that the timeline does not have, oldest first."""
        timeline = self._timeline
        if not timeline.base.covers:
            return [block for block in timeline.blocks if block.type == kind]
        blocks = await self._log.read(self._conversation, types=[kind])
        return [block for block in blocks if block.seq <= timeline.seq]

    async def _open_with_turn(self, turn: int) -> Timeline:
        """Return a timeline that has that turn in full; it may have only the blocks of that turn.

        If the prompt of a turn was recalled, a checkpoint may not carry the prompt although the turn starts after it.
        """
        timeline = self._timeline
        existing = timeline.turns.get(turn)
        is_held = existing is not None and None not in (existing.header, existing.prompt)
        if not timeline.base.covers or is_held:
            return timeline
        if timeline.full is not None:
            return await self.full()
        blocks = await self._log.read(self._conversation, turn=turn)
        return Timeline(block for block in blocks if block.seq <= timeline.seq)
