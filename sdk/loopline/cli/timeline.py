"""`loopline timeline`: the blocks of a conversation, or a list of conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import cast

from rich.text import Text

from loopline.cli.access import kept, latest_kept, stored, unknown
from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, UsageError
from loopline.cli.terminal import QUIET, WIDE, Columns, Screen, counted, duration, visible, worded
from loopline.cli.timeline_reports import costs, tell, verified
from loopline.conversations import Conversation
from loopline.errors import LooplineError, StoreError
from loopline.events import DialectName
from loopline.models import JsonObject, dumps
from loopline.react import PRESETS
from loopline.reader import iso_time, page_document, text_of
from loopline.refs import BlockRef, ConversationRef
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    MARKS,
    ArtifactKept,
    Block,
    ConversationKey,
    ConversationSummary,
    CustomEvent,
    Decision,
    Exit,
    KnowledgeCommit,
    ModelSwitched,
    Plan,
    PlanAck,
    RoundStart,
    RunChild,
    SourceAdded,
    TextKept,
    ToolCalled,
    ToolResult,
    ToolStarted,
    TurnHeader,
    UserAttachment,
    attachments,
    encode,
    turn_id,
)

DOCUMENT = "artifact:conv.timeline.v1"
KILO, MEGA = 1_000, 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which blocks: of that turn and these types, after that place, the first so many."""

    turn: int | None = None
    types: tuple[str, ...] = ()
    after: int = 0
    limit: int | None = None

    async def blocks(self, talk: Conversation) -> Sequence[Block]:
        """Those of a conversation.

        Raises:
            UsageError: there is no such type.
        """
        turn = None if self.turn is None else turn_id(self.turn)
        try:
            return await talk.blocks(
                after=self.after, limit=self.limit, types=self.types, turn=turn
            )
        except StoreError:
            raise
        except LooplineError as error:
            raise UsageError(str(error)) from error

    async def page(self, talk: Conversation) -> tuple[Sequence[Block], int | None]:
        """Those of a conversation, and after which place there are more; None when there are none."""
        if self.limit is None:
            return await self.blocks(talk), None
        found = await replace(self, limit=self.limit + 1).blocks(talk)
        page = found[: self.limit]
        return page, page[-1].seq if page and len(found) > len(page) else None


async def timeline(wanted: Wanted, choices: Choices, screen: Screen) -> int:
    """Print the blocks of a conversation, in order."""
    async with stored(choices) as store:
        name = await latest_kept(store, choices, screen)
        talk = kept(store, name, choices)
        summary = await store.log.find(talk.conversation)
        if summary is None:
            raise unknown(name, choices)
        if choices.as_json:
            screen.raw(dumps(await _document(wanted, talk, summary)))
            return ANSWERED
        page, more = await wanted.page(talk)
        if not page:
            raise UsageError(await _nothing(name, talk, summary))
        satisfaction = await talk.satisfaction()
    screen.answer_whole(
        block_table(page, wide=screen.width >= WIDE), "\n".join(map(_block_line, page))
    )
    if more is not None:
        screen.note(Text(f"there are more: --after {more}", style=QUIET))
    if satisfaction.rate is not None:
        judged = counted(satisfaction.judged, "judged turn")
        share = f"{satisfaction.rate:.0%} ({satisfaction.ok} of {judged})"
        screen.note(Text(f"satisfaction: {share}", style=QUIET))
    return ANSWERED


async def _nothing(name: str, talk: Conversation, summary: ConversationSummary) -> str:
    """That no block is wanted, and which there would be."""
    kinds = ", ".join(dict.fromkeys(block.type for block in await talk.blocks()))
    has = f"{counted(summary.turns, 'turn')} and {counted(summary.head, 'block')}"
    return f"no such block in {name!r}: it has {has}, with {kinds}"


