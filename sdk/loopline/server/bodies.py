"""Bodies of requests and answers: their fields, and how large each may be."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from msgspec import structs
from pydantic import AwareDatetime, Base64Bytes, BaseModel, ConfigDict, Field, JsonValue
from pydantic_core import to_jsonable_python

from loopline.conversations import WhenBusy
from loopline.react import Limits, result
from loopline.timeline import Reaction, Timeline, TurnResult

NAME = 200
TEXT = 512 * 1024
FILES = 20
REFS = 50
TURNS = 1_000

BoundedName = Annotated[str, Field(min_length=1, max_length=NAME)]
TurnId = Annotated[str, Field(pattern=r"^turn_[1-9][0-9]{0,8}$")]


class RequestBody(BaseModel):
    """A body that a client sends: a field that is not known is refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


class AttachedFile(RequestBody):
    """A file that comes with a message, its bytes in base64."""

    name: BoundedName
    data: Base64Bytes
    mime: Annotated[str, Field(max_length=NAME)] = ""


class TurnLimits(RequestBody):
    """The limits of the one turn that a client may choose."""

    max_iterations: Annotated[int, Field(ge=1, le=1_000)] | None = None
    deadline_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    max_cost: Annotated[float, Field(ge=0, le=10_000)] | None = None

    def options(self) -> Limits:
        """Return the limits that were chosen."""
        limits = Limits()
        if self.max_iterations is not None:
            limits["max_iterations"] = self.max_iterations
        if self.deadline_seconds is not None:
            limits["deadline_seconds"] = self.deadline_seconds
        if self.max_tokens is not None:
            limits["max_tokens"] = self.max_tokens
        if self.max_cost is not None:
            limits["max_cost"] = self.max_cost
        return limits


class MessageBody(RequestBody):
    """A message of a user.

    With `background` the answer comes at once, and the turn goes on; `webhook` is the URL that is told when it has ended.
    """

    text: Annotated[str, Field(min_length=1, max_length=TEXT)]
    attachments: Annotated[list[AttachedFile], Field(max_length=FILES)] = []
    when_busy: WhenBusy = "queue"
    limits: TurnLimits = TurnLimits()
    bundle_id: Annotated[str, Field(max_length=NAME)] = ""
    background: bool = False
    webhook: Annotated[str, Field(max_length=2_000)] = ""


class AnswersBody(RequestBody):
    """Answers to calls that wait, by call id; for an approval true or false.

    `approvals` are the signed approvals of the calls that await approval, by call id. With `only_open` the answers are for calls of the running turn that stay open for them, and continue no paused turn.
    """

    values: Annotated[dict[BoundedName, JsonValue], Field(max_length=REFS)] = {}
    approvals: Annotated[
        dict[BoundedName, Annotated[str, Field(max_length=2 * NAME)]], Field(max_length=REFS)
    ] = {}
    only_open: bool = False
    limits: TurnLimits = TurnLimits()


class InterruptBody(RequestBody):
    """A message for the turn that runs, or else for the next one: a followup is added, a steer cuts off what it does."""

    text: Annotated[str, Field(min_length=1, max_length=TEXT)]
    kind: Literal["followup", "steer"] = "followup"
    attachments: Annotated[list[AttachedFile], Field(max_length=FILES)] = []


class RecallBody(RequestBody):
    """The receipt of a message that is taken back."""

    seq: Annotated[int, Field(ge=1, le=2**53)]
    turn_id: TurnId


class ForkBody(RequestBody):
    """Where another conversation begins, and its name; without one it gets one."""

    seq: Annotated[int, Field(ge=1, le=2**53)]
    name: Annotated[str, Field(max_length=NAME)] = ""


class ReadBody(RequestBody):
    """Refs that are read."""

    refs: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=4_096)]],
        Field(min_length=1, max_length=REFS),
    ]


class FetchBody(RequestBody):
    """What of a conversation is fetched: some turns or all, files with their bytes or without."""

    turn_ids: Annotated[list[TurnId], Field(max_length=TURNS)] | None = None
    materialize: bool = False
    days: Annotated[int, Field(ge=1, le=3_650)] = 365


class NamedFetchBody(FetchBody):
    """The same, with the conversation in the body."""

    conversation_id: BoundedName


class FeedbackBody(RequestBody):
    """A reaction to a turn; null takes it back."""

    reaction: Reaction | None
    text: Annotated[str, Field(max_length=TEXT)] = ""
    ts: datetime | None = None


