"""Replaying prompts: every round rendered again, and compared with what was recorded of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from typing import Literal, TypeAlias

from loopline.models import Message
from loopline.prompt.announce import announce, unseen_sources
from loopline.prompt.rendering import RENDERER, written_out
from loopline.prompt.requests import Request, requests
from loopline.timeline import Timeline

OWN_LINES = 2
"""Of a tail the lines that are its round's own: number and time."""

ReplayedPart: TypeAlias = Literal["renderer", "system", "tools", "messages", "tail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first part of a request that is not what was recorded, by digest or version.

    `recorded` and `rendered` are sha256 in hexadecimal, of the renderer its versions, of the tail the
    first line that differs; a text is empty where there is none. Of messages, `first` to `last` are
    the places, from 1, at which none was found right in any round before.
    """

    part: ReplayedPart
    recorded: str
    rendered: str
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRound:
    """A round's request as it is rendered now; without a divergence it is what was sent."""

    request: Request
    divergence: Divergence | None

    @property
    def suspects(self) -> tuple[str, ...]:
        """The refs of the messages that may be the ones that diverge."""
        found = self.divergence
        return self.request.refs[found.first - 1 : found.last] if found and found.first else ()


def replayed(timeline: Timeline) -> Iterator[ReplayedRound]:
    """Every round that asked a model, in order.

    Of the tail what follows from the log is rendered: plans, feedback and sources; not its time. The
    digest of a round is that of all its messages together: which of them is another one is told by the
    rounds before, whose digests agreed.
    """
    right, known, past = set[tuple[str, str]](), tuple[Message, ...](), Timeline()
    tail = ""
    for request in requests(timeline):
        past.extend(timeline.until(request.begun.saw)[len(past) :])
        found = _text_differs(timeline, request) or _messages_differ(request, right)
        tail = request.begun.tail or (tail if request.begun.tail_kind == "kept" else "")
        found = found or _tail_differs(past, request, tail)
        if found is None:
            right.update(_shown(request, _shared(known, request)))
            known = request.messages[: request.stable]
        yield ReplayedRound(request=request, divergence=found)


def _text_differs(timeline: Timeline, request: Request) -> Divergence | None:
    begun = request.begun
    if begun.renderer != RENDERER:
        recorded, rendered = str(begun.renderer), str(RENDERER)
        return Divergence(part="renderer", recorded=recorded, rendered=rendered)
    system = _digest(timeline.system_texts.get(begun.system_sha256))
    if system != begun.system_sha256:
        return Divergence(part="system", recorded=begun.system_sha256, rendered=system)
    tools = _digest(timeline.tool_texts.get(begun.tools_sha256))
    if tools != begun.tools_sha256 and begun.shows == "context":
        return Divergence(part="tools", recorded=begun.tools_sha256, rendered=tools)
    return None


def _messages_differ(request: Request, right: set[tuple[str, str]]) -> Divergence | None:
    recorded, rendered = request.begun.stable_sha256, request.stable_sha256
    if recorded == rendered:
        return None
    shown = _shown(request)
    wrong = [n for n, one in enumerate(shown, 1) if one not in right] or [1, len(shown)]
    return Divergence(
        part="messages", recorded=recorded, rendered=rendered, first=wrong[0], last=wrong[-1]
    )


def _tail_differs(past: Timeline, request: Request, tail: str) -> Divergence | None:
    """Whether the tail, or the one that was kept, shows other plans, reactions or sources than the log up to then makes."""
    if request.begun.shows == "trace":
        return None
    rendered = announce(
        iteration=0,
        limit=0,
        now=request.block.ts,
        turn_id="",
        plans=past.plans.open,
        feedback=past.reactions.new_since(request.told),
        waiting=past.prompts_after(request.block.turn),
        unseen=unseen_sources(past.pool.sources, request.marked),
        room=request.begun.tail_room,
    )
    tails = (text.splitlines()[OWN_LINES:] for text in (tail, rendered))
    for was, now in zip_longest(*tails, fillvalue=""):
        if was != now:
            return Divergence(part="tail", recorded=was, rendered=now)
    return None


def _shown(request: Request, start: int = 0) -> list[tuple[str, str]]:
    """The messages that the digest is of, with their refs."""
    places = range(start, request.stable)
    return [(request.refs[n], written_out(request.messages[n])) for n in places]


def _shared(known: tuple[Message, ...], request: Request) -> int:
    """How many messages are those of the round before: all of them, or in a new epoch none."""
    count = len(known)
    grown = 0 < count <= request.stable and request.messages[count - 1] is known[-1]
    return count if grown else 0


def _digest(text: str | None) -> str:
    return "" if text is None else sha256(text.encode()).hexdigest()