async def _document(wanted: Wanted, talk: Conversation, summary: ConversationSummary) -> JsonObject:
    """The whole document, else the page that is wanted with the place after which there are more."""
    if wanted == Wanted():
        (item,) = await talk.read([DOCUMENT])
        return cast("JsonObject", json.loads(item.text))
    page, more = await wanted.page(talk)
    return page_document(page, summary, more)


def block_table(blocks: Sequence[Block], *, wide: bool) -> Columns:
    """The blocks in columns, coloured by kind, with the sizes of their bodies; a `wide` one has types too."""
    rows = list[tuple[Text, ...]]()
    for block in blocks:
        style, summary = style_of(block.type), visible(summary_of(block))
        rows.append(
            (
                Text(str(block.seq), style=QUIET),
                Text(f"{block.turn}.{block.round}", style=QUIET),
                Text(f"{block.ts:%H:%M:%S}", style=QUIET),
                *([Text(block.type, style=style)] if wide else []),
                Text(block.ref, style=style),
                Text(size(len(encode(block.body)[2])), style=QUIET),
                Text(summary, style=style if style == QUIET else ""),
            )
        )
    return Columns(rows=rows, cut=len(rows[0]) - 1, right=frozenset({0, len(rows[0]) - 2}), gap=1)


def size(count: int) -> str:
    """`87 B`, `12 kB`, `3.4 MB`: a number of bytes in five characters or a few more."""
    if count < KILO:
        return f"{count} B"
    return f"{count / KILO:.0f} kB" if count < MEGA else f"{count / MEGA:.1f} MB"


