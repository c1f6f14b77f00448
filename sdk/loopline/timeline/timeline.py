"""The state of a conversation: the fold of its blocks, extended block by block.

Everything here can be computed again from the blocks, and the cost of a block does not depend on its position.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import ClassVar, TypeVar

from msgspec import Struct, structs

from loopline.refs import ArtifactRef, BlockRef, CallRef, FileRef, PlanRef, Ref, SummaryRef
from loopline.timeline.attachments import UserAttachment
from loopline.timeline.blocks import Block, BodyUnion, Fold, input_seq_of
from loopline.timeline.bodies import (
    ApprovalMode,
    ArtifactKept,
    BackgroundResult,
    BackgroundStop,
    CustomEvent,
    Decision,
    Exit,
    Feedback,
    Imported,
    InboxBody,
    KnowledgeCommit,
    ModeChanged,
    ProxiedBody,
    ProxiedCall,
    ProxiedResult,
    Schedule,
    TextKept,
    ToolCalled,
    ToolResult,
    TurnHeader,
    Unknown,
    UserFollowup,
    UserPrompt,
    UserRecalled,
    UserSteer,
)
from loopline.timeline.feedback import Reactions
from loopline.timeline.open_calls import BackgroundWork
from loopline.timeline.plan import Plan, Plans
from loopline.timeline.prompt_blocks import Checkpoint, ModelOverflowed, RoundStart, turn_id
from loopline.timeline.sources import SourceAdded, SourcePool
from loopline.timeline.turn_state import OverflowLessons, Turn
from loopline.timeline.workspace import (
    EMPTY_START,
    FileAdded,
    FileBody,
    FileRemoved,
    FilesPulled,
    WorkspaceArea,
)

F = TypeVar("F")

# The bodies that the state of a conversation reads, apart from the state of its turns.
CourseBody = TurnHeader | Exit | ToolCalled | Checkpoint | ModelOverflowed | Decision | Imported
_COURSE = BodyUnion[CourseBody](CourseBody)
TakenBody = InboxBody | UserRecalled | RoundStart
SentBody = TakenBody | ModeChanged | Schedule | CustomEvent | BackgroundStop
_SENT = BodyUnion[SentBody](SentBody)
HeldBody = ToolResult | Plan | SourceAdded | TextKept | ArtifactKept | Feedback | FileBody | Unknown
_HELD = BodyUnion[HeldBody](HeldBody)
_RESTORED = BodyUnion[UserPrompt | Exit](UserPrompt | Exit)

_FILES = BodyUnion[UserAttachment](UserAttachment)
FoundBody = ToolCalled | ToolResult | ProxiedBody | ArtifactKept | UserAttachment | Plan | FileBody
"""The bodies that can be found by another ref than `ar:<turn>.<type>.<n>`."""
_FOUND = BodyUnion[FoundBody](FoundBody)


_TURN_ID = re.compile(r"turn_([1-9][0-9]{0,9})")


class _Names(Struct):
    """An index of blocks by ref. It is created at the first lookup, since most turns have none."""

    blocks: dict[str, Block] = {}
    newest: dict[tuple[str, str], Block] = {}
    plans: dict[str, Block] = {}
    files: dict[str, Block] = {}
    block_count: int = 0

    def extend(self, blocks: Sequence[Block]) -> None:
        """Index the new blocks: `blocks` are all blocks, of which the first `block_count` are indexed already."""
        for block in blocks[self.block_count :]:
            turn_id = block.turn_id
            kind = block.type
            self.blocks[f"ar:{turn_id}.{kind}.{block.n}"] = block
            self.newest[turn_id, kind] = block
            body = block.body
            if not _FOUND.has(body):
                continue
            match body:
                case ToolCalled() | ToolResult() | ProxiedCall() | ProxiedResult() | ArtifactKept():
                    self.blocks[block.ref] = block
                case UserAttachment():
                    self.blocks.setdefault(
                        block.ref, block
                    )  # the ref of a name means its first file
                case Plan(snapshot=snapshot):
                    self.plans[snapshot.plan_id] = block
                case FileAdded(area=area, path=path):
                    self.blocks[block.ref] = block
                    self.files[str(FileRef(turn_id=turn_id, area=area, path=path))] = block
                case FilesPulled():
                    pass
                case FileRemoved(area=area, path=path):
                    self.files.pop(str(FileRef(turn_id=turn_id, area=area, path=path)), None)
        self.block_count = len(blocks)


_PROJECT = 0
"""The key of the project in the sums of sizes; turns have their number, from 1."""


class FileTree(Struct):
    """The newest version of each file: the project after the last folded block, and the outputs of each turn.

    Both are by path, the last changed file last. `versions` are the numbers of the newest versions, by turn, area and
    path. `pulled` are the refs of pulled files by turn.
    """

    files: dict[str, Block] = {}
    outputs: dict[int, dict[str, Block]] = {}
    versions: dict[tuple[int, WorkspaceArea, str], int] = {}

    pulled: dict[int, dict[str, None]] = {}
    _totals: dict[int, int] = {}

    def take(self, block: Block, body: FileBody) -> None:
        """Add a version of a file, remove a file, or add the refs of pulled files; the sums of sizes are updated."""
        match body:
            case FileAdded(area=area, path=path, version=version, size=size):
                self._remove(area, block.turn, path)
                self._area(area, block.turn)[path] = block
                self.versions[block.turn, area, path] = version
                place = _PROJECT if area == "files" else block.turn
                self._totals[place] = self._totals.get(place, 0) + size
            case FileRemoved(area=area, path=path):
                self._remove(area, block.turn, path)
            case FilesPulled(refs=refs):
                self.pulled.setdefault(block.turn, {}).update(dict.fromkeys(refs))

    def _area(self, area: WorkspaceArea, turn: int) -> dict[str, Block]:
        return self.files if area == "files" else self.outputs.setdefault(turn, {})

    def _remove(self, area: WorkspaceArea, turn: int, path: str) -> None:
        removed = self._area(area, turn).pop(path, None)
        if removed is not None and isinstance(removed.body, FileAdded):
            self._totals[_PROJECT if area == "files" else turn] -= removed.body.size

    def size_at(self, turn: int) -> int:
        """Return the bytes of the project and of the turn's outputs together."""
        return self._totals.get(_PROJECT, 0) + self._totals.get(turn, 0)

    def newest_at(self, turn: int, count: int) -> list[Block]:
        """Return the `count` last changed files of the project, then those of the turn's outputs, oldest change first."""
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

    def changed_in(self, turn: int) -> list[Block]:
        """Return the outputs of the turn, and the files of the project whose newest version is of the turn."""
        changed = takewhile(lambda block: block.turn >= turn, reversed(self.files.values()))
        project = [block for block in changed if block.turn == turn][::-1]
        return [*self.outputs.get(turn, {}).values(), *project]

    def outputs_of(self, turn: int) -> Mapping[str, Block]:
        """Return the outputs of the turn by path."""
        return self.outputs.get(turn, {})


