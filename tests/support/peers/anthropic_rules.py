"""What Anthropic asks of a request, each rule with the words by which it is refused.

Sources, read on 2026-11-20: platform.claude.com/docs/en/build-with-claude/prompt-caching,
/mid-conversation-system-messages, /api/errors and /agents-and-tools/tool-use/handle-tool-calls. The real API joins neighbours of one role; these
servers refuse them, since no client of ours is to send any.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from loopline.models.json import JsonObject
from tests.support.peers.anthropic_prompt import Prompt, Turn

MOST_MARKERS = 4
SYSTEM_PLACES = (("user", "system"), ("system", "assistant"))


def problems(prompt: Prompt) -> Iterator[str]:
    """Why the request would be refused, the first reason first."""
    yield from _markers(prompt)
    yield from _roles(prompt)
    yield from _contents(prompt)
    yield from _results(prompt)


def _markers(prompt: Prompt) -> Iterator[str]:
    markers = prompt.markers()
    if len(markers) > MOST_MARKERS:
        yield (
            f"A maximum of {MOST_MARKERS} blocks with cache_control may be provided."
            f" Found {len(markers)}."
        )
    lifetimes = [lifetime(marker) for _, marker in markers]
    if ("5m", "1h") in pairwise(lifetimes):
        yield "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
    for _, _, block in prompt.parts():
        if "cache_control" in block and (thinks(block) or block.get("text") == ""):
            yield f"cache_control cannot be set for empty text blocks or {block['type']} blocks"


def lifetime(marker: JsonObject) -> str:
    """How long what it marks is kept: "5m" or "1h"."""
    return str(marker.get("ttl", "5m"))


def thinks(block: JsonObject) -> bool:
    return block.get("type") in {"thinking", "redacted_thinking"}


def _roles(prompt: Prompt) -> Iterator[str]:
    spoken = [turn.role for turn in prompt.turns if turn.role != "system"]
    if not spoken:
        yield "messages: at least one message is required"
    elif spoken[0] != "user":
        yield 'messages: first message must use the "user" role'
    for at, (before, turn) in enumerate(pairwise(prompt.turns), start=1):
        if "system" in (before.role, turn.role) and (before.role, turn.role) not in SYSTEM_PLACES:
            yield f'messages.{at}: a "system" message follows the user, and the assistant it'
    for role, following in pairwise(spoken):
        if role == following:
            yield (
                'messages: roles must alternate between "user" and "assistant",'
                f' but found multiple "{role}" roles in a row'
            )


def _contents(prompt: Prompt) -> Iterator[str]:
    for at, turn in enumerate(prompt.turns):
        if not turn.blocks and at < len(prompt.turns) - 1:
            yield f"messages.{at}: all messages must have non-empty content"
        for block in turn.of_type("text"):
            if not str(block.get("text", "")).strip():
                yield "messages: text content blocks must contain non-whitespace text"


def _results(prompt: Prompt) -> Iterator[str]:
    uses = [str(use.get("id")) for turn in prompt.turns for use in turn.of_type("tool_use")]
    if any(times > 1 for times in Counter(uses).values()):
        yield "messages: `tool_use` ids must be unique"
    for use in uses:
        if not re.fullmatch(r"[a-zA-Z0-9_-]+", use):
            yield f"tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$': {use}"
    nobody = Turn("assistant", ())
    for at, (before, turn) in enumerate(pairwise((nobody, *prompt.turns, nobody))):
        calls = [str(call.get("id")) for call in before.of_type("tool_use")]
        last = at == len(prompt.turns)
        results = [str(item.get("tool_use_id")) for item in turn.of_type("tool_result")]
        if missing := [call for call in calls if call not in results]:
            # Where the calls are in the last message, the one that would answer them is lacking.
            yield (
                f"messages.{at - 1}: `tool_use` ids were found without `tool_result` blocks"
                f" immediately after: {', '.join(missing)}"
            )
        if last:
            return
        if orphans := [result for result in results if result not in calls]:
            yield (
                f"messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks:"
                f" {', '.join(orphans)}"
            )
        if twice := [result for result, times in Counter(results).items() if times > 1]:
            yield f"messages.{at}: each tool_use must have a single result: {', '.join(twice)}"
        kinds = [block["type"] for block in turn.blocks]
        if "tool_result" in kinds[len(results) :]:
            yield f"messages.{at}: `tool_result` blocks must come first in the content"
