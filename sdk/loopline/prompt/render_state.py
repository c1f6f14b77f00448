"""The render state: the facts about all blocks of a conversation that rendering any range of them needs."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from typing import ClassVar

from loopline.timeline import (
    BackgroundResult,
    Block,
    BodyUnion,
    CachePoint,
    Decision,
    Feedback,
    Fold,
    Hide,
    InboxBody,
    ModelOverflowed,
    PlanHistory,
    RangeSummary,
    Reactions,
    RoundStart,
    ToolStarted,
    UserAttachment,
    UserFollowup,
    UserPrompt,
    UserRecalled,
    UserSteer,
    feedback,
    input_seq_of,
)

REPORTS_KEPT = 8
"""The number of newest usage reports of a model that correct its estimates."""

MAX_FACTOR = 4.0
"""The largest correction: a token has at least one byte, and an estimate is at least a quarter of a token for a byte."""


RenderStateBody = (
    InboxBody
    | UserAttachment
    | UserRecalled
    | RoundStart
    | Decision
    | ToolStarted
    | Hide
    | RangeSummary
    | PlanHistory
    | Feedback
    | ModelOverflowed
)
_RENDER_STATE = BodyUnion[RenderStateBody](RenderStateBody)


class RenderState:
    """A fold of all blocks: inputs with files and their rounds, started calls, hides, summaries, feedback, and usage.

    `inputs`, `attached`, `summaries` and `histories` have the seq of an input or of a summary as key. `taken_at` maps the
    seq of an input to that of the round that took it; `taken_by` maps a turn to the inputs that its rounds took.
    `learned` are ratios of reported to estimated tokens, by model, from before the first block.
    """

    def __init__(self, learned: Mapping[str, tuple[float, ...]] | None = None) -> None:
        self.inputs: dict[int, Block] = {}
        self.attached: dict[int, list[tuple[Block, UserAttachment]]] = {}
        self.taken_at: dict[int, int] = {}
        self.taken_by: dict[int, list[int]] = {}
        self.started: set[str] = set()
        self._hides: dict[str, list[tuple[int, Hide]]] = {}
        self.last_hide: int = 0
        self.summaries: dict[int, tuple[Block, RangeSummary]] = {}
        self.histories: dict[int, tuple[Block, PlanHistory]] = {}
        self.feedback: list[Block] = []
        self._recalled: set[int] = set()
        self._reactions = (0, Reactions())
        self._cache_points: tuple[CachePoint, ...] = ()
        self._unchanged = (0, 0)
        self._cleared: dict[int, str] = {}
        self._summary = 0
        self._estimated: float = 0.0
        self._files: int = 0
        self._model = ""
        self._ratios: dict[str, deque[float]] = {
            model: deque(ratios, maxlen=REPORTS_KEPT) for model, ratios in (learned or {}).items()
        }

    @property
    def learned(self) -> dict[str, tuple[float, ...]]:
        """The newest ratios of reported to estimated tokens, by model."""
        return {model: tuple(ratios) for model, ratios in self._ratios.items() if ratios}

    def take(self, block: Block) -> None:
        """Take the next block."""
        fold = self._folds.get(type(block.body))
        if fold is not None:
            fold(self, block, block.body)

    def _take(self, block: Block, body: RenderStateBody) -> None:
        match body:
            case RoundStart() as start:
                self._begin(block, start)
            case Decision(usage=usage):
                self._learn(usage.input_tokens)
            case ModelOverflowed(prompt=prompt):
                self._learn(prompt)
            case UserPrompt() | UserFollowup() | UserSteer() | BackgroundResult():
                self.inputs[block.seq] = block
            case UserAttachment() as file:
                self.attached.setdefault(input_seq_of(block), []).append((block, file))
            case UserRecalled(said=said):
                if said not in self.taken_at:
                    self._recalled.add(said)
            case ToolStarted(call_id=call_id):
                self.started.add(call_id)
            case Hide() | RangeSummary() | PlanHistory() | Feedback():
                self._take_view(block, body)

    _folds: ClassVar[Mapping[object, Fold[RenderState]]] = _RENDER_STATE.table(_take)

    def _take_view(self, block: Block, body: Hide | RangeSummary | PlanHistory | Feedback) -> None:
        match body:
            case Hide(path=path):
                self._hides.setdefault(path, []).append((block.seq, body))
                self.last_hide = block.seq
                before_tail = [
                    point.messages for point in self._cache_points if point.name == "pre_tail"
                ]
                self._unchanged = (block.turn, before_tail[0] if before_tail else 0)
            case RangeSummary():
                self._summary = block.seq
                self.summaries[block.seq] = block, body
            case PlanHistory():
                self.histories[self._summary] = block, body
            case Feedback():
                self.feedback.append(block)

    def list_input_blocks(self, input_block: Block) -> list[Block]:
        """Return an input and the blocks of its attached files."""
        return [input_block, *(block for block, _ in self.attached.get(input_block.seq, ()))]

    def find_hide(self, ref: str, until: int) -> Hide | None:
        """Return the newest hide of the block with this ref, among those up to the seq `until`, or None."""
        hides = self._hides.get(ref)
        if hides is None:
            return None
        return next((hide for seq, hide in reversed(hides) if seq <= until), None)

    def count_unchanged_messages(self, turn: int) -> int:
        """Return the number of messages before the first one that was hidden in this turn; 0 without a hide."""
        return self._unchanged[1] if self._unchanged[0] == turn else 0

    def reactions(self, until: int) -> Reactions:
        """Return the reactions to turns that were stored up to the seq `until`; the last result is cached."""
        if self._reactions[0] != until:
            count = bisect_right(self.feedback, until, key=lambda block: block.seq)
            self._reactions = (until, feedback.fold(self.feedback[:count]))
        return self._reactions[1]

    def describe_cleared(self, seq: int, name: Callable[[], str]) -> str:
        """Return the text that replaces the cleared result at `seq`; `name` creates it at the first call."""
        if seq not in self._cleared:
            self._cleared[seq] = name()
        return self._cleared[seq]

    @property
    def newest_summary(self) -> tuple[Block, RangeSummary] | None:
        """The newest summary with its block, or None."""
        return self.summaries.get(self._summary)

    @property
    def factor(self) -> float:
        """The correction factor for estimates of the model that had the last request."""
        return self.factor_of(self._model)

    def factor_of(self, model: str) -> float:
        """Return the factor from 1 to `MAX_FACTOR` that corrects estimates for a model; 1 without reports."""
        ratios = self._ratios.get(model)
        return min(max(1.0, *ratios), MAX_FACTOR) if ratios else 1.0

    def _begin(self, block: Block, start: RoundStart) -> None:
        for seq in start.takes:
            if seq in self.inputs and seq not in self._recalled and seq not in self.taken_at:
                self.taken_at[seq] = block.seq
                self.taken_by.setdefault(block.turn, []).append(seq)
        if start.model:
            self._model = start.model
        self._files = start.file_tokens
        self._estimated = start.tokens / self.factor_of(start.model) - self._files
        self._cache_points = start.points
        if start.window is not None and start.opened_by != "hide":
            self._unchanged = (0, 0)

    def _learn(self, reported: int) -> None:
        """Store the ratio of the reported tokens of text to their uncorrected estimate."""
        text = reported - self._files
        if text > 0 and self._estimated > 0:
            ratios = self._ratios.setdefault(self._model, deque(maxlen=REPORTS_KEPT))
            ratios.append(text / self._estimated)
