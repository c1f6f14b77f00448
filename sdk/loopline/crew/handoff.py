"""Handoffs: the report that an agent ends its answer with, and the tool that hands a conversation to another agent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from loopline.crew.agents import MAIN, Agent, Agents
from loopline.models import Json, JsonObject, ToolSpec, extract_json, text_in
from loopline.timeline import AgentSwitched, BodyUnion, Effect, Imported, Timeline, TurnHeader
from loopline.tools import Outcome, RerunnableTool, ToolInvocation
from loopline.tools.parameters import object_schema, optional_text, text_argument

Confidence = Literal["high", "medium", "low"]

SUFFIX = """End with what you hand back, in this form, and nothing behind it:
<handoff>
summary: the result, in a few sentences
findings:
- each finding, with the [[S:n]] of its source
sources: the refs or numbers of what it rests on
confidence: high, medium or low
gaps:
- what is still unknown, if anything
</handoff>"""
"""The instructions that are appended to those of each agent."""

_BLOCK = re.compile(r"<handoff\b[^>]{0,200}>(.*?)(?:</handoff\s*>|\Z)", re.DOTALL | re.IGNORECASE)
_LABEL = re.compile(
    r"[ \t]*(?:\*\*|#{1,6}[ \t]+)?(summary|(?:key[ _])?findings|sources|confidence|gaps)"
    r"(?:\*\*)?[ \t]*:(?:\*\*)?[ \t]*(.*)",
    re.IGNORECASE,
)
_BULLET = re.compile(r"(?:[-*•]|\d{1,3}[.)])[ \t]+")
_MARK = re.compile(r"(?<![\w\])])\[(\d{1,6})\](?!\()")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """The report of an agent; if it `is_raw` the answer had no handoff block, and the summary is the whole answer."""

    summary: str
    findings: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    confidence: Confidence = "medium"
    gaps: tuple[str, ...] = ()
    is_raw: bool = False

    def __str__(self) -> str:
        if self.is_raw:
            return f"{self.summary}\n(no handoff block: this is the raw answer, confidence low)"
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the handoff in a fixed order; empty lists are left out."""
        yield f"summary: {self.summary}"
        for name, items in (("findings", self.findings), ("gaps", self.gaps)):
            if items:
                yield f"{name}:"
                yield from (f"- {item}" for item in items)
        if self.sources:
            yield f"sources: {', '.join(self.sources)}"
        yield f"confidence: {self.confidence}"

    def with_positions(self, total: int, offset: int) -> Handoff:
        """Return the handoff with the marks `[1]` to `[total]` replaced by `[[S:@n]]` (number + `offset`)."""
        shift = partial(shift_marks, total=total, offset=offset, form="[[S:@{}]]")
        return replace(
            self,
            summary=shift(self.summary),
            findings=tuple(map(shift, self.findings)),
            sources=tuple(map(shift, self.sources)),
            gaps=tuple(map(shift, self.gaps)),
        )


def shift_marks(text: str, *, total: int, offset: int, form: str) -> str:
    """Replace the marks `[1]` to `[total]` by the number plus `offset`, inserted in `form` for `{}`."""

    def shift(match: re.Match[str]) -> str:
        number = int(match[1])
        return form.format(number + offset) if 0 < number <= total else match[0]

    return _MARK.sub(shift, text)


def parse_handoff(answer: str) -> Handoff:
    """Parse the last handoff block of an answer, in lines or JSON.

    Without a block the summary is the whole text, and for a block without a summary the text of the block. In both
    cases the confidence is "low" and `is_raw` is set.
    """
    # The last block counts, since a model may quote the form before it.
    blocks = list(_BLOCK.finditer(answer))
    inner = blocks[-1][1].strip() if blocks else ""
    is_json = inner.startswith(("{", "```"))
    handoff = _parse_json(extract_json(inner)) if is_json else _parse_lines(inner)
    return handoff or Handoff(summary=inner or answer.strip(), confidence="low", is_raw=True)


def _parse_lines(text: str) -> Handoff | None:
    """Parse a block with labels such as `summary:`; None if the summary is missing or blank."""
    parts: dict[str, list[str]] = {}
    current = ""
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label is not None:
            current = label[1].lower().replace("key ", "").replace("key_", "")
            parts.setdefault(current, [])
            line = label[2]
        if current and line.strip():
            parts[current].append(line)
    summary = "\n".join(parts.get("summary", []))
    texts: dict[str, Json] = {name: _parse_items(lines) for name, lines in parts.items()}
    return _make_handoff(summary, texts)


def _parse_items(lines: list[str]) -> list[Json]:
    """Return the items of a list; a line without a bullet continues the item before it."""
    items: list[list[str]] = []
    for line in map(str.strip, lines):
        bullet = _BULLET.match(line)
        if bullet is not None or not items:
            items.append([line[bullet.end() :] if bullet else line])
        else:
            items[-1].append(line)
    return [" ".join(item) for item in items]


