"""The token budget of a prompt, and the window under which the prompt fits it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from math import ceil

from msgspec import Struct, structs

from loopline.prompt.rendering import CutPoint, Rendering
from loopline.prompt.view import View
from loopline.timeline import Projection

TRIGGER = 0.9
"""The share of the budget above which the context is compacted."""
TARGET = 0.7
"""The share of the budget that a compaction leaves at most."""
KEEP_TURNS = 10
"""The newest turns, which are not clipped by age."""
KEEP_INTACT_TURNS = 2
"""The newest turns, which keep the results of all their reads."""
SHORTEST = 500
"""Characters that a text keeps at least when room is needed."""


class Budget(Struct, frozen=True, kw_only=True):
    """The tokens that a request may cost.

    `total` is the model's window less its output limit; `fixed` is the cost of system text and tools, and `extra` that of
    the tail and of the inputs that the round takes, both before any learning; `factor` corrects estimates for the model.
    """

    total: int
    fixed: int
    extra: Callable[[Rendering], int]
    factor: float = 1.0

    def cost(self, rendering: Rendering) -> int:
        """Return the estimated cost of a whole request with these messages."""
        return ceil((rendering.tokens + self.fixed + self.extra(rendering)) * self.factor)

    def over(self, rendering: Rendering, share: float = 1.0) -> bool:
        """Return whether the request exceeds that share of the budget."""
        return self.cost(rendering) > share * self.total

    def holds(self, tokens: int) -> bool:
        """Return whether system text, tools and so many tokens fit the budget."""
        return ceil((tokens + self.fixed) * self.factor) <= self.total

    def room(self, rendering: Rendering) -> int:
        """Return what the messages may cost at the target, before any learning."""
        return max(int(TARGET * self.total / self.factor) - self.fixed - self.extra(rendering), 0)


def age(window: Projection, turn: int, keep: int, intact: int, feedback: int) -> Projection:
    """Return the window for an epoch whose prefix is new anyway, with old content clipped.

    Turns before the newest `keep` are clipped by kind; in turns before the newest `intact`, lookups are replaced by
    their refs. The new window never shows more than the one before.
    """
    return structs.replace(
        window,
        old_before=max(window.old_before, turn - keep + 1, 0),
        spent_before=max(window.spent_before, turn - intact + 1, 0),
        feedback=feedback,
    )


def clear_results(view: View, window: Projection, budget: Budget) -> tuple[Projection, bool]:
    """Return the window that clears the least to reach the target, and whether it reaches it.

    First images that results show are replaced by refs, then the results of reads, then those of all calls, then attached
    images and PDFs: the oldest first, never those of the newest round.
    """
    rendering = view.under(window)
    if not budget.over(rendering, TARGET):
        return window, True
    seqs = [cut.seq for cut in rendering.cuts]
    if not seqs:
        return window, False

    def images(index: int) -> Projection:
        return structs.replace(window, images_cleared=max(window.images_cleared, seqs[index]))

    without_images = images(len(seqs) - 1) if rendering.has_images else window

    def reads(index: int) -> Projection:
        cleared = max(window.reads_cleared, seqs[index])
        return structs.replace(without_images, reads_cleared=cleared)

    def all_results(index: int) -> Projection:
        return structs.replace(
            reads(len(seqs) - 1), results_cleared=max(window.results_cleared, seqs[index])
        )

    def files(index: int) -> Projection:
        before = seqs[index - 1] if index else 0  # what the newest round takes came after that
        return structs.replace(
            all_results(len(seqs) - 1), files_cleared=max(window.files_cleared, before)
        )

    of_images = [images] if rendering.has_images else []
    for layer in (*of_images, reads, all_results, files):
        enough = _first(len(seqs), partial(_reaches, view, budget, layer))
        if enough is not None:
            return layer(enough), True
    return files(len(seqs) - 1), False


def _reaches(view: View, budget: Budget, layer: Callable[[int], Projection], index: int) -> bool:
    return not budget.over(view.under(layer(index)), TARGET)


def truncate(view: View, window: Projection, budget: Budget) -> Projection:
    """Return the window with fewer files and shorter texts and results, so that the prompt fits if it can."""
    window = _with_fewer_files(view, window, budget)
    limit = window.result_limit
    while budget.over(view.under(window), TRIGGER) and limit > SHORTEST:
        limit = max(limit // 2, SHORTEST)
        window = structs.replace(window, result_limit=limit)
    limit = 2 * budget.total if window.text_limit is None else window.text_limit
    while budget.over(view.under(window), TRIGGER) and limit > SHORTEST:
        limit = max(limit // 2, SHORTEST)
        window = structs.replace(window, text_limit=limit)
    return window


def _with_fewer_files(view: View, window: Projection, budget: Budget) -> Projection:
    """Return the window under which the model gets only cheap files, if that saves tokens."""

    def under(tokens: int) -> Projection:
        return structs.replace(window, carrying=structs.replace(window.carrying, tokens=tokens))

    rendering, tokens = view.under(window), window.carrying.tokens
    if not tokens or budget.cost(view.under(under(0))) >= budget.cost(rendering):
        return window
    while budget.over(view.under(under(tokens)), TRIGGER) and tokens:
        tokens = tokens // 2 if tokens > SHORTEST else 0
    return under(tokens)


def choose_cut_point(
    rendering: Rendering, room: int, summed: Callable[[CutPoint], int], *, covers_something: int
) -> CutPoint | None:
    """Return the first cut point whose remaining messages fit beside their summary, or None if nothing can be summarized.

    `summed` gives the cost of the summary of everything before a cut point. The newest round is always kept. If a turn
    begins not much later, the cut is made there.
    """
    cuts = [cut for cut in rendering.cuts if cut.messages > covers_something]
    if not cuts:
        return None

    def fits(index: int) -> bool:
        remaining = rendering.tokens - rendering.cost(cuts[index].messages)
        return remaining + summed(cuts[index]) <= room

    first = next((index for index in range(len(cuts)) if fits(index)), len(cuts) - 1)
    remaining_tokens = rendering.tokens - rendering.cost(cuts[first].messages)
    for cut in cuts[first:]:
        if (
            cut.opens_turn
            and 2 * (rendering.tokens - rendering.cost(cut.messages)) >= remaining_tokens
        ):
            return cut
    return cuts[first]


def _first(count: int, holds: Callable[[int], bool]) -> int | None:
    """Return the first index for which a monotonic condition holds, or None if it never does."""
    return bisect_left(range(count - 1), True, key=holds) if holds(count - 1) else None
