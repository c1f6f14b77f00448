"""Blocks rendered as messages under one window, a fold that only adds messages; the view renders them under several windows.

User input is rendered at the round that takes it. A round with calls is rendered when every call has its result, because
providers reject a call without a result.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import takewhile
from typing import ClassVar

from msgspec import Struct, structs

from loopline import timeline as tl
from loopline.models import (
    AssistantMessage,
    Attached,
    JsonObject,
    Message,
    ReasoningReplay,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from loopline.models.prompt import cost, cost_of_files, cost_of_text, count_named_calls, estimate
from loopline.models.safe_text import remove_base64
from loopline.prompt import attached_files, truncation
from loopline.prompt.protocols.decision import DecisionProtocol
from loopline.prompt.truncation import escape_frame
from loopline.refs import DocumentRef

REPORTS_KEPT = 8
"""The number of newest usage reports of a model that correct its estimates."""

MAX_FACTOR = 4.0
"""The largest correction: a token has at least one byte, and an estimate is at least a quarter of a token for a byte."""


RenderStateBody = (
    tl.InboxBody
    | tl.UserAttachment
    | tl.UserRecalled
    | tl.RoundStart
    | tl.Decision
    | tl.ToolStarted
    | tl.Hide
    | tl.RangeSummary
    | tl.PlanHistory
    | tl.Feedback
    | tl.ModelOverflowed
)
_RENDER_STATE = tl.BodyUnion[RenderStateBody](RenderStateBody)


class RenderState:
    """A fold of all blocks: inputs with files and their rounds, started calls, hides, summaries, feedback, and usage.

    `inputs`, `attached`, `summaries` and `histories` have the seq of an input or of a summary as key. `taken_at` maps the
    seq of an input to that of the round that took it; `taken_by` maps a turn to the inputs that its rounds took.
    `learned` are ratios of reported to estimated tokens, by model, from before the first block.
    """

    def __init__(self, learned: Mapping[str, tuple[float, ...]] | None = None) -> None:
        self.inputs: dict[int, tl.Block] = {}
        self.attached: dict[int, list[tuple[tl.Block, tl.UserAttachment]]] = {}
        self.taken_at: dict[int, int] = {}
        self.taken_by: dict[int, list[int]] = {}
        self.started: set[str] = set()
        self._hides: dict[str, list[tuple[int, tl.Hide]]] = {}
        self.last_hide: int = 0
        self.summaries: dict[int, tuple[tl.Block, tl.RangeSummary]] = {}
        self.histories: dict[int, tuple[tl.Block, tl.PlanHistory]] = {}
        self.feedback: list[tl.Block] = []
        self._recalled: set[int] = set()
        self._reactions = (0, tl.Reactions())
        self._cache_points: tuple[tl.CachePoint, ...] = ()
        self._unchanged = (0, 0)
        self._cleared: dict[int, str] = {}
        self._summary = 0
        self._estimated: float = 0.0
        self._files: int = 0
        self._model = ""
        self._ratios: dict[str, deque[float]] = {
            model: deque(ratios, maxlen=REPORTS_KEPT) for model, ratios in (learned or {}).items()
        }

    @property
    def learned(self) -> dict[str, tuple[float, ...]]:
        """The newest ratios of reported to estimated tokens, by model."""
        return {model: tuple(ratios) for model, ratios in self._ratios.items() if ratios}

    def take(self, block: tl.Block) -> None:
        """Update the state by the next block; a block of another type than `RenderStateBody` changes nothing."""
        fold = self._folds.get(type(block.body))
        if fold is not None:
            fold(self, block, block.body)

    def _take(self, block: tl.Block, body: RenderStateBody) -> None:
        """Store the part of a block that renderings need; a recall is ignored if a round has taken the input."""
        match body:
            case tl.RoundStart() as start:
                self._begin(block, start)
            case tl.Decision(usage=usage):
                self._learn(usage.input_tokens)
            case tl.ModelOverflowed(prompt=prompt):
                self._learn(prompt)
            case tl.UserPrompt() | tl.UserFollowup() | tl.UserSteer() | tl.BackgroundResult():
                self.inputs[block.seq] = block
            case tl.UserAttachment() as file:
                self.attached.setdefault(tl.input_seq_of(block), []).append((block, file))
            case tl.UserRecalled(said=said):
                if said not in self.taken_at:
                    self._recalled.add(said)
            case tl.ToolStarted(call_id=call_id):
                self.started.add(call_id)
            case tl.Hide() | tl.RangeSummary() | tl.PlanHistory() | tl.Feedback():
                self._take_view(block, body)

    _folds: ClassVar[Mapping[object, tl.Fold[RenderState]]] = _RENDER_STATE.table(_take)

    def _take_view(
        self, block: tl.Block, body: tl.Hide | tl.RangeSummary | tl.PlanHistory | tl.Feedback
    ) -> None:
        """Store a hide by its ref, a summary by its seq, a plan history by the newest summary, and feedback in a list.

        With a hide, the number of messages before the cache point `pre_tail` of the newest round is stored too, because the
        hide leaves these messages unchanged; 0 without that point.
        """
        match body:
            case tl.Hide(path=path):
                self._hides.setdefault(path, []).append((block.seq, body))
                self.last_hide = block.seq
                points = {point.name: point.messages for point in self._cache_points}
                self._unchanged = (block.turn, points.get("pre_tail", 0))
            case tl.RangeSummary():
                self._summary = block.seq
                self.summaries[block.seq] = block, body
            case tl.PlanHistory():
                self.histories[self._summary] = block, body
            case tl.Feedback():
                self.feedback.append(block)

    def find_hide(self, ref: str, until: int) -> tl.Hide | None:
        """Return the newest hide of the block with this ref, among those up to the seq `until`, or None."""
        hides = self._hides.get(ref)
        if hides is None:
            return None
        return next((hide for seq, hide in reversed(hides) if seq <= until), None)

    def count_unchanged_messages(self, turn: int) -> int:
        """Return the number of messages before the first one that was hidden in this turn; 0 without a hide."""
        return self._unchanged[1] if self._unchanged[0] == turn else 0

    def reactions(self, until: int) -> tl.Reactions:
        """Return the reactions to turns that were stored up to the seq `until`; the last result is cached."""
        if self._reactions[0] != until:
            count = bisect_right(self.feedback, until, key=lambda block: block.seq)
            self._reactions = (until, tl.feedback.fold(self.feedback[:count]))
        return self._reactions[1]

    def describe_cleared(self, seq: int, name: Callable[[], str]) -> str:
        """Return the text that replaces the cleared result at `seq`; `name` creates it at the first call."""
        if seq not in self._cleared:
            self._cleared[seq] = name()
        return self._cleared[seq]

    @property
    def newest_summary(self) -> tuple[tl.Block, tl.RangeSummary] | None:
        """The newest summary with its block, or None."""
        return self.summaries.get(self._summary)

    @property
    def factor(self) -> float:
        """The correction factor for estimates of the model that had the last request."""
        return self.factor_of(self._model)

    def factor_of(self, model: str) -> float:
        """Return the factor from 1 to `MAX_FACTOR` that corrects estimates for a model; 1 without reports."""
        ratios = self._ratios.get(model)
        return min(max(1.0, *ratios), MAX_FACTOR) if ratios else 1.0

    def _begin(self, block: tl.Block, start: tl.RoundStart) -> None:
        """Record the inputs that a round takes, and its model, estimate and cache points.

        Inputs that were recalled, or that an earlier round has taken, are left out. A window that was not opened by a hide
        resets the number of unchanged messages.
        """
        for seq in start.takes:
            if seq in self.inputs and seq not in self._recalled and seq not in self.taken_at:
                self.taken_at[seq] = block.seq
                self.taken_by.setdefault(block.turn, []).append(seq)
        if start.model:
            self._model = start.model
        self._files = start.file_tokens
        self._estimated = start.tokens / self.factor_of(start.model) - self._files
        self._cache_points = start.points
        if start.window is not None and start.opened_by != "hide":
            self._unchanged = (0, 0)

    def _learn(self, reported: int) -> None:
        """Store the ratio of the reported tokens to the uncorrected estimate for the model of the last request.

        Both are without the tokens of files. If either is not positive, the ratio is not stored.
        """
        text = reported - self._files
        if text > 0 and self._estimated > 0:
            ratios = self._ratios.setdefault(self._model, deque(maxlen=REPORTS_KEPT))
            ratios.append(text / self._estimated)


RoundBody = tl.ToolCalled | tl.ToolResult | tl.Notes
_START = tl.BodyUnion[tl.RoundStart](tl.RoundStart)
_DECISION = tl.BodyUnion[tl.Decision](tl.Decision)
_EXIT = tl.BodyUnion[tl.Exit](tl.Exit)
_ROUND = tl.BodyUnion[RoundBody](RoundBody)
_FILE = tl.BodyUnion[tl.FileAdded](tl.FileAdded)
TextBody = tl.Completion | tl.Draft | tl.Notice | tl.SystemMessage
_TEXT = tl.BodyUnion[TextBody](TextBody)


def measure(message: Message) -> tuple[str, int, int, int]:
    """Return a message as text for a digest, its tokens with files, the tokens of its files, and its part count."""
    match message:
        # The first two cases are the messages of most rounds; they skip the estimates of files and echoes.
        case ToolMessage(attachments=()):
            content = repr(message)
            return content, estimate(content), 0, 1
        case AssistantMessage(echo=None, text=text, calls=calls):
            content = repr(message)
            return content, estimate(content), 0, bool(text) + len(calls)
        case _:
            content = digest_text(message)
            files = cost_of_files(message)
            tokens = cost_of_text(message, content) + files
            return content, tokens, files, parts_of_message(message)


def digest_text(message: Message) -> str:
    """Return the full content of a message as text, for a digest."""
    match message:
        case AssistantMessage(echo=ReasoningReplay() as echo):
            return f"{message!r}{echo}"
        case _:
            return repr(message)


def parts_of_message(message: Message) -> int:
    """Count the parts of a message as providers do.

    Each text, call and result is a part. A file is two parts, its description and its data, or one if the data is not sent.
    """
    match message:
        case AssistantMessage(echo=ReasoningReplay(parts=parts)):
            return len(parts)
        case AssistantMessage(text=text, calls=calls):
            return bool(text) + len(calls)
        case UserMessage(attachments=files) | ToolMessage(attachments=files):
            return 1 + (len(files) + sum([bool(file.data) for file in files]) if files else 0)


RENDERER = 9
"""The version of the rendering; it is stored, and another version opens an epoch."""

_OWN_CALL_ID = re.compile(r"c\d+", re.ASCII)
"""The form of our own call ids, which a provider's id must not have."""

