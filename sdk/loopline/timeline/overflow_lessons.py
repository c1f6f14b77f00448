"""What refusals of too long requests have taught about each model, until a larger request succeeds."""

from __future__ import annotations

from msgspec import Struct

from loopline.timeline.blocks import Block, Decision
from loopline.timeline.prompt_blocks import ModelOverflowed, RoundStart


class OverflowLesson(Struct, frozen=True):
    """A refusal of a too long request: the turn and the seq of its block, and its body."""

    turn: int
    seq: int
    body: ModelOverflowed


class OverflowLessons:
    """The latest lesson of each model.

    A lesson is forgotten when a request to its model succeeds that is larger than the lesson allows.
    """

    def __init__(self) -> None:
        self.by_model: dict[str, OverflowLesson] = {}
        self._estimate = 0

    def take(self, block: Block, body: ModelOverflowed | RoundStart | Decision) -> None:
        """Fold one more block."""
        match body:
            case RoundStart(tokens=tokens):
                self._estimate = tokens
            case ModelOverflowed(model=model):
                self.by_model[model] = OverflowLesson(block.turn, block.seq, body)
            case Decision(model=model):
                if model in self.by_model:
                    self._check(self.by_model[model].body, body)

    def _check(self, lesson: ModelOverflowed, decision: Decision) -> None:
        """Forget the lesson if the request of the decision was larger than the lesson allows."""
        usage = decision.usage
        reported = usage.input_tokens + usage.output_tokens if usage.input_tokens else 0
        if (reported or self._estimate) > (lesson.named or lesson.tokens):
            del self.by_model[lesson.model]
