"""The render state: what rendering any stretch of a conversation needs to know of all of it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping

from loopline.timeline import (
    Block,
    CachePoint,
    Decision,
    Feedback,
    Hide,
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
    attachments,
    feedback,
)

REMEMBERED = 8
"""How many of the newest reports of a model the estimate goes by."""

MOST = 4.0
"""A token is no less than a byte, and nothing is estimated at less than a quarter of a token a byte."""


class RenderState:
    """User input with its files and who took it, effects of calls, hides, summaries, feedback, reports of usage.

    `learned` is what was known of the models' counting before the first block.
    """

    def __init__(self, learned: Mapping[str, tuple[float, ...]] | None = None) -> None:
        self.inputs: dict[int, Block] = {}
        self.attached: dict[int, list[tuple[Block, UserAttachment]]] = {}
        self.taken: dict[int, int] = {}
        self.taken_by: dict[int, list[int]] = {}
        self.started: set[str] = set()
        self.hides: dict[str, list[Block]] = {}
        self.last_hide: int = 0
        self.summaries: dict[int, Block] = {}
        self.histories: dict[int, Block] = {}
        self.feedback: list[Block] = []
        self._recalled: set[int] = set()
        self._reactions = 0, Reactions()
        self._points: tuple[CachePoint, ...] = ()
        self._kept = (0, 0)
        self._named: dict[int, str] = {}
        self._summary = 0
        self._asked: float = 0.0
        self._files: int = 0
        self._model = ""
        self._ratios: dict[str, deque[float]] = {
            model: deque(ratios, maxlen=REMEMBERED) for model, ratios in (learned or {}).items()
        }

    @property
    def learned(self) -> dict[str, tuple[float, ...]]:
        """For each model its last reports of usage over what was estimated."""
        return {model: tuple(ratios) for model, ratios in self._ratios.items() if ratios}

    def take(self, block: Block) -> None:
        """Fold one more block in."""
        match block.body:
            case UserPrompt() | UserFollowup() | UserSteer():
                self.inputs[block.seq] = block
            case UserAttachment() as file:
                self.attached.setdefault(attachments.said_with(block), []).append((block, file))
            case UserRecalled(said=said):
                if said not in self.taken:
                    self._recalled.add(said)
            case RoundStart() as begun:
                self._begin(block, begun)
            case Decision(usage=usage):
                self._learn(usage.input_tokens)
            case ToolStarted(call_id=call_id):
                self.started.add(call_id)
            case _:
                self._take_view(block)

    def _take_view(self, block: Block) -> None:
        match block.body:
            case Hide(path=path):
                self.hides.setdefault(path, []).append(block)
                self.last_hide = block.seq
                kept = [point.messages for point in self._points if point.name == "pre_tail"]
                self._kept = (block.turn, kept[0] if kept else 0)
            case RangeSummary():
                self._summary = block.seq
                self.summaries[block.seq] = block
            case PlanHistory():
                self.histories[self._summary] = block
            case Feedback():
                self.feedback.append(block)
            case _:
                pass

    def with_attachments(self, said: Block) -> list[Block]:
        """An input, and the files that came with it."""
        return [said, *(block for block, _ in self.attached.get(said.seq, ()))]

    def hidden(self, ref: str, until: int) -> Hide | None:
        """The newest hide of that block up to a place."""
        for block in reversed(self.hides.get(ref, ())):
            if block.seq <= until and isinstance(block.body, Hide):
                return block.body
        return None

    def unchanged_messages(self, turn: int) -> int:
        """How many messages this turn kept as they were when it hid something; 0 when it has not."""
        return self._kept[1] if self._kept[0] == turn else 0

    def reactions(self, until: int) -> Reactions:
        """What was thought of the turns, as known at that place."""
        if self._reactions[0] != until:
            known = bisect_right(self.feedback, until, key=lambda block: block.seq)
            self._reactions = until, feedback.fold(self.feedback[:known])
        return self._reactions[1]

    def cleared_text(self, seq: int, name: Callable[[], str]) -> str:
        """What stands for the result at a place where it is not shown, made when first asked for."""
        if seq not in self._named:
            self._named[seq] = name()
        return self._named[seq]

    @property
    def newest_summary(self) -> Block | None:
        """The summary that was recorded last."""
        return self.summaries.get(self._summary)

    @property
    def factor(self) -> float:
        """By how much more the model that was asked last counts than is estimated."""
        return self.factor_of(self._model)

    def factor_of(self, model: str) -> float:
        """By how much more that model counts than is estimated, as far as it has reported; 1 at least."""
        return min(max(1.0, *self._ratios.get(model, (1.0,))), MOST)

    def _begin(self, block: Block, begun: RoundStart) -> None:
        for seq in begun.takes:
            if seq in self.inputs and seq not in self._recalled and seq not in self.taken:
                self.taken[seq] = block.seq
                self.taken_by.setdefault(block.turn, []).append(seq)
        if begun.model:
            self._model = begun.model
        self._files = begun.file_tokens
        self._asked = begun.tokens / self.factor_of(begun.model) - self._files
        self._points = begun.points
        if begun.window is not None and begun.opened_by != "hide":
            self._kept = (0, 0)

    def _learn(self, reported: int) -> None:
        """What a provider counted of the text, held against what was estimated before any learning."""
        text = reported - self._files
        if text > 0 and self._asked > 0:
            ratios = self._ratios.setdefault(self._model, deque(maxlen=REMEMBERED))
            ratios.append(text / self._asked)
