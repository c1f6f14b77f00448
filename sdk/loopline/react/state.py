"""A running turn: its payload, its state folded from its blocks, its result, and its channels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import gcd
from typing import Any, Literal

from msgspec import Struct

from loopline import timeline as tl
from loopline.errors import LooplineError
from loopline.files import Attachment
from loopline.models import JsonObject, Message, OutputType, SchemaMismatch, Usage, dumps
from loopline.prompt import View, protocol_named
from loopline.react.loop_options import LoopOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPayload:
    """The input of a turn: the user's text and attachments, and the conversation, turn and user that they belong to."""

    text: str
    conversation: str
    turn_id: str
    ts: datetime
    tenant: str = tl.DEFAULT_TENANT
    project: str = tl.DEFAULT_PROJECT
    user: str = tl.DEFAULT_USER
    attachments: Sequence[Attachment] = ()


_FILES = tl.BodyUnion[tl.FileAdded](tl.FileAdded)


def result(
    timeline: tl.Timeline,
    number: int,
    reason: tl.ExitReason,
    error: str = "",
    output: OutputType[Any] | None = None,
) -> tl.TurnResult[Any]:
    """Return the result of the turn `number` from its blocks, with the given exit reason and error.

    If the answer is a value of a type, `output` of the result is that value, validated by the `output` type; without this
    argument it is the parsed JSON.

    Raises:
        LooplineError: the answer has another type, and cannot be read as a value of the `output` type.
    """
    turn = timeline.turn(number)
    completion = turn.completion
    used = completion.sources_used if completion else ()
    return tl.TurnResult(
        answer=completion.text if completion else "",
        turn_id=f"turn_{number}",
        exit_reason=reason,
        ok=reason == "complete" and completion is not None,
        error=error,
        rounds=turn.rounds,
        usage=turn.usage,
        sources=[
            tl.with_number(timeline.pool.sources[sid], sid)
            for sid in used
            if sid in timeline.pool.sources
        ],
        cost=turn.cost,
        pending=pending_calls(turn),
        late_input=late_input(timeline),
        output=_output_value(turn, completion, output) if completion else None,
        truncated=turn.is_truncated,
        files=turn_files(timeline, number) if timeline.files.versions else (),
    )


def turn_files(timeline: tl.Timeline, number: int) -> list[tl.TurnFile]:
    """Return the files that a turn made or changed, without internal outputs."""
    blocks = timeline.files.changed_in(number)
    return [
        tl.TurnFile(ref=block.ref, name=body.path, type=body.mime, size=body.size, body=body)
        for block, body in _FILES.among(blocks)
        if body.area == "files" or body.visibility == "external"
    ]


def _output_value(turn: tl.Turn, answer: tl.Completion, output: OutputType[Any] | None) -> object:
    """Return the value of an answer that has a schema; None for other answers.

    Raises:
        LooplineError: the answer is not valid JSON, or not a value of the `output` type.
    """
    if not answer.schema_sha256:
        return None
    if output is None:
        try:
            return json.loads(answer.text)
        except (ValueError, RecursionError) as error:
            raise LooplineError(
                f"the answer of {tl.turn_id(turn.number)} has a schema ({answer.schema_sha256[:12]}…), "
                f"and is not valid JSON: {error}"
            ) from error
    try:
        return output.read(answer.text)
    except SchemaMismatch as error:
        header_output = turn.header.output if turn.header else None
        raise LooplineError(
            f"the answer of {tl.turn_id(turn.number)} is {header_output.name if header_output else 'of another type'} (schema "
            f"{answer.schema_sha256[:12]}…), and {output.schema.name} ({output.sha256[:12]}…) does not read it: {error}"
        ) from error


def pending_calls(turn: tl.Turn) -> list[tl.PendingCall]:
    """Return the calls that wait for the user, in order."""
    return [_pending_call(turn, pending) for pending in turn.unanswered.values()]


def _pending_call(turn: tl.Turn, pending: tl.ToolPending) -> tl.PendingCall:
    """Return the waiting call, with the arguments that its first approval edited and the names of its approvers."""
    call = turn.waiting_call(pending.call_id)
    approvals = tl.approvals_of(turn.shared_answers.get(pending.call_id, []))
    edited = tl.edited_arguments(approvals[0].value) if approvals else None
    return tl.PendingCall(
        call_id=call.call_id,
        tool=call.tool,
        arguments=call.arguments if edited is None else edited,
        question=pending.question,
        kind=pending.waits_for,
        form=pending.form,
        people=pending.people,
        approved_by=tuple(approval.by for approval in approvals),
    )


def late_input(timeline: tl.Timeline) -> list[str]:
    """Return the refs of followups, steers and background results that no round has taken."""
    pending = timeline.pending.values()
    return [
        block.ref
        for block in pending
        if isinstance(block.body, tl.UserFollowup | tl.UserSteer | tl.BackgroundResult)
    ]


STEER_ROUNDS = 3
"""The most decisions that a turn makes after a steer."""
LONGEST_CIRCLE = 3
"""The longest cycle of rounds that is detected: A, B, C, A, B, C is a cycle of three."""
FARTHEST = 64
"""The number of newest rounds in which repeated calls are detected."""


def decision_limit(turn: tl.Turn, options: LoopOptions) -> int | None:
    """Return the most decisions that the turn may make, fewer after a steer; None without a limit."""
    maximum = options.max_iterations
    steered_at = turn.steered_at_round
    if steered_at is None:
        return maximum
    return steered_at + STEER_ROUNDS if maximum is None else min(maximum, steered_at + STEER_ROUNDS)


