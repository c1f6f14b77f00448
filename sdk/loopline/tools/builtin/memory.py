"""The tool that searches past turns: `react.memsearch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from loopline.errors import ToolError
from loopline.memory import SCOPES, TARGETS, PastTurns, Scope, Target, TurnHit, ordinal_of
from loopline.models import Json, JsonObject, ToolSpec, dumps, one_line, well_formed
from loopline.models.tokens import estimate
from loopline.timeline import iso_time
from loopline.tools.arguments import (
    check_names,
    integer_argument,
    limit_schema,
    names_argument,
    object_schema,
)
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome, ResultSection
from loopline.tools.tool import RerunnableTool

DEFAULT_TURNS = 5
MOST_TURNS = 20
DEFAULT_DAYS = 365
LONGEST_DAYS = 36_500
_TIME: JsonObject = {
    "type": "string",
    "description": "A date or time such as 2026-03-01 or 2026-03-01T12:00, in UTC.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryArguments:
    query: str
    targets: list[Target]
    scope: Scope
    ordinal: int | None
    since: datetime | None
    until: datetime | None
    limit: int
    days: int


class MemorySearchTool(RerunnableTool):
    """The tool that searches what was said in past turns of the user."""

    spec: ToolSpec = ToolSpec(
        name="react.memsearch",
        description=(
            "Search what was said in past turns, also in the user's other conversations. Gives the "
            "turns with excerpts and the refs that react.read reads. Without a query the newest "
            "turns come first."
        ),
        parameters=object_schema(
            {
                "query": {"type": "string", "description": "Words to look for."},
                "targets": {
                    "type": "array",
                    "items": {"type": "string", "enum": list(TARGETS)},
                    "description": "What to search; all when it is left out.",
                },
                "scope": {"type": "string", "enum": list(SCOPES), "default": "user"},
                "ordinal": {
                    "type": ["integer", "string"],
                    "description": "A turn by its order: 2, second, last or -1.",
                },
                "from": _TIME,
                "to": _TIME,
                "top_k": limit_schema(DEFAULT_TURNS, MOST_TURNS),
                "days": limit_schema(DEFAULT_DAYS, LONGEST_DAYS),
            }
        ),
    )

    def __init__(self, turns: PastTurns) -> None:
        self._turns = turns

    def check(self, arguments: JsonObject) -> None:
        """Refuse what is no query, target, scope, ordinal, time or number."""
        check_names(self.spec, arguments)
        _parsed(arguments)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the turns as JSON, and a section for each excerpt."""
        del call
        parsed = _parsed(arguments)
        hits = await self._turns.search(
            parsed.query,
            scope=parsed.scope,
            limit=parsed.limit,
            targets=parsed.targets,
            ordinal=parsed.ordinal,
            since=parsed.since,
            until=parsed.until,
            days=parsed.days,
        )
        return Outcome(
            text=dumps(_summary(hits, parsed.query)),
            sections=tuple(section for hit in hits for section in _sections(hit)),
            match_count=len(hits),
        )


def _summary(hits: Sequence[TurnHit], query: str) -> Json:
    tokens = sum(estimate(excerpt.text) for hit in hits for excerpt in hit.excerpts)
    return {"hits": [_row(hit, query) for hit in hits], "tokens": tokens}


def _row(hit: TurnHit, query: str) -> Json:
    return {
        "turn_id": hit.turn_id,
        "conversation": hit.conversation,
        "score": round(hit.score, 3),
        "sim_score": round(hit.relevance, 3),
        "recency_score": round(hit.recency, 3),
        "matched_via_role": hit.excerpts[0].target,
        "source_query": one_line(query),
        "ts": iso_time(hit.ts),
        "best_turn_id": hit.turn_id,
        "snippets": [
            {"path": excerpt.ref, "role": excerpt.target, "ts": iso_time(excerpt.ts)}
            for excerpt in hit.excerpts
        ],
    }


def _sections(hit: TurnHit) -> list[ResultSection]:
    return [
        ResultSection(heading=f"{excerpt.target} — {excerpt.ref}", text=well_formed(excerpt.text))
        for excerpt in hit.excerpts
    ]


def _parsed(arguments: JsonObject) -> _MemoryArguments:
    chosen = names_argument(arguments, "targets", list(TARGETS))
    requested = _text(arguments, "scope") or "user"
    scopes: list[Scope] = [scope for scope in SCOPES if requested == scope]
    if not scopes:
        raise ToolError(f"scope: one of {', '.join(SCOPES)}")
    return _MemoryArguments(
        query=_text(arguments, "query"),
        targets=[target for target in TARGETS if target in chosen],
        scope=scopes[0],
        ordinal=_ordinal(arguments),
        since=_time(arguments, "from"),
        until=_time(arguments, "to", ends=True),
        limit=integer_argument(arguments, "top_k", DEFAULT_TURNS, MOST_TURNS),
        days=integer_argument(arguments, "days", DEFAULT_DAYS, LONGEST_DAYS),
    )


def _text(arguments: JsonObject, name: str) -> str:
    value = arguments.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ToolError(f"{name}: a text")
    return value


def _ordinal(arguments: JsonObject) -> int | None:
    name = "ordinal"
    value = arguments.get(name)
    if value is None:
        return None
    ordinal = ordinal_of(str(value)) if isinstance(value, str | int) else None
    if ordinal is None or isinstance(value, bool):
        raise ToolError(
            "ordinal: a number from the first turn (1) or the last (-1), or such as second"
        )
    return ordinal


def _time(arguments: JsonObject, name: str, *, ends: bool = False) -> datetime | None:
    """Return the time; a date alone is its beginning, or its end."""
    text = _text(arguments, name)
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        is_date = len(text) <= len("2026-03-01")
        return moment + timedelta(days=1, milliseconds=-1) if ends and is_date else moment
    except (ValueError, OverflowError):
        raise ToolError(f"{name}: a date or time such as 2026-03-01 or 2026-03-01T12:00") from None
