"""Model requests of past rounds, rendered again from the log, compared with the digests in it, and as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import zip_longest
from typing import Literal, TypeAlias

from msgspec import structs

from loopline import timeline as tl
from loopline.errors import LooplineError
from loopline.models import (
    AssistantMessage,
    Attached,
    AttachmentSupport,
    Json,
    JsonObject,
    Message,
    ReasoningReplay,
    ToolMessage,
    UserMessage,
    dumps,
)
from loopline.models.prompt import cost, estimate
from loopline.prompt import attached_files
from loopline.prompt.announce import announce, unseen_sources, workspace_line
from loopline.prompt.budget import message_counts
from loopline.prompt.caching import Part, PartKind, SentRequest
from loopline.prompt.protocols import NATIVE, protocol_named
from loopline.prompt.rendering import RENDERER, View, digest_text, opens_epoch
from loopline.prompt.truncation import escape_frame, short_arguments

TRACE_LIMIT = 2_000
"""The most characters of a result in a trace."""
SHORTEST_TRACE = 100
"""The characters of each result to which a trace may be shortened."""

TRACE_SYSTEM = """You write the answer to the user's question from the trace of the work that was done for it. \
Write it whole and in order, in the language of the question, for somebody who has not seen the trace. Use only \
what the trace holds. Right after each sentence name the source that supports it as [[S:1]] or [[S:2,3]], with the \
numbers that the results give. Where something failed or stayed open, say so."""

TRACE_TAIL = "Write the answer now."


TraceBody = (
    tl.InboxBody
    | tl.UserAttachment
    | tl.ToolCalled
    | tl.ToolResult
    | tl.Notes
    | tl.Draft
    | tl.Notice
)
_TRACE = tl.BodyUnion[TraceBody](TraceBody)
_INPUTS = tl.BodyUnion[tl.InboxBody](tl.InboxBody)


def traced_blocks(blocks: Iterable[tl.Block], turn: int, takes: Iterable[int]) -> list[tl.Block]:
    """Return the blocks for the trace of a turn, for a round that takes the inputs with the seqs `takes`.

    User inputs are included if a round of the turn took them, even if they were sent in an earlier turn. Inputs that were
    recalled, or that still wait, are left out.
    """
    candidates: list[tl.Block] = []
    taken: set[int] = set()
    recalled: set[int] = set()
    for block in blocks:
        body = block.body
        if isinstance(body, tl.RoundStart):
            taken.update(set(body.takes) - recalled if block.turn == turn else ())
        elif isinstance(body, tl.UserRecalled):
            recalled.add(body.said)
        elif block.turn == turn or isinstance(body, tl.UserAttachment) or _INPUTS.has(body):
            candidates.append(block)
    taken.update(set(takes) - recalled)
    return [block for block in candidates if _is_traced(block, taken)]


def _is_traced(block: tl.Block, taken: set[int]) -> bool:
    """Return whether a block is an input that was taken, a file of such an input, or another type of block."""
    if isinstance(block.body, tl.UserAttachment):
        return tl.input_seq_of(block) in taken
    return not _INPUTS.has(block.body) or block.seq in taken


def trace(blocks: Iterable[tl.Block], window: tl.Projection) -> list[Message]:
    """Return the messages of a trace: the user's inputs, notes, notices, and each call with the start of its result.

    The window sets the characters of a result, and the files that the model gets.
    """
    calls: dict[str, tl.ToolCalled] = {}
    messages: list[Message] = []
    load = attached_files.NO_FILES
    for block, body in _TRACE.among(blocks):
        match body:
            case tl.UserPrompt(text=text) | tl.UserFollowup(text=text) | tl.UserSteer(text=text):
                messages.append(UserMessage(text=f"[THE USER SAID] {text}"))
            case tl.BackgroundResult(call_id=call_id):
                messages.append(
                    UserMessage(text=f"[RESULT OF {call_id}] {escape_frame(body.text)}")
                )
            case tl.UserAttachment():
                attached, load = attached_files.show_file(block, body, window, load)
                messages.append(UserMessage(text="[THE USER ATTACHED]", attachments=(attached,)))
            case tl.ToolCalled(call_id=call_id):
                calls[call_id] = body
            case tl.ToolResult(call_id=call_id):
                text = _result(block, body, calls.get(call_id), window.result_limit)
                images: list[Attached] = []
                for image in body.images:
                    attached, load = attached_files.show_image(block, image, window, load)
                    images.append(attached)
                messages.append(UserMessage(text=text, attachments=tuple(images)))
            case tl.Notes(text=text) | tl.Draft(text=text) | tl.Notice(text=text):
                label = body.type.removeprefix("react.").upper()
                messages.append(UserMessage(text=f"[{label}] {escape_frame(text)}"))
    return messages


