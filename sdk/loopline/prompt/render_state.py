"""The render state: what rendering any stretch of a conversation needs to know of all of it."""

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
"""The newest reports of a model that correct its estimates."""

MAX_FACTOR = 4.0
"""A token has at least a byte, and an estimate is at least a quarter of a token a byte."""


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
    """Inputs with files and their rounds, effects of calls, hides, summaries, feedback, and reports of usage.

    `learned` are the ratios of reported to estimated tokens known before the first block, by model.
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
        self._reactions = 0, Reactions()
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
        """Return, for each model, its latest ratios of reported to estimated tokens."""
        return {model: tuple(ratios) for model, ratios in self._ratios.items() if ratios}

    def take(self, block: Block) -> None:
        """Fold in one more block."""
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

    def with_attachments(self, input_block: Block) -> list[Block]:
        """Return an input and the files that came with it."""
        return [input_block, *(block for block, _ in self.attached.get(input_block.seq, ()))]

    def hidden(self, ref: str, until: int) -> Hide | None:
        """Return the newest hide of that block up to a seq, or None."""
        hides = self._hides.get(ref)
        if hides is None:
            return None
        return next((hide for seq, hide in reversed(hides) if seq <= until), None)

    def unchanged_messages(self, turn: int) -> int:
        """Return how many messages stand before the first one that this turn has hidden, 0 if it has hidden nothing."""
        return self._unchanged[1] if self._unchanged[0] == turn else 0

    def reactions(self, until: int) -> Reactions:
        """Return the reactions to the turns as known at that seq."""
        if self._reactions[0] != until:
            count = bisect_right(self.feedback, until, key=lambda block: block.seq)
            self._reactions = until, feedback.fold(self.feedback[:count])
        return self._reactions[1]

    def cleared_text(self, seq: int, name: Callable[[], str]) -> str:
        """Return the text for a cleared result, made by `name` on first use."""
        if seq not in self._cleared:
            self._cleared[seq] = name()
        return self._cleared[seq]

    @property
    def newest_summary(self) -> tuple[Block, RangeSummary] | None:
        """Return the latest summary, or None."""
        return self.summaries.get(self._summary)

    @property
    def factor(self) -> float:
        """Return the correction factor of the model that was asked last."""
        return self.factor_of(self._model)

    def factor_of(self, model: str) -> float:
        """Return by how much that model counts more than is estimated: at least 1."""
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
        """Compare what a provider counted as text with what was estimated before any learning."""
        text = reported - self._files
        if text > 0 and self._estimated > 0:
            ratios = self._ratios.setdefault(self._model, deque(maxlen=REPORTS_KEPT))
            ratios.append(text / self._estimated)