def _parse_json(value: JsonObject | None) -> Handoff | None:
    """Convert a JSON object to a handoff.

    Without an object, with a summary that is blank or not a text, and for an object that is nested too deeply, it is None.
    """
    fields = value or {}
    with suppress(RecursionError):
        return _make_handoff(text_in(fields, "summary"), fields)
    return None


def _make_handoff(summary: str, fields: dict[str, Json]) -> Handoff | None:
    """Make a handoff from fields by name; None if the summary is blank. A gap that only says `none` is left out."""
    if not summary.strip():
        return None
    unset: dict[str, Json] = dict.fromkeys(("findings", "sources", "confidence", "gaps"), None)
    parts = {name.lower().replace("key ", "").replace("key_", ""): fields[name] for name in fields}
    lists = {name: _flatten(value) for name, value in {**unset, **parts}.items()}
    return Handoff(
        summary=summary.strip(),
        findings=lists["findings"],
        sources=_split_sources(lists["sources"]),
        confidence=_parse_confidence(" ".join(lists["confidence"])),
        gaps=tuple(gap for gap in lists["gaps"] if gap.lower().strip(".") != "none"),
    )


def _flatten(value: Json) -> tuple[str, ...]:
    """Return the texts in a value and its nested lists, stripped; empty texts and None are left out."""
    match value:
        case None:
            return ()
        case list():
            return tuple(text for item in value for text in _flatten(item))
        case _:
            text = str(value).strip()
            return (text,) if text else ()


def _split_sources(items: tuple[str, ...]) -> tuple[str, ...]:
    """Return the items; a single item is split at its commas."""
    if len(items) != 1:
        return items
    return tuple(part.strip() for part in items[0].split(",") if part.strip())


def _parse_confidence(text: str) -> Confidence:
    """Parse a level, or a number such as 0.8 or 80%: high from 0.75, medium from 0.4. Any other text is medium."""
    word = text.strip().lower()
    for level in ("high", "medium", "low"):
        if word.startswith(level):
            return level
    try:
        share = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        return "medium"
    if share >= 0.75:
        return "high"
    return "medium" if share >= 0.4 else "low"


HAND_OVER = "crew.hand_over"
"""The name of the bundle's own loop, to which an agent can hand the conversation back."""
_ReadBody = AgentSwitched | TurnHeader | Imported
_READ = BodyUnion[_ReadBody](_ReadBody)


def leader(timeline: Timeline) -> str:
    """Return the name of the agent that leads the conversation; empty for the bundle's own loop.

    Imported blocks are ignored, since their author is unknown.
    """
    for _, body in _READ.among(reversed(timeline.blocks)):
        match body:
            case AgentSwitched(agent=agent) | TurnHeader(agent=agent):
                return agent
            case Imported():
                return ""
    return ""


class HandOverTool(RerunnableTool):
    """The tool by which the leading agent, or the bundle's own loop, hands the conversation over to another agent."""

    effect: Effect = "meta"
    shared_key: str = HAND_OVER

    def __init__(self, agents: Agents, current: str) -> None:
        """Offer these agents without the `current` one; if an agent leads now, the bundle's own loop is offered too."""
        self._agents = agents.without(current) if current else agents
        self._offers_main = bool(current)
        names: list[Json] = [*self._agents, *([MAIN] if current else [])]
        self.spec: ToolSpec = ToolSpec(
            name=HAND_OVER,
            description=(
                "Hand the conversation over: from now on that agent answers the user, with all that was said. Do it when "
                f"the user's matter is another's work, not for a single task. Agents:\n{self._list_agents()}"
            ),
            parameters=object_schema(
                {
                    "agent": {"type": "string", "enum": names},
                    "note": {"type": "string", "description": "What it should know first."},
                },
                "agent",
            ),
        )

    def _list_agents(self) -> str:
        lines = [f"- {agent}" for agent in self._agents.values()]
        if self._offers_main:
            lines.append(f"- {MAIN}: whoever led at the beginning")
        return "\n".join(lines)

    def parse(self, arguments: JsonObject) -> tuple[Agent | None, str]:
        """Return the agent that is to lead, None for the bundle's own loop, and the note, which may be empty.

        Raises:
            ToolError: the agent is missing, unknown, or the current one.
        """
        name = text_argument(arguments, "agent")
        also = [MAIN] if self._offers_main else []
        agent = None if name in also else self._agents.find(name, also)
        return agent, optional_text(arguments, "note")

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return an outcome with the record that makes the agent the leader, from the next decision on."""
        agent, note = self.parse(arguments)
        switch = AgentSwitched(
            agent=agent.name if agent else "",
            agent_digest=agent.digest if agent else "",
            note=note,
            call_id=call.context.call_id,
        )
        name = agent.name if agent else MAIN
        text = f"{name} leads the conversation from here on. Answer the user."
        return Outcome(text=f"{text}\nnote: {note}" if note else text, bodies=(switch,))


def leading_agents(agents: Agents) -> Agents:
    """Return the agents that may lead a conversation."""
    return Agents(agent for agent in agents.values() if agent.leads)