def _block_line(block: Block) -> str:
    return "\t".join(
        [
            str(block.seq),
            block.turn_id,
            str(block.round),
            block.type,
            block.ref,
            iso_time(block.ts),
            visible(summary_of(block)),
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is wanted of the blocks, and of the list; the others say what to show instead."""

    wanted: Wanted
    active: Active
    listed: bool = False
    verify: bool = False
    cost: bool = False
    dialect: DialectName | None = None

    @property
    def instead(self) -> dict[str, str]:
        """The options that show something else than blocks, and what that is."""
        asked = {
            "--verify": ("shows answers", self.verify),
            "--cost": ("shows requests", self.cost),
            "--dialect": ("tells of turns", self.dialect is not None),
        }
        return {option: shows for option, (shows, is_asked) in asked.items() if is_asked}


async def show(look: Look, choices: Choices, screen: Screen) -> int:
    """Show it.

    Raises:
        UsageError: some of what is asked for belongs to another thing to show.
    """
    of_blocks = look.wanted != Wanted(limit=look.wanted.limit)
    of_list = look.active != Active(limit=look.active.limit)
    if look.listed:
        if of_blocks or look.instead or choices.conversation is not None:
            raise UsageError("--list shows conversations: leave out what is asked of blocks")
        return await conversations(look.active, choices, screen)
    if of_list:
        raise UsageError("--active-after and --active-before go with --list")
    if len(look.instead) > 1:
        raise UsageError(f"{' and '.join(look.instead)} show different things: one of them")
    for option, shows in look.instead.items():
        if replace(look.wanted, turn=None) != Wanted():
            raise UsageError(f"{option} {shows}: of what chooses blocks it takes --turn alone")
    if look.verify:
        return await verified(look.wanted.turn, choices, screen)
    if look.cost:
        return await costs(look.wanted.turn, choices, screen)
    if look.dialect is not None:
        return await tell(look.dialect, look.wanted.turn, choices, screen)
    return await timeline(look.wanted, choices, screen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """Which conversations: active last after one moment and before another, the first so many."""

    after: str | None = None
    before: str | None = None
    limit: int | None = None


def moment(written: str | None) -> datetime | None:
    """The moment of `2026-03-21`, `2026-03-21 10:00` or an ISO time; in UTC unless it says another.

    Raises:
        UsageError: it is none.
    """
    if written is None:
        return None
    try:
        found = datetime.fromisoformat(written.strip())
    except ValueError as error:
        example = "write it as 2026-03-21, '2026-03-21 10:00' or 2026-03-21T10:00:00Z"
        raise UsageError(f"{written!r} is no moment: {example}") from error
    return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


async def conversations(active: Active, choices: Choices, screen: Screen) -> int:
    """Print what conversations there are: those of the user, project and tenant, else of all."""
    after, before, limit = moment(active.after), moment(active.before), active.limit
    async with stored(choices) as store:
        listed = store.conversations(
            user=choices.user,
            project=choices.project,
            tenant=choices.tenant,
            after=after,
            before=before,
            limit=None if limit is None else limit + 1,
        )
        found = [summary async for summary in listed]
    page = found[:limit]
    if choices.as_json:
        screen.raw(dumps([_conversation_row(summary) for summary in page]))
    elif page:
        screen.answer_whole(_conversation_table(page), "\n".join(map(_conversation_line, page)))
    else:
        any_at_all = active == Active(limit=limit) and choices.owner == (None, None, None)
        nothing = "no conversation yet" if any_at_all else "no such conversation"
        screen.note(Text(nothing, style=QUIET))
    if page and len(found) > len(page):
        earlier = iso_time(page[-1].last_activity_at)
        screen.note(Text(f"there are more: --active-before {earlier}", style=QUIET))
    return ANSWERED


def _conversation_table(found: Sequence[ConversationSummary]) -> Columns:
    rows = [
        (
            Text(visible(summary.conversation.name), style="bold"),
            Text(visible(_owner(summary.conversation)), style=QUIET),
            Text(counted(summary.turns, "turn")),
            Text(counted(summary.head, "block")),
            Text(f"{summary.last_activity_at:%Y-%m-%d %H:%M}", style=QUIET),
            Text(visible(summary.title)),
        )
        for summary in found
    ]
    return Columns(rows=rows, cut=len(rows[0]) - 1, right=frozenset({2, 3}))


def _owner(conversation: ConversationKey) -> str:
    """The user, with project and tenant where they are not the usual ones."""
    project = [conversation.project] if conversation.project != DEFAULT_PROJECT else []
    tenant = [conversation.tenant] if conversation.tenant != DEFAULT_TENANT else []
    return " · ".join([conversation.user, *project, *tenant])


def _conversation_line(summary: ConversationSummary) -> str:
    conversation = summary.conversation
    return "\t".join(
        [
            conversation.name,
            conversation.user,
            str(summary.turns),
            str(summary.head),
            iso_time(summary.last_activity_at),
            " ".join(summary.title.split()),
        ]
    )


def _conversation_row(summary: ConversationSummary) -> JsonObject:
    return {
        "conversation": summary.conversation.name,
        "user": summary.conversation.user,
        "project": summary.conversation.project,
        "tenant": summary.conversation.tenant,
        "turns": summary.turns,
        "blocks": summary.head,
        "started_at": iso_time(summary.started_at),
        "last_activity_at": iso_time(summary.last_activity_at),
        "title": " ".join(summary.title.split()),
    }


SHORT_COMMIT = 7
STYLES: Mapping[str, str] = {
    "user": "bold",
    "assistant": "green",
    "react.tool": "cyan",
    "react.plan": "magenta",
    "source": "blue",
    "text": "blue",
    "artifact": "blue",
    "react.exit": "bold",
    "react.notice": "yellow",
}
QUIETEST = "bright_black"


def style_of(kind: str) -> str:
    """The colour of a block's type: that of the longest beginning which has one."""
    parts = kind.split(".")
    beginnings = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((STYLES[name] for name in beginnings if name in STYLES), QUIETEST)


def summary_of(block: Block) -> str:
    """What a block says, on one line of any length."""
    match block.body:
        case TurnHeader() | RoundStart() | Decision() | ModelSwitched() | Exit():
            return _lifecycle(block)
        case ToolCalled() | ToolStarted() | ToolResult() | RunChild():
            return _call(block)
        case Plan() | PlanAck():
            return _plan(block)
        case SourceAdded() | TextKept() | ArtifactKept() | UserAttachment():
            return _stored(block)
        case CustomEvent(name=name, data=data):
            return f"{name} {dumps(data)}"
        case _:
            return " ".join(text_of(block)[0].split())


def _policies(header: TurnHeader) -> Iterator[str]:
    """What the turn goes by: its preset, and what it has otherwise than that."""
    if header.preset != "bare":
        yield f"preset {header.preset}"
    preset = PRESETS.get(header.preset)
    usual = preset.options.values if preset else {}
    for name, value in header.limits.items():
        if name not in usual or usual[name] != value:
            yield f"{name}={worded(value)}"


def _lifecycle(block: Block) -> str:
    match block.body:
        case TurnHeader() as header:
            asked = f" · {_commit(header.knowledge)}" if header.knowledge else ""
            loop = f"{header.bundle} · {header.model} · {header.protocol}{asked}"
            return " · ".join([loop, *_policies(header)])
        case RoundStart() as begun:
            takes = f" · takes {', '.join(map(str, begun.takes))}" if begun.takes else ""
            opened = f" · opened by {begun.opened_by}" if begun.opened_by else ""
            return f"saw {begun.saw} · epoch {begun.epoch}{opened}{takes}"
        case Decision() as decision:
            tokens = f"{decision.usage.input_tokens:,} → {decision.usage.output_tokens:,} tokens"
            return f"{decision.stop_reason} · {counted(decision.calls, 'call')} · {tokens}"
        case ModelSwitched(model=model, to=to, why=why, text=text):
            return " · ".join([f"{model} gives way to {to}", why, *text.split("\n")[:1]])
        case Exit() as ended:
            error = f" · {ended.error}" if ended.error else ""
            rounds = counted(ended.rounds, "round")
            return f"{ended.reason} · {rounds} · {duration(ended.elapsed_ms)}{error}"
        case _:
            return ""


def _commit(knowledge: KnowledgeCommit) -> str:
    return f"{knowledge.repository} @ {knowledge.commit[:SHORT_COMMIT]}"


def _call(block: Block) -> str:
    match block.body:
        case ToolCalled() as call:
            return f"{call.tool} {dumps(call.arguments)}"
        case ToolStarted() as started:
            return f"{started.call_id} begins · {started.effect}"
        case RunChild() as child:
            return _child(child)
        case ToolResult() as result:
            status = "" if result.status == "ok" else f"{result.status} · "
            text = " ".join(result.text.split())
            return f"{status}{result.tool} · {duration(result.elapsed_ms)} · {text}"
        case _:
            return ""


def _child(child: RunChild) -> str:
    """The link to a child run, as a ref that reads its answer once there is one."""
    if not child.reason:
        return f"{child.call_id} begins {child.conversation}"
    answer = BlockRef(turn_id="turn_1", type="assistant.completion", n=1)
    ref = ConversationRef(conversation=child.conversation, ref=answer)
    return f"{child.reason} · {ref}"


def _plan(block: Block) -> str:
    match block.body:
        case Plan(snapshot=snapshot):
            status = "" if snapshot.open else f"{snapshot.status} · "
            return status + "  ".join(snapshot.lines())
        case PlanAck(changes=changes):
            return "  ".join(f"{MARKS[status]} [{number}]" for number, status in changes.items())
        case _:
            return ""


def _stored(block: Block) -> str:
    match block.body:
        case SourceAdded(sid=sid, source=source):
            return f"[{sid}] {source.title} — {source.url}"
        case UserAttachment() as file:
            return f"{file.name} · {attachments.describe(file)}"
        case TextKept() as kept:
            return f"{kept.title or kept.ref} · {counted(len(kept.text), 'character')}"
        case ArtifactKept() as kept:
            return f"{kept.name} @{kept.version} · {counted(len(kept.text), 'character')}"
        case _:
            return ""
