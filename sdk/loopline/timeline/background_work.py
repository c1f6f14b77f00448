"""Background work: the calls whose work has begun in the background and has no result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from loopline.models import Json
from loopline.timeline.blocks import Block, BodyUnion
from loopline.timeline.bodies import BACKGROUND_STARTED, BackgroundResult, CustomEvent

BackgroundBody = CustomEvent | BackgroundResult
_BACKGROUND = BodyUnion[BackgroundBody](BackgroundBody)


@dataclass(slots=True)
class BackgroundWork:
    """The fold of the calls that go on in the background: up to `seq`, each with the block and the data of its start."""

    seq: int = 0
    calls: dict[str, tuple[Block, Json]] = field(default_factory=dict[str, tuple[Block, Json]])

    def extend(self, blocks: Iterable[Block]) -> None:
        """Fold further blocks."""
        for block in blocks:
            self.seq = block.seq
            if _BACKGROUND.has(block.body):
                self.take(block, block.body)

    def take(self, block: Block, body: BackgroundBody) -> None:
        """Fold one block with its body."""
        match body:
            case CustomEvent(name=name, data=data, call_id=call_id):
                if name == BACKGROUND_STARTED:
                    self.calls[call_id] = block, data
            case BackgroundResult(call_id=call_id):
                self.calls.pop(call_id, None)
