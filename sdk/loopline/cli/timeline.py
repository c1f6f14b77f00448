"""`loopline timeline`: print the blocks of a conversation, a report on it, or a list of conversations."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import get_args

import click
from rich.text import Text

from loopline import timeline as tl
from loopline.cli import parameters, reader
from loopline.cli.options import ANSWERED, Choices, UsageError, command
from loopline.cli.terminal import (
    QUIET,
    Columns,
    Screen,
    escape,
    format_duration,
    format_limit,
    quantity,
)
from loopline.cli.timeline_reports import show_costs, show_records, show_verification
from loopline.errors import LooplineError, StoreError
from loopline.events import DialectName
from loopline.models import JsonObject, dumps
from loopline.react import PRESETS
from loopline.reader import ConversationReader, page_document, text_of
from loopline.refs import BlockRef, ConversationRef

KILO = 1_000
MEGA = 1_000_000
SHORT_COMMIT = 7
STYLES: Mapping[str, str] = {
    "user": "bold",
    "assistant": "green",
    "react.tool": "cyan",
    "react.plan": "magenta",
    "crew": "magenta",
    "source": "blue",
    "text": "blue",
    "artifact": "blue",
    "file": "blue",
    "react.exit": "bold",
    "react.notice": "yellow",
}
"""The colours of blocks by a prefix of their type."""
GRAPH_MARKS: Mapping[tl.GraphStatus, str] = {
    "pending": "□",
    "running": "…",
    "completed": "✓",
    "failed": "✗",
    "skipped": "–",
}

LifecycleBody = tl.TurnHeader | tl.RoundStart | tl.Decision | tl.ModelSwitched | tl.Exit
CallBody = (
    tl.ToolCalled
    | tl.ToolStarted
    | tl.ToolResult
    | tl.RunChild
    | tl.ProxiedBody
    | tl.StepStarted
    | tl.StepEnded
    | tl.BackgroundStop
)
ContentBody = tl.SourceAdded | tl.TextKept | tl.ArtifactKept | tl.UserAttachment | tl.FileBody
PlanBody = tl.Plan | tl.PlanAck | tl.CrewGraph | tl.CustomEvent
_LIFECYCLE = tl.BodyUnion[LifecycleBody](LifecycleBody)
_CALLS = tl.BodyUnion[CallBody](CallBody)
_CONTENTS = tl.BodyUnion[ContentBody](ContentBody)
_PLANS = tl.BodyUnion[PlanBody](PlanBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSelection:
    """A filter of blocks by turn, types and seq; `after` is exclusive, and `limit` is the maximum number of blocks."""

    turn: int | None = None
    types: tuple[str, ...] = ()
    after: int = 0
    limit: int | None = None

    async def blocks(self, conversation: ConversationReader) -> Sequence[tl.Block]:
        """Return the matching blocks of a conversation.

        Raises:
            UsageError: a type is unknown.
        """
        turn = None if self.turn is None else tl.turn_id(self.turn)
        try:
            return await conversation.blocks(
                after=self.after, limit=self.limit, types=self.types, turn=turn
            )
        except StoreError:
            raise
        except LooplineError as error:
            raise UsageError(str(error)) from error

    async def page(self, conversation: ConversationReader) -> tuple[Sequence[tl.Block], int | None]:
        """Return the first `limit` matching blocks, and the seq of the last of them if more blocks match, otherwise None."""
        if self.limit is None:
            return await self.blocks(conversation), None
        page = await self.blocks(conversation)
        if len(page) < self.limit:
            return page, None
        last = page[-1].seq
        try:
            has_more = bool(await replace(self, after=last, limit=1).blocks(conversation))
        except StoreError:  # the next block is damaged, and the page before it can be shown
            has_more = True
        return page, last if has_more else None


@command
@parameters.conversation_argument
@click.option("--turn", type=parameters.TURN, help="Only this turn, as turn_2 or 2.")
@parameters.repeated(
    "--types",
    "--type",
    metavar="TYPE,…",
    help="Only these types and those below them: user,react.tool",
)
@parameters.with_default(
    "--after", type=click.IntRange(min=0), default=0, help="Only blocks after this seq."
)
@click.option("--limit", type=parameters.COUNT, help="At most this many lines.")
@parameters.flag("--verify", help="Compare the answers with the sources they cite.")
@parameters.flag("--cost", help="Show what each request cost.")
@click.option(
    "--dialect",
    type=click.Choice(get_args(DialectName)),
    help="Show the records that a subscriber received in this dialect.",
)
@parameters.flag("listed", "--list", "--all", help="List the conversations instead.")
@click.option("--active-after", metavar="TIME", help="With --list: only those active later.")
@click.option("--active-before", metavar="TIME", help="With --list: only those not active since.")
@parameters.scope_options
@parameters.pager_option
@parameters.json_option
async def timeline(
    choices: Choices,
    screen: Screen,
    turn: int | None,
    types: tuple[str, ...],
    after: int,
    limit: int | None,
    verify: bool,
    cost: bool,
    dialect: DialectName | None,
    listed: bool,
    active_after: str | None,
    active_before: str | None,
) -> int:
    """Show a conversation block by block, or list them all.

    Raises:
        UsageError: options cannot be combined.
    """
    kinds = tuple(kind.strip() for item in types for kind in item.split(","))
    selection = BlockSelection(turn=turn, types=kinds, after=after, limit=limit)
    reports = {
        "--verify": ("shows answers", partial(show_verification, turn) if verify else None),
        "--cost": ("shows requests", partial(show_costs, turn) if cost else None),
        "--dialect": ("shows records", partial(show_records, dialect, turn) if dialect else None),
    }
    requested = {
        option: (content, work) for option, (content, work) in reports.items() if work is not None
    }
    if listed:
        selects_blocks = selection != BlockSelection(limit=limit)
        if selects_blocks or requested or choices.conversation is not None:
            raise UsageError("--list shows conversations: omit the options about blocks")
        return await list_conversations(active_after, active_before, limit, choices, screen)
    if active_after is not None or active_before is not None:
        raise UsageError("--active-after and --active-before go with --list")
    if len(requested) > 1:
        raise UsageError(f"{' and '.join(requested)} show different things: choose one of them")
    for option, (content, work) in requested.items():
        if selection != BlockSelection(turn=turn):
            raise UsageError(f"{option} {content}: it can be combined with --turn only")
        return await work(choices, screen)
    return await show_blocks(selection, choices, screen)


async def show_blocks(selection: BlockSelection, choices: Choices, screen: Screen) -> int:
    """Print the blocks of a conversation that match the selection, in order, then the share of satisfied ratings.

    With `--json` and without a selection, the whole conversation is exported. Returns the exit code 0.

    Raises:
        LooplineError: the conversation does not exist.
        UsageError: no block matches, and `--json` is not given; or a type is unknown.
    """
    async with reader.open_store(choices) as store:
        conversation, summary = await reader.choose_existing(store, choices, screen)
        name = conversation.conversation.name
        if choices.as_json:
            if selection == BlockSelection():
                await reader.write_document(conversation, screen)
            else:
                page, more_after = await selection.page(conversation)
                screen.write_json(page_document(page, summary, more_after))
            return ANSWERED
        page, more_after = await selection.page(conversation)
        if not page:
            types = ", ".join(dict.fromkeys(block.type for block in await conversation.blocks()))
            size = f"{quantity(summary.turns, 'turn')} and {quantity(summary.head, 'block')}"
            raise UsageError(f"no block of {name!r} matches: it has {size}, with {types}")
        satisfaction = await conversation.satisfaction()
    columns = block_columns(page, wide=screen.is_wide)
    screen.print_layout(columns, "\n".join(map(_block_line, page)))
    if more_after is not None:
        screen.note(f"there are more: --after {more_after}")
    if satisfaction.rate is not None:
        rated = quantity(satisfaction.judged, "judged turn")
        screen.note(f"satisfaction: {satisfaction.rate:.0%} ({satisfaction.ok} of {rated})")
    return ANSWERED


def block_columns(blocks: Sequence[tl.Block], *, wide: bool) -> Columns:
    """Render blocks in columns, coloured by type, with the size of each body, and with the type if `wide`.

    There must be at least one block.
    """
    rows: list[tuple[Text, ...]] = []
    for block in blocks:
        style = style_of(block.type)
        rows.append(
            (
                Text(str(block.seq), style=QUIET),
                Text(f"{block.turn}.{block.round}", style=QUIET),
                Text(f"{block.ts:%H:%M:%S}", style=QUIET),
                *([Text(block.type, style=style)] if wide else []),
                Text(block.ref, style=style),
                Text(format_size(len(tl.encode(block.body)[2])), style=QUIET),
                Text(escape(summary_of(block)), style=style if style == QUIET else ""),
            )
        )
    return Columns(rows=rows, cut=len(rows[0]) - 1, right=frozenset({0, len(rows[0]) - 2}), gap=1)


def format_size(count: int) -> str:
    """Render a number of bytes as `87 B`, `12 kB` or `3.4 MB`."""
    if count < KILO:
        return f"{count} B"
    return f"{count / KILO:.0f} kB" if count < MEGA else f"{count / MEGA:.1f} MB"


def _block_line(block: tl.Block) -> str:
    """Render a block as its seq, turn id, round, type, ref, ISO time and summary, with tabs in between."""
    cells = (
        str(block.seq),
        block.turn_id,
        str(block.round),
        block.type,
        block.ref,
        tl.iso_time(block.ts),
        escape(summary_of(block)),
    )
    return "\t".join(cells)


def style_of(kind: str) -> str:
    """Return the colour of a block type: the colour of its longest prefix in STYLES."""
    parts = kind.split(".")
    beginnings = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((STYLES[name] for name in beginnings if name in STYLES), QUIET)


def summary_of(block: tl.Block) -> str:
    """Summarize a block on one line of any length: by the fields of its body, or else by its text."""
    body = block.body
    if _LIFECYCLE.has(body):
        return _lifecycle_summary(body)
    if _CALLS.has(body):
        return _call_summary(body)
    if _CONTENTS.has(body):
        return _content_summary(body)
    return _plan_summary(body) if _PLANS.has(body) else " ".join(text_of(block)[0].split())


def _plan_summary(body: PlanBody) -> str:
    """Summarize a plan by its steps, an acknowledgement by its changes, a crew graph, or an event by its data."""
    match body:
        case tl.Plan(snapshot=snapshot):
            status = "" if snapshot.open else f"{snapshot.status} · "
            return status + "  ".join(snapshot.lines())
        case tl.PlanAck(changes=changes):
            return "  ".join(f"{tl.MARKS[status]} [{number}]" for number, status in changes.items())
        case tl.CrewGraph() as graph:
            return _graph_summary(graph)
        case tl.CustomEvent(name=name, data=data):
            return f"{name} {dumps(data)}"


def _graph_summary(graph: tl.CrewGraph) -> str:
    """Summarize a crew graph: its attempt, its goal, and each step with its status mark and dependencies."""
    steps = [
        f"{GRAPH_MARKS[step.status]} {step.id}"
        + (f" ← {', '.join(step.dependencies)}" if step.dependencies else "")
        for step in graph.steps
    ]
    analysed = ["analysed"] if graph.analysed else []
    return " · ".join([f"attempt {graph.attempt}", graph.goal, *steps, *analysed])


def _lifecycle_summary(body: LifecycleBody) -> str:
    """Summarize the header, a round start, a decision, a model switch or the exit of a turn on one line."""
    match body:
        case tl.TurnHeader() as header:
            return _header_summary(header)
        case tl.RoundStart() as start:
            takes = f" · takes {', '.join(map(str, start.takes))}" if start.takes else ""
            opened = f" · opened by {start.opened_by}" if start.opened_by else ""
            return f"saw {start.saw} · epoch {start.epoch}{opened}{takes}"
        case tl.Decision() as decision:
            tokens = f"{decision.usage.input_tokens:,} → {decision.usage.output_tokens:,} tokens"
            return f"{decision.stop_reason} · {quantity(decision.calls, 'call')} · {tokens}"
        case tl.ModelSwitched(model=model, to=to, why=why, text=text):
            return " · ".join([f"{model} gives way to {to}", why, *text.split("\n")[:1]])
        case tl.Exit() as ended:
            error = f" · {ended.error}" if ended.error else ""
            rounds = quantity(ended.rounds, "round")
            return f"{ended.reason} · {rounds} · {format_duration(ended.elapsed_ms)}{error}"


def _call_summary(body: CallBody) -> str:
    """Summarize a call by its arguments, a start by its effect, and a result by its tool, duration and text.

    The status of a tool result is shown only if it is not `ok`. Line breaks in results become spaces.
    """
    match body:
        case tl.ToolCalled(tool=tool, arguments=arguments):
            return f"{tool} {dumps(arguments)}"
        case tl.ProxiedCall(tool=tool, arguments=arguments, parent=parent):
            return f"{tool} {dumps(arguments)} · for {parent}"
        case tl.ToolStarted() as started:
            return f"{started.call_id} begins · {started.effect}"
        case tl.RunChild() as child:
            return _child_summary(child)
        case tl.StepStarted(name=name, effect=effect, call_id=call_id):
            return f"{name} begins · {call_id or effect}"
        case tl.StepEnded(name=name) as ended:
            outcome = " ".join((ended.error or ended.value).split())
            return f"{name} · {ended.status} · {format_duration(ended.elapsed_ms)} · {outcome}"
        case tl.BackgroundStop(call_id=call_id):
            return f"{call_id} is to stop"
        case tl.ToolResult() | tl.ProxiedResult() as result:
            status = "" if result.status == "ok" else f"{result.status} · "
            text = " ".join(result.text.split())
            return f"{status}{result.tool} · {format_duration(result.elapsed_ms)} · {text}"


def _content_summary(body: ContentBody) -> str:
    """Summarize a source, an attachment, a stored text or artifact, or a file by its name and its size or URL."""
    match body:
        case tl.SourceAdded(sid=sid, source=source):
            return f"[{sid}] {source.title} — {source.url}"
        case tl.UserAttachment() as file:
            return f"{file.name} · {tl.attachments.describe(file)}"
        case tl.TextKept() as stored:
            return f"{stored.title or stored.ref} · {quantity(len(stored.text), 'character')}"
        case tl.ArtifactKept() as stored:
            length = quantity(len(stored.text), "character")
            return f"{stored.name} @{stored.version} · {length}"
        case tl.FileAdded(area=area, path=path, version=version):
            return f"{area}/{path} @{version} · {tl.workspace.describe_file(body)}"
        case tl.FileRemoved(area=area, path=path):
            return f"{area}/{path}"
        case tl.FilesPulled(refs=refs):
            return " ".join(refs)


def _header_summary(header: tl.TurnHeader) -> str:
    parts = [header.bundle, header.model, header.protocol]
    for used in header.knowledge_commits:
        parts.append(f"{used.repository} @ {used.commit[:SHORT_COMMIT]}")
    return " · ".join([*parts, *_limits(header)])


def _limits(header: tl.TurnHeader) -> Iterator[str]:
    """Yield the preset of the turn if it is not `bare`, and the limits that differ from the preset."""
    if header.preset != "bare":
        yield f"preset {header.preset}"
    preset = PRESETS.get(header.preset)
    defaults = preset.options.values if preset else {}
    for name, value in header.limits.items():
        if name not in defaults or defaults[name] != value:
            yield f"{name}={format_limit(value)}"


def _child_summary(child: tl.RunChild) -> str:
    """Summarize a child run: its conversation when it begins, a ref to its answer when it ends."""
    if not child.reason:
        return f"{child.call_id} begins {child.conversation}"
    answer = BlockRef(turn_id="turn_1", type="assistant.completion", n=1)
    ref = ConversationRef(conversation=child.conversation, ref=answer)
    return f"{child.reason} · {ref}"


async def list_conversations(
    active_after: str | None,
    active_before: str | None,
    limit: int | None,
    choices: Choices,
    screen: Screen,
) -> int:
    """Print the conversations of the chosen user, project and tenant, or all conversations, the latest first.

    At most `limit` are printed; a note then shows how to list the next ones. Returns the exit code 0.

    Raises:
        UsageError: a time is malformed.
    """
    after = _parse_time(active_after)
    before = _parse_time(active_before)
    async with reader.open_store(choices) as store:
        matches = store.conversations(
            user=choices.user,
            project=choices.project,
            tenant=choices.tenant,
            after=after,
            before=before,
            limit=None if limit is None else limit + 1,
        )
        summaries = [summary async for summary in matches]
        unfinished = {summary.conversation for summary in await store.log.unfinished()}
    page = summaries[:limit]
    if choices.as_json:
        screen.write_json([_conversation_document(summary, unfinished) for summary in page])
    elif page:
        lines = "\n".join(map(_conversation_line, page))
        screen.print_layout(_conversation_columns(page, unfinished), lines)
    else:
        filters = (active_after, active_before, choices.user, choices.project, choices.tenant)
        is_filtered = any(value is not None for value in filters)
        screen.note("no such conversation" if is_filtered else "no conversation yet")
    if page and len(summaries) > len(page):
        screen.note(f"there are more: --active-before {tl.iso_time(page[-1].last_activity_at)}")
    return ANSWERED


def _parse_time(written: str | None) -> datetime | None:
    """Parse `2026-03-21`, `2026-03-21 10:00` or an ISO time; a time without a zone is in UTC. None stays None.

    Raises:
        UsageError: the text is not a time.
    """
    if written is None:
        return None
    try:
        time = datetime.fromisoformat(written.strip())
    except ValueError as error:
        example = "write it as 2026-03-21, '2026-03-21 10:00' or 2026-03-21T10:00:00Z"
        raise UsageError(f"{written!r} is not a time: {example}") from error
    return time if time.utcoffset() is not None else time.replace(tzinfo=UTC)


def _conversation_columns(
    summaries: Sequence[tl.ConversationSummary], unfinished: Container[tl.ConversationKey]
) -> Columns:
    """Lay out at least one conversation as a table; those in `unfinished` are marked at their number of turns."""
    rows = [
        (
            Text(escape(summary.conversation.name), style="bold"),
            Text(escape(_owner(summary.conversation)), style=QUIET),
            Text(
                quantity(summary.turns, "turn")
                + (", one unfinished" if summary.conversation in unfinished else "")
            ),
            Text(quantity(summary.head, "block")),
            Text(f"{summary.last_activity_at:%Y-%m-%d %H:%M}", style=QUIET),
            Text(escape(summary.title)),
        )
        for summary in summaries
    ]
    return Columns(rows=rows, cut=len(rows[0]) - 1, right=frozenset({2, 3}))


def _owner(key: tl.ConversationKey) -> str:
    """Render the user, with the project and the tenant if they are not the default."""
    project = [key.project] if key.project != tl.DEFAULT_PROJECT else []
    tenant = [key.tenant] if key.tenant != tl.DEFAULT_TENANT else []
    return " · ".join([key.user, *project, *tenant])


def _conversation_line(summary: tl.ConversationSummary) -> str:
    """Render a conversation as its name, user, turns, blocks, ISO time of the last activity, and title, with tabs."""
    cells = (
        summary.conversation.name,
        summary.conversation.user,
        str(summary.turns),
        str(summary.head),
        tl.iso_time(summary.last_activity_at),
        " ".join(summary.title.split()),
    )
    return "\t".join(cells)


def _conversation_document(
    summary: tl.ConversationSummary, unfinished: Container[tl.ConversationKey]
) -> JsonObject:
    """Return a conversation as JSON with the ISO times of its start and last activity; `blocks` is its head."""
    return {
        **reader.key_document(summary.conversation),
        "turns": summary.turns,
        "blocks": summary.head,
        "unfinished": summary.conversation in unfinished,
        "started_at": tl.iso_time(summary.started_at),
        "last_activity_at": tl.iso_time(summary.last_activity_at),
        "title": " ".join(summary.title.split()),
    }
