"""One conversation, told event by event: three turns, in which everything happens that has a word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from loopline.events import Delta, Event
from loopline.models import Usage
from loopline.timeline import (
    Block,
    Body,
    Completion,
    ConversationKey,
    CustomEvent,
    Decision,
    Draft,
    Exit,
    Notes,
    Notice,
    RangeSummary,
    RoundStart,
    RunChild,
    Source,
    SourceAdded,
    SystemMessage,
    Thinking,
    ToolCalled,
    ToolPending,
    ToolResult,
    ToolsSelected,
    TurnHeader,
    UserFollowup,
    UserPrompt,
)

Told = Body | Delta
"""What happens: a body that is recorded, or a delta."""

TALK = ConversationKey(name="tea", user="ann", tenant="acme", project="shop")
START = datetime(2026, 4, 11, 10, 0, tzinfo=UTC)
HEADER = TurnHeader(bundle="guide", model="m", protocol="native")
NO_MODEL = "There is no answer: the model could not be asked (down)."


def spent(input_tokens: int, output_tokens: int) -> Usage:
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens)


def delta(channel: str, text: str, attempt: int = 1) -> Delta:
    return Delta(type="delta", channel=channel, text=text, attempt=attempt)


def reset(channel: str = "answer") -> Delta:
    return Delta(type="reset", channel=channel)


def begun(*takes: int, limit: int = 5) -> RoundStart:
    return RoundStart(
        saw=0,
        takes=takes,
        epoch=1,
        opened_by="",
        model="m",
        protocol="native",
        renderer=1,
        system_sha256="",
        tools_sha256="",
        stable_sha256="",
        limit=limit,
    )


def answer_begun() -> RoundStart:
    return RoundStart(
        saw=0,
        takes=(),
        epoch=1,
        opened_by="",
        model="m",
        protocol="native",
        renderer=1,
        system_sha256="",
        tools_sha256="",
        stable_sha256="",
        limit=5,
        purpose="answer",
        shows="trace",
    )


def decided(stop_reason: str, usage: Usage, calls: int = 0) -> Decision:
    return Decision(model="m", stop_reason=stop_reason, calls=calls, usage=usage)


FIRST: Sequence[Told] = [
    UserPrompt(text="Which tea?"),
    HEADER,
    Delta(type="progress", channel="tools", total=14),
    ToolsSelected(names=("w.look",), usage=spent(40, 6)),
    begun(1),
    delta("thinking", "Two "),
    delta("thinking", "places."),
    decided("tool_use", spent(100, 20), calls=2),
    Thinking(text="Two places."),
    ToolCalled(call_id="c1", tool="w.look", arguments={"place": "shelf"}),
    ToolCalled(call_id="c2", tool="w.look", arguments={"place": "attic"}),
    Delta(type="progress", channel="tool", text="halfway", call_id="c1"),
    Delta(type="custom", channel="tool", name="shelf", data={"pots": 1}, call_id="c1"),
    ToolResult(call_id="c2", tool="w.look", text="no attic", status="error", elapsed_ms=1234.0),
    UserFollowup(text="Green, please."),
    ToolResult(call_id="c1", tool="w.look", text="three teas\nand a pot", elapsed_ms=234.0),
    SourceAdded(sid=1, source=Source(url="https://tea.example", title="Teas")),
    RangeSummary(
        covers=2,
        first_turn=1,
        last_turn=1,
        usage=spent(30, 10),
        messages_before=9,
        messages_after=4,
    ),
    SystemMessage(code="context", text="It was summed up."),
    begun(10),
    delta("answer", "Ma"),
    reset(),
    decided("stop", spent(150, 30)),
    Notes(text="I know."),
    Draft(text="Matcha.", reason="interrupt"),
    begun(),
    decided("stop", spent(160, 10)),
    Draft(text="Sencha.", reason="synthesis"),
    answer_begun(),
    delta("answer", "Se"),
    reset(),
    delta("answer", "Sencha ", attempt=2),
    delta("answer", "[1].", attempt=2),
    Decision(model="m", stop_reason="stop", usage=spent(200, 15), purpose="answer"),
    Completion(text="Sencha [[S:1]].", sources_used=(1,)),
    Exit(reason="complete", rounds=3, elapsed_ms=5678.0),
]
SECOND: Sequence[Told] = [
    UserPrompt(text="Order it."),
    HEADER,
    begun(26, limit=0),
    decided("tool_use", spent(50, 5), calls=2),
    Notes(text="I ask first."),
    ToolCalled(call_id="c3", tool="w.ask", arguments={"question": "How much?"}),
    ToolCalled(call_id="c4", tool="crew.agent", arguments={"task": "find a shop"}),
    RunChild(call_id="c4", conversation="tea~c4"),
    ToolPending(call_id="c3", kind="question", question="How much?", digest=""),
    Delta(type="pending", channel="tool", text="How much?", call_id="c3"),
    RunChild(call_id="c4", conversation="tea~c4", reason="complete", usage=spent(70, 7)),
    ToolResult(call_id="c4", tool="crew.agent", text="A shop.", elapsed_ms=2000.0),
]
CLOSING: Sequence[Told] = [
    ToolResult(call_id="c3", tool="w.ask", text="Cut off.", status="interrupted"),
    Exit(reason="interrupted", rounds=1, elapsed_ms=61_500.0),
]
THIRD: Sequence[Told] = [
    HEADER,
    Delta(type="missed", channel="log", after=38, through=39),
    begun(37),
    delta("answer", "It"),
    reset(),
    Notice(code="model_error", text="down"),
    CustomEvent(name="apology", data=["sorry"]),
    Completion(text=NO_MODEL, flag="summary", reason="error", error="down"),
    Exit(reason="error", error="down", elapsed_ms=5.0),
]

_TOLD: Sequence[tuple[int, Sequence[Told]]] = [
    (1, FIRST),
    (2, SECOND),
    (3, [UserPrompt(text="Never mind.")]),
    (2, CLOSING),
    (3, THIRD),
]


def events(told: Sequence[tuple[int, Sequence[Told]]] = _TOLD) -> Iterator[Event]:
    """The events of turns, by their numbers; the block of seq n is recorded n seconds after ten."""
    seq = 0
    for turn, happened in told:
        for item in happened:
            if isinstance(item, Delta):
                yield item
            else:
                seq += 1
                yield block(seq, turn, item)


def block(seq: int, turn: int, body: Body) -> Block:
    ts = START + timedelta(seconds=seq)
    return Block(seq=seq, turn=turn, round=0, n=1, ts=ts, term=1, body=body)


EVENTS: Sequence[Event] = list(events())
BLOCKS: Sequence[Block] = [event for event in EVENTS if isinstance(event, Block)]
