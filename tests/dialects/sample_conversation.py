"""One conversation, told event by event: three turns, in which everything happens that has a word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from loopline import timeline
from loopline.events import Delta, Event
from loopline.models import Usage
from tests.support.round_starts import round_start

Told = timeline.Body | Delta
"""What happens: a body that is recorded, or a delta."""

TALK = timeline.ConversationKey(name="tea", user="ann", tenant="acme", project="shop")
START = datetime(2026, 4, 11, 10, 0, tzinfo=UTC)
HEADER = timeline.TurnHeader(bundle="guide", model="m", protocol="native")
NO_MODEL = "There is no answer: the model gave no answer (down)."


def spent(input_tokens: int, output_tokens: int) -> Usage:
    return Usage(input_tokens=input_tokens, output_tokens=output_tokens)


def delta(channel: str, text: str, attempt: int = 1) -> Delta:
    return Delta(type="delta", channel=channel, text=text, attempt=attempt)


def reset(channel: str = "answer") -> Delta:
    return Delta(type="reset", channel=channel)


def begun(*takes: int, limit: int = 5) -> timeline.RoundStart:
    return round_start(saw=0, takes=takes, limit=limit)


def answer_begun() -> timeline.RoundStart:
    return round_start(saw=0, limit=5, purpose="answer", shows="trace")


def decided(stop_reason: str, usage: Usage, calls: int = 0) -> timeline.Decision:
    return timeline.Decision(model="m", stop_reason=stop_reason, calls=calls, usage=usage)


FIRST: Sequence[Told] = [
    timeline.UserPrompt(text="Which tea?"),
    HEADER,
    Delta(type="progress", channel="tools", total=14),
    timeline.ToolsSelected(names=("w.look",), usage=spent(40, 6)),
    begun(1),
    delta("thinking", "Two "),
    delta("thinking", "places."),
    decided("tool_use", spent(100, 20), calls=2),
    timeline.Thinking(text="Two places."),
    timeline.ToolCalled(call_id="c1", tool="w.look", arguments={"place": "shelf"}),
    timeline.ToolCalled(call_id="c2", tool="w.look", arguments={"place": "attic"}),
    Delta(type="progress", channel="tool", text="halfway", call_id="c1"),
    Delta(type="custom", channel="tool", name="shelf", data={"pots": 1}, call_id="c1"),
    timeline.ToolResult(
        call_id="c2", tool="w.look", text="no attic", status="error", elapsed_ms=1234.0
    ),
    timeline.UserFollowup(text="Green, please."),
    timeline.ToolResult(
        call_id="c1", tool="w.look", text="three teas\nand a pot", elapsed_ms=234.0
    ),
    timeline.SourceAdded(sid=1, source=timeline.Source(url="https://tea.example", title="Teas")),
    timeline.RangeSummary(
        covers=2,
        first_turn=1,
        last_turn=1,
        usage=spent(30, 10),
        messages_before=9,
        messages_after=4,
    ),
    timeline.SystemMessage(code="context", text="It was summed up."),
    begun(10),
    delta("answer", "Ma"),
    reset(),
    decided("stop", spent(150, 30)),
    timeline.Notes(text="I know."),
    timeline.Draft(text="Matcha.", reason="interrupt"),
    begun(),
    decided("stop", spent(160, 10)),
    timeline.Draft(text="Sencha.", reason="synthesis"),
    answer_begun(),
    delta("answer", "Se"),
    reset(),
    delta("answer", "Sencha ", attempt=2),
    delta("answer", "[1].", attempt=2),
    timeline.Decision(model="m", stop_reason="stop", usage=spent(200, 15), purpose="answer"),
    timeline.Completion(text="Sencha [[S:1]].", sources_used=(1,)),
    timeline.Exit(reason="complete", rounds=3, elapsed_ms=5678.0),
]
SECOND: Sequence[Told] = [
    timeline.UserPrompt(text="Order it."),
    HEADER,
    begun(26, limit=0),
    decided("tool_use", spent(50, 5), calls=2),
    timeline.Notes(text="I ask first."),
    timeline.ToolCalled(call_id="c3", tool="w.ask", arguments={"question": "How much?"}),
    timeline.ToolCalled(call_id="c4", tool="crew.agent", arguments={"task": "find a shop"}),
    timeline.RunChild(call_id="c4", conversation="tea~c4"),
    timeline.ToolPending(call_id="c3", kind="question", question="How much?", digest=""),
    Delta(type="pending", channel="tool", text="How much?", call_id="c3"),
    timeline.RunChild(call_id="c4", conversation="tea~c4", reason="complete", usage=spent(70, 7)),
    timeline.ToolResult(call_id="c4", tool="crew.agent", text="A shop.", elapsed_ms=2000.0),
]
CLOSING: Sequence[Told] = [
    timeline.ToolResult(call_id="c3", tool="w.ask", text="Cut off.", status="interrupted"),
    timeline.Exit(reason="interrupted", rounds=1, elapsed_ms=61_500.0),
]
THIRD: Sequence[Told] = [
    HEADER,
    Delta(type="missed", channel="log", after=38, through=39),
    begun(37),
    delta("answer", "It"),
    reset(),
    timeline.Notice(code="model_error", text="down"),
    timeline.CustomEvent(name="apology", data=["sorry"]),
    timeline.Completion(text=NO_MODEL, flag="summary", reason="error", error="down"),
    timeline.Exit(reason="error", error="down", elapsed_ms=5.0),
]

_TOLD: Sequence[tuple[int, Sequence[Told]]] = [
    (1, FIRST),
    (2, SECOND),
    (3, [timeline.UserPrompt(text="Never mind.")]),
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


def block(seq: int, turn: int, body: timeline.Body) -> timeline.Block:
    ts = START + timedelta(seconds=seq)
    return timeline.Block(seq=seq, turn=turn, round=0, n=1, ts=ts, term=1, body=body)


EVENTS: Sequence[Event] = list(events())
BLOCKS: Sequence[timeline.Block] = [event for event in EVENTS if isinstance(event, timeline.Block)]


@st.composite
def streams(draw: st.DrawFn, deltas: st.SearchStrategy[Delta]) -> Sequence[Event]:
    """The blocks of the conversation with such deltas anywhere between them."""
    stream = list[Event]()
    for event in BLOCKS:
        stream += [*draw(st.lists(deltas, max_size=3)), event]
    return stream
