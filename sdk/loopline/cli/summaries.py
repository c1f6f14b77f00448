"""Blocks in a line each: what kind a block is of, and what it says in short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loopline.cli.words import counted, duration, worded
from loopline.models import dumps
from loopline.react import PRESETS
from loopline.reader import text_of
from loopline.refs import BlockRef, ConversationRef
from loopline.timeline import (
    MARKS,
    ArtifactKept,
    Block,
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
)

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
    usual = preset.policies.values if preset else {}
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
            return f"{file.name} · {attachments.described(file)}"
        case TextKept() as kept:
            return f"{kept.title or kept.ref} · {counted(len(kept.text), 'character')}"
        case ArtifactKept() as kept:
            return f"{kept.name} @{kept.version} · {counted(len(kept.text), 'character')}"
        case _:
            return ""