class Timeline:
    """The blocks of a conversation and the state that follows from them.

    With a `base` the blocks are those that the checkpoint carries and all blocks after it. The folds are then the same
    as for the full conversation, but turns that ended before the checkpoint are missing. `seq` is the seq of the last
    block, 0 without blocks. `mode` is the approval mode. `schedule` are the messages that wait for their time, stored at `schedule_seq`. `pending` are the inputs that no round has taken, by seq. `unknown` is the first block of an
    unknown type. `kept_texts` are texts by the ref under which they were stored, `shown_texts` digests of texts by the
    refs under which tools showed them. `artifacts` are the newest versions by turn and name. `system_texts` and
    `tool_texts` are the texts of prompts by digest, and `known_texts` all digests whose text the log has. `full` is the
    timeline of all blocks, if `History` has read it.
    """

    full: Timeline | None = None

    def __init__(self, blocks: Iterable[Block] = (), base: Checkpoint | None = None) -> None:
        self.base: Checkpoint = base or Checkpoint()
        self.checkpoint: Checkpoint = self.base
        self.blocks: list[Block] = []
        self.seq: int = self.base.covers
        self.pending: dict[int, Block] = {}
        self.recalled: set[int] = set()
        self.plans: Plans = Plans()
        self.pool: SourcePool = SourcePool()
        self.reactions: Reactions = Reactions()
        self.calls: int = self.base.calls
        self.last_round: RoundStart | None = None
        self.mode: ApprovalMode = "ask"
        self.schedule: Schedule = Schedule()
        self.schedule_seq: int = 0
        self.unknown: Block | None = None
        self.shown_texts: dict[str, str] = {}
        self.kept_texts: dict[str, TextKept] = {}
        self.artifacts: dict[tuple[int, str], int] = {}
        self.files: FileTree = FileTree()
        self.system_texts: dict[str, str] = {}
        self.tool_texts: dict[str, str] = {}
        self.known_texts: set[str] = set(self.base.texts)
        self.knowledge: list[KnowledgeCommit] = []
        self.overflows: OverflowLessons = OverflowLessons()
        self.background: BackgroundWork = BackgroundWork()
        self.last_request: Block | None = None
        self._turns: dict[int, Turn] = {}
        self._waiting: dict[
            int, list[Block]
        ] = {}  # the blocks of turns whose state was not used yet
        self._started: dict[int, None] = {}
        self._kept_folds: dict[str, object] = {}
        self._names: _Names | None = None
        block_list = list(blocks)
        for block in block_list[: _count(block_list, self.base.covers)]:
            self.blocks.append(block)
            if _RESTORED.has(block.body):  # its turn is not in this timeline
                self.turn(block.turn).take(block)
            fold = self._folds.get(type(block.body))
            if fold is not None:
                fold(self, block, block.body)
        self.plans.started = self.base.plans
        self.extend(block_list)

    def after(self, seq: int) -> Sequence[Block]:
        """Return the blocks whose seq is greater than `seq`."""
        return self.blocks[_count(self.blocks, seq) :]

    def until(self, seq: int) -> Sequence[Block]:
        """Return the blocks up to `seq`, included."""
        return self.blocks[: _count(self.blocks, seq)]

    def between(self, after: int, until: int) -> Sequence[Block]:
        """Return the blocks after the seq `after` and up to the seq `until`, included."""
        return self.blocks[_count(self.blocks, after) : _count(self.blocks, until)]

    def at(self, seqs: Iterable[int]) -> list[Block]:
        """Return the blocks with these seqs; the timeline must have all of them."""
        return [self.blocks[_count(self.blocks, seq) - 1] for seq in seqs]

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def fold(self, kind: type[F], name: str, make: Callable[[], F]) -> F:
        """Return the fold of the class `kind` stored under that name, created with `make` if it is missing.

        The timeline stores the fold and does not extend it: the caller folds new blocks into it.
        """
        existing = self._kept_folds.get(name)
        fold = existing if isinstance(existing, kind) else make()
        self._kept_folds[name] = fold
        return fold

    def turn(self, number: int) -> Turn:
        """Return the state of the turn with that number; an empty state if the timeline has no block of it."""
        turn = self._turns.get(number)
        if turn is None:
            turn = self._turns[number] = Turn(number)
        if self._waiting:
            for block in self._waiting.pop(number, ()):
                turn.take(block)
        return turn

    @property
    def turns(self) -> dict[int, Turn]:
        """All turns by number, in the order of their first blocks."""
        for number in [*self._waiting]:
            self.turn(number)
        return self._turns

    @property
    def resumable(self) -> list[Turn]:
        """The unfinished turns that may be resumed, oldest first."""
        return [turn for turn in self.unfinished if not turn.inert]

    @property
    def unfinished(self) -> list[Turn]:
        """The turns that a runner started and that have no exit, oldest first."""
        return [turn for turn in map(self.turn, self._started) if not turn.exit]

    @property
    def queued(self) -> list[Turn]:
        """The turns with a pending prompt that no runner has started, oldest first."""
        prompts = [block for block in self.pending.values() if isinstance(block.body, UserPrompt)]
        turns = [self.turn(prompt.turn) for prompt in prompts]
        return [turn for turn in turns if not turn.header and not turn.exit]

    @property
    def open_turns(self) -> list[Turn]:
        """The turns that may be run: the turns to resume, then the turns to start, each oldest first."""
        return [*self.resumable, *self.queued]

    def has_later_message(self, turn: Turn) -> bool:
        """Return whether a prompt is pending that was sent after the newest question of the turn."""
        return any(
            block.seq > turn.asked_seq and isinstance(block.body, UserPrompt)
            for block in self.pending.values()
        )

    @property
    def next_turn(self) -> Turn | None:
        """The oldest turn to resume, else the oldest turn to start, else None.

        A paused turn is skipped if a prompt was sent after its question, because that prompt ends the paused turn. So
        are prompts that were sent before the question: they wait until the paused turn has ended.
        """
        asked_seq = 0
        for turn in self.open_turns:
            if turn.is_paused and self.has_later_message(turn):
                asked_seq = max(asked_seq, turn.asked_seq)
            elif turn.header is not None or turn.prompt is None or turn.prompt.seq > asked_seq:
                return turn
        return None

    def prompts_after(self, turn: int) -> list[str]:
        """Return the refs of the prompts that are queued behind that turn, oldest first."""
        if not self.pending:
            return []
        later = [queued.prompt for queued in self.queued if queued.number > turn]
        return [prompt.ref for prompt in later if prompt is not None]

    def inputs_for(self, turn: int) -> list[Block]:
        """Return the pending inputs that the next round of that turn takes, in order.

        They are the turn's own prompt, followups, steers and background results, and prompts of turns that ended before
        a round took them. The prompt of a turn that has not run is left for that turn.
        """
        if not self.pending:
            return []
        return [
            block
            for block in self.pending.values()
            if block.turn == turn
            or not isinstance(block.body, UserPrompt)
            or self.turn(block.turn).exit is not None
        ]

    def attachments(self, seq: int) -> list[UserAttachment]:
        """Return the files that were attached to the input at that seq."""
        after = islice(self.blocks, _count(self.blocks, seq), None)
        files = takewhile(lambda block: input_seq_of(block) == seq, after)
        return [file for _, file in _FILES.among(files)]

    def find_attachments(self, number: int) -> list[UserAttachment]:
        """Return the files that the user attached in that turn, in order; empty if the timeline does not have it."""
        return [file for block, file in _FILES.among(self.blocks) if block.turn == number]

    def find(self, ref: Ref) -> Block | None:
        """Return the block that a ref names, ignoring its span; None if this timeline does not have it.

        A ref without a number or version names the newest block of its turn. A ref of a kind that does not name blocks,
        such as a skill, gives None.
        """
        names = self._names = self._names or _Names()
        names.extend(self.blocks)
        match ref:
            case SummaryRef(turn_id=turn_id, n=n):
                kind = "conv.range.summary"
                return self.find(BlockRef(turn_id=turn_id, type=kind, n=n))
            case BlockRef(turn_id=turn_id, type=kind, n=None):
                return names.newest.get((turn_id, kind))
            case BlockRef(turn_id=turn_id, type=kind, n=n):
                return names.blocks.get(f"ar:{turn_id}.{kind}.{n}")
            case CallRef(turn_id=turn_id, call_id=call_id, part=part):
                return names.blocks.get(f"tc:{turn_id}.{call_id}.{part}")
            case ArtifactRef(turn_id=turn_id, name=name, version=version):
                newest = version or self.artifacts.get((turn_number(turn_id), name), 0)
                named = ArtifactRef(turn_id=turn_id, name=name, version=newest)
                return names.blocks.get(str(named))
            case FileRef(area="user.attachments", version=None):
                return names.blocks.get(str(structs.replace(ref, span=None)))
            case FileRef(area="files" | "outputs"):
                return self._find_file(names, structs.replace(ref, span=None))
            case PlanRef(plan_id=plan_id):
                return names.plans.get(plan_id)
            case _:
                return None

    def _find_file(self, names: _Names, ref: FileRef) -> Block | None:
        """Return the version that the ref names; without one the newest version of the turn, else the file at its start."""
        number = turn_number(ref.turn_id)
        if ref.version is not None:
            return names.blocks.get(str(ref))
        block = names.files.get(str(ref))
        if block is not None or ref.area == "outputs" or number not in self._turns:
            return block
        return self.files_at(number).files.get(ref.path)

    def files_at(self, number: int) -> FileTree:
        """Return the files as they were at the end of that turn, or now for the last turn.

        The files of an earlier turn are computed from all blocks at each call.
        """
        if number >= max(self._turns, default=0):
            return self.files
        tree = FileTree()
        for block in self.blocks:
            if block.turn <= number:
                take_file(tree, block)
        return tree

    def extend(self, blocks: Iterable[Block]) -> None:
        """Fold further blocks; blocks up to the present `seq` are skipped."""
        turns = self._turns
        waiting = self._waiting
        folds = self._folds
        kept = self.blocks
        for block in blocks:
            seq = block.seq
            if seq <= self.seq:
                continue
            self.seq = seq
            kept.append(block)
            number = block.turn
            body = block.body
            if number in waiting:
                waiting[number].append(block)
            elif number in turns:
                turns[number].take(block)
            else:
                turns[number] = Turn(number)
                waiting[number] = [block]
            fold = folds.get(type(body))
            if fold is not None:
                fold(self, block, body)

    def _fold_course(self, block: Block, body: CourseBody) -> None:
        """Fold tool calls, checkpoints, imports, requests that were too long, decisions, headers and exits."""
        match body:
            case ToolCalled():
                self.calls += 1
            case Checkpoint():
                self.checkpoint = body
            case Imported(confirmed=confirmed):
                self._make_inert(confirmed)
                self.background.take(block, body)
            case ModelOverflowed():
                self.overflows.take(block, body)
            case Decision():
                if self.overflows.by_model:
                    self.overflows.take(block, body)
            case TurnHeader():
                take_file(self.files, block)
                self._add_commits(body)
                if block.seq > self.base.covers:  # a carried header has no turn in this timeline
                    self._started[block.turn] = None
            case Exit():
                self._started.pop(block.turn, None)

    def _add_commits(self, header: TurnHeader) -> None:
        """Add the commits of the header that differ from the newest commit of the same repository name."""
        if header.knowledge is None and not header.repositories:  # as in most bundles
            return
        newest = {commit.name: commit for commit in self.knowledge}
        self.knowledge += [
            commit for commit in header.knowledge_commits if newest.get(commit.name) != commit
        ]

    def _make_inert(self, confirmed: Sequence[str]) -> None:
        """Mark unfinished and queued turns as inert and drop repositories, except those named in `confirmed`.

        The names are those of `ImportedAction`. The prompts of inert queued turns are recalled, the mode `accept_reads`
        becomes `ask`, and all scheduled messages are dropped.
        """
        self.mode = "ask" if self.mode == "accept_reads" else self.mode
        self.schedule = Schedule()
        for turn in [*self.unfinished, *self.queued]:
            turn.inert = turn.inert or turn_id(turn.number) not in confirmed
            if turn.inert and turn.header is None and turn.prompt is not None:
                self.recalled.add(turn.prompt.seq)
                self.pending.pop(turn.prompt.seq, None)
        trusted = [
            commit for commit in self.knowledge if repository_action(commit.repository) in confirmed
        ]
        self.knowledge[:] = trusted

    def _fold_sent(self, block: Block, body: SentBody) -> None:
        """Fold inputs and recalls, the rounds that take inputs, settings, schedules, and background calls."""
        match body:
            case RoundStart():
                self._fold_round(block, body)
            case UserRecalled(said=said):
                if self.pending.pop(said, None) is not None:
                    self.recalled.add(said)
            case UserPrompt() | UserFollowup() | UserSteer():
                self.pending[block.seq] = block
            case BackgroundResult():
                self.pending[block.seq] = block
                self.background.take(block, body)
            case CustomEvent() | BackgroundStop():
                self.background.take(block, body)
            case ModeChanged(mode=mode):
                self.mode = mode
            case Schedule():
                self.schedule = body
                self.schedule_seq = block.seq

    def _fold_round(self, block: Block, start: RoundStart) -> None:
        """Remove the inputs that the round takes from `pending`; store its request and its new system and tool texts.

        A round without a model is not stored as a request. If it takes a steer, the turn stores its number of rounds.
        """
        if start.takes:
            inputs = [self.pending.pop(seq, None) for seq in start.takes]
            if any(taken is not None and isinstance(taken.body, UserSteer) for taken in inputs):
                turn = self.turn(block.turn)
                turn.steered_at_round = turn.rounds
        if not start.model:
            return
        self.last_request = block
        self.overflows.estimate = start.tokens
        if start.shows == "context":
            self.last_round = start
        if start.system:
            self.known_texts.add(start.system_sha256)
            self.system_texts[start.system_sha256] = start.system
        if start.tools:
            self.known_texts.add(start.tools_sha256)
            self.tool_texts[start.tools_sha256] = start.tools

    def _fold_content(self, block: Block, body: HeldBody) -> None:
        """Fold results, plans, sources, texts, artifacts, feedback, files, and the first body of an unknown type."""
        match body:
            case ToolResult(shows=shows):
                self.shown_texts.update(shows)
            case Plan(snapshot=snapshot):
                self.plans.take(snapshot)
            case SourceAdded(source=source):
                self.pool.take(body)
                if source.text:
                    text = TextKept(ref=source.url, text=source.text, title=source.title)
                    self.kept_texts[source.url] = text
            case TextKept(ref=ref):
                self.kept_texts[ref] = body
            case ArtifactKept(name=name, version=version):
                self.artifacts[block.turn, name] = version
            case Feedback():
                self.reactions.take(block)
            case FileAdded() | FileRemoved() | FilesPulled():
                self.files.take(block, body)
            case Unknown():
                self.unknown = self.unknown or block

    _folds: ClassVar[Mapping[object, Fold[Timeline]]] = {
        **_HELD.table(_fold_content),
        **_COURSE.table(_fold_course),
        **_SENT.table(_fold_sent),
    }


