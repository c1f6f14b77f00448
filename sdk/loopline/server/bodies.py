"""Bodies of requests and answers: their fields, and how large each may be."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AwareDatetime, Base64Bytes, BaseModel, ConfigDict, Field, JsonValue

from loopline.conversations import WhenBusy
from loopline.react import Limits, TurnResult
from loopline.timeline import Reaction

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
    """A message of a user. With `background` the answer comes at once, and the turn goes on."""

    text: Annotated[str, Field(min_length=1, max_length=TEXT)]
    attachments: Annotated[list[AttachedFile], Field(max_length=FILES)] = []
    when_busy: WhenBusy = "queue"
    limits: TurnLimits = TurnLimits()
    bundle_id: Annotated[str, Field(max_length=NAME)] = ""
    background: bool = False


class AnswersBody(RequestBody):
    """Answers to calls that wait, by call id; for an approval true or false."""

    values: Annotated[dict[BoundedName, JsonValue], Field(max_length=REFS)] = {}
    limits: TurnLimits = TurnLimits()


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


class ReceiptAnswer(BaseModel):
    """Where a message is stored, and where its events are read."""

    conversation_id: str
    turn_id: str
    seq: int
    events: str


class WaitingCall(BaseModel):
    """A call that waits for its user."""

    call_id: str
    tool: str
    question: str


class CitedSourceAnswer(BaseModel):
    """A source that the answer cites."""

    url: str
    title: str


class TokensAnswer(BaseModel):
    """The tokens of a turn."""

    input_tokens: int
    output_tokens: int


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
    status: Literal["ok", "cut", "missing", "gone"]
    text: str
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


def turn_answer(conversation: str, result: TurnResult[Any], output: JsonValue) -> TurnAnswer:
    """Return the result of a turn as clients get it."""
    return TurnAnswer(
        conversation_id=conversation,
        turn_id=result.turn_id,
        answer=result.answer,
        exit_reason=result.exit_reason,
        ok=result.ok,
        error=result.error,
        rounds=result.rounds,
        usage=TokensAnswer(
            input_tokens=result.usage.input_tokens, output_tokens=result.usage.output_tokens
        ),
        cost=result.cost,
        sources=[CitedSourceAnswer(url=item.url, title=item.title) for item in result.sources],
        pending=[
            WaitingCall(call_id=call.call_id, tool=call.tool, question=call.question)
            for call in result.pending
        ],
        output=output,
    )
