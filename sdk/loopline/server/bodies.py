"""The bodies of requests and answers: their fields, and the size limits of each field."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    AfterValidator,
    AwareDatetime,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
)
from pydantic_core import to_jsonable_python

from loopline.conversations import WhenBusy
from loopline.errors import LooplineError
from loopline.files import Attachment
from loopline.models import UNSET, Effort, JsonObject, ModelSettings
from loopline.react import Limits, merge_limits, result
from loopline.timeline import (
    ApprovalMode,
    ClientTool,
    GrantedRule,
    Reaction,
    ScheduledMessage,
    Timeline,
    TurnResult,
    WaitKind,
    iso_time,
    to_utc,
)
from loopline.tools import MAX_CLIENT_TOOLS

NAME = 200
TEXT = 512 * 1024
FILES = 20
REFS = 50
TURNS = 1_000
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.-]+)*;base64,", re.ASCII)

_EXACT: dict[str, JsonValue] = {"minimum": -(2**53), "exclusiveMaximum": 2**53}
"""The integers that every reader of JSON reads exactly, for the OpenAPI document."""
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
BoundedName = Annotated[str, Field(min_length=1, max_length=NAME)]


def _check_moment(moment: datetime) -> datetime:
    """Raise a ValueError if the time in UTC is not in the years 1 to 9999."""
    try:
        to_utc(moment)
    except OverflowError as error:
        raise ValueError("the time must be in the years 1 to 9999 in UTC") from error
    return moment


Moment = Annotated[datetime, AfterValidator(_check_moment)]
TurnId = Annotated[str, Field(pattern=r"^turn_[1-9][0-9]{0,8}$")]


class RequestBody(BaseModel):
    """A body of a request. Unknown fields are refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


class AttachedFile(RequestBody):
    """A file of a message, with its bytes in base64."""

    name: BoundedName
    data: Annotated[Base64Bytes, Field(json_schema_extra={"minLength": 1, "pattern": _BASE64})]
    mime: Annotated[str, Field(max_length=NAME)] = ""


class TurnLimits(RequestBody):
    """The limits of one turn that a client may set."""

    max_iterations: Annotated[int, Field(ge=1, le=1_000)] | None = None
    deadline_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    max_cost: Annotated[float, Field(ge=0, le=10_000)] | None = None

    def options(self) -> Limits:
        """Return the limits that are set."""
        return cast("Limits", self.model_dump(exclude_none=True))


class SampledFields(BaseModel):
    """The settings of the model that a client may set. Its tier, timeouts, and extra fields are for the operator."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63, json_schema_extra=_EXACT)] | None = None
    stop: (
        Annotated[str, Field(min_length=1, max_length=NAME)]
        | Annotated[
            list[Annotated[str, Field(min_length=1, max_length=NAME)]], Field(max_length=16)
        ]
        | None
    ) = None
    max_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    reasoning_effort: Effort | None = None
    parallel_tool_calls: bool | None = None

    def sampled(self) -> dict[str, Any]:
        """Return the settings that are set, by name."""
        values = {name: getattr(self, name) for name in SampledFields.model_fields}
        return {name: value for name, value in values.items() if value not in (None, [])}


class TurnSettings(SampledFields, RequestBody):
    """The settings of the model for one turn; with `unsupported` "drop" those that it does not support are left out."""

    unsupported: Literal["error", "drop"] | None = None

    def options(self) -> Limits:
        """Return the settings that are set, as an option of the turn."""
        settings = ModelSettings(**self.sampled(), unsupported=self.unsupported)
        return {} if settings == UNSET else {"settings": settings}


class TurnOptions(RequestBody):
    """The limits and the settings of the model for one turn."""

    limits: TurnLimits = TurnLimits()
    settings: TurnSettings = TurnSettings()

    def options(self) -> Limits:
        """Return the limits and settings that are set."""
        return merge_limits(self.limits.options(), self.settings.options())


class ClientToolFields(BaseModel):
    """The fields of a tool that the client runs; further fields, which some protocols have, are ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")
    description: Annotated[str, Field(max_length=TEXT)] | None = None
    parameters: dict[str, JsonValue] | None = None

    def tool(self, name: str) -> ClientTool:
        """Return the tool with this name."""
        parameters = cast("JsonObject", self.parameters or {})
        return ClientTool(name=name, description=self.description or "", parameters=parameters)


