"""The view: a prompt's stable messages as a fold of the blocks, which only grows within an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from msgspec import structs

from loopline.models import Message
from loopline.prompt.protocols.decision import DecisionProtocol
from loopline.prompt.render_state import RenderState
from loopline.prompt.rendering import Rendering
from loopline.timeline import Block, Projection, RoundStart, input_seq_of


class View:
    """The messages of the blocks so far, in one protocol.

    The round that opens an epoch says under which window: what was before is rendered anew then, and every later block
    is added. Each block is taken once. `learned` are the ratios of reported to estimated tokens known before the first
    block, by model.
    """

    def __init__(
        self,
        protocol: DecisionProtocol,
        blocks: Iterable[Block] = (),
        learned: Mapping[str, tuple[float, ...]] | None = None,
    ) -> None:
        self.protocol = protocol
        self.state: RenderState = RenderState(learned)
        self.seq: int = 0
        self.rendering: Rendering = Rendering(protocol, self.state, Projection())
        self._blocks: list[Block] = []
        self._candidate: Rendering | None = None
        self.extend(blocks)

    @property
    def messages(self) -> list[Message]:
        """Return the messages so far."""
        return self.rendering.messages

    @property
    def window(self) -> Projection:
        """Return what the present epoch shows of the blocks before it."""
        return self.rendering.window

    def extend(self, blocks: Iterable[Block]) -> None:
        """Take further blocks; skip those taken before."""
        fresh = list(blocks)
        if fresh and fresh[0].seq <= self.seq:
            fresh = [block for block in fresh if block.seq > self.seq]
        if not fresh:
            return
        opener, start, take = None, 0, self.state.take
        for index, block in enumerate(fresh):
            take(block)
            if type(body := block.body) is RoundStart and opens_epoch(body):
                opener, start = body, index
        self.seq = fresh[-1].seq
        if opener is not None:
            self._blocks += fresh[:start]
            self._reopen(opener, fresh[:start])
            fresh = fresh[start:]
        render = self.rendering.take
        for block in fresh:
            render(block)
        self._blocks += fresh
        self._candidate = None

    def under(self, window: Projection) -> Rendering:
        """Return the messages under another window; the last one tried is kept until it is opened."""
        if self._candidate is None or self._candidate.window != window:
            self._candidate = self._rendered(window)
        return self._candidate

    def shown(self, window: Projection) -> Rendering:
        """Return the messages as they stand, or under another window."""
        current = self.rendering.window
        return self.rendering if window is current or window == current else self.under(window)

    def _rendered(self, window: Projection) -> Rendering:
        rendering = Rendering(self.protocol, self.state, window)
        for block in self._blocks:
            if block.seq > window.start:
                rendering.take(block)
        rendering.last_tail = 0  # nothing of another epoch has been written yet
        return rendering

    def unused_summary(self, window: Projection) -> Projection | None:
        """Return the window with a summary newer than its own, or None if there is none."""
        newest = self.state.newest_summary
        if newest is None or newest[0].seq <= window.summary:
            return None
        block, summary = newest
        return structs.replace(window, summary=block.seq, start=summary.covers)

    def rendered_blocks(self, window: Projection, until: int) -> Sequence[Block]:
        """Return the blocks that are rendered under a window, up to a seq, without input that waits there."""
        inputs, taken_by = self.state.inputs, self.state.taken_at
        lately = takewhile(lambda item: item[1] > window.start, reversed(taken_by.items()))
        earlier = [
            block
            for seq, by in list(lately)[::-1]
            if seq <= window.start and by <= until
            for block in self.state.with_attachments(inputs[seq])
        ]
        return earlier + [
            block
            for block in self._blocks
            if window.start < block.seq <= until and not self._waits(block, until)
        ]

    def _waits(self, block: Block, until: int) -> bool:
        """Return whether it is input, or a file of one, that no round up to there has taken."""
        inputs, taken_by = self.state.inputs, self.state.taken_at
        input_seq = block.seq if block.seq in inputs else input_seq_of(block)
        return input_seq in inputs and taken_by.get(input_seq, until + 1) > until

    def _reopen(self, opener: RoundStart, between: Sequence[Block]) -> None:
        """Render the blocks as the round asks; `between` came after the windows that were tried."""
        window = opener.window
        if window is None:
            return
        self._blocks = [block for block in self._blocks if block.seq > window.start]
        if self._candidate is None or self._candidate.window != window:
            self.rendering = self._rendered(window)
            return
        self.rendering = self._candidate
        for block in between:
            self.rendering.take(block)


def opens_epoch(start: RoundStart) -> bool:
    """Return whether the round renders the earlier blocks again."""
    return start.window is not None and start.shows == "context"