FEEDBACK_SHOWN = 8
"""The number of newest reactions that are shown for a turn, or for all turns that a summary replaces."""

PLAN_TOOL = "react.plan"
"""The tool whose calls are never clipped by age."""


class CutPoint(Struct, frozen=True, kw_only=True):
    """A position between rounds: the last seq and the number of messages before it, and the turn of the next round.

    `opens_turn` says that the next round is the first one of its turn.
    """

    seq: int
    messages: int
    turn: int
    opens_turn: bool


class _Round(Struct):
    """A decision with `expected` calls, while some of their results are missing."""

    expected: int
    notes: str = ""
    calls: dict[str, tuple[tl.Block, tl.ToolCalled]] = {}
    results: dict[str, tuple[tl.Block, tl.ToolResult]] = {}


class InputMessages(Struct, frozen=True, kw_only=True):
    """User inputs as messages of the round that takes them.

    `tokens` are those of the messages including files, `file_tokens` those of the files.
    """

    messages: Sequence[UserMessage] = ()
    tokens: int = 0
    file_tokens: int = 0


NO_INPUTS = InputMessages()


class Rendering:
    """The messages of the blocks taken so far, under one window.

    Attributes:
        refs: For each message, the ref of its block.
        tokens: The estimate for all messages, before the correction by reported usage.
        file_tokens: The part of `tokens` for files that the model gets.
        shown_texts: The sha256 of each text that a result shows in full, by the text's ref.
        shown_in_full: The refs of blocks with their own complete text in a message.
        named_sources: The numbers of the sources that a message names.
        has_images: Whether a result shows images.
        has_omissions: Whether a message leaves something out that its ref restores, such as the content of a file.
        cuts: The cut points, in order.
        last_tail: The number of messages before the last cache point of the newest round.
        kept_tail: The newest tail that became a message.
        turn: The turn of the newest round, and `turn_start` the number of messages before it.
    """

    def __init__(
        self, protocol: DecisionProtocol, state: RenderState, window: tl.Projection
    ) -> None:
        self.window = window
        self.messages: list[Message] = []
        self.refs: list[str] = []
        self.tokens: int = 0
        self.shown_texts: dict[str, str] = {}
        self.shown_in_full: set[str] = set()
        self.named_sources: set[int] = set()
        self.has_images: bool = False
        self.has_omissions: bool = False
        self.cuts: list[CutPoint] = []
        self.last_tail: int = 0
        self.kept_tail: str = ""
        self.turn: int = 0
        self.turn_start: int = 0
        self._protocol = protocol
        self._state = state
        self._round: _Round | None = None
        self._round_start: tuple[tl.Block, tl.RoundStart] | None = None
        self._echo: ReasoningReplay | None = None
        self._provider_ids: set[str] = set()
        self._is_answered = False
        self._load = attached_files.NO_FILES
        self.file_tokens: int = 0
        self._digest = sha256()
        self._costs = [0]
        self._parts = [0]
        self._positions: dict[str, int] = {}
        self._reactions = state.reactions(window.feedback) if window.feedback else None
        self._add_summary()

    @property
    def sha256(self) -> str:
        """The digest of all messages, in hexadecimal."""
        return self._digest.hexdigest()

    def cost(self, messages: int, inputs: InputMessages = NO_INPUTS) -> int:
        """Return the tokens of the first `messages` messages; if there are fewer, those of all messages and the inputs."""
        if messages < len(self._costs):
            return self._costs[messages]
        return self.tokens + inputs.tokens

    def part_count(self, messages: int) -> int:
        """Return the number of parts, as providers count them, of the first `messages` messages."""
        return self._parts[messages]

    def position(self, ref: str) -> int | None:
        """Return the index of the message that shows the block with this ref, or None."""
        return self._positions.get(ref)

    def take(self, block: tl.Block) -> None:
        """Render one more block.

        Blocks of most types add no message. User input is rendered at the round that takes it; summaries, hides, plan
        histories and feedback are part of the render state.
        """
        fold = self._folds.get(type(block.body))
        if fold is not None:
            fold(self, block, block.body)

    def inputs(self, blocks: Sequence[tl.Block]) -> InputMessages:
        """Return the messages that the next round adds if it takes these inputs; `messages` stays as it is.

        All followups and steers are one message, the last. Each prompt and each result of a background call is one of its own.
        `has_omissions` and `shown_in_full` change as if the messages were added.
        """
        if not blocks:
            return NO_INPUTS
        messages = [message for message, _ in self._input_messages(blocks)[0]]
        return InputMessages(
            messages=messages,
            tokens=sum(map(cost, messages)),
            file_tokens=sum(map(cost_of_files, messages)),
        )

    def _input_messages(
        self, blocks: Sequence[tl.Block]
    ) -> tuple[list[tuple[UserMessage, list[tl.Block]]], attached_files.FileLoad]:
        """Return each message with the inputs that it shows, and the file load including their files."""
        messages: list[tuple[UserMessage, list[tl.Block]]] = []
        if not blocks:
            return messages, self._load
        interrupts: list[tuple[str, tl.Block]] = []
        files: list[Attached] = []
        load = self._load
        for block in blocks:
            attached: list[Attached] = []
            for file_block, file in self._state.attached.get(block.seq, ()):
                shown_file, load = attached_files.show_file(file_block, file, self.window, load)
                attached.append(shown_file)
                if not shown_file.data and (file.text or self.window.carrying.tokens):
                    self.has_omissions |= not attached_files.is_shown_in_full(file, shown_file)
            body = block.body
            if isinstance(body, tl.UserPrompt):
                text = f"[{block.ref}]\n{self._text(block, body.text)}"
                messages.append((UserMessage(text=text, attachments=tuple(attached)), [block]))
            elif isinstance(body, tl.BackgroundResult):
                result = escape_frame(self._text(block, body.text))
                text = f"[BACKGROUND RESULT]\n[{block.ref}]\n{result}"
                messages.append((UserMessage(text=text), [block]))
            elif isinstance(body, tl.UserInput):
                interrupts.append((f"[{block.ref}]\n{self._text(block, body.text)}", block))
                files += attached
        if interrupts:
            texts = [text for text, _ in interrupts]
            if len(texts) > 1:
                texts = [f"{number}. {text}" for number, text in enumerate(texts, start=1)]
            full_text = "\n".join(["[USER INTERRUPT]", *texts])
            shown = UserMessage(text=full_text, attachments=tuple(files))
            messages.append((shown, [block for _, block in interrupts]))
        return messages, load

    def _add_summary(self) -> None:
        """Add the messages that replace the blocks before the window: summary, plan history, feedback and inputs.

        Without a summary in the window no message is added. The inputs are those of a turn that the summary splits.
        """
        recorded = self._state.summaries.get(self.window.summary)
        if recorded is None:
            return
        block, summary = recorded
        self.has_omissions = True
        text = self._limit_text(
            block, tl.summary_text(structs.replace(summary, text=escape_frame(summary.text)))
        )
        self.named_sources.update(truncation.source_numbers(text))
        self._add(UserMessage(text=f"[{block.ref}]\n{text}"), block.ref)
        if block.seq in self._state.histories:
            history_block, history = self._state.histories[block.seq]
            text = self._limit_text(history_block, history.text)
            self._add(UserMessage(text=f"[{history_block.ref}]\n{text}"), history_block.ref)
        if self._reactions is not None:
            last = summary.last_turn - summary.split
            reactions = self._reactions.in_force_after(self.window.start)
            self._add_feedback([reaction for reaction in reactions if reaction.block.turn <= last])
        if summary.split:
            self.turn = summary.last_turn
            self.turn_start = len(self.messages)
            state = self._state  # the summary splits this turn, so its inputs are repeated in full
            self._add_inputs(
                [
                    state.inputs[seq]
                    for seq in state.taken_by.get(summary.last_turn, ())
                    if state.taken_at[seq] <= self.window.start
                ]
            )

    def _begin_decision(self, block: tl.Block, decision: tl.Decision) -> None:
        """Add the tail of the round, if its kind is `kept` or `cleared`, and the raw text of the reply, if it is stored.

        The echo of the reply and the number of its calls are stored for the messages that follow. Up to the seq
        `window.unbound`, tails and bound echoes are left out.
        """
        start = self._round_start
        self._round_start = None
        is_new = block.seq > self.window.unbound
        if start is not None and is_new:
            start_block, answered = start
            if answered.tail and answered.tail_kind in ("kept", "cleared"):
                self.kept_tail = answered.tail
                passing = answered.tail_kind == "cleared"
                self._add(UserMessage(text=answered.tail, passing=passing), start_block.ref)
        echo = decision.echo if start is not None else None
        self._echo = echo if echo is None or is_new or not echo.bound else None
        self._round = _Round(decision.calls) if decision.calls else None
        if decision.raw:
            message = AssistantMessage(text=self._text(block, decision.raw))
            # `react.read` shows more of a decision than this text.
            self.shown_in_full.discard(block.ref)
            self._add(self._attach_echo(message), block.ref)

    def _attach_echo(self, message: AssistantMessage) -> AssistantMessage:
        """Return the message with the pending echo of its reply, if there is one."""
        echo = self._echo
        self._echo = None
        return message if echo is None else structs.replace(message, echo=echo)

    def _begin_round(self, block: tl.Block, start: tl.RoundStart) -> None:
        """Record the round, its turn and a cut point before it, and add the inputs that it takes.

        A trace without inputs is skipped. While calls lack results, the cut point is left out.
        """
        is_trace = start.shows == "trace"
        if is_trace and not start.takes:
            self._round_start = None
            return
        self._is_answered = False
        self._round_start = None if is_trace else (block, start)
        opens_turn = block.turn != self.turn
        if opens_turn:
            self.turn = block.turn
            self.turn_start = len(self.messages)
        cut = CutPoint(
            seq=block.seq - 1, messages=len(self.messages), turn=block.turn, opens_turn=opens_turn
        )
        if self._round is None:  # calls and their results must not be separated
            self.cuts.append(cut)
        if start.takes:
            taken = self._state.taken_at  # inputs that were recalled first are missing in it
            self._add_inputs(
                [self._state.inputs[seq] for seq in start.takes if taken.get(seq) == block.seq]
            )
        if start.points:
            self.last_tail = min(start.points[-1].messages, len(self.messages))

    def _add_inputs(self, blocks: Sequence[tl.Block]) -> None:
        """Add the messages of inputs; record the positions of inputs and files, and the texts that are complete."""
        messages, self._load = self._input_messages(blocks)
        for message, parts in messages:
            shown = {attached.ref: attached for attached in message.attachments}
            for input_block in parts:
                self._positions.setdefault(input_block.ref, len(self.messages))
                for block, file in self._state.attached.get(input_block.seq, ()):
                    self._positions.setdefault(block.ref, len(self.messages))
                    if attached_files.is_shown_in_full(file, shown[block.ref]):
                        self.shown_texts[block.ref] = file.sha256
            self._add(message, parts[0].ref)

    def _add_to_round(self, block: tl.Block, body: RoundBody) -> None:
        """Add a call, a result or notes to the current round, and render it when all results are there.

        Without a current round the block is ignored; so is the result of a call that is not in the round.
        """
        current = self._round
        if current is None:
            return
        match body:
            case tl.ToolCalled(call_id=call_id):
                current.calls[call_id] = (block, body)
            case tl.ToolResult(call_id=call_id):
                # An old log may have a result of an earlier round here.
                if call_id in current.calls:
                    current.results[call_id] = (block, body)
            case tl.Notes(text=text):
                current.notes = self._notes_text(block, text)
        if len(current.calls) == len(current.results) == current.expected:
            self._close_round(current)

    def _close_round(self, current: _Round) -> None:
        """Render a round after all its calls have their results: a message with the calls, then one per result."""
        refs = [block.ref for block, _ in current.calls.values()]
        calls = [
            ToolCall(
                name=call.tool,
                arguments=self._arguments(block, ref, call),
                call_id=call.call_id,
                provider_id=call.provider_id,
            )
            for ref, (block, call) in zip(refs, current.calls.values(), strict=True)
        ]
        if self._echo is not None:
            calls = self._mark_echoed(self._echo, calls)
        for ref in refs:
            self._positions.setdefault(ref, len(self.messages))
        message = self._attach_echo(self._protocol.render_calls(current.notes, calls))
        self._add(message, refs[0])
        for call, (_, call_body) in zip(calls, current.calls.values(), strict=True):
            block, result = current.results[call.call_id]
            ref = block.ref
            text = self._result_text(block, ref, result, call_body)
            self.named_sources.update(truncation.source_numbers(text))
            tool_message = ToolMessage(
                call_id=result.call_id,
                provider_id=call.provider_id,
                name=result.tool,
                text=f"[{ref}]\n{text}",
                ok=result.status == "ok",
                attachments=self._result_images(block, result) if result.images else (),
                echoed_on=call.echoed_on,
            )
            self._add(self._protocol.render_result(tool_message), ref)
        self._round = None

    def _result_images(self, block: tl.Block, result: tl.ToolResult) -> tuple[Attached, ...]:
        """Return the images of a result; none if its text is not shown in full.

        An image that the model does not get is not counted as shown, so it can be read again.
        """
        if block.ref not in self.shown_in_full:
            return ()
        digests = dict(result.shows)
        shown: list[Attached] = []
        for image in result.images:
            attached, self._load = attached_files.show_image(block, image, self.window, self._load)
            shown.append(attached)
            if not attached.data:
                self.has_omissions = True
                for name, digest in result.shows:
                    if digest == digests.get(image.ref):
                        self.shown_texts.pop(name, None)
        self.has_images = True
        return tuple(shown)

    def _mark_echoed(self, echo: ReasoningReplay, calls: list[ToolCall]) -> list[ToolCall]:
        """Return the calls, with `echoed_on` set if they are sent under the provider's ids.

        An echo of plain thinking does not name calls; it is sent with calls under our ids. An echo is dropped if it lacks a
        call, or if a provider's id is missing, was used before, or has the form of our own ids.
        """
        named = count_named_calls(echo, calls)
        if not named and not echo.bound:
            return calls
        ids = [call.provider_id for call in calls]
        fresh = {
            provider_id
            for provider_id in ids
            if provider_id and not _OWN_CALL_ID.fullmatch(provider_id)
        } - self._provider_ids
        if not named == len(calls) == len(fresh):
            self._echo = None
            return calls
        self._provider_ids |= fresh
        return [structs.replace(call, echoed_on=echo.wire) for call in calls]

    def _add_text(self, block: tl.Block, body: TextBody) -> None:
        """Add an answer or a draft as the assistant's message, or a notice or a system message as the user's."""
        match body:
            case tl.Completion(text=text) | tl.Draft(text=text):
                self._is_answered = True
                shown = self._hide(block, self._text(block, text))
                self._add(self._attach_echo(self._protocol.render_answer(shown)), block.ref)
            case tl.Notice(text=text) | tl.SystemMessage(text=text):
                shown = self._hide(block, self._text(block, text))
                self._add(UserMessage(text=f"[{block.ref}]\n{escape_frame(shown)}"), block.ref)

    def _end_turn(self, block: tl.Block, end: tl.Exit) -> None:
        """Add a message with the reason of the end, if the turn has no answer, and the reactions to the turn."""
        if not self._is_answered:
            text = f"The turn ended here without an answer: {end.reason}."
            self._add(UserMessage(text=f"[{block.ref}]\n{text}"), block.ref)
        if self._reactions is not None:
            self._add_feedback(self._reactions.in_force_for(block.turn))

    def _note_file(self, block: tl.Block, file: tl.FileAdded) -> None:
        """Note that a call wrote a file, because its result has only the ref of the file."""
        del block, file
        self.has_omissions = True

    # One look-up finds the function for a block, so that no call is spent on blocks that add nothing.
    _folds: ClassVar[Mapping[object, tl.Fold[Rendering]]] = {
        **_ROUND.table(_add_to_round),
        **_START.table(_begin_round),
        **_DECISION.table(_begin_decision),
        **_TEXT.table(_add_text),
        **_EXIT.table(_end_turn),
        **_FILE.table(_note_file),
    }

    def _add_feedback(self, reactions: Sequence[tl.FeedbackEntry]) -> None:
        """Add messages with the newest reactions, after one that counts the older ones."""
        older = reactions[:-FEEDBACK_SHOWN]
        if older:
            text = f"{len(older)} more reactions: {DocumentRef(name='conv:feedback')}"
            self._add(UserMessage(text=text), older[-1].block.ref)
        for reaction in reactions[-FEEDBACK_SHOWN:]:
            text = f"[{reaction.block.ref}]\n{reaction.line()}"
            self._add(UserMessage(text=text), reaction.block.ref)

    def _limit_text(self, block: tl.Block, text: str) -> str:
        """Return the text truncated to the window's `text_limit`, and record whether it is shown in full."""
        limit = self.window.text_limit
        if limit is None or len(text) <= limit:
            self.shown_in_full.add(block.ref)
            return text
        self.has_omissions = True
        return truncation.truncate_text(text, limit, block.ref)

    def _text(self, block: tl.Block, text: str) -> str:
        """Return the text without base64 and truncated by age and window; record whether it is shown in full."""
        ref = block.ref
        limit = self.window.text_limit
        if block.turn < self.window.old_before:
            limit = min(limit or truncation.TEXT_LIMIT, truncation.TEXT_LIMIT)
        shown = remove_base64(text, ref) if limit is None else truncation.old_text(text, ref, limit)
        if shown == text:
            self.shown_in_full.add(ref)
        else:
            self.has_omissions = True
        return shown

    def _notes_text(self, block: tl.Block, text: str) -> str:
        """Return the notes, truncated if necessary, but with all their memory notes in full."""
        shown = self._text(block, text)
        if shown == text:
            return text
        notes = tl.memory_notes.fold([block])
        return "\n".join([shown, *(note.line() for note in notes if note.line() not in shown)])

    def _hide(self, block: tl.Block, text: str) -> str:
        """Return the text or, if the block is hidden, its replacement."""
        hidden = self._state.find_hide(block.ref, self.window.hides)
        if hidden is None:
            return text
        self.has_omissions = True
        self.shown_in_full.discard(block.ref)
        return _hidden_text(hidden.replacement, block.ref)

    def _arguments(self, block: tl.Block, ref: str, call: tl.ToolCalled) -> JsonObject:
        """Return the arguments of a call: hidden, shortened by age and window, or in full; record if in full."""
        hidden = self._state.find_hide(ref, self.window.hides)
        if hidden is not None:
            self.has_omissions = True
            return {"hidden": _hidden_text(hidden.replacement, ref)}
        limit = self.window.text_limit
        if block.turn < self.window.old_before and call.tool != PLAN_TOOL:
            limit = min(limit or truncation.FIELD_LIMIT, truncation.FIELD_LIMIT)
        shown = truncation.remove_base64_from_arguments(call.arguments, ref)
        if limit is not None:
            shown = truncation.old_arguments(shown, ref, limit)
        if shown == call.arguments:
            self.shown_in_full.add(ref)
        else:
            self.has_omissions = True
        return shown

    def _result_text(
        self, block: tl.Block, ref: str, result: tl.ToolResult, call: tl.ToolCalled
    ) -> str:
        """Return the text of a result: hidden, cleared, shortened by age, truncated, or in full if the window allows.

        Record whether the text is shown in full, and the digests of the texts that it shows.
        """
        window = self.window
        hidden = self._state.find_hide(ref, window.hides)
        if hidden is not None:
            self.has_omissions = True
            return _hidden_text(hidden.replacement, ref)
        text = remove_base64(result.text, ref)
        read = result.call_id not in self._state.started
        spent = read and block.turn < window.spent_before
        cleared = (read and block.seq <= window.reads_cleared) or (spent and result.shows)
        if block.seq <= window.results_cleared or cleared:
            self.has_omissions = True
            named = f"of {call.tool}({truncation.short_arguments(call.arguments)})"
            # The keywords are computed once: renderings under several windows share the text.
            return self._state.describe_cleared(
                block.seq,
                lambda: truncation.describe_cleared_result(text, ref, named, result.shows),
            )
        if block.turn < window.old_before or spent:
            shown = truncation.old_result(text, ref, spanned=text == result.text)
            self.has_omissions |= shown != result.text
            return shown
        if text == result.text and len(text) <= window.result_limit:
            self.shown_in_full.add(ref)
            self.shown_texts.update(result.shows)
            if result.artifact:
                self.has_omissions = True
            return text
        self.has_omissions = True
        return truncation.truncate_text(text, window.result_limit, ref, spanned=text == result.text)

    def _add(self, message: Message, ref: str) -> None:
        """Append a message, and update the sums of tokens and parts, the digest, and the position of `ref`."""
        content, tokens, file_tokens, parts = measure(message)
        self._positions.setdefault(ref, len(self.messages))
        self.messages.append(message)
        self.refs.append(ref)
        self.tokens += tokens
        self.file_tokens += file_tokens
        self._costs.append(self.tokens)
        self._parts.append(self._parts[-1] + parts)
        self._digest.update(f"{content}\n".encode())