class ClientToolBody(RequestBody):
    """A tool that the client runs, with the JSON Schemas of its arguments and of its result."""

    name: BoundedName
    description: Annotated[str, Field(max_length=TEXT)] = ""
    parameters: dict[str, JsonValue] = {}
    result: dict[str, JsonValue] | None = None

    def tool(self) -> ClientTool:
        """Return the tool."""
        return ClientTool(**dict(self))


class MessageBody(TurnOptions):
    """A message of a user.

    `tools` are those that the client runs in the turn. With `background` the response is the receipt, and the turn runs in the background. `webhook` is a URL that is called when
    the turn has ended.
    """

    text: Annotated[str, Field(min_length=1, max_length=TEXT)]
    attachments: Annotated[list[AttachedFile], Field(max_length=FILES)] = []
    when_busy: WhenBusy = "queue"
    tools: Annotated[list[ClientToolBody], Field(max_length=MAX_CLIENT_TOOLS)] = []
    bundle_id: Annotated[str, Field(max_length=NAME)] = ""
    background: bool = False
    webhook: Annotated[str, Field(max_length=2_000)] = ""


_TIMES: list[JsonValue] = [
    {"required": ["at"], "properties": {"at": {"type": "string"}}},
    {"required": ["delay"], "properties": {"delay": {"type": "number"}}},
    {"required": ["every"], "properties": {"every": {"minLength": 1}}},
]


