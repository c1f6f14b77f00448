"""`loopline replay`: the prompt of every round rendered again, and where the first one diverges."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.columns import Columns
from loopline.cli.door import ANSWERED, FAILED
from loopline.cli.prompting import chosen_timeline
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, counted, visible
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, dumps
from loopline.prompt import Divergence, ReplayedRound, replayed

_ROUND_HEADINGS = ("round", "epoch", "messages", "tokens", "prompt", "opened by")
DIGITS = 12
"""How much of a digest is shown to people."""


async def replay(choices: Choices, screen: Screen) -> int:
    """Print a line for each round; a failure if one of them is not what was recorded."""
    rounds = list(replayed(await chosen_timeline(choices, screen)))
    if not rounds:
        raise LooplineError("no model was asked in this conversation: there is nothing to replay")
    wrong = next((one for one in rounds if one.divergence is not None), None)
    if choices.as_json:
        screen.raw(dumps(_replay_document(rounds, wrong)))
        return ANSWERED if wrong is None else FAILED
    rows = list(map(_round_row, rounds))
    headings = tuple(Text(name, style=QUIET) for name in _ROUND_HEADINGS)
    columns = Columns(rows=[headings, *rows], cut=5, right=frozenset({1, 2, 3}))
    screen.answer_whole(columns, "\n".join("\t".join(cell.plain for cell in row) for row in rows))
    if wrong is None or wrong.divergence is None:
        screen.note(Text(f"{counted(len(rounds), 'round')}, each rendered as it was", style=QUIET))
        return ANSWERED
    screen.error(_told(wrong, wrong.divergence))
    return FAILED


def _round_row(one: ReplayedRound) -> tuple[Text, ...]:
    block, begun, found = one.request.block, one.request.begun, one.divergence
    differs = Text("identical", style="green")
    if found is not None:
        differs = Text(f"other {found.part}", style="red")
    return (
        Text(f"{block.turn}.{block.round}"),
        Text(str(begun.epoch)),
        Text(f"{len(one.request.messages):,}"),
        Text(f"{begun.tokens:,}"),
        differs,
        Text(begun.opened_by, style=QUIET),
    )


def _told(one: ReplayedRound, found: Divergence) -> str:
    """Which part of which round is the first that diverges, and what it was."""
    block = one.request.block
    where = f"{block.turn_id} round {block.round} is the first that diverges"
    match found.part:
        case "renderer":
            return (
                f"{where}: it was rendered by version {found.recorded}, "
                f"this loopline has {found.rendered}"
            )
        case "system" | "tools":
            now = (
                f"that of the log has {found.rendered[:DIGITS]}"
                if found.rendered
                else "there is none"
            )
            return f"{where}: its {found.part} text had the digest {found.recorded[:DIGITS]}, {now}"
        case "tail":
            was, now = (visible(line) or "nothing" for line in (found.recorded, found.rendered))
            return f"{where}: its tail said {was}, and the log makes {now}"
        case "messages":
            place = f"message {found.first}"
            if found.last > found.first:
                place = f"{place} to {found.last}"
            refs = visible(", ".join(dict.fromkeys(filter(None, one.suspects))))
            return (
                f"{where}, at {place}{f' ({refs})' if refs else ''}: the digest of all was "
                f"{found.recorded[:DIGITS]} and is {found.rendered[:DIGITS]}"
            )


def _replay_document(rounds: Sequence[ReplayedRound], wrong: ReplayedRound | None) -> JsonObject:
    rows: list[Json] = [_round_document(one) for one in rounds]
    return {
        "identical": wrong is None,
        "first": _round_document(wrong) if wrong else None,
        "rounds": rows,
    }


def _round_document(one: ReplayedRound) -> JsonObject:
    block, begun, found = one.request.block, one.request.begun, one.divergence
    return {
        "turn_id": block.turn_id,
        "round": block.round,
        "ref": block.ref,
        "epoch": begun.epoch,
        "opened_by": begun.opened_by,
        "messages": len(one.request.messages),
        "tokens": begun.tokens,
        "identical": found is None,
        "divergence": None if found is None else _divergence_document(one, found),
    }


def _divergence_document(one: ReplayedRound, found: Divergence) -> JsonObject:
    return {
        "part": found.part,
        "recorded": found.recorded,
        "rendered": found.rendered,
        "first_message": found.first or None,
        "last_message": found.last or None,
        "refs": list[Json](one.suspects),
    }
