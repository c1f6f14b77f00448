"""The limits of a request to a model, in tokens, and what a refusal of a too long request teaches about them."""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from loopline.errors import ModelOverflow
from loopline.models import Capabilities, Model, well_formed
from loopline.prompt import MAX_FACTOR
from loopline.timeline import ModelOverflowed, OverflowLesson

SMALLEST_WINDOW = 1_024
"""A smaller window in an error is not believed: no model of today has one, but an error may subtract the reply from it
(vllm-project/vllm 33418)."""
MARGIN = 1.1
"""By how much a prompt may be larger than its estimate where a learned window is filled up with the reply."""
RESERVED_SHARE = 4
"""The reply keeps at least a quarter of a learned window before content is dropped."""
OVERFLOW_SHARE = 0.8
"""What is left of a prompt if the error names a window that the request would fit."""


class RequestLimits(Struct, frozen=True, kw_only=True):
    """What the requests to a model may have, in tokens.

    A prompt may have `room`. Prompt and reply together may have `window`; of it the reply gets what the prompt leaves,
    at most `output` and at least `reserved`.
    """

    window: int
    room: int
    output: int
    reserved: int

    def reply(self, tokens: int, *, longer: int = 0) -> int:
        """Return the output limit beside a prompt of so many tokens, doubled `longer` times as far as there is space."""
        output = max(self.reserved, min(self.output, self.window - ceil(tokens * MARGIN)))
        if not longer:
            return output
        most = min(self.window // 2, self.window - tokens)
        return max(output, min(output << longer, most), 1)


def request_limits(
    capabilities: Capabilities, lesson: OverflowLesson | None, turn: int
) -> RequestLimits:
    """Return the limits of a model's requests in a turn, given its latest lesson.

    A lesson of this turn limits prompt and reply. Of an earlier turn, only a window that the server named counts, and it
    limits only the reply: content is dropped again only if the server refuses it again. A lesson from the time when
    the model was taken to have another window does not count.
    """
    assumed, output = capabilities.window, capabilities.output_limit
    room = assumed - output
    is_of_turn = lesson is not None and lesson.turn == turn
    if lesson is None or lesson.body.assumed != assumed or not (is_of_turn or lesson.body.named):
        return RequestLimits(window=assumed, room=room, output=output, reserved=output)
    body = lesson.body
    window = min(assumed, body.window if is_of_turn else body.named)
    reserved = _reserved(capabilities, window)
    if not is_of_turn:
        return RequestLimits(window=window, room=room, output=output, reserved=reserved)
    if body.output:
        output = min(output, body.output)
        reserved = min(reserved, output)
    return RequestLimits(window=window, room=window - reserved, output=output, reserved=reserved)


def learn_overflow(
    model: Model, error: ModelOverflow, *, tokens: int, output: int, before: OverflowLesson | None
) -> ModelOverflowed:
    """Return what the refusal of a request teaches, so that the next request is smaller.

    The request had a prompt of about `tokens` and asked for at most `output`. A shorter reply comes first; content is
    dropped if that is not enough.
    """
    capabilities = model.capabilities
    prompt = error.prompt_tokens or 0
    prompt = prompt if prompt <= tokens * MAX_FACTOR else 0  # no text has so many tokens
    known = before.body.named if before and before.body.assumed == capabilities.window else 0
    named = error.window or 0
    is_new = SMALLEST_WINDOW <= named < max(tokens, prompt) + output
    named = named if is_new or named == known else 0
    window, lowered = _next_window(
        capabilities, error, named if is_new else 0, tokens=max(tokens, prompt), output=output
    )
    return ModelOverflowed(
        model=model.name,
        tokens=tokens,
        window=window,
        text=well_formed(str(error)),
        named=named,
        prompt=prompt,
        output=lowered,
        assumed=capabilities.window,
    )


def _next_window(
    capabilities: Capabilities,
    error: ModelOverflow,
    named: int,
    *,
    tokens: int,
    output: int,
) -> tuple[int, int]:
    """Return the window for the next request, and its output limit; 0 if content must be dropped."""
    if named:
        window = min(named, capabilities.window)
        reserved = _reserved(capabilities, window)
        lowered = min(window - ceil(tokens * MARGIN), capabilities.output_limit)
        if reserved <= lowered < output:
            return window, lowered
        if tokens > window - reserved:
            return window, 0
    lowered = max(tokens // 3, output // RESERVED_SHARE)
    if lowered <= output // 2 and not error.in_bytes:
        return capabilities.window, lowered
    room = int(tokens * (OVERFLOW_SHARE if error.window else 0.5))
    return room + min(capabilities.output_limit, room // 3), 0


def _reserved(capabilities: Capabilities, window: int) -> int:
    """Return the least that a reply gets of a window; the prompt never gets more than of the assumed window."""
    assumed, output = capabilities.window, capabilities.output_limit
    return max(min(output, window // RESERVED_SHARE), window - (assumed - output))
