"""The view: the stable messages of a prompt, as a fold of the blocks that only grows during an epoch."""

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
    """The stable messages of a conversation's blocks, in one protocol.

    A round that opens an epoch sets the window; then the earlier blocks are rendered again, and later blocks are added.
    `learned` are ratios of reported to estimated tokens, by model, from before the first block.
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
        """The stable messages of the blocks taken so far."""
        return self.rendering.messages

    @property
    def window(self) -> Projection:
        """The window of the current epoch."""
        return self.rendering.window

    def extend(self, blocks: Iterable[Block]) -> None:
        """Take more blocks, in order; skip blocks that were already taken."""
        fresh = list(blocks)
        if fresh and fresh[0].seq <= self.seq:
            fresh = [block for block in fresh if block.seq > self.seq]
        if not fresh:
            return
        opener = None
        start = 0
        # Methods are bound outside of the loops, which run over every block of a long conversation when it is opened.
        take = self.state.take
        for index, block in enumerate(fresh):
            take(block)
            if type(body := block.body) is RoundStart and opens_epoch(body):
                opener = body
                start = index
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

    def render_under(self, window: Projection) -> Rendering:
        """Return the rendering under another window; the newest such rendering is cached."""
        if self._candidate is None or self._candidate.window != window:
            self._candidate = self._render(window)
        return self._candidate

    def find_rendering(self, window: Projection) -> Rendering:
        """Return the current rendering if it has this window, else the rendering under the window."""
        current = self.rendering.window
        return (
            self.rendering if window is current or window == current else self.render_under(window)
        )

    def _render(self, window: Projection) -> Rendering:
        rendering = Rendering(self.protocol, self.state, window)
        for block in self._blocks:
            if block.seq > window.start:
                rendering.take(block)
        rendering.last_tail = 0  # cache points of another epoch do not count
        return rendering

    def find_unused_summary(self, window: Projection) -> Projection | None:
        """Return the window with the newest summary, or None if the window already has it."""
        newest = self.state.newest_summary
        if newest is None or newest[0].seq <= window.summary:
            return None
        block, summary = newest
        return structs.replace(window, summary=block.seq, start=summary.covers)

    def list_rendered_blocks(self, window: Projection, until: int) -> Sequence[Block]:
        """Return the blocks up to the seq `until` that are rendered under a window.

        Input that no round has taken until then is left out; earlier input that such a round took comes first.
        """
        inputs = self.state.inputs
        taken_by = self.state.taken_at
        lately = takewhile(lambda item: item[1] > window.start, reversed(taken_by.items()))
        earlier = [
            block
            for seq, by in list(lately)[::-1]
            if seq <= window.start and by <= until
            for block in self.state.list_input_blocks(inputs[seq])
        ]
        return earlier + [
            block
            for block in self._blocks
            if window.start < block.seq <= until and not self._waits(block, until)
        ]

    def _waits(self, block: Block, until: int) -> bool:
        """Return whether the block is input, or a file of an input, that no round up to the seq `until` has taken."""
        input_seq = block.seq if block.seq in self.state.inputs else input_seq_of(block)
        taken_at = self.state.taken_at.get(input_seq, until + 1)
        return input_seq in self.state.inputs and taken_at > until

    def _reopen(self, opener: RoundStart, between: Sequence[Block]) -> None:
        """Render the blocks under the window of a round; `between` are the blocks that came after the cached rendering."""
        window = opener.window
        if window is None:
            return
        self._blocks = [block for block in self._blocks if block.seq > window.start]
        if self._candidate is None or self._candidate.window != window:
            self.rendering = self._render(window)
            return
        self.rendering = self._candidate
        for block in between:
            self.rendering.take(block)


def opens_epoch(start: RoundStart) -> bool:
    """Return whether the round opens an epoch, in which all earlier blocks are rendered again."""
    return start.window is not None and start.shows == "context"