TreeBody = FileBody | TurnHeader
"""The bodies that change the files of a turn."""
_TREE = BodyUnion[TreeBody](TreeBody)


def take_file(tree: FileTree, block: Block) -> None:
    """Fold one more block into a tree of files; blocks of other types change nothing.

    The header of a turn that starts without files removes the files of earlier turns.
    """
    body = block.body
    if not _TREE.has(body):
        return
    match body:
        case FileAdded() | FileRemoved() | FilesPulled():
            tree.take(block, body)
        case TurnHeader(limits=limits):
            if limits.get("workspace") == EMPTY_START:
                tree.start_empty(block.turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedAction:
    """An action of an imported document that requires confirmation by its `name`; `text` describes its effect."""

    name: str
    text: str


def repository_action(repository: str) -> str:
    """Return the name of the action that reads from a repository."""
    return f"repository:{repository}"


def child_action(conversation: str) -> str:
    """Return the name of the action that makes a conversation the child run of its parent."""
    return f"child:{conversation}"


def unknown_names(confirmed: Sequence[str], actions: Sequence[ImportedAction]) -> list[str]:
    """Return the confirmed names that are not the name of an action."""
    names = {action.name for action in actions}
    return [name for name in confirmed if name not in names]


def _count(blocks: Sequence[Block], seq: int) -> int:
    """Return the number of blocks up to that seq. Seqs have gaps only among the blocks that a checkpoint carries."""
    if not blocks or blocks[-1].seq <= seq:
        return len(blocks)
    count = len(blocks) - (blocks[-1].seq - seq)
    if count > 0 and blocks[count - 1].seq == seq:
        return count
    return bisect_right(blocks, seq, key=lambda block: block.seq)


def turn_number(turn_id: str) -> int:
    """Return 3 for `turn_3`, and 0 for a text that is not the id of a turn."""
    match = _TURN_ID.fullmatch(turn_id)
    return int(match[1]) if match else 0