class RatedTurnsBody(RequestBody):
    """Which turns with feedback are fetched."""

    turn_ids: Annotated[list[TurnId], Field(max_length=TURNS)] | None = None
    days: Annotated[int, Field(ge=1, le=3_650)] = 365


class PeriodBody(RequestBody):
    """A period, and which page of its conversations with feedback is fetched."""

    start: AwareDatetime
    end: AwareDatetime
    include_turns: bool = False
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    cursor: Annotated[str, Field(max_length=NAME)] | None = None


class ResourceBody(RequestBody):
    """The name of a resource."""

    rn: Annotated[str, Field(min_length=1, max_length=4_096)]


class PlaceAnswer(BaseModel):
    """Where a message is stored: its turn, and its seq."""

    turn_id: str
    seq: int


class ReceiptAnswer(BaseModel):
    """Where a message is stored, and where its events are read."""

    conversation_id: str
    turn_id: str
    seq: int
    events: str


class WaitingCall(BaseModel):
    """A call that waits for its user. `approval` is the signed approval, if it awaits one and its user is answered."""

    call_id: str
    tool: str
    question: str
    arguments: dict[str, JsonValue]
    approval: str = ""


class ApprovalAnswer(BaseModel):
    """A call that awaits approval, with the signed approval that its answer must bring."""

    call_id: str
    tool: str
    question: str
    arguments: dict[str, JsonValue] | None
    approval: str


class ApprovalsAnswer(BaseModel):
    """The calls of a conversation that await approval."""

    approvals: list[ApprovalAnswer]


class CitedSourceAnswer(BaseModel):
    """A source that the answer cites."""

    url: str
    title: str
    source_type: str
    path: str
    commit: str
    lines: tuple[int, int] | None


class TokensAnswer(BaseModel):
    """The tokens of a turn."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    unreported: int


class TurnAnswer(BaseModel):
    """The result of a turn."""

    conversation_id: str
    turn_id: str
    answer: str
    exit_reason: str
    ok: bool
    error: str
    rounds: int
    usage: TokensAnswer
    cost: float | None
    sources: list[CitedSourceAnswer]
    pending: list[WaitingCall]
    late_input: list[str]
    output: JsonValue


class DoneAnswer(BaseModel):
    """Whether there was something to do, and it was done."""

    done: bool


class ForkAnswer(BaseModel):
    """The conversation that a fork began."""

    conversation_id: str


class ItemAnswer(BaseModel):
    """What was read by a ref."""

    ref: str
    requested: str
    status: Literal["ok", "cut", "missing", "gone"]
    text: str
    title: str
    mime: str
    message: str


class ReadingAnswer(BaseModel):
    """What was read by several refs."""

    items: list[ItemAnswer]
    missing: list[str]
    total_tokens: int


class BlocksAnswer(BaseModel):
    """Some blocks of a conversation, and the seq after which there are more."""

    conversation_id: str
    blocks: list[dict[str, JsonValue]]
    next_after: int | None


def turn_answer(
    conversation: str,
    result: TurnResult[Any],
    output: JsonValue,
    approvals: Mapping[str, str] | None = None,
) -> TurnAnswer:
    """Return the result of a turn as clients get it, with signed approvals by call."""
    signed = approvals or {}
    return TurnAnswer(
        conversation_id=conversation,
        turn_id=result.turn_id,
        answer=result.answer,
        exit_reason=result.exit_reason,
        ok=result.ok,
        error=result.error,
        rounds=result.rounds,
        usage=TokensAnswer(**structs.asdict(result.usage)),
        cost=result.cost,
        sources=[
            CitedSourceAnswer(
                url=item.url,
                title=item.title,
                source_type=item.source_type,
                path=item.path,
                commit=item.commit,
                lines=item.lines,
            )
            for item in result.sources
        ],
        pending=[
            WaitingCall(
                call_id=call.call_id,
                tool=call.tool,
                question=call.question,
                arguments=to_jsonable_python(call.arguments),
                approval=signed.get(call.call_id, ""),
            )
            for call in result.pending
        ],
        late_input=list(result.late_input),
        output=output,
    )


def turn_of(conversation: str, timeline: Timeline, number: int) -> TurnAnswer:
    """Return what a turn has come to, from all blocks of its conversation."""
    turn = timeline.turn(number)
    if turn.exit is None:
        reached = result(timeline, number, "paused" if turn.pending else "interrupted")
    else:
        reached = result(timeline, number, turn.exit.reason, turn.exit.error)
    return turn_answer(conversation, reached, to_jsonable_python(reached.output, fallback=str))
