"""Commands on a store that do not open a bundle, such as import, audit, backup, forget, stop, answer and memory."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from rich.text import Text

from loopline import timeline as tl
from loopline.cli import parameters, reader
from loopline.cli.files import diff_line
from loopline.cli.options import (
    ANSWERED,
    FAILED,
    REACTIONS,
    Choices,
    UsageError,
    command,
    misuse,
)
from loopline.cli.terminal import (
    QUIET,
    REF,
    WARNING,
    Screen,
    escape,
    quantity,
    read_line,
    restore_terminal,
)
from loopline.cli.turn_display import QuestionForm
from loopline.errors import LooplineError
from loopline.harness import StaleAnswer, Store, find_stale_answers, move_store
from loopline.memory import Owner, UserFact, UserFacts
from loopline.models import Json, JsonObject, one_line
from loopline.reader import audit_document, heads_text, import_actions, read_heads
from loopline.shared_files import replace_file
from loopline.timeline.chain import Audit, Head


@asynccontextmanager
async def open_existing_store(choices: Choices) -> AsyncGenerator[Store]:
    """Open a store for writing if it exists.

    Raises:
        StoreError: the store does not exist.
    """
    async with Store.open(choices.store, read_only=True):
        pass  # Store.open without read_only would create a missing store
    async with Store.open(choices.store) as store:
        yield store


_user_argument = click.argument("name", metavar="USER", help="The name of the user.")
_fact_argument = click.argument("fact_id", metavar="ID", help="The fact, as memory list names it.")


@command
@click.argument(
    "file", type=parameters.PATH, metavar="FILE", help="What export printed; - reads stdin."
)
@click.option("name", "--as", default="", help="Its name here, instead of its own.")
@parameters.repeated(
    "--confirm",
    metavar="ACTION",
    help="Allow an action that the import lists as inert; may be repeated.",
)
@parameters.user_options
async def import_document(
    choices: Choices, screen: Screen, file: Path, name: str, confirm: tuple[str, ...]
) -> int:
    """Store an exported conversation; its actions stay inert."""
    document = await reader.read_object(file)
    async with Store.open(choices.store) as store:
        conversation = await store.load(
            document, name=name, confirm=confirm, user=choices.user_name
        )
        *blocks, _ = await conversation.blocks()
    imported = conversation.conversation.name
    screen.note(f"conversation {escape(imported)}: {quantity(len(blocks), 'block')} imported")
    for action in import_actions(blocks, imported):
        if action.name not in confirm:
            screen.note(
                f"inert: {action.name} ({action.text}); --confirm {action.name} would allow it"
            )
    return ANSWERED


@command
@click.argument("name", required=False, metavar="[CONVERSATION]", help="Its name; all if omitted.")
@parameters.file_option("--document", help="Audit an exported document instead.")
@parameters.file_option("--head", help="Compare with heads that were saved.")
@parameters.file_option("--save", help="Save the current heads.")
@parameters.file_option("--key", help="The key that signs the heads.")
@parameters.report_options
async def audit(
    choices: Choices,
    screen: Screen,
    name: str | None,
    document: Path | None,
    head: Path | None,
    save: Path | None,
    key: Path | None,
) -> int:
    """Find blocks that were changed, removed, moved or inserted.

    A conversation that the store lacks is a fault if `--head` has it. `--save` keeps
    the heads of `--head` for conversations that are not audited or have faults.
    """
    secret = b"" if key is None else await asyncio.to_thread(_read_key, key)
    heads: dict[tl.ConversationKey, Head] = {}
    if head is not None:
        heads = read_heads(await asyncio.to_thread(_read_text, head), secret)
    if document is not None:
        exported = await reader.read_object(document)
        name = name or str(exported.get("conversation_id") or document)
        audits: Sequence[Audit] = [
            audit_document(exported, heads, reader.conversation_key(name, choices))
        ]
    else:
        only = None if name is None else reader.conversation_key(name, choices)
        async with reader.open_store(choices) as store:
            audits = await store.audit(heads, only)
        if name is not None and not audits:
            raise reader.no_such_conversation(name, choices)
    if save is not None:
        text = heads_text(_current_heads(heads, audits), secret)
        await asyncio.to_thread(_replace_text, save, text)
    if choices.as_json:
        rows: list[Json] = [_audit_document(result) for result in audits]
        screen.write_json({"conversations": rows})
    else:
        _show_audits(audits, screen)
    return FAILED if any(result.faults for result in audits) else ANSWERED


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except ValueError as error:
        raise UsageError(f"{file} is not text in UTF-8: {error}") from error


def _current_heads(
    heads: Mapping[tl.ConversationKey, Head], audits: Sequence[Audit]
) -> dict[tl.ConversationKey, Head]:
    """Return `heads` with the heads of the audited conversations without faults, and without forgotten conversations."""
    current = dict(heads)
    for result in audits:
        if result.faults:
            continue
        if result.head.seq:
            current[result.conversation] = result.head
        else:
            current.pop(result.conversation, None)
    return current


def _replace_text(file: Path, text: str) -> None:
    """Write the text to a file so that a failure keeps its old text; a device or pipe is written to directly."""
    file = file.resolve()
    if file.exists() and not file.is_file():
        file.write_text(text, "utf-8")
        return
    replace_file(file, text.encode(), private=False, sync=True)


def _read_key(file: Path) -> bytes:
    key = file.read_bytes().strip()
    if not key:
        raise UsageError(f"{file}: the key is empty")
    return key


def _show_audits(audits: Sequence[Audit], screen: Screen) -> None:
    """Print a line for each forgotten or intact conversation and for each fault; a note if `audits` is empty."""
    for result in audits:
        name = escape(result.conversation.name)
        head = result.head
        if result.forgotten is not None:
            screen.write(f"{name}: forgotten on {result.forgotten:%Y-%m-%d}")
        elif not result.faults:
            count = quantity(head.seq, "block")
            screen.write(f"{name}: {count}, as written; head {head.digest.hex()}")
        for fault in result.faults:
            screen.write(f"{name}: {fault.kind}: {escape(fault.text)}")
    if not audits:
        screen.note("there is no conversation yet")


def _audit_document(result: Audit) -> JsonObject:
    """Return an audit as JSON: the conversation, the seq and digest of its head, `forgotten` (a time), and faults."""
    faults: list[Json] = [
        {"seq": fault.seq, "kind": fault.kind, "text": fault.text} for fault in result.faults
    ]
    return {
        **reader.key_document(result.conversation),
        "seq": result.head.seq,
        "digest": result.head.digest.hex(),
        "forgotten": None if result.forgotten is None else result.forgotten.isoformat(),
        "faults": faults,
    }


@command
@click.argument(
    "target", type=parameters.PATH, metavar="FILE", help="A file that does not exist yet."
)
@parameters.store_option
async def backup(choices: Choices, screen: Screen, target: Path) -> int:
    """Copy the store, with its blobs, while it is in use."""
    async with open_existing_store(choices) as store:
        await store.backup(target)
    screen.note(f"backed up to {target}")
    return ANSWERED


@command
@click.option("--from", "source", required=True, metavar="URL", help="The store in a file.")
@click.option("--to", "target", required=True, metavar="URL", help="The store in PostgreSQL.")
async def move(_: Choices, screen: Screen, source: str, target: str) -> int:
    """Copy a store in a file to PostgreSQL, and check every block.

    The file is not changed. The target may have other conversations. If the move is cut off, or the file has got blocks
    since, the same command copies what is missing. Errors are those of `move_store`.
    """
    counts: list[int] = []

    def report(conversation: tl.ConversationKey, blocks: int) -> None:
        counts.append(blocks)
        if blocks:
            screen.write(f"{escape(conversation.name)}: {quantity(blocks, 'block')}")

    await move_store(source, target, report)
    checked = quantity(len(counts), "conversation")
    screen.note(f"moved {quantity(sum(counts), 'block')}; {checked} checked in the target")
    return ANSWERED


@command
@click.argument("name", metavar="CONVERSATION", help="Its name.")
@parameters.flag("--cascade", help="Forget the forks that show parts of it too.")
@parameters.yes_option
@parameters.user_options
async def forget(choices: Choices, screen: Screen, name: str, cascade: bool, yes: bool) -> int:
    """Remove a conversation for good, after asking.

    Raises:
        LooplineError: the conversation does not exist.
        UsageError: stdin is not a terminal, and `yes` is false.
    """
    async with open_existing_store(choices) as store:
        key = reader.conversation_key(name, choices)
        shown = f"conversation {escape(name)}"
        summary = await store.log.find(key)
        if summary is None:
            if await store.log.forgotten(key) is None:
                raise reader.no_such_conversation(name, choices)
            screen.note(f"{shown} was forgotten before")
            return ANSWERED
        subject = f"{shown}, {quantity(summary.turns, 'turn')}"
        outcome = f"{shown} is forgotten"
        forks = sorted(await store.log.forks(key)) if cascade else []
        if forks:
            subject = f"{quantity(len(forks) + 1, 'conversation')}, {escape(name)} and its forks "
            subject += ", ".join(map(escape, forks))
            outcome = f"{subject}, are forgotten"
        if not yes and not await _confirm(subject):
            screen.note(f"{shown} is kept")
            return FAILED
        await store.forget(name, cascade=cascade, user=choices.user_name)
    screen.note(outcome)
    return ANSWERED


@command
@_user_argument
@parameters.yes_option
@parameters.owner_options
async def forget_user(choices: Choices, screen: Screen, name: str, yes: bool) -> int:
    """Remove all conversations of a user for good, after asking.

    Raises:
        UsageError: stdin is not a terminal, and `yes` is false.
    """
    tenant = choices.tenant or tl.DEFAULT_TENANT
    async with open_existing_store(choices) as store:
        summaries = await store.log.conversations(user=name, tenant=tenant, project=choices.project)
        shown = f"{quantity(len(summaries), 'conversation')} of the user {escape(name)}"
        if summaries and not yes and not await _confirm(shown):
            screen.note("nothing is removed")
            return FAILED
        gone = await store.forget_user(name, tenant=tenant, project=choices.project)
    screen.note(f"{quantity(len(gone), 'conversation')} of the user {escape(name)} forgotten")
    return ANSWERED


@command
@click.option(
    "--days",
    type=click.IntRange(min=1, max=36500),
    required=True,
    help="The days without activity.",
)
@parameters.yes_option
@parameters.store_option
@parameters.tenant_option
async def forget_inactive(choices: Choices, screen: Screen, days: int, yes: bool) -> int:
    """Remove conversations without activity for the given number of days.

    Raises:
        UsageError: stdin is not a terminal, and `yes` is false.
    """
    before = datetime.now(UTC) - timedelta(days=days)
    async with open_existing_store(choices) as store:
        summaries = await store.log.conversations(tenant=choices.tenant, before=before)
        shown = f"{quantity(len(summaries), 'conversation')} without activity for {quantity(days, 'day')}"
        if summaries and not yes and not await _confirm(shown):
            screen.note("nothing is removed")
            return FAILED
        outcome = await store.forget_inactive(before, tenant=choices.tenant)
    screen.note(f"{quantity(len(outcome.forgotten), 'conversation')} forgotten")
    for conversation in outcome.shown_by_forks:
        screen.note(f"{escape(conversation.name)} is kept: a later fork shows parts of it")
    return ANSWERED


@command
@_user_argument
@click.argument("folder", type=parameters.PATH, metavar="FOLDER", help="A new folder.")
@parameters.owner_options
async def export_user(choices: Choices, screen: Screen, name: str, folder: Path) -> int:
    """Write all conversations of a user to a new folder."""
    tenant = choices.tenant or tl.DEFAULT_TENANT
    async with Store.open(choices.store, read_only=True) as store:
        written = await store.export_user(name, folder, tenant=tenant, project=choices.project)
    screen.note(f"{quantity(written, 'document')} in {escape(str(folder))}")
    return ANSWERED


async def _confirm(subject: str) -> bool:
    """Ask the user to confirm that `subject` is removed for good; return whether the answer is yes.

    Raises:
        UsageError: stdin is not a terminal.
    """
    if not sys.stdin.isatty():
        raise UsageError("forget removes for good, and there is no terminal to ask at: give --yes")
    with restore_terminal():
        line = await read_line(f"Remove {subject}, for good? [y/N] ")
    return (line or "").strip().lower() in ("y", "yes")


@command
@click.option(
    "--seq",
    type=parameters.COUNT,
    required=True,
    metavar="SEQ",
    help="The last block that both share.",
)
@click.option("--name", default="", metavar="NAME", help="The name of the new conversation.")
@parameters.conversation_argument
@parameters.user_options
async def fork(choices: Choices, screen: Screen, seq: int, name: str) -> int:
    """Begin another conversation from a block of this one."""
    async with open_existing_store(choices) as store:
        source, _ = await reader.choose_existing(store, choices, screen)
        copy = await source.fork(seq=seq, name=name)
    screen.print(Text(escape(copy.conversation.name)))
    return ANSWERED


@command
@click.argument("turn", type=parameters.TURN, metavar="TURN", help="The turn, as turn_2 or 2.")
@click.argument(
    "reaction",
    type=click.Choice(list(REACTIONS)),
    metavar="REACTION",
    help="Your reaction; none takes it back.",
)
@click.option("--text", default="", help="Your reason.")
@parameters.conversation_option
@parameters.user_options
async def feedback(choices: Choices, screen: Screen, turn: int, reaction: str, text: str) -> int:
    """Rate a turn; the newest reaction counts."""
    async with open_existing_store(choices) as store:
        conversation, _ = await reader.choose_existing(store, choices, screen)
        await conversation.feedback(tl.turn_id(turn), REACTIONS[reaction], text=text)
    screen.note(f"{tl.turn_id(turn)} of {escape(conversation.conversation.name)}: {reaction}")
    return ANSWERED


@command
@parameters.conversation_option
@parameters.with_default(
    "--wait",
    type=click.FloatRange(min=0.1),
    default=30.0,
    metavar="SECONDS",
    help="How long to wait until it has ended.",
)
@parameters.report_options
async def stop(choices: Choices, screen: Screen, wait: float) -> int:
    """Stop the running turn, in any process, and queued turns.

    The exit code is 1 if a turn still runs after `wait` seconds.

    Raises:
        LooplineError: the conversation does not exist.
    """
    async with reader.open_store(choices) as store:
        conversation, blocks = await reader.read_blocks(store, choices, screen)
    name = conversation.conversation.name
    timeline = tl.Timeline(blocks)
    numbers = [turn.number for turn in timeline.open_turns]
    turns: list[tl.Turn] = []
    if numbers:
        screen.note(f"asking {', '.join(map(tl.turn_id, numbers))} of {escape(name)} to stop")
        async with Store.open(choices.store) as store:
            conversation = reader.conversation_in(store, name, choices)
            with suppress(TimeoutError):
                await asyncio.wait_for(conversation.stop(), wait)
            timeline = tl.Timeline(await conversation.blocks())
            turns = [timeline.turn(number) for number in numbers]
    if choices.as_json:
        ended: list[Json] = [
            {"turn_id": tl.turn_id(turn.number), "exit_reason": _exit_reason(turn)}
            for turn in turns
        ]
        screen.write_json({"conversation": name, "turns": ended})
    elif not turns:
        screen.print(Text(f"nothing was running in {escape(name)}"))
    for turn in turns:
        reason = _exit_reason(turn)
        if reason is None:
            screen.error(
                f"{tl.turn_id(turn.number)} still runs after {wait:g} s: its process will stop it "
                f"later; loopline timeline {shlex.quote(escape(name))} shows when"
            )
        elif not choices.as_json:
            screen.print(Text(f"{tl.turn_id(turn.number)}: {reason}"))
    return ANSWERED if all(map(_exit_reason, turns)) else FAILED


def _exit_reason(turn: tl.Turn) -> str | None:
    """Return the exit reason of a turn, `stopped` if its message was recalled before it began, None if it runs."""
    if turn.exit is not None:
        return turn.exit.reason
    return "stopped" if turn.stopped and turn.header is None else None


@command
@parameters.conversation_option
@click.argument(
    "call",
    required=False,
    metavar="[CALL]",
    help="The call with the question; if omitted, list all questions.",
)
@click.argument(
    "values", nargs=-1, metavar="[VALUE…]", help="yes, or FIELD=VALUE for the fields of its form."
)
@parameters.flag("--decline", help="Give no answer.")
@parameters.by_option
@parameters.report_options
async def answer(
    choices: Choices,
    screen: Screen,
    call: str | None,
    values: tuple[str, ...],
    decline: bool,
    by: str,
) -> int:
    """Answer the question of a running call, in any process."""
    async with open_existing_store(choices) as store:
        conversation, _ = await reader.choose_existing(store, choices, screen)
        asked = await conversation.interrupts.question_blocks()
        questions = {question.call_id: question for _, question in asked}
        if call is None:
            _print_questions(list(questions.values()), screen, as_json=choices.as_json)
            return ANSWERED
        if call not in questions:
            asking = ", ".join(questions) or "none does"
            raise LooplineError(
                f"no running call {escape(call)!r} asks anything: {asking}; "
                "a turn that is paused goes on with loopline run BUNDLE --answer"
            )
        value = None if decline else _parse_answer(questions[call], values)
        is_first = await conversation.interrupts.answer(call, value, by=by)
    if choices.as_json:
        screen.write_json({"call_id": call, "answered": is_first})
    else:
        screen.note(f"{escape(call)} {'has its answer' if is_first else 'was answered before'}")
    return ANSWERED if is_first else FAILED


@command
@parameters.conversation_option
@click.argument("call", required=False, metavar="[CALL]", help="Only this call, such as c3.")
@parameters.flag("--stop", help="Stop CALL.")
@click.option(
    "--wait", type=click.FloatRange(min=0), default=0.0, help="Seconds to wait until none runs."
)
@parameters.report_options
async def background(
    choices: Choices, screen: Screen, call: str | None, stop: bool, wait: float
) -> int:
    """List, await or stop the calls that run in the background."""
    if stop and call is None:
        raise UsageError("--stop needs the id of a call: loopline background CALL --stop")
    async with open_existing_store(choices) as store:
        conversation, _ = await reader.choose_existing(store, choices, screen)
        if stop and call is not None:
            await conversation.background.stop(call)
        calls = await conversation.background.wait(call or "", seconds=wait)
    if choices.as_json:
        rows: list[Json] = [
            {
                "call_id": state.call_id,
                "tool": state.tool,
                "turn_id": state.turn_id,
                "status": state.status,
                "since": state.since.isoformat(),
                "until": state.until.isoformat(),
                "begins_again": state.begins_again,
            }
            for state in calls
        ]
        screen.write_json({"calls": rows})
    for state in () if choices.as_json else calls:
        line = f"{escape(state.call_id)} {escape(state.tool)}: {state.status} since {state.since:%H:%M:%S}"
        screen.print(Text(line))
    runs = any(state.status != "lost" for state in calls)
    return FAILED if wait and runs else ANSWERED


def _form(question: tl.ToolQuestion) -> QuestionForm:
    return QuestionForm(question.call_id, question.question, question.form)


def _print_questions(
    questions: Sequence[tl.ToolQuestion], screen: Screen, *, as_json: bool
) -> None:
    """Print the questions with their fields (or `yes or no`), or as JSON; print a note if there are none."""
    if as_json:
        documents: list[Json] = [
            {"call_id": question.call_id, "question": question.question, "form": question.form}
            for question in questions
        ]
        screen.write_json({"questions": documents})
        return
    for question in questions:
        form = _form(question)
        screen.print(form.question)
        for field in form.fields or ["yes or no"]:
            screen.print(Text(f"  {escape(field)}", style=QUIET))
    if not questions:
        screen.note("no running call asks anything")


def _parse_answer(question: tl.ToolQuestion, values: Sequence[str]) -> Json:
    """Parse `values`, such as `yes` or `size=3`, as the answer to a question.

    Raises:
        UsageError: `values` is empty, or does not fit the fields of the question.
    """
    form = _form(question)
    if not values:
        raise UsageError(f"give the answer, {form.usage}, or --decline")
    with misuse(LooplineError):
        form.take_values(values)
    return form.answer


@command
@click.option(
    "--since", default="", metavar="COMMIT", help="Only lines that were unchanged at this commit."
)
@parameters.report_options
async def stale(choices: Choices, screen: Screen, since: str) -> int:
    """List answers whose cited lines have changed, with the difference."""
    stale_answers: list[StaleAnswer] = []
    async with reader.open_store(choices) as store:
        async for answer in find_stale_answers(
            store, user=choices.user, project=choices.project, tenant=choices.tenant, since=since
        ):
            stale_answers.append(answer)
            for line in () if choices.as_json else _stale_lines(answer):
                screen.print(line)
    if choices.as_json:
        screen.write_json([_stale_document(answer) for answer in stale_answers])
    screen.note(f"{quantity(len(stale_answers), 'stale answer')}")
    return FAILED if stale_answers else ANSWERED


def _stale_lines(answer: StaleAnswer) -> Iterator[Text]:
    """Yield a line with the ref and the question of an answer, then the problem and the diff of each source."""
    where = f"cv:{answer.conversation.name}/{answer.answer.ref}"
    yield Text.assemble((escape(where), REF), f"  {escape(one_line(answer.question))}")
    for source in answer.sources:
        if source.problem:
            yield Text(f"  {escape(source.problem)}", WARNING)
        for line in source.diff:
            yield Text.assemble("  ", diff_line(line))


def _stale_document(answer: StaleAnswer) -> Json:
    """Return a stale answer as JSON: its conversation, ref and question, and the diff and problem of each source."""
    return {
        **reader.key_document(answer.conversation),
        "ref": answer.answer.ref,
        "question": answer.question,
        "sources": [
            {"ref": source.ref, "diff": list[Json](source.diff), "problem": source.problem}
            for source in answer.sources
        ],
    }


@command
@parameters.report_options
async def list_facts(choices: Choices, screen: Screen) -> int:
    """List what is remembered about a user."""
    async with reader.open_store(choices) as store:
        facts = await UserFacts(store.log).facts(_owner(choices))
    if choices.as_json:
        screen.write_json([_fact_document(fact) for fact in facts])
    for fact in () if choices.as_json else facts:
        where = "" if fact.scope == "user" else f"only in {fact.conversation}"
        by = "by the user" if fact.by_user else ""
        details = [tl.iso_time(fact.ts)[:10], where, by, fact.ref]
        quiet = ", ".join(detail for detail in details if detail)
        screen.print(
            Text.assemble(
                (fact.fact_id, REF), f"  {escape(fact.text)}", (f"  {escape(quiet)}", QUIET)
            )
        )
    screen.note(f"{quantity(len(facts), 'fact')} about {escape(choices.user_name)}")
    return ANSWERED


@command
@_fact_argument
@click.argument("text", metavar="TEXT", help="What is remembered from now on.")
@parameters.scope_options
async def edit_fact(choices: Choices, screen: Screen, fact_id: str, text: str) -> int:
    """Replace the text of a fact."""
    async with open_existing_store(choices) as store:
        fact = await UserFacts(store.log).edit(_owner(choices), fact_id, text)
    screen.note(f"{escape(fact.fact_id)}: {escape(fact.text)}")
    return ANSWERED


@command
@_fact_argument
@parameters.scope_options
async def remove_fact(choices: Choices, screen: Screen, fact_id: str) -> int:
    """Remove a fact, so that no turn recalls it."""
    async with open_existing_store(choices) as store:
        await UserFacts(store.log).remove(_owner(choices), fact_id)
    screen.note(
        f"{escape(fact_id)} is removed; the log of its conversation keeps it until forgotten"
    )
    return ANSWERED


def _owner(choices: Choices) -> Owner:
    return Owner(
        user=choices.user_name,
        project=choices.project or tl.DEFAULT_PROJECT,
        tenant=choices.tenant or tl.DEFAULT_TENANT,
    )


def _fact_document(fact: UserFact) -> Json:
    """Return a fact as JSON with its scope, its sources (`refs`), the ref of its block and an ISO time (`ts`)."""
    return {
        "id": fact.fact_id,
        "text": fact.text,
        "scope": fact.scope,
        "refs": list[Json](fact.refs),
        "by_user": fact.by_user,
        "conversation": fact.conversation,
        "ref": fact.ref,
        "ts": tl.iso_time(fact.ts),
    }
