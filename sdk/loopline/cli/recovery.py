"""`loopline resume --all`: every turn of a bundle that its process left behind is carried on."""

from __future__ import annotations

from functools import partial

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.door import ANSWERED, FAILED, stopping
from loopline.cli.opening import opened
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, counted, visible
from loopline.conversations import Recovery
from loopline.models import Json, JsonObject, dumps


async def carry_on(bundle: str, at_once: int, choices: Choices, screen: Screen) -> int:
    """Carry on every cut turn of the bundle, a line for each as it ends; the exit code."""
    async with opened(bundle, choices, screen) as harness:
        tell = None if choices.as_json else partial(_show_outcome, screen)
        with stopping(screen):
            found = await harness.carry_on(at_once=at_once, on_outcome=tell)
    if choices.as_json:
        screen.raw(dumps([_outcome_document(outcome) for outcome in found]))
    counts = [(status, sum(one.status == status for one in found)) for status in _ORDER]
    told = ", ".join(f"{count} {status}" for status, count in counts if count)
    summary = f"{counted(len(found), 'turn')}: {told}" if found else "no turn was left behind"
    screen.note(Text(summary, style=QUIET))
    return ANSWERED if all(map(_is_well, found)) else FAILED


_ORDER = ("resumed", "waiting", "running", "skipped", "failed")


def _is_well(outcome: Recovery) -> bool:
    """Whether nobody has to look at it: it was answered, waits, or is with another process."""
    if outcome.status == "resumed":
        return outcome.result is not None and (outcome.result.ok or bool(outcome.result.pending))
    return outcome.status in ("waiting", "running")


def _show_outcome(screen: Screen, outcome: Recovery) -> None:
    whose = outcome.conversation
    cells = (whose.name, whose.user, outcome.turn_id, outcome.status, _outcome_detail(outcome))
    screen.answer(Text("\t".join(visible(" ".join(cell.split())) for cell in cells)))


def _outcome_detail(outcome: Recovery) -> str:
    came = outcome.result
    if came is None:
        return outcome.reason
    waits = [f"{call.call_id} ({call.question})" for call in came.pending]
    return ", ".join(waits) if waits else f"{came.exit_reason} {came.error}".strip()


def _outcome_document(outcome: Recovery) -> JsonObject:
    came, whose = outcome.result, outcome.conversation
    return {
        "conversation": whose.name,
        "user": whose.user,
        "project": whose.project,
        "tenant": whose.tenant,
        "turn_id": outcome.turn_id,
        "status": outcome.status,
        "reason": outcome.reason,
        "exit_reason": came.exit_reason if came else None,
        "answer": came.answer if came else "",
        "error": came.error if came else "",
        "pending": list[Json](
            {"call_id": call.call_id, "tool": call.tool, "question": call.question}
            for call in (came.pending if came else ())
        ),
    }