def _hidden_text(replacement: str, ref: str) -> str:
    return f'{escape_frame(replacement)}\n[HIDDEN] react.read(["{ref}"]) shows it again'


class View:
    """The stable messages of a conversation's blocks, in one protocol.

    A round that opens an epoch sets the window; then the earlier blocks are rendered again, and later blocks are added.
    `learned` are ratios of reported to estimated tokens, by model, from before the first block.
    """

    def __init__(
        self,
        protocol: DecisionProtocol,
        blocks: Iterable[tl.Block] = (),
        learned: Mapping[str, tuple[float, ...]] | None = None,
    ) -> None:
        self.protocol = protocol
        self.state: RenderState = RenderState(learned)
        self.seq: int = 0
        self.rendering: Rendering = Rendering(protocol, self.state, tl.Projection())
        self._blocks: list[tl.Block] = []
        self._candidate: Rendering | None = None
        self.extend(blocks)

    @property
    def messages(self) -> list[Message]:
        """The stable messages of the blocks taken so far."""
        return self.rendering.messages

    @property
    def window(self) -> tl.Projection:
        """The window of the current epoch."""
        return self.rendering.window

    def extend(self, blocks: Iterable[tl.Block]) -> None:
        """Take more blocks, in order; skip blocks that were already taken.

        If a block opens an epoch, the blocks before it are rendered again under its window.
        """
        fresh = list(blocks)
        if fresh and fresh[0].seq <= self.seq:
            fresh = [block for block in fresh if block.seq > self.seq]
        if not fresh:
            return
        opener = None
        start = 0
        # Methods are bound outside of the loops, which run over every block of a long conversation when it is opened.
        take = self.state.take
        for index, block in enumerate(fresh):
            take(block)
            if type(body := block.body) is tl.RoundStart and opens_epoch(body):
                opener = body
                start = index
        self.seq = fresh[-1].seq
        if opener is not None:
            self._blocks += fresh[:start]
            self._reopen(opener, fresh[:start])
            fresh = fresh[start:]
        render = self.rendering.take
        for block in fresh:
            render(block)
        self._blocks += fresh
        self._candidate = None

    def render_under(self, window: tl.Projection) -> Rendering:
        """Return the rendering under another window; the newest such rendering is cached."""
        if self._candidate is None or self._candidate.window != window:
            self._candidate = self._render(window)
        return self._candidate

    def find_rendering(self, window: tl.Projection) -> Rendering:
        """Return the current rendering if it has this window, else the rendering under the window."""
        current = self.rendering.window
        return (
            self.rendering if window is current or window == current else self.render_under(window)
        )

    def _render(self, window: tl.Projection) -> Rendering:
        """Render the blocks after the start of the window anew; `last_tail` is 0."""
        rendering = Rendering(self.protocol, self.state, window)
        for block in self._blocks:
            if block.seq > window.start:
                rendering.take(block)
        rendering.last_tail = 0  # cache points of another epoch do not count
        return rendering

    def find_unused_summary(self, window: tl.Projection) -> tl.Projection | None:
        """Return the window with the newest summary; None if the window has it already, or if there is no summary."""
        newest = self.state.newest_summary
        if newest is None or newest[0].seq <= window.summary:
            return None
        block, summary = newest
        return structs.replace(window, summary=block.seq, start=summary.covers)

    def list_rendered_blocks(self, window: tl.Projection, until: int) -> Sequence[tl.Block]:
        """Return the blocks up to the seq `until` that are rendered under a window.

        Input that no round has taken until then is left out; earlier input that such a round took comes first.
        """
        inputs = self.state.inputs
        taken_by = self.state.taken_at
        lately = takewhile(lambda item: item[1] > window.start, reversed(taken_by.items()))
        earlier = [
            block
            for seq, by in list(lately)[::-1]
            if seq <= window.start and by <= until
            for block in (inputs[seq], *(file for file, _ in self.state.attached.get(seq, ())))
        ]
        return earlier + [
            block
            for block in self._blocks
            if window.start < block.seq <= until and not self._waits(block, until)
        ]

    def _waits(self, block: tl.Block, until: int) -> bool:
        """Return whether the block is input, or a file of an input, that no round up to the seq `until` has taken."""
        input_seq = block.seq if block.seq in self.state.inputs else tl.input_seq_of(block)
        taken_at = self.state.taken_at.get(input_seq, until + 1)
        return input_seq in self.state.inputs and taken_at > until

    def _reopen(self, opener: tl.RoundStart, between: Sequence[tl.Block]) -> None:
        """Render the blocks under the window of a round; `between` are the blocks that came after the cached rendering.

        Blocks up to the start of the window are dropped. A round without a window changes no rendering.
        """
        window = opener.window
        if window is None:
            return
        self._blocks = [block for block in self._blocks if block.seq > window.start]
        if self._candidate is None or self._candidate.window != window:
            self.rendering = self._render(window)
            return
        self.rendering = self._candidate
        for block in between:
            self.rendering.take(block)


def opens_epoch(start: tl.RoundStart) -> bool:
    """Return whether the round opens an epoch, in which all earlier blocks are rendered again."""
    return start.window is not None and start.shows == "context"