class ScheduleBody(TurnOptions):
    """A message that begins a turn at `at` (in UTC if it names no zone), or `delay` seconds from now.

    With a line of cron in `every`, a turn begins at each of its times, in the time zone `zone`, or in UTC without one.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(json_schema_extra={"anyOf": _TIMES})

    text: Annotated[str, Field(min_length=1, max_length=TEXT)]
    at: Moment | None = None
    delay: Annotated[float | None, Field(ge=0, le=2**32, allow_inf_nan=False)] = None
    every: Annotated[str, Field(max_length=NAME)] = ""
    zone: Annotated[str, Field(max_length=NAME)] = ""
    bundle_id: Annotated[str, Field(max_length=NAME)] = ""


class ScheduledAnswer(BaseModel):
    """A message that waits for its time; `id` is unique in the conversation."""

    id: str
    at: str
    text: str
    every: str
    zone: str

    @classmethod
    def of_message(cls, message: ScheduledMessage) -> Self:
        """Return the answer for a scheduled message."""
        return cls(
            id=message.id,
            at=iso_time(message.at),
            text=message.prompt.text,
            every=message.every,
            zone=message.zone,
        )


class ScheduleAnswer(BaseModel):
    """The messages of a conversation that wait for their time, the first to begin first."""

    messages: list[ScheduledAnswer]


class AnswersBody(TurnOptions):
    """Answers to calls that wait, by call id; for an approval true or false, for a call that the client runs its result.

    `approvals` are signed approvals by call id. With `only_open` the answers are only for calls of the running turn that stay
    open, and no paused turn is continued.
    """

    values: Annotated[dict[BoundedName, JsonValue], Field(max_length=REFS)] = {}
    approvals: Annotated[
        dict[BoundedName, Annotated[str, Field(max_length=2 * NAME)]], Field(max_length=REFS)
    ] = {}
    only_open: bool = False


class InterruptBody(RequestBody):
    """A message for the running turn, or for the next turn if none runs.

    A followup is added to the turn; a steer also cancels its model reply or tool calls.
    """

    text: Annotated[str, Field(min_length=1, max_length=TEXT)]
    kind: Literal["followup", "steer"] = "followup"
    attachments: Annotated[list[AttachedFile], Field(max_length=FILES)] = []


class ModeBody(RequestBody):
    """What happens from now on to calls that need approval; `plan` also denies every call that is not a read."""

    mode: ApprovalMode


class RecallBody(RequestBody):
    """The receipt of a message to take back."""

    seq: Annotated[int, Field(ge=1, le=2**53)]
    turn_id: TurnId


class ForkBody(RequestBody):
    """The last seq to copy to a new conversation, and its name. Without a name, it is named after the conversation."""

    seq: Annotated[int, Field(ge=1, le=2**53)]
    name: Annotated[str, Field(max_length=NAME)] = ""


class ReadBody(RequestBody):
    """Refs to read."""

    refs: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=4_096)]],
        Field(min_length=1, max_length=REFS),
    ]


class RatedTurnsBody(RequestBody):
    """The turns with feedback to fetch: those of these ids, or all turns of the last days."""

    turn_ids: Annotated[list[TurnId], Field(max_length=TURNS)] | None = None
    days: Annotated[int, Field(ge=1, le=3_650)] = 365


class FetchBody(RatedTurnsBody):
    """The turns to fetch: those of these ids, or all turns of the last days. With `materialize`, files have their bytes."""

    materialize: bool = False


class NamedFetchBody(FetchBody):
    """A `FetchBody` that names the conversation."""

    conversation_id: BoundedName


class FeedbackBody(RequestBody):
    """A reaction to a turn. Null removes the reaction. `ts` is its time, if it is not now; without a zone it is in UTC."""

    reaction: Reaction | None
    text: Annotated[str, Field(max_length=TEXT)] = ""
    ts: Moment | None = None


class PeriodBody(RequestBody):
    """A period, and the page of its conversations with feedback to fetch."""

    start: AwareDatetime
    end: AwareDatetime
    include_turns: bool = False
    limit: Annotated[int, Field(ge=1, le=500)] = 100
    cursor: Annotated[str, Field(max_length=NAME)] | None = None


class ResourceBody(RequestBody):
    """A resource name."""

    rn: Annotated[
        str,
        Field(
            min_length=1,
            max_length=4_096,
            json_schema_extra={"pattern": r"^ef:([^:\s]+:){2}chatbot:([^:\s]+:){5}\S+$"},
        ),
    ]


class PlaceAnswer(BaseModel):
    """The position of a stored message: its turn and its seq."""

    turn_id: str
    seq: int


class ReceiptAnswer(BaseModel):
    """The position of a stored message, and the URL of its events."""

    conversation_id: str
    turn_id: str
    seq: int
    events: str


class WaitingCall(BaseModel):
    """A call that waits. `approval` is the signed approval, if the call awaits one.

    An approval needs the yes of `people` people; those in `approved_by` have approved it with these arguments. The client
    runs a call of the kind `client`, and answers with its result in the form of the JSON Schema `form`.
    """

    call_id: str
    tool: str
    question: str
    arguments: dict[str, JsonValue]
    kind: WaitKind = "question"
    form: JsonValue = None
    approval: str = ""
    people: int = 1
    approved_by: list[str] = []


class ApprovalAnswer(BaseModel):
    """A call that awaits approval, with the signed approval to send with the answer.

    It needs the approval of `people` people; those in `approved_by` have approved it with these arguments.
    """

    call_id: str
    tool: str
    question: str
    arguments: dict[str, JsonValue] | None
    approval: str
    people: int = 1
    approved_by: list[str] = []


class ApprovalsAnswer(BaseModel):
    """The calls of a conversation that await approval."""

    approvals: list[ApprovalAnswer]


class CitedSourceAnswer(BaseModel):
    """A source that the answer cites, with its number in the pool; a field is empty or null if it is unknown."""

    sid: int = 0
    url: str
    title: str
    source_type: str
    path: str
    commit: str
    lines: tuple[int, int] | None
    objective_relevance: float | None
    published_time_iso: str
    favicon_url: str


class TurnFileAnswer(BaseModel):
    """A file that a turn made or changed: its ref, its path, its MIME type, and its size in bytes."""

    ref: str
    name: str
    type: str
    size: int


class TokensAnswer(BaseModel):
    """The numbers of tokens that a turn used."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    unreported: int


