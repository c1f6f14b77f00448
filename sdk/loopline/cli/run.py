"""`loopline run` and `loopline resume`, and what they share with `loopline chat`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shlex
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, get_args

import click
from msgspec import structs
from rich.cells import cell_len
from rich.text import Text

from loopline import timeline as tl
from loopline.cli import bundle_access, parameters
from loopline.cli.knowledge import index_line
from loopline.cli.options import (
    ANSWERED,
    FAILED,
    Choices,
    Protocol,
    UsageError,
    command,
    exit_now,
    misuse,
    stop_on_signal,
)
from loopline.cli.reader import choose_name, key_document, new_name
from loopline.cli.terminal import QUIET, REF, Screen, escape, format_duration, quantity
from loopline.cli.turn_display import YES_AND_NO, QuestionForm, TurnDisplay
from loopline.conversations import Conversation, Recovery
from loopline.errors import LooplineError
from loopline.events import Delta
from loopline.harness import Harness, parse_store_url
from loopline.models import Json, JsonObject, dumps
from loopline.react import Limits, parse_approval, result, threads_remain
from loopline.search import ANSWER_SCORE

if TYPE_CHECKING:
    from loopline.client import RemoteConversation, RemoteServer


KEY_VARIABLE = "LOOPLINE_KEY"
ChatConversation: TypeAlias = "Conversation[Any] | RemoteConversation"


async def answer_question(conversation: ChatConversation, call_id: str, value: Json) -> bool:
    """Answer the question of a running call, or decline it if `value` is None; return whether the call still waited."""
    if not isinstance(conversation, Conversation):
        return await conversation.answer(call_id, value)
    if value is None or not conversation.asks(call_id):
        return conversation.answer(call_id, value)
    return await conversation.interrupts.answer(call_id, value)


@asynccontextmanager
async def open_server(url: str, key_file: Path | None) -> AsyncGenerator[RemoteServer]:
    """Connect to a server with the key in `key_file`, or in LOOPLINE_KEY, or without a key.

    Raises:
        UsageError: the file cannot be read, or the URL is invalid.
        LooplineError: the server cannot be reached, or refuses the key.
    """
    from loopline.client import ServerProblem, connect

    key = await asyncio.to_thread(_read_key, key_file)
    with misuse(LooplineError):
        server = connect(url, key)
    try:
        async with server:
            yield server
    except ServerProblem as error:
        if error.status != HTTPStatus.UNAUTHORIZED:
            raise
        hint = f"set {KEY_VARIABLE}, or name the file of your key with --key-file"
        raise LooplineError(f"{error}: {hint}") from error


def _read_key(file: Path | None) -> str:
    """Return the key in the file, or in LOOPLINE_KEY if `file` is None; empty if the variable is not set.

    Raises:
        UsageError: the file cannot be read, or is not UTF-8.
    """
    if file is None:
        return os.environ.get(KEY_VARIABLE, "").strip()
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{file}: it cannot be read: {error}") from error


async def remote_conversation(
    server: RemoteServer, name: str | None, bundle: str
) -> RemoteConversation:
    """Return the conversation `name`, or a new conversation that is named after the bundle if `name` is None.

    Raises:
        UsageError: the bundle is not served there, or the server has no bundle for a new conversation.
    """
    if bundle and bundle not in server.bundles:
        raise UsageError(
            f"the server does not have the bundle {bundle!r}: it has {', '.join(server.bundles)}"
        )
    if name is None and not server.bundles:
        raise UsageError("the server has no bundle: name a conversation with -c")
    if name is None:
        # Not numbered: the server does not list the names of forgotten conversations, which it refuses.
        name = f"{bundle or server.bundles[0]}-{token_hex(4)}"
    return server.conversation(name, bundle=bundle)


STDIN = "-"
PICTURE = "--svg"
MINIMUM_TITLE_WIDTH = 12
RESULT_CHARACTERS = 1_000
"""The most characters that are printed of a result in the background."""
MODEL_REMARKS = {"offline": " — a deterministic reader, not a language model"}
"""Notes on models that are printed after their names."""

_EMPTY_LINES = re.compile(r"\n\s*\n")
_logger = logging.getLogger("loopline")

_any_bundle_option = parameters.flag(
    "--any-bundle", help="Continue a turn of another bundle or version."
)


@command
@parameters.conversation_option
@parameters.answer_options
@parameters.cassette_options
@parameters.bundle_argument
@click.argument(
    "text",
    required=False,
    metavar="[TEXT]",
    help="Your message; - reads it from stdin. Without it the turn that was cut off is continued.",
)
@click.option("--max-iterations", type=parameters.COUNT, help="Run at most this many rounds.")
@click.option(
    "--protocol", type=click.Choice(get_args(Protocol)), help="How the model states its decisions."
)
@parameters.repeated("--answer", metavar="CALL=VALUE", help="Answer a call of the paused turn.")
@parameters.by_option
@parameters.repeated(
    "--attach", type=parameters.PATH, metavar="FILE", help="Attach a file; may be repeated."
)
@parameters.file_option("--svg", help="Save the screen as a picture.")
@click.option(
    "--at", metavar="TIME", help="Begin the turn at this time, in UTC if it names no zone."
)
@click.option(
    "--delay", type=click.FloatRange(min=0), metavar="SECONDS", help="Begin the turn later."
)
@click.option("--every", default="", metavar="CRON", help="Begin a turn at each time of this line.")
@click.option("--zone", default="", metavar="ZONE", help="The time zone of --every.")
@_any_bundle_option
@parameters.json_option
async def run(
    choices: Choices,
    screen: Screen,
    bundle: str,
    text: str | None,
    max_iterations: int | None,
    protocol: Protocol | None,
    answer: tuple[str, ...],
    by: str,
    attach: tuple[Path, ...],
    svg: Path | None,
    at: str | None,
    delay: float | None,
    every: str,
    zone: str,
    any_bundle: bool,
) -> int:
    """Ask a bundle; without TEXT continue its cut turn.

    With --at, --delay or --every the message is only stored: a worker or server of the bundle begins its turn.
    """
    text = sys.stdin.read() if text == STDIN else text
    if at is not None or delay is not None or every or zone:
        if text is None or answer or attach or svg or any_bundle:
            raise UsageError("a scheduled message has a TEXT, and no files, answers or picture")
        time = None if at is None else _parse_time(at)
        when = ScheduledTimes(at=time, delay=delay, every=every, zone=zone)
        limits = _limits(max_iterations, protocol)
        return await _schedule(choices, screen, bundle, text, when, limits)
    begin = TurnInput(
        text=text,
        answers=dict(map(_parse_answer, answer)),
        by=by,
        files=attach,
        limits=_limits(max_iterations, protocol),
        any_bundle=any_bundle,
    )
    return await _run_turn(choices, screen, bundle, begin, svg)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnInput:
    """What begins a turn: the text of a message with its files, or None with `answers` to the pending calls of the last turn.

    `by` is the person who answers. With `any_bundle` a turn of another bundle or version is continued.
    """

    text: str | None
    answers: Mapping[str, Json] = field(default_factory=dict[str, Json])
    by: str = ""
    files: Sequence[Path] = ()
    limits: Limits = field(default_factory=Limits)
    any_bundle: bool = False


class ScheduledTimes(TypedDict):
    """The arguments of `Conversation.schedule` that say when."""

    at: datetime | None
    delay: float | None
    every: str
    zone: str


def _parse_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--at {text!r} is not a time such as 2026-12-24T18:00+01:00") from error


async def _schedule(
    choices: Choices, screen: Screen, bundle: str, text: str, when: ScheduledTimes, limits: Limits
) -> int:
    """Store a message that begins a turn later, in the chosen or in a new conversation; print its id and time.

    Returns the exit code 0.
    """
    async with bundle_access.open_bundle(bundle, choices, screen) as harness:
        name = await _conversation_name(harness, choices, screen, is_new=True)
        conversation = harness.conversation(name, user=choices.user_name)
        message = await conversation.schedule(text, **when, **limits)
    at = tl.iso_time(message.at)
    if choices.as_json:
        document: Json = {"conversation": name, "id": message.id, "at": at, "every": message.every}
        screen.write_json(document)
    else:
        begins = f"begins at {at}" if message.at > datetime.now(UTC) else "is due"
        screen.print(
            Text(f"{message.id} of {escape(name)} {begins}, in a worker or server of the bundle")
        )
    return ANSWERED


async def _run_turn(
    choices: Choices, screen: Screen, bundle: str, begin: TurnInput, svg: Path | None = None
) -> int:
    """Run one turn, or continue the turn that was cut off; print it, and return the exit code.

    Then wait for its calls in the background, print the next commands, and save a picture to `svg`. If Ctrl-C was
    pressed, the turn is neither complete nor paused, or a tool still runs after its timeout, the process ends here
    without waiting for its threads.

    Raises:
        UsageError: the text is empty, or cannot be combined with the answers or files.
        OSError: the picture cannot be written.
        LooplineError: the conversation is damaged, and the message is not stored; or the turn could not begin or continue.
    """
    _check_message(begin)
    if svg is not None:
        _check_picture(svg)
    async with bundle_access.open_bundle(bundle, choices, screen) as harness:
        name = await _conversation_name(harness, choices, screen, is_new=begin.text is not None)
        conversation = harness.conversation(name, user=choices.user_name)
        # A message to a damaged conversation is refused before it is stored. The turn reads only newer blocks again.
        before = (await harness.newest_timeline(conversation.conversation)).next_turn
        number = before.number if before is not None and begin.text is None else 0
        introduce(harness, screen)
        with stop_on_signal(screen, partial(stop, conversation, screen)) as request:
            answers = await _read_answers(conversation, begin.answers)
            begin = replace(begin, answers=answers)
            try:
                finished = await watch(conversation, begin, choices, screen)
            except LooplineError:
                blocks = await conversation.blocks() if number else ()
                finished = FinishedTurn(tl.Timeline(blocks), number)
                if not finished.has_ended_elsewhere:
                    raise
                screen.note(f"{tl.turn_id(number)} has ended in another process")
        show_result(finished, name, screen, as_json=choices.as_json)
        left = request.stop is None and await _await_background(conversation, screen)
        summary = bundle_access.FinishedRun(
            bundle=bundle,
            text=(begin.text or "").strip(),
            conversation=name,
            choices=choices,
            knowledge=harness.knowledge_state,
            stopped=finished.result.exit_reason == "stopped",
            pending=tuple(finished.result.pending),
        )
        for line in bundle_access.next_commands(
            summary, finished.blocks, bundle_access.Invocation.now()
        ):
            screen.note_command(line)
    if svg is not None:
        screen.save_picture(svg, _render_command(sys.argv[1:], choices.store))
    code = ANSWERED if finished.result.ok else FAILED
    is_cut = finished.result.exit_reason not in ("complete", "paused")
    if left or request.stop is not None or is_cut or threads_remain():
        exit_now(code)  # a tool in a thread cannot be stopped, and the process must not wait for it
    return code


async def _read_answers(
    conversation: Conversation[Any], answers: Mapping[str, Json]
) -> Mapping[str, Json]:
    """Return the answers by call id; answers to pending approvals are parsed by `_parse_approval`."""
    if not answers:
        return {}
    timeline = tl.Timeline(await conversation.blocks())
    approvals = {
        call_id
        for turn in timeline.resumable
        for call_id, pending in turn.unanswered.items()
        if pending.kind == "approval"
    }
    return {
        call_id: _parse_approval(f"{value}") if call_id in approvals else value
        for call_id, value in answers.items()
    }


def _parse_approval(text: str) -> Json:
    """Parse a JSON object, `always`, or yes or no with arguments or a reason, such as `yes {"cups": 2}`.

    Any other text is returned unchanged, also a single `yes` or `no`.
    """
    if text.strip().startswith("{"):
        try:
            value: Json = json.loads(text)
        except ValueError:
            return text
        return value
    first, *rest = text.split() or [""]
    word = first.strip(",.:;!").casefold()
    is_long = word == "always" or (rest and word in YES_AND_NO)
    return parse_approval(text) if is_long else text


async def _await_background(conversation: Conversation[Any], screen: Screen) -> bool:
    """Wait for the calls that this process runs in the background, and print their results up to `RESULT_CHARACTERS`.

    Returns whether Ctrl-C ended the wait: the calls then end with the process, and the next turn says that they are
    lost, or begins them again if they may be repeated.
    """
    calls = [call for call in await conversation.background.calls() if call.is_here]
    if not calls:
        return False
    left = asyncio.Event()

    async def leave() -> None:
        left.set()

    ids = [call.call_id for call in calls]
    with stop_on_signal(screen, leave):
        for call in calls:
            running = f"{escape(call.call_id)} {escape(call.tool)} runs in the background"
            screen.note(f"{running}: waiting for its result; Ctrl-C leaves it to the next turn")
        ended = asyncio.ensure_future(_wait_for_all(conversation, ids))
        leaving = asyncio.ensure_future(left.wait())
        await asyncio.wait([ended, leaving], return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        leaving.cancel()
    for block in await conversation.blocks(types=tl.BackgroundResult.type):
        if isinstance(block.body, tl.BackgroundResult) and block.body.call_id in ids:
            text = escape(block.body.text)
            cut = f"{text[:RESULT_CHARACTERS]}… loopline read {block.ref}"
            screen.note(Text(text if len(text) <= RESULT_CHARACTERS else cut))
    return left.is_set()


async def _wait_for_all(conversation: Conversation[Any], call_ids: Sequence[str]) -> None:
    for call_id in call_ids:
        with suppress(LooplineError):  # it has ended meanwhile
            await conversation.background.wait(call_id)


def _limits(max_iterations: int | None, protocol: Protocol | None) -> Limits:
    """Return the limits of a turn that are given; a parameter of None is left out."""
    limits: Limits = {}
    if max_iterations is not None:
        limits["max_iterations"] = max_iterations
    if protocol is not None:
        limits["protocol"] = protocol
    return limits


async def _conversation_name(
    harness: Harness, choices: Choices, screen: Screen, *, is_new: bool
) -> str:
    """Return the name of the chosen conversation, or of a new one if `is_new`, or of the user's latest.

    Raises:
        LooplineError: none is chosen, `is_new` is false, and the user does not have a conversation.
    """
    if choices.conversation is None and is_new:
        return await new_name(harness.log, harness.bundle.id, choices.user_name)
    return await choose_name(harness.log, choices, screen)


def _check_message(begin: TurnInput) -> None:
    """Raise a UsageError for an empty text, for answers together with a text, or for files without a text."""
    if begin.text is not None and not begin.text.strip():
        raise UsageError("the text is empty: ask something, or omit it to continue a cut turn")
    if begin.answers and begin.text is not None:
        raise UsageError("--answer continues a paused turn: omit the text")
    if begin.files and begin.text is None:
        raise UsageError("--attach adds a file to a message: give a text with it")


def _check_picture(file: Path) -> None:
    """Raise an OSError if the file cannot be written; its content does not change."""
    is_new = not file.exists()
    file.open("ab").close()
    if is_new:
        file.unlink()


def _parse_answer(written: str) -> tuple[str, str]:
    """Parse `c7=yes` as the id of a call and its value.

    Raises:
        UsageError: the text is without `=`, or the id is empty.
    """
    call_id, equals, value = written.partition("=")
    if not equals or not call_id.strip():
        raise UsageError(f"--answer takes CALL=VALUE, such as c7=yes, not {written!r}")
    return call_id.strip(), value


def _render_command(arguments: Sequence[str], store: str | None) -> str:
    """Return the command as it was typed, without the option --svg and without a password in the URL of the store."""
    words = [
        word
        for before, word in zip(("", *arguments), arguments, strict=False)
        if PICTURE not in (before, word.partition("=")[0])
    ]
    if store:
        shown = parse_store_url(store).shown_url
        words = [word.replace(store, shown) for word in words]
    return shlex.join(["loopline", *words])


@dataclass(frozen=True, slots=True)
class FinishedTurn:
    """The number of a turn that has ended or is paused, and the timeline at that moment."""

    timeline: tl.Timeline
    number: int

    @property
    def blocks(self) -> list[tl.Block]:
        """The blocks of this turn."""
        return [block for block in self.timeline if block.turn == self.number]

    @property
    def has_ended_elsewhere(self) -> bool:
        """Whether `resume` has nothing to continue since the turn has ended; False for the number 0."""
        return bool(self.number) and self.turn.exit is not None and self.timeline.next_turn is None

    @property
    def turn(self) -> tl.Turn:
        """The turn."""
        return self.timeline.turn(self.number)

    @property
    def result(self) -> tl.TurnResult[Any]:
        """The result of the turn; without an exit it is `paused` if calls are pending, otherwise `interrupted`."""
        turn = self.turn
        if turn.exit is None:
            return result(self.timeline, self.number, "paused" if turn.pending else "interrupted")
        return result(self.timeline, self.number, turn.exit.reason, turn.exit.error)


async def stop(conversation: ChatConversation, screen: Screen) -> None:
    """Stop the running turn, and print that a second Ctrl-C leaves at once."""
    screen.note("stopping; press Ctrl-C again to leave at once")
    await conversation.stop()


def introduce(harness: Harness, screen: Screen) -> None:
    """Print the bundle and the model, and the state of the knowledge space if there is one."""
    name = harness.model.name
    screen.note(
        Text.assemble(
            (harness.bundle.id, "bold"), (" · ", QUIET), name, (MODEL_REMARKS.get(name, ""), QUIET)
        )
    )
    if harness.knowledge_state is not None:
        screen.note(index_line(harness.knowledge_state))
    screen.gap()


async def watch(
    conversation: ChatConversation,
    begin: TurnInput,
    choices: Choices,
    screen: Screen,
    *,
    animated: bool = True,
) -> FinishedTurn:
    """Run or continue a turn, and show its steps until it ends or is paused.

    On an animated terminal a question of a running call waits for `loopline answer`; elsewhere it is declined.
    An error after the end of the turn is only logged.

    Raises:
        LooplineError: the turn could not begin or continue, or the message was withdrawn.
    """
    options = ["-c", conversation.conversation.name, *bundle_access.store_options(choices)]
    location = escape(shlex.join(options))
    elsewhere = f"in another process · loopline stop {location} ends it"
    queued = f"Ctrl-C withdraws your message · loopline stop {location} ends both"
    hint = elsewhere if begin.text is None else queued
    display = TurnDisplay(screen, animated=animated, busy_hint=hint)
    answers = begin.answers or None
    if begin.text is not None:
        events = conversation.stream(begin.text, attachments=begin.files, **begin.limits)
    elif isinstance(conversation, Conversation):
        events = conversation.stream_resume(
            answers, any_bundle=begin.any_bundle, by=begin.by, **begin.limits
        )
    else:
        events = conversation.stream_resume(answers, **begin.limits)
    try:
        async for event in events:
            display.take(event)
            if isinstance(event, Delta) and event.type == "pending":
                if not (
                    animated and screen.is_live
                ):  # without a person the call would wait for ever
                    await answer_question(conversation, event.call_id, None)
                elif conversation.asks(event.call_id):
                    _show_question(event, location, screen)
    except LooplineError as error:
        if not display.has_ended:
            raise
        _logger.debug("%s", type(error).__name__, exc_info=error)
    finally:
        display.end()
    if not display.turn:
        raise LooplineError("the message was withdrawn before its turn began")
    return FinishedTurn(tl.Timeline(await conversation.blocks()), display.turn)


def _show_question(event: Delta, location: str, screen: Screen) -> None:
    """Print the question of a running call, and the command that answers it."""
    form = QuestionForm(event.call_id, event.text, event.data)
    screen.note(form.question)
    screen.note(f"answer it: loopline answer {location} {escape(event.call_id)} {form.usage}")


@dataclass(frozen=True, slots=True)
class PrintedAnswer:
    """The text of an answer, with citations numbered in the order of their first mention, and the sources by number."""

    text: str
    sources: Mapping[int, tl.Source]


def number_citations(timeline: tl.Timeline, turn: tl.Turn) -> PrintedAnswer:
    """Return the answer of a turn with its citations replaced by numbers; empty if the turn did not answer."""
    written = turn.completion.text if turn.completion else ""
    pool = timeline.pool
    marks = tl.citations.Marks(pool.sources)
    text = tl.citations.resolve(written, marks, newest=pool.newest).strip()
    sources = {n: pool.sources[sid] for sid, n in marks.numbers.items()}
    return PrintedAnswer(text=text, sources=sources)


def answer_text(answer: PrintedAnswer, *, dense: bool = False) -> Text:
    """Return the answer with coloured citations, and without empty lines if `dense`."""
    escaped = escape(answer.text)
    text = Text(_EMPTY_LINES.sub("\n", escaped) if dense else escaped)
    if answer.sources:
        text.highlight_regex(r"\[(?:\d+|\?)\](?=[\s.,;:)\[]|$)", REF)
    return text


def source_lines(sources: Mapping[int, tl.Source], width: int = 0) -> list[Text]:
    """Render each source as a line `[1] heading — ks:docs/…@3f2a91c#L88-L96`.

    A source that its search doubted has the mark `(weak match)`.
    The heading is truncated if the line is longer than `width` columns; 0 means any length.
    """
    return [_source_line(n, source, width) for n, source in sources.items()]


def _source_line(n: int, source: tl.Source, width: int) -> Text:
    """Render a source as `[n] title - url`, with a mark if its relevance is below ANSWER_SCORE.

    The title is truncated to `width` columns if MINIMUM_TITLE_WIDTH of them remain for it; 0 means any length.
    """
    title = escape(" ".join(source.title.split()))
    ref = escape(source.url)
    relevance = source.objective_relevance
    weak = " (weak match)" if relevance is not None and relevance < ANSWER_SCORE else ""
    room = width - len(f"[{n}]  — {weak}") - cell_len(ref)
    if width and cell_len(title) > room >= MINIMUM_TITLE_WIDTH:
        title = f"{title[: room - 1].rstrip()}…"
    return Text.assemble((f"[{n}]", REF), f" {title}", (" — ", QUIET), (ref, REF), (weak, QUIET))


def show_result(finished: FinishedTurn, name: str, screen: Screen, *, as_json: bool) -> None:
    """Print the answer with its sources, or with `as_json` the whole result, then the outcome of the turn."""
    answer = number_citations(finished.timeline, finished.turn)
    if as_json:
        screen.write_json(_run_document(finished, answer, name))
    elif answer.text:
        screen.gap(needed=True)
        screen.print(answer_text(answer, dense=screen.is_small))
        if answer.sources:
            screen.print(Text())
        for line in source_lines(answer.sources, screen.width):
            screen.print(line)
    _show_outcome(finished, name, screen)


def show_sources(finished: FinishedTurn, name: str, screen: Screen) -> None:
    """Print the sources of an answer that was already printed, and the outcome of the turn."""
    answer = number_citations(finished.timeline, finished.turn)
    for line in source_lines(answer.sources, screen.width):
        screen.print(line)
    _show_outcome(finished, name, screen)


def pending_line(call: tl.PendingCall) -> Text:
    """Render a pending call as `? c7 shop.buy asks: which one?`.

    If several people must approve the call, the line names those that have, and the arguments that they approved.
    """
    question = escape(call.question)
    people = ""
    if call.people > 1:
        names = escape(", ".join(call.approved_by)) or "nobody yet"
        people = f" ({call.people} people must approve: {names})"
        if call.approved_by:
            people += f" with {escape(dumps(call.arguments))}"
    head = f"{call.call_id} {call.tool} asks: "
    return Text.assemble(("? ", "yellow"), head, (question, "bold"), people)


def _show_outcome(finished: FinishedTurn, name: str, screen: Screen) -> None:
    """Print the pending calls, the rounds, time and blocks of the turn, and its error, all to stderr."""
    for call in finished.result.pending:
        screen.note(pending_line(call))
    screen.gap()
    turn = finished.turn
    final = turn.exit
    reason = "" if final is None or final.reason == "complete" else final.reason
    rounds = turn.rounds
    if reason:  # also count the round that was cut off before its decision
        rounds = max(rounds, *(block.round for block in finished.blocks))
    parts = [
        *([reason.replace("_", " ")] if reason else []),
        quantity(rounds, "round"),
        *([format_duration(final.elapsed_ms)] if final else []),
        quantity(len(finished.blocks), "block"),
        f"conversation {escape(name)}",
    ]
    screen.note(" · ".join(parts))
    if finished.result.error:
        screen.error(finished.result.error)


def _run_document(finished: FinishedTurn, answer: PrintedAnswer, name: str) -> JsonObject:
    """Return the result of a turn as JSON, with its numbered sources, usage, pending calls and late messages.

    `elapsed_ms` is null if the turn has not ended.
    """
    outcome = finished.result
    final = finished.turn.exit
    usage: JsonObject = {**structs.asdict(outcome.usage)}
    return {
        "conversation": name,
        "turn_id": outcome.turn_id,
        "answer": answer.text,
        "output": outcome.output,
        "exit_reason": outcome.exit_reason,
        "ok": outcome.ok,
        "error": outcome.error,
        "rounds": outcome.rounds,
        "truncated": outcome.truncated,
        "usage": usage,
        "sources": [_source_document(n, source) for n, source in answer.sources.items()],
        "blocks": len(finished.blocks),
        "elapsed_ms": final.elapsed_ms if final else None,
        "late_input": list[Json](outcome.late_input),
        "pending": [
            {
                "call_id": call.call_id,
                "tool": call.tool,
                "arguments": call.arguments,
                "question": call.question,
            }
            for call in outcome.pending
        ],
    }


def _source_document(n: int, source: tl.Source) -> Json:
    """Return a source with its citation number `n` as JSON; `lines` is null for a source without line numbers."""
    return {
        "n": n,
        "title": source.title,
        "url": source.url,
        "path": source.path,
        "commit": source.commit,
        "lines": list[Json](source.lines) if source.lines else None,
    }


@command
@parameters.conversation_option
@parameters.bundle_argument
@parameters.flag(
    "all_turns", "--all", help="Continue every cut turn of the bundle in the store instead."
)
@parameters.with_default(
    "--at-once",
    type=parameters.COUNT,
    default=4,
    metavar="N",
    help="With --all: run this many at a time.",
)
@_any_bundle_option
@parameters.answer_options
@parameters.json_option
async def resume(
    choices: Choices, screen: Screen, bundle: str, all_turns: bool, at_once: int, any_bundle: bool
) -> int:
    """Continue the turn that was cut off, or all of the store."""
    if not all_turns:
        return await _run_turn(choices, screen, bundle, TurnInput(text=None, any_bundle=any_bundle))
    if any_bundle:
        raise UsageError("--any-bundle continues one turn: name its conversation, without --all")
    async with bundle_access.open_bundle(bundle, choices, screen) as harness:
        show = None if choices.as_json else partial(_show_recovery, screen)
        with stop_on_signal(screen):
            recoveries = await harness.carry_on(at_once=at_once, on_outcome=show)
    if choices.as_json:
        screen.write_json([_recovery_document(recovery) for recovery in recoveries])
    counts = [
        (status, sum(recovery.status == status for recovery in recoveries))
        for status in ("resumed", "waiting", "running", "skipped", "failed")
    ]
    statuses = ", ".join(f"{count} {status}" for status, count in counts if count)
    turns = quantity(len(recoveries), "turn")
    screen.note(f"{turns}: {statuses}" if recoveries else "no turn was cut off")
    code = ANSWERED if all(map(_is_fine, recoveries)) else FAILED
    if threads_remain():
        exit_now(code)
    return code


def _is_fine(recovery: Recovery) -> bool:
    """Return whether the turn is fine: it was answered, is paused, or runs in another process."""
    if recovery.status == "resumed":
        return recovery.result is not None and (recovery.result.ok or bool(recovery.result.pending))
    return recovery.status in ("waiting", "running")


def _show_recovery(screen: Screen, recovery: Recovery) -> None:
    """Print a recovered turn on one line: names, status, and the reason, questions or exit reason, with tabs."""
    outcome = recovery.result
    key = recovery.conversation
    if outcome is None:
        detail = recovery.reason
    elif outcome.pending:
        detail = ", ".join(f"{call.call_id} ({call.question})" for call in outcome.pending)
    else:
        detail = f"{outcome.exit_reason} {outcome.error}".strip()
    cells = (key.name, key.user, recovery.turn_id, recovery.status, detail)
    screen.print(Text("\t".join(escape(" ".join(cell.split())) for cell in cells)))


def _recovery_document(recovery: Recovery) -> JsonObject:
    """Return a recovered turn as JSON; without a result, `exit_reason` is null and the other results are empty."""
    outcome = recovery.result
    return {
        **key_document(recovery.conversation),
        "turn_id": recovery.turn_id,
        "status": recovery.status,
        "reason": recovery.reason,
        "exit_reason": outcome.exit_reason if outcome else None,
        "answer": outcome.answer if outcome else "",
        "error": outcome.error if outcome else "",
        "pending": list[Json](
            {"call_id": call.call_id, "tool": call.tool, "question": call.question}
            for call in (outcome.pending if outcome else ())
        ),
    }