class ReactStateV2(Struct, frozen=True, kw_only=True):
    """The state of the running turn.

    `iteration` counts the decisions, of at most `max_iterations` if that is not None. An answer is held until there are
    `min_rounds` decisions. `malformed` and `cut_off` count the last replies in a row that were malformed, or cut off by
    the output limit. `steered` is True after a steer. `batches` are the calls of each decision with their results.
    `notices` counts the notices of the turn, by code. `answer` is an answer that is not accepted yet, or None.
    Without arguments it is the state of a turn that has just begun, for tests of round hooks.
    """

    iteration: int = 0
    max_iterations: int | None = None
    min_rounds: int = 0
    malformed: int = 0
    cut_off: int = 0
    steered: bool = False
    batches: Sequence[tl.Batch] = ()
    notices: Mapping[str, int] = {}
    usage: Usage = Usage()
    cost: float | None = None
    elapsed_seconds: float = 0.0
    answer: str | None = None

    @classmethod
    def fold(cls, turn: tl.Turn, options: LoopOptions, elapsed_seconds: float) -> ReactStateV2:
        """Return the state of a turn from its blocks."""
        maximum = decision_limit(turn, options)
        minimum = options.min_rounds
        if turn.steered_at_round is not None:
            minimum = 1
        elif maximum is not None and not options.early_stop:
            minimum = maximum
        return cls(
            iteration=turn.rounds,
            max_iterations=maximum,
            min_rounds=minimum if maximum is None else min(minimum, maximum),
            malformed=turn.malformed,
            cut_off=turn.cut_off,
            steered=turn.steered_at_round is not None,
            batches=turn.batches,
            notices=turn.notice_counts,
            usage=turn.usage,
            cost=turn.cost,
            elapsed_seconds=elapsed_seconds,
        )

    @property
    def exhausted(self) -> bool:
        """Whether the turn may not make another decision."""
        return self.max_iterations is not None and self.iteration >= self.max_iterations

    @property
    def last(self) -> bool:
        """Whether the next decision is the last one, or there may be none."""
        return self.max_iterations is not None and self.iteration + 1 >= self.max_iterations

    @property
    def same_calls(self) -> int:
        """How often in a row the newest calls were made, in equal rounds, in a cycle of rounds, or in one round."""
        return list(repetitions(self.batches[-FARTHEST:]))[-1] if self.batches else 0


def repetitions(batches: Iterable[tl.Batch]) -> Iterator[int]:
    """Yield for each round how often its calls have been made in a row; 0 for a round without calls.

    Cycles of at most `LONGEST_CIRCLE` rounds are detected too.
    """
    steps_so_far: list[str] = []
    again = [0] * LONGEST_CIRCLE
    for batch in batches:
        steps = _call_steps(batch)
        steps_so_far = [*steps_so_far, *steps] if steps else []
        for index in range(len(steps_so_far) - len(steps), len(steps_so_far)):
            for length in range(1, LONGEST_CIRCLE + 1):
                is_repeat = index >= length and steps_so_far[index] == steps_so_far[index - length]
                again[length - 1] = again[length - 1] + 1 if is_repeat else 0
        yield max(n // (at + 1) + 1 for at, n in enumerate(again)) if steps else 0
        steps_so_far = steps_so_far[-LONGEST_CIRCLE:]


def _call_steps(batch: tl.Batch) -> list[str]:
    """Return the calls of a round as one text for all, without their order and spacing, repeated as often as they are made."""
    calls = Counter(dumps([call.tool, _normalize(call.arguments)]) for call in batch.calls)
    times = gcd(*calls.values())
    kinds = sorted(f"{call}×{count // times}" for call, count in calls.items())
    return ["\n".join(kinds)] * times


def _normalize(arguments: JsonObject) -> JsonObject:
    return {
        name: " ".join(value.split()) if isinstance(value, str) else value
        for name, value in sorted(arguments.items())
    }


Node = Literal["prepare", "call_llm", "route_after", "execute_tools", "finalize"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The channels of a turn after its last block.

    `messages` are those of the next prompt, `turn` is the number of rounds, `pending_tools` are the ids of the calls
    without a result, and the token counts are sums. `stop_reason` and `llm_response` are those of the newest decision.
    """

    messages: tuple[Message, ...] = ()
    turn: int = 0
    pending_tools: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    stop_reason: str = ""
    llm_response: str = ""


def channels(timeline: tl.Timeline, number: int) -> Channels:
    """Return the channels of the turn of that number."""
    turn = timeline.turn(number)
    last = turn.decisions[-1] if turn.decisions else None
    last_round = timeline.last_round
    view = View(protocol_named(last_round.protocol if last_round else "native"), timeline.blocks)
    answers = [completion.text for completion in turn.completions[-1:]]
    return Channels(
        messages=tuple(view.messages),
        turn=turn.rounds,
        pending_tools=tuple(turn.open_calls),
        input_tokens=turn.usage.input_tokens,
        output_tokens=turn.usage.output_tokens,
        stop_reason=last.stop_reason if last else "",
        llm_response=(last.raw if last and last.raw else "".join(answers)),
    )


_NODES: Mapping[type[tl.Body], Node] = {
    tl.RoundStart: "prepare",
    tl.Decision: "call_llm",
    tl.ToolCalled: "route_after",
    tl.ToolStarted: "execute_tools",
    tl.ToolResult: "execute_tools",
    tl.Completion: "finalize",
    tl.Exit: "finalize",
}


def nodes(blocks: Iterable[tl.Block]) -> Iterator[tuple[Node, tl.Block]]:
    """Yield each block that a node of the loop writes, with the name of the node; other blocks are left out."""
    for block in blocks:
        if type(block.body) in _NODES:
            yield _NODES[type(block.body)], block