class TurnAnswer(BaseModel):
    """The result of a turn. `truncated` is true if the model's output limit cut the answer off."""

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
    truncated: bool
    files: list[TurnFileAnswer]


class ModeAnswer(BaseModel):
    """The approval mode of a conversation, and the rules that count in it, oldest first."""

    mode: ApprovalMode
    rules: Sequence[GrantedRule]


class BackgroundCallAnswer(BaseModel):
    """A call that runs in the background: "lost" if its process has gone; the next turn says so, or begins it again."""

    call_id: str
    tool: str
    turn_id: str
    status: Literal["running", "stopping", "lost"]
    since: datetime
    until: datetime
    begins_again: bool


class BackgroundAnswer(BaseModel):
    """The calls of a conversation that run in the background, in the order in which they began."""

    calls: list[BackgroundCallAnswer]


class DoneAnswer(BaseModel):
    """`done` is false if there was nothing to do."""

    done: bool


class ForkAnswer(BaseModel):
    """The name of a new fork."""

    conversation_id: str


class ItemAnswer(BaseModel):
    """The text of one ref, or the reason why it cannot be read."""

    ref: str
    requested: str
    status: Literal["ok", "cut", "missing", "gone"]
    text: str
    title: str
    mime: str
    message: str


class ReadingAnswer(BaseModel):
    """The texts of several refs. `missing` are the refs that were not found."""

    items: list[ItemAnswer]
    missing: list[str]
    total_tokens: int


class BlocksAnswer(BaseModel):
    """A page of blocks. `next_after` is the seq after which the next page begins, null on the last page."""

    conversation_id: str
    blocks: list[dict[str, JsonValue]]
    next_after: int | None


def decode_file(name: str, url: str) -> Attachment:
    """Decode a file in a data URL. Its MIME type is empty if the URL does not have one.

    Raises:
        LooplineError: `url` is not a data URL in base64. The message begins with the name of the file.
    """
    match = _DATA_URL.match(url)
    if match is None:
        raise LooplineError(f"{name}: send its bytes in a data URL; other URLs are not fetched")
    try:
        data = base64.b64decode(url[match.end() :], validate=True)
    except binascii.Error as error:
        raise LooplineError(f"{name}: its bytes are not in base64") from error
    return Attachment(name, data, match[1] or "")


def turn_answer(
    conversation: str,
    result: TurnResult[Any],
    output: JsonValue,
    approvals: Mapping[str, str] | None = None,
) -> TurnAnswer:
    """Convert a result to the answer for clients, with `output` in place of the output of the result.

    `approvals` are signed approvals by call id; a pending call without one has an empty `approval`.
    """
    values = {field.name: getattr(result, field.name) for field in fields(result)}
    answer = TurnAnswer.model_validate(
        {**values, "conversation_id": conversation, "output": output}, from_attributes=True
    )
    for call in answer.pending:
        call.approval = (approvals or {}).get(call.call_id, "")
    return answer


def turn_of(conversation: str, timeline: Timeline, number: int) -> TurnAnswer:
    """Return the result of a turn from the timeline.

    A turn that has not ended is `paused` if it has pending calls, otherwise `interrupted`.
    """
    turn = timeline.turn(number)
    if turn.exit is not None:
        current = result(timeline, number, turn.exit.reason, turn.exit.error)
    elif turn.pending:
        current = result(timeline, number, "paused")
    else:
        current = result(timeline, number, "interrupted")
    return turn_answer(conversation, current, to_jsonable_python(current.output, fallback=str))