def trace_window(
    blocks: Sequence[tl.Block], room: int, carrying: AttachmentSupport
) -> tl.Projection:
    """Return the window for a trace of at most `room` tokens, with up to 2,000 characters of each result.

    If necessary, the limit for results is halved until it is at most 100 characters. If that does not suffice, files are
    left out, and the limit starts at 2,000 again; then the trace may still be too long.
    """
    window = tl.Projection(result_limit=TRACE_LIMIT, carrying=carrying)
    while _exceeds(blocks, window, room) and window.result_limit > SHORTEST_TRACE:
        window = structs.replace(window, result_limit=window.result_limit // 2)
    if carrying.tokens and _exceeds(blocks, window, room):
        return trace_window(blocks, room, AttachmentSupport())
    return window


def _exceeds(blocks: Sequence[tl.Block], window: tl.Projection, room: int) -> bool:
    return sum(map(cost, trace(blocks, window))) > room


def _result(block: tl.Block, result: tl.ToolResult, call: tl.ToolCalled | None, limit: int) -> str:
    """Return the first `limit` characters of a result after its ref, call and status; name the number omitted."""
    arguments = short_arguments(call.arguments) if call else ""
    shown = result.text[:limit]
    hidden = len(result.text) - len(shown)
    ending = f"\n… {hidden} more characters" if hidden else ""
    head = f"[RESULT {block.ref}] {result.tool}({arguments}): {result.status}"
    return f"{head}\n{escape_frame(shown)}{ending}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """The request that a round sent to a model.

    Attributes:
        block: The block of the round's start, with the body `round_start`.
        tools: The tools as JSON; "" in a protocol with the tools in the system text.
        refs: For each message, the ref of its block.
        stable: The number of messages before the inputs that the round takes; their digest is `stable_sha256`.
        marked: The numbers of the sources that the messages name.
        feedback_until: The seq up to which the messages include feedback.
        inexact: The reason why the request may differ from the one that was sent; "" if it is exact.
    """

    block: tl.Block
    round_start: tl.RoundStart
    system: str
    tools: str
    messages: tuple[Message, ...]
    refs: tuple[str, ...]
    stable: int
    stable_sha256: str
    marked: frozenset[int] = frozenset()
    feedback_until: int = 0
    inexact: str = ""

    @property
    def cache_points(self) -> tuple[int, ...]:
        """The number of messages before each cache point."""
        return message_counts(self.round_start.points, len(self.messages))

    @property
    def as_sent(self) -> SentRequest:
        """The request in parts, for the cache simulator."""
        first: list[tuple[PartKind, str]] = [("tools", self.tools), ("system", self.system)]
        parts = [_part(kind, text) for kind, text in first if text]
        ends = [len(parts)]
        for message, ref in zip(self.messages, self.refs, strict=True):
            parts += _parts(message, ref)
            ends.append(len(parts))
        points = sorted({ends[at] for at in self.cache_points} - {0})
        start = self.round_start
        tail_message = UserMessage(text=start.tail)
        tail = [_part("message", repr(tail_message), self.block.ref)] if start.tail else []
        stays = tail if start.tail_kind in ("kept", "cleared") else []
        return SentRequest(
            parts=(*parts, *tail),
            stable=len(parts) + len(stays),
            points=tuple(points),
            at=self.block.ts,
            seq=self.block.seq,
            cause="" if start.opened_by == "start" else start.opened_by,
        )


def past_requests(timeline: tl.Timeline) -> Iterator[ModelRequest]:
    """Yield the request of every round with a model and a prompt that was rendered from blocks, in order.

    Raises:
        LooplineError: this version of Loopline does not have the protocol of a round.
    """
    views: dict[str, View] = {}
    for block in timeline.blocks:
        start = block.body
        if not isinstance(start, tl.RoundStart) or not start.model or not start.renderer:
            continue
        if start.protocol not in views:
            views[start.protocol] = View(protocol_named(start.protocol))
        view = views[start.protocol]
        view.extend(timeline.between(view.seq, block.seq - 1))
        yield _request(timeline, block, start, view)


def request_of_round(timeline: tl.Timeline, turn: int, number: int | None) -> ModelRequest:
    """Return the request of a round of a turn, by default of the last round.

    Raises:
        LooplineError: the turn does not have that round, or did not ask a model; the message names the turn's rounds.
    """
    by_number = {
        request.block.round: request
        for request in past_requests(timeline)
        if request.block.turn == turn
    }
    if not by_number:
        raise LooplineError(f"turn_{turn} did not send a request to a model")
    chosen = max(by_number) if number is None else number
    if chosen not in by_number:
        first = min(by_number)
        last = max(by_number)
        rounds = f"{first}" if first == last else f"{first} to {last}"
        raise LooplineError(f"turn_{turn} has no round {chosen}: it has {rounds}")
    return by_number[chosen]


def _request(
    timeline: tl.Timeline, block: tl.Block, start: tl.RoundStart, view: View
) -> ModelRequest:
    """Create the request of a round; `view` has rendered the blocks before the round, in the round's protocol.

    If the round does not show a trace, its block is added to the view.
    """
    from_trace = start.shows == "trace"
    if from_trace:
        turn = traced_blocks(timeline.until(block.seq - 1), block.turn, start.takes)
        messages = tuple(trace(turn, start.window or tl.Projection(result_limit=TRACE_LIMIT)))
        refs = ("",) * len(messages)
        count = len(messages)
        digest = messages_digest(messages)
        marked = frozenset[int]()
        feedback_until = 0
    else:
        stable = (
            view.render_under(start.window)
            if start.window and opens_epoch(start)
            else view.rendering
        )
        # `extend` may add messages to this rendering, so its state is read first.
        count = len(stable.messages)
        digest = stable.sha256
        marked = frozenset(stable.named_sources)
        view.extend([block])
        messages = tuple(view.messages)
        refs = tuple(view.rendering.refs)
        feedback_until = view.window.feedback
    system = timeline.system_texts.get(start.system_sha256)
    tools = timeline.tool_texts.get(start.tools_sha256)
    has_texts = system is not None and (from_trace or tools is not None)
    return ModelRequest(
        block=block,
        round_start=start,
        system=system or "",
        tools=tools or "" if start.protocol == NATIVE and not from_trace else "",
        messages=messages,
        refs=refs,
        stable=count,
        stable_sha256=digest,
        marked=marked,
        feedback_until=feedback_until,
        inexact=_inexact(start, digest, has_texts=has_texts),
    )


def messages_digest(messages: Sequence[Message]) -> str:
    """Return the sha256 of messages in hexadecimal, equal to that of a `Rendering` with the same messages."""
    digest = sha256()
    for message in messages:
        digest.update(f"{digest_text(message)}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _inexact(start: tl.RoundStart, digest: str, *, has_texts: bool) -> str:
    """Return the reason why a request is inexact: its renderer, a missing text or its digest; "" if it is exact."""
    if start.renderer != RENDERER:
        return f"it was rendered by version {start.renderer}, this loopline has {RENDERER}"
    if not has_texts:
        return "the log lacks the text of its instructions or tools"
    if digest != start.stable_sha256:
        return "the messages are not those whose digest was recorded"
    return ""


def _parts(message: Message, ref: str) -> list[Part]:
    """Return the parts of a message: of a reply, those of its echo, or its text and calls; otherwise the message."""
    match message:
        case AssistantMessage(echo=ReasoningReplay(parts=parts)):
            return [_part("message", repr(part), ref) for part in parts]
        case AssistantMessage(text=text, calls=calls):
            texts = [text] if text else []
            return [_part("message", part, ref) for part in [*texts, *map(repr, calls)]]
        case _:
            part = _part("message", repr(message), ref)
            return [replace(part, tokens=cost(message))]


def _part(kind: PartKind, text: str, ref: str = "") -> Part:
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return Part(kind=kind, digest=digest, tokens=estimate(text), ref=ref)


OWN_LINES = 2
"""The number of lines at the start of a tail that are not compared: those of the round's number and time."""

ReplayedPart: TypeAlias = Literal["renderer", "system", "tools", "messages", "tail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first part of a request that differs from the recorded one.

    `recorded` and `rendered` are digests (sha256 in hexadecimal), for the renderer its versions, and for the tail the first
    line that differs; "" if one is missing. For messages, `first` to `last` are the positions, from 1, of the messages that
    earlier rounds do not confirm.
    """

    part: ReplayedPart
    recorded: str
    rendered: str
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRound:
    """A round's request as it is rendered now; if `divergence` is None, it is equal to the request that was sent."""

    request: ModelRequest
    divergence: Divergence | None

    @property
    def suspects(self) -> tuple[str, ...]:
        """The refs of the messages that may diverge."""
        divergence = self.divergence
        if divergence is None or not divergence.first:
            return ()
        return self.request.refs[divergence.first - 1 : divergence.last]


def replayed_rounds(timeline: tl.Timeline) -> Iterator[ReplayedRound]:
    """Yield every round that sent a request to a model, in order.

    The tail is rendered from the log with plans, feedback, sources and files; its time is not compared. A round has one digest for
    all its messages, so the messages that differ are inferred from earlier rounds with equal digests.

    Raises:
        LooplineError: this version of Loopline does not have the protocol of a round.
    """
    agreed_messages: set[tuple[str, str]] = set()
    agreed: tuple[Message, ...] = ()
    past = tl.Timeline()
    tail = ""
    for request in past_requests(timeline):
        past.extend(timeline.until(request.round_start.saw)[len(past) :])
        divergence = _compare_texts(timeline, request) or _compare_messages(
            request, agreed_messages
        )
        tail = request.round_start.tail or (tail if request.round_start.tail_kind == "kept" else "")
        header = timeline.turn(request.block.turn).header
        divergence = divergence or _compare_tail(past, request, tail, header)
        if divergence is None:
            agreed_messages.update(_list_digested(request, _count_shared(agreed, request)))
            agreed = request.messages[: request.stable]
        yield ReplayedRound(request=request, divergence=divergence)


def _compare_texts(timeline: tl.Timeline, request: ModelRequest) -> Divergence | None:
    """Compare the renderer, the system text and, without a trace, the tools with those recorded; None if equal."""
    start = request.round_start
    if start.renderer != RENDERER:
        return Divergence(part="renderer", recorded=str(start.renderer), rendered=str(RENDERER))
    system = _digest(timeline.system_texts.get(start.system_sha256))
    if system != start.system_sha256:
        return Divergence(part="system", recorded=start.system_sha256, rendered=system)
    tools = _digest(timeline.tool_texts.get(start.tools_sha256))
    if tools != start.tools_sha256 and start.shows == "context":
        return Divergence(part="tools", recorded=start.tools_sha256, rendered=tools)
    return None


def _compare_messages(request: ModelRequest, agreed: set[tuple[str, str]]) -> Divergence | None:
    """Compare the digest of the messages with the recorded one; return None if they are equal.

    The divergence has the range from the first to the last message that `agreed` lacks, or the range of all messages if
    `agreed` has all of them.
    """
    recorded = request.round_start.stable_sha256
    rendered = request.stable_sha256
    if recorded == rendered:
        return None
    shown = _list_digested(request)
    wrong = [n for n, part in enumerate(shown, 1) if part not in agreed] or [1, len(shown)]
    return Divergence(
        part="messages", recorded=recorded, rendered=rendered, first=wrong[0], last=wrong[-1]
    )


def _compare_tail(
    past: tl.Timeline, request: ModelRequest, tail: str, header: tl.TurnHeader | None
) -> Divergence | None:
    """Return the first line in which `tail` differs from a tail that is written from `past`; None if they are equal.

    The first two lines, with the round and the time, are not compared. A trace has no divergence of its tail.
    """
    if request.round_start.shows == "trace":
        return None
    rendered = announce(
        iteration=0,
        limit=0,
        now=request.block.ts,
        turn_id="",
        plans=past.plans.open_plans,
        feedback=past.reactions.new_lines_since(request.feedback_until),
        waiting=past.prompts_after(request.block.turn),
        unseen=unseen_sources(past.pool.sources, request.marked),
        room=request.round_start.tail_room or None,
    )
    if header is not None and header.limits.get("workspace", "off") != "off":
        rendered = f"{rendered}\n{workspace_line(past, request.block.turn)}"
    tails = (text.splitlines()[OWN_LINES:] for text in (tail, rendered))
    for recorded_line, rendered_line in zip_longest(*tails, fillvalue=""):
        if recorded_line != rendered_line:
            return Divergence(part="tail", recorded=recorded_line, rendered=rendered_line)
    return None


def _list_digested(request: ModelRequest, start: int = 0) -> list[tuple[str, str]]:
    """Return the ref and content of each message that the digest covers, from the index `start` on."""
    indexes = range(start, request.stable)
    return [(request.refs[n], digest_text(request.messages[n])) for n in indexes]


def _count_shared(previous: tuple[Message, ...], request: ModelRequest) -> int:
    """Count the messages of the previous round that the request repeats: all of them, or 0 in a new epoch."""
    count = len(previous)
    grown = 0 < count <= request.stable and request.messages[count - 1] is previous[-1]
    return count if grown else 0


def _digest(text: str | None) -> str:
    return "" if text is None else sha256(text.encode()).hexdigest()


def answer_schema(timeline: tl.Timeline, request: ModelRequest) -> JsonObject | None:
    """Return the JSON Schema of the answer that the request asked the provider to enforce.

    Return None if the request did not ask for it, or if the timeline does not have the schema.
    """
    start = request.round_start
    if start.answer_by != "schema":
        return None
    headers = (block.body for block in timeline.blocks if isinstance(block.body, tl.TurnHeader))
    schemas = (header.output for header in headers if header.output is not None)
    return next((s.form.schema for s in schemas if s.sha256 == start.schema_sha256), None)


def message_role(message: Message) -> str:
    """Return `user`, `assistant`, `tool` with the tool's name, or `tail of before` for the tail of an earlier round."""
    match message:
        case AssistantMessage():
            return "assistant"
        case ToolMessage(name=name):
            return f"tool {name}"
        case UserMessage(passing=True):
            return "tail of before"
        case UserMessage():
            return "user"


def message_text(message: Message) -> str:
    """Return the text of a message as people read it, with a line for each call, attachment and replayed part."""
    match message:
        case AssistantMessage(text=text, calls=calls, echo=echo):
            call_lines = [f"{call.call_id} {call.name} {dumps(call.arguments)}" for call in calls]
            replayed_parts = [f"as it came: {dumps(part)}" for part in echo.parts] if echo else []
            return "\n".join(
                [*replayed_parts, *([text] if text and not replayed_parts else []), *call_lines]
            )
        case UserMessage(text=text, attachments=attachments):
            return "\n".join([text, *map(str, attachments)])
        case ToolMessage(text=text):
            return text


def prompt_document(request: ModelRequest, schema: JsonObject | None) -> JsonObject:
    """Return the whole request as JSON, with the tail and the settings as the log has them.

    `schema` is the form of the answer, from `answer_schema`.
    """
    start = request.round_start
    messages: list[Json] = [
        {"role": message_role(message), "ref": ref, "text": message_text(message)}
        for message, ref in zip(request.messages, request.refs, strict=True)
    ]
    points: list[Json] = [
        {"name": point.name, "messages": point.messages, "tokens": point.tokens}
        for point in start.points
    ]
    return {
        "turn_id": request.block.turn_id,
        "round": request.block.round,
        "ref": request.block.ref,
        "model": start.model,
        "protocol": start.protocol,
        "epoch": start.epoch,
        "opened_by": start.opened_by,
        "tokens": start.tokens,
        "exact": not request.inexact,
        "system": request.system,
        "tools": request.tools,
        "settings": start.settings,
        "dropped_settings": dict[str, Json](start.dropped_settings),
        "form": schema,
        "messages": messages,
        "cache_points": points,
        "tail": start.tail,
        "tail_kind": start.tail_kind,
    }
