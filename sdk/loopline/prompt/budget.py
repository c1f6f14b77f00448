"""The token budget of a prompt, the window under which the prompt fits it, and the cache points of its request."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal

from msgspec import Struct, structs

from loopline.prompt.rendering import CutPoint, InputMessages, Rendering, View, parts_of_message
from loopline.timeline import CachePoint, Projection

TRIGGER = 0.9
"""The share of the budget above which the context is compacted."""
TARGET = 0.7
"""The share of the budget that the context may have after a compaction."""
KEEP_TURNS = 10
"""The number of newest turns that are not clipped by age."""
KEEP_INTACT_TURNS = 2
"""The number of newest turns that keep the results of all their reads."""
SHORTEST = 500
"""The characters to which a text may be shortened."""


class Budget(Struct, frozen=True, kw_only=True):
    """The tokens that a request may cost.

    `total` is the model's window minus its output limit. `fixed` is the estimate for system text and tools; `extra`
    returns the estimate for the tail and the inputs that the round takes. `factor`, learned from reported usage, corrects
    estimates for the model.
    """

    total: int
    fixed: int
    extra: Callable[[Rendering], int]
    factor: float = 1.0

    def cost(self, rendering: Rendering) -> int:
        """Return the estimated tokens of a complete request with these messages."""
        return ceil((rendering.tokens + self.fixed + self.extra(rendering)) * self.factor)

    def over(self, rendering: Rendering, share: float = 1.0) -> bool:
        """Return whether a request with these messages exceeds `share` of the budget."""
        return self.cost(rendering) > share * self.total

    def holds(self, tokens: int) -> bool:
        """Return whether system text, tools and `tokens` more fit the budget."""
        return ceil((tokens + self.fixed) * self.factor) <= self.total

    def room(self, rendering: Rendering) -> int:
        """Return the tokens, before the correction by `factor`, that messages may have to reach the target."""
        return max(int(TARGET * self.total / self.factor) - self.fixed - self.extra(rendering), 0)


def age(window: Projection, turn: int, keep: int, intact: int, feedback: int) -> Projection:
    """Return the window for a new epoch with old content clipped, since its prefix is not cached anyway.

    Turns before the newest `keep` are clipped by kind; in turns before the newest `intact`, results of reads are replaced
    by their refs. The new window never shows more than `window`. Feedback up to the seq `feedback` is shown.
    """
    return structs.replace(
        window,
        old_before=max(window.old_before, turn - keep + 1, 0),
        spent_before=max(window.spent_before, turn - intact + 1, 0),
        feedback=feedback,
    )


def clear_results(view: View, window: Projection, budget: Budget) -> tuple[Projection, bool]:
    """Return the window that clears as little as possible to reach the target, and whether it reaches the target.

    Images in results are replaced by refs first, then the results of reads, then the results of all calls, then attached
    images and PDFs. Each layer begins with the oldest round, and never includes the newest one.
    """
    rendering = view.render_under(window)
    if not budget.over(rendering, TARGET):
        return window, True
    seqs = [cut.seq for cut in rendering.cuts]
    if not seqs:
        return window, False
    layers: tuple[_Layer, ...] = ("reads_cleared", "results_cleared", "files_cleared")
    for layer in ("images_cleared", *layers) if rendering.has_images else layers:
        # The files of a round come before its cut, so files are cleared up to the cut before it.
        until = [0, *seqs[:-1]] if layer == "files_cleared" else seqs
        enough = _find_seq(view, window, budget, layer, until)
        if enough is not None:
            return _clear(window, layer, enough), True
        window = _clear(window, layer, until[-1])
    return window, False


_Layer = Literal["images_cleared", "reads_cleared", "results_cleared", "files_cleared"]


def _clear(window: Projection, layer: _Layer, seq: int) -> Projection:
    """Return the window that clears a layer up to the seq, but at least as far as `window` does."""
    return structs.replace(window, **{layer: max(getattr(window, layer), seq)})


def _find_seq(
    view: View, window: Projection, budget: Budget, layer: _Layer, seqs: Sequence[int]
) -> int | None:
    """Return the first of `seqs` up to which a layer must be cleared to reach the target, or None."""

    # Clearing further never makes the prompt longer, so a binary search needs few renderings.
    def reaches_target(seq: int) -> bool:
        return not budget.over(view.render_under(_clear(window, layer, seq)), TARGET)

    if not reaches_target(seqs[-1]):
        return None
    return seqs[bisect_left(seqs[:-1], True, key=reaches_target)]


def truncate(view: View, window: Projection, budget: Budget) -> Projection:
    """Return a window with fewer files, then shorter results, then shorter texts, until the prompt is below the trigger.

    If even the shortest texts do not suffice, the window is returned anyway.
    """
    window = _drop_files(view, window, budget)
    limit = window.result_limit
    while budget.over(view.render_under(window), TRIGGER) and limit > SHORTEST:
        limit = max(limit // 2, SHORTEST)
        window = structs.replace(window, result_limit=limit)
    limit = 2 * budget.total if window.text_limit is None else window.text_limit
    while budget.over(view.render_under(window), TRIGGER) and limit > SHORTEST:
        limit = max(limit // 2, SHORTEST)
        window = structs.replace(window, text_limit=limit)
    return window


def _drop_files(view: View, window: Projection, budget: Budget) -> Projection:
    """Return the window with a lower token limit for each file, so that the prompt is not above the trigger.

    The limit is halved until the prompt fits. If no limit suffices, it is 0, which leaves out all files, and the prompt may
    still be too long. If leaving out all files would not save tokens, the window is returned unchanged.
    """

    def under(tokens: int) -> Projection:
        return structs.replace(window, carrying=structs.replace(window.carrying, tokens=tokens))

    rendering = view.render_under(window)
    tokens = window.carrying.tokens
    if not tokens or budget.cost(view.render_under(under(0))) >= budget.cost(rendering):
        return window
    while budget.over(view.render_under(under(tokens)), TRIGGER) and tokens:
        tokens = tokens // 2 if tokens > SHORTEST else 0
    return under(tokens)


def choose_cut_point(
    rendering: Rendering, room: int, summary_tokens: Callable[[CutPoint], int], *, after: int
) -> CutPoint | None:
    """Return the first cut point after `after` messages at which the summary and later messages fit `room` tokens.

    `summary_tokens` returns the tokens of the summary of everything before a cut point. If no cut point fits, the last
    of them is returned. If a turn starts after that cut point and has, with the later turns, at least half of the
    remaining tokens, the cut is made at its start; the newest round always remains. Return None without a cut point
    after `after` messages.
    """
    cuts = [cut for cut in rendering.cuts if cut.messages > after]
    if not cuts:
        return None

    def fits(cut: CutPoint) -> bool:
        remaining = rendering.tokens - rendering.cost(cut.messages)
        return remaining + summary_tokens(cut) <= room

    first = next((index for index, cut in enumerate(cuts) if fits(cut)), len(cuts) - 1)
    remaining_tokens = rendering.tokens - rendering.cost(cuts[first].messages)
    for cut in cuts[first:]:
        if (
            cut.opens_turn
            and 2 * (rendering.tokens - rendering.cost(cut.messages)) >= remaining_tokens
        ):
            return cut
    return cuts[first]


MIN_ROUNDS = 2
"""The number of rounds from which a request has the cache point `pre_tail`."""
OFFSET_ROUNDS = 4
"""The number of rounds between the point `pre_tail` and the tail."""
REACH = 18
"""The parts before the tail in which every provider finds the last written point."""

Name = Literal["prev_turn", "pre_tail", "tail"]


class CachePolicy(Struct, frozen=True, kw_only=True):
    """The settings for placing the cache points of a request.

    `fixed` are the tokens of system text and tools; `factor` corrects estimates for the model. With `opens_epoch`, earlier
    cache points are ignored. `kept_messages` is the number of messages before the first one that the turn has hidden.
    """

    fixed: int = 0
    factor: float = 1.0
    opens_epoch: bool = False
    kept_messages: int = 0
    min_rounds: int = MIN_ROUNDS
    offset_rounds: int = OFFSET_ROUNDS


def cache_points(
    rendering: Rendering, turn: int, inputs: InputMessages, policy: CachePolicy
) -> tuple[CachePoint, ...]:
    """Return the cache points for a request of a new round in `turn`, with the rendered messages and then `inputs`.

    They are `prev_turn`, the end of the previous turn; `pre_tail`, some rounds before the tail; and `tail`, the end of
    the stable messages. If the last written point is too far before the tail to be found there, it replaces `pre_tail`.
    If the turn has hidden a message, `prev_turn` moves to the end of the unchanged messages. Points are in ascending
    order, one for each position, and a point before all messages is left out.
    """
    messages = len(rendering.messages)
    tail = messages + len(inputs.messages)
    parts = rendering.part_count(messages) + sum(map(parts_of_message, inputs.messages))
    pre_tail = _pre_tail(rendering, policy)
    last = 0 if policy.opens_epoch else rendering.last_tail
    if last and parts > rendering.part_count(last) + REACH:
        pre_tail = last
    turn_start = rendering.turn_start if turn == rendering.turn else messages
    names: dict[int, Name] = {
        max(turn_start, policy.kept_messages): "prev_turn",
        pre_tail: "pre_tail",
        tail: "tail",
    }
    return tuple(
        [
            CachePoint(
                name=names[at],
                messages=at,
                tokens=ceil((policy.fixed + rendering.cost(at, inputs)) * policy.factor),
            )
            for at in sorted(names)
            if at
        ]
    )


def message_counts(points: Sequence[CachePoint], messages: int) -> tuple[int, ...]:
    """Return the number of messages before each cache point, at most `messages`.

    A point may have more than `messages`, if input was recalled just when the round started.
    """
    return tuple(dict.fromkeys([min(point.messages, messages) for point in points]))


def _pre_tail(rendering: Rendering, policy: CachePolicy) -> int:
    """Return the number of messages before the point `pre_tail`; 0 with fewer than `policy.min_rounds` cut points."""
    cuts = rendering.cuts
    if len(cuts) < policy.min_rounds:
        return 0
    following = max(len(cuts) - policy.offset_rounds, 1)
    return cuts[following].messages if following < len(cuts) else len(rendering.messages)
