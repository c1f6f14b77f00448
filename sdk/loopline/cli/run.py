"""`loopline run` and `loopline resume`: one turn of a bundle, or every turn that was cut off."""

from __future__ import annotations

import logging
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from loopline.cli.access import fresh, latest, opened
from loopline.cli.knowledge import indexed
from loopline.cli.next_commands import Ran, Started, commands
from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, FAILED, UsageError, leave, stopping
from loopline.cli.terminal import QUIET, REF, Screen, counted, duration, visible
from loopline.cli.turn_display import Watch
from loopline.conversations import Conversation, Recovery
from loopline.errors import LooplineError
from loopline.harness import Harness
from loopline.models import Json, JsonObject, dumps
from loopline.react import Limits, PendingCall, TurnResult, result
from loopline.timeline import (
    Block,
    Source,
    Timeline,
    Turn,
    citations,
)

STDIN = "-"
PICTURE = "--svg"

_logger = logging.getLogger("loopline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What `run` was asked to do; without a text it carries on, with `answers` to calls that wait.

    Files are `attached` to the text.
    """

    bundle: str
    text: str | None
    choices: Choices
    limits: Limits
    picture: Path | None = None
    answers: tuple[str, ...] = ()
    attached: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Over:
    """A turn that has ended, and the conversation as it then stood."""

    timeline: Timeline
    number: int

    @property
    def blocks(self) -> list[Block]:
        """The blocks of the turn."""
        return [block for block in self.timeline if block.turn == self.number]

    @property
    def result(self) -> TurnResult[Any]:
        """What came of it."""
        turn = self.timeline.turn(self.number)
        ended = turn.exit
        if ended is None:
            return result(self.timeline, self.number, "paused" if turn.pending else "interrupted")
        return result(self.timeline, self.number, ended.reason, ended.error)


async def run(asked: Asked, screen: Screen) -> int:
    """Run one turn and show it; the exit code."""
    text = sys.stdin.read() if asked.text == STDIN else asked.text
    if text is not None and not text.strip():
        raise UsageError("the text is empty: ask something, or leave it out to carry on a cut turn")
    answers = dict(map(_answered_call, asked.answers))
    if answers and text is not None:
        raise UsageError("an answer carries a paused turn on: leave the text out")
    if asked.attached and text is None:
        raise UsageError("a file is attached to what is said: say something with it")
    async with opened(asked.bundle, asked.choices, screen) as harness:
        name = await _conversation(harness, asked, screen)
        talk = harness.conversation(name, user=asked.choices.whose)
        introduce(harness, screen)
        with stopping(screen, partial(stop, talk, screen)) as wish:
            over = await watched(
                talk, text, asked.limits, screen, answers=answers, attached=asked.attached
            )
        tell(over, name, screen, as_json=asked.choices.as_json)
        ran = Ran(
            bundle=asked.bundle,
            text=(text or "").strip(),
            conversation=name,
            choices=asked.choices,
            knowledge=harness.knowledge_state,
            stopped=over.result.exit_reason == "stopped",
            waits=tuple(one.call_id for one in over.result.pending),
        )
        for line in commands(ran, over.blocks, Started.now()):
            screen.command(line)
    if asked.picture is not None:
        screen.save(asked.picture, _typed(sys.argv[1:]))
    code = ANSWERED if over.result.ok else FAILED
    if wish.stop is not None or over.result.exit_reason not in ("complete", "paused"):
        leave(code)  # a tool that runs in a thread cannot be stopped, and nobody waits for it
    return code


def _answered_call(written: str) -> tuple[str, str]:
    """`c7=yes` as a call and what it is given.

    Raises:
        UsageError: it is written otherwise.
    """
    call_id, equals, value = written.partition("=")
    if not equals or not call_id.strip():
        raise UsageError(f"--answer takes CALL=VALUE, such as c7=yes, not {written!r}")
    return call_id.strip(), value


def _typed(arguments: Sequence[str]) -> str:
    """The command as it was typed, but for the picture that it was to make."""
    kept = list[str]()
    for before, word in zip(("", *arguments), arguments, strict=False):
        if PICTURE not in (before, word.partition("=")[0]):
            kept.append(word)
    return shlex.join(["loopline", *kept])


async def _conversation(harness: Harness, asked: Asked, screen: Screen) -> str:
    if asked.choices.conversation is not None:
        return asked.choices.conversation
    if asked.text is None:
        return await latest(harness.log, asked.choices, screen)
    return await fresh(harness.log, harness.bundle.id, asked.choices.whose)


async def stop(talk: Conversation, screen: Screen) -> None:
    """End the running turn, and say that it may take a moment."""
    screen.note(Text("stopping; once more to leave at once", style=QUIET))
    await talk.stop()


def introduce(harness: Harness, screen: Screen) -> None:
    """Who answers, and from what."""
    screen.note(heading(harness.bundle.id, harness.model.name))
    state = harness.knowledge_state
    if state is not None:
        screen.note(indexed(state))
    screen.gap()


async def watched(
    talk: Conversation,
    text: str | None,
    limits: Limits,
    screen: Screen,
    *,
    moves: bool = True,
    answers: Mapping[str, str] | None = None,
    attached: Sequence[Path] = (),
) -> Over:
    """Run the turn to its end or until it waits; one that ended by an error is over too."""
    name = shlex.quote(visible(talk.conversation.name))
    hint = f"Ctrl-C takes yours back · loopline stop -c {name} ends both"
    watch = Watch(screen, moves=moves, busy_hint=hint)
    if text is None:
        events = talk.stream_resume(answers or None, **limits)
    else:
        events = talk.stream(text, attachments=attached, **limits)
    try:
        async for event in events:
            watch.hear(event)
    except LooplineError as error:
        if not watch.ended:
            raise
        _logger.debug("%s", type(error).__name__, exc_info=error)
    finally:
        watch.end()
    if not watch.turn:
        raise LooplineError("given up before it began: nothing was run")
    return Over(Timeline(await talk.blocks()), watch.turn)


def tell(over: Over, name: str, screen: Screen, *, as_json: bool) -> None:
    """The answer with its sources, and how the turn went."""
    turn = over.timeline.turn(over.number)
    answer = answered(over.timeline, turn)
    if as_json:
        screen.raw(dumps(report(over, answer, name)))
    elif answer.text:
        screen.gap(needed=True)
        screen.answer(answer_text(answer, dense=screen.is_small))
        if answer.sources:
            screen.answer(Text())
        for line in source_lines(answer.sources, screen.width):
            screen.answer(line)
    _close(over, name, screen)


def conclude(over: Over, name: str, screen: Screen) -> None:
    """Show the sources of an answer that was shown as it came, and how the turn went."""
    answer = answered(over.timeline, over.timeline.turn(over.number))
    for line in source_lines(answer.sources, screen.width):
        screen.answer(line)
    _close(over, name, screen)


def _close(over: Over, name: str, screen: Screen) -> None:
    """Show what the turn waits for, how it went, and what went wrong."""
    for call in over.result.pending:
        screen.note(waits(call))
    screen.gap()
    turn = over.timeline.turn(over.number)
    screen.note(footer(turn, blocks=len(over.blocks), conversation=name))
    if over.result.error:
        screen.error(over.result.error)


def report(over: Over, answer: Answered, name: str) -> JsonObject:
    """What came of a run, for programs."""
    came, ended = over.result, over.timeline.turn(over.number).exit
    usage: JsonObject = {**asdict(came.usage)}
    return {
        "conversation": name,
        "turn_id": came.turn_id,
        "answer": answer.text,
        "output": came.output,
        "exit_reason": came.exit_reason,
        "ok": came.ok,
        "error": came.error,
        "rounds": came.rounds,
        "usage": usage,
        "sources": [_source(cited) for cited in answer.sources],
        "blocks": len(over.blocks),
        "elapsed_ms": ended.elapsed_ms if ended else None,
        "late_input": list[Json](came.late_input),
        "pending": [
            {
                "call_id": call.call_id,
                "tool": call.tool,
                "arguments": call.arguments,
                "question": call.question,
            }
            for call in came.pending
        ],
    }


def _source(cited: Cited) -> Json:
    source = cited.source
    return {
        "n": cited.n,
        "title": source.title,
        "url": source.url,
        "path": source.path,
        "commit": source.commit,
        "lines": list[Json](source.lines) if source.lines else None,
    }


SHORTEST_TITLE = 12


GLOSSES = {"offline": " — a deterministic reader, not a language model"}
"""What has to be known about a model beside its name."""


_EMPTY_LINES = re.compile(r"\n\s*\n")


@dataclass(frozen=True, slots=True)
class Cited:
    """A source under the number that the printed answer gives it."""

    n: int
    source: Source


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer as it is printed: its citations are numbered in the order of their first mention."""

    text: str
    sources: tuple[Cited, ...]


def answered(timeline: Timeline, turn: Turn) -> Answered:
    """The answer of a turn, for people."""
    written, pool = turn.completion.text if turn.completion else "", timeline.pool
    marks = citations.Marks(pool.sources)
    text = citations.resolve(written, marks, newest=pool.newest).strip()
    cited = tuple(Cited(n, pool.sources[sid]) for sid, n in marks.numbers.items())
    return Answered(text=text, sources=cited)


def waits(call: PendingCall) -> Text:
    """`? c7 shop.buy asks: which one?`."""
    asked = visible(call.question)
    return Text.assemble(("? ", "yellow"), f"{call.call_id} {call.tool} asks: ", (asked, "bold"))


def heading(bundle: str, model: str) -> Text:
    """`repo_guide · offline — a deterministic reader, not a language model`."""
    return Text.assemble((bundle, "bold"), (" · ", QUIET), model, (GLOSSES.get(model, ""), QUIET))


def answer_text(answer: Answered, *, dense: bool = False) -> Text:
    """The answer, its citations set apart; a `dense` one has no empty lines."""
    shown = visible(answer.text)
    text = Text(_EMPTY_LINES.sub("\n", shown) if dense else shown)
    if answer.sources:
        text.highlight_regex(r"\[(?:\d+|\?)\](?=[\s.,;:)\[]|$)", REF)
    return text


def source_lines(sources: Iterable[Cited], width: int = 0) -> list[Text]:
    """`[1] heading — ks:docs/…@3f2a91c#L88-L96`, one for each.

    Where `width` columns are too few, the heading is cut; the ref never is.
    """
    return [_source_line(cited, width) for cited in sources]


def _source_line(cited: Cited, width: int) -> Text:
    title, ref = visible(" ".join(cited.source.title.split())), visible(cited.source.url)
    room = width - len(f"[{cited.n}]  — ") - cell_len(ref)
    if width and cell_len(title) > room >= SHORTEST_TITLE:
        title = f"{title[: room - 1].rstrip()}…"
    return Text.assemble((f"[{cited.n}]", REF), f" {title}", (" — ", QUIET), (ref, REF))


def footer(turn: Turn, *, blocks: int, conversation: str) -> Text:
    """How the turn went: rounds, time, blocks, and its conversation; the reason unless it is done."""
    ended = turn.exit
    reason = "" if ended is None or ended.reason == "complete" else ended.reason
    parts = [
        *([reason.replace("_", " ")] if reason else []),
        counted(turn.rounds, "round"),
        *([duration(ended.elapsed_ms)] if ended else []),
        counted(blocks, "block"),
        f"conversation {visible(conversation)}",
    ]
    return Text(" · ".join(parts), style=QUIET)


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
