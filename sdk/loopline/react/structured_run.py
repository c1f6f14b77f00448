"""A structured run: a run that makes one structured call, with the JSON of the reply as its answer.

Each request is a round in the log. The valid reply is recorded in one append with the answer, so a resumed run does not
request it again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from msgspec import structs

from loopline import timeline as tl
from loopline.clock import Clock
from loopline.errors import ModelAccessError, ModelError, ModelUnavailable
from loopline.models import (
    NOTHING_SET,
    Capabilities,
    Model,
    Options,
    Prompt,
    Reply,
    SupportedSettings,
    TextDelta,
    UserMessage,
    dumps,
    structured_llm_call,
    well_formed,
    well_formed_object,
)
from loopline.models.prompt import cost_of_prompt
from loopline.prompt import NATIVE, messages_digest, tools_text
from loopline.react.answers import (
    LoopEnd,
    decision_of,
    find_end,
    make_completion,
    notice_bodies,
    render_fallback,
    thinking_bodies,
)
from loopline.react.interrupter import Interrupted, Interrupter
from loopline.react.loop_options import LoopOptions
from loopline.react.model_requests import (
    MeteredModel,
    OutOfBudget,
    Quota,
    RetryPolicy,
    check_prices,
    request_reply,
)
from loopline.react.replies import EMPTY_REPLY
from loopline.react.state import TurnPayload, result
from loopline.tools import ReplyForm


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredRun:
    """A run that requests one reply of the form from its `models`, in their order."""

    recorder: tl.Recorder
    clock: Clock
    options: LoopOptions
    quota: Quota
    models: Sequence[Model]
    form: ReplyForm
    system: str

    async def run(self, payload: TurnPayload) -> tl.TurnResult:
        """Run or resume the turn and return its result; without a valid reply the exit reason is an error or a limit.

        Raises:
            LooplineError: there is a limit of the cost, and the price of a model is unknown.
            LeaseLost: another runner has taken the conversation over.
        """
        recorder = self.recorder
        check_prices(self.options, self.models)
        self.quota.open(recorder.turn, self.options, recorder)
        recorder.answers += 1
        end = find_end(recorder.turn, recorder.answers)
        if end is None:
            interrupter = Interrupter(recorder, self.clock)
            async with interrupter.watch(self.options.deadline_seconds, lambda _: None):
                end = await self._ask(payload.text, interrupter)
        recorder.round = 0
        return result(recorder.timeline, recorder.number, end.reason, end.error)

    async def _ask(self, text: str, interrupter: Interrupter) -> LoopEnd:
        """Make the structured call with the models in their order until one gives a valid reply; record the answer.

        The next model is used only if a model is unavailable or refuses. Otherwise, and after the last model, a
        fallback answer with the error is recorded.
        """
        models = self.models if self.options.chain == "next" else self.models[:1]
        place = min(self.recorder.turn.model_index, len(models) - 1)
        effort = self.options.reasoning_effort or ""
        while True:
            model = models[place]
            supported = model.capabilities.supported(self.options.settings, model.name, effort)
            options = Options(reasoning_effort=effort)
            if supported is not NOTHING_SET:
                options = options.with_settings(supported.settings)
            prompt = Prompt(system=self.system, messages=(UserMessage(text=text),), options=options)
            is_last = place + 1 == len(models)
            rounds = _Rounds(self, model, supported, interrupter, has_fallback=not is_last)
            outcome = await structured_llm_call(
                rounds,
                prompt,
                self.form.schema,
                name=self.form.name,
                description=self.form.description,
                parse_fn=self.form.check,
            )
            if outcome.ok:
                return await rounds.accept(dumps(outcome.raw))
            if is_last or not rounds.gave_no_reply:
                return await rounds.fail(outcome.error)
            place += 1
            await rounds.hand_over(models[place], place)


class _Rounds:
    """A model that records each request as a round of a structured run.

    A reply is recorded when it has been validated: before the next request, or with the end of the run. After a failure
    that another form of the request cannot avoid, further requests raise that failure again.
    """

    def __init__(
        self,
        run: StructuredRun,
        model: Model,
        supported: SupportedSettings,
        interrupter: Interrupter,
        *,
        has_fallback: bool,
    ) -> None:
        self._supported = supported
        self._recorder = run.recorder
        self._model = model
        self.name: str = model.name
        self.capabilities: Capabilities = model.capabilities
        self._metered = MeteredModel(model, run.quota)
        self._quota = run.quota
        self._interrupter = interrupter
        self._retries = RetryPolicy(
            clock=run.clock, retries=run.options.model_retries, has_fallback=has_fallback
        )
        self._reply: Reply | None = None
        self._failure: ModelError | None = None

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Record the request as a round, and yield its complete reply, which is recorded later.

        Raises:
            ModelError: the request failed, its stream broke off, or time or budget are used up.
        """
        if self._failure is not None:
            raise self._failure
        await self._begin(prompt)
        request = partial(request_reply, self._metered, prompt, lambda _: None, self._retries)
        try:
            self._reply = await self._interrupter.run(request, steerable=False)
        except Interrupted:
            self._failure = OutOfBudget("the time of the run is over")
            raise self._failure from None
        except (ModelUnavailable, ModelAccessError, OutOfBudget) as error:
            self._failure = error
            raise
        yield self._reply

    @property
    def gave_no_reply(self) -> bool:
        """Whether the model was unavailable or refused; then the next model of the chain is used."""
        refused = self._reply is not None and self._reply.stop_reason == "refusal"
        return refused or isinstance(self._failure, ModelUnavailable)

    async def accept(self, text: str) -> LoopEnd:
        """Record the reply together with the answer `text`, the JSON of the value in it."""
        written = well_formed(self._reply.text).strip() if self._reply else ""
        discarded = "" if written == text else written
        answer = await make_completion(self._recorder.timeline, text)
        await self._recorder.record(*self._reply_bodies(discarded=discarded), answer)
        return LoopEnd(answer.reason)

    async def fail(self, error: str) -> LoopEnd:
        """Record a fallback answer with the reason why a valid reply is missing.

        The exit reason is "deadline" or "budget" if the time or the budget was used up, and "error" otherwise.
        """
        turn = self._recorder.turn
        problem = str(self._failure or error)
        reason: tl.ExitReason = "error"
        if isinstance(self._failure, OutOfBudget):
            reason = "deadline" if self._interrupter.is_late else "budget"
        if self._failure is not None:
            failure = problem if reason == "error" else ""
            text = render_fallback(turn, reason, failure, "summary")
        else:
            text = f"There is no answer: {problem}."
        answer = await make_completion(
            self._recorder.timeline,
            well_formed(text),
            flag="summary",
            reason=reason,
            error=problem,
        )
        notices = notice_bodies("model_error", problem)
        await self._recorder.record(*self._invalid_bodies(), *notices, answer)
        return LoopEnd(answer.reason, answer.error)

    async def hand_over(self, model: Model, place: int) -> None:
        """Record the switch to the next model of the chain, and its reason."""
        refused = self._failure is None
        switched = tl.ModelSwitched(
            model=self.name,
            to=model.name,
            why="refusal" if refused else "unavailable",
            place=place,
            text=well_formed(str(self._failure or "")),
        )
        await self._recorder.record(*self._invalid_bodies(), switched)

    async def _begin(self, prompt: Prompt) -> None:
        """Record the previous reply, which was not valid, and then the round of this request.

        Raises:
            ModelError: the request is longer than the model's window.
        """
        recorder = self._recorder
        timeline = recorder.timeline
        invalid = self._invalid_bodies()
        if invalid:
            await recorder.record(*invalid)
        tokens = cost_of_prompt(prompt)
        room = self.capabilities.window - self.capabilities.output_limit
        if tokens > room:
            raise ModelError(
                f"the prompt needs about {tokens} tokens and {self.name} has room for {room}: use a "
                "model with a larger window"
            )
        tools = tools_text(prompt.tools)
        recorder.round = recorder.turn.rounds + 1
        start = tl.RoundStart(
            saw=timeline.seq,
            takes=tuple(block.seq for block in timeline.inputs_for(recorder.number)),
            epoch=1,
            opened_by="",
            model=self.name,
            protocol=NATIVE,
            renderer=0,
            system_sha256=_digest(prompt.system),
            tools_sha256=_digest(tools),
            stable_sha256=messages_digest(prompt.messages),
            tokens=tokens,
            system="" if _digest(prompt.system) in timeline.known_texts else prompt.system,
            tools="" if _digest(tools) in timeline.known_texts else tools,
            elapsed_ms=recorder.elapsed_ms,
            version=2,
            settings=self._supported.settings.recorded(),
            dropped_settings={**self._supported.dropped},
        )
        await recorder.record(start)

    def _invalid_bodies(self) -> list[tl.Body]:
        """Return the bodies that record the last reply as malformed, and forget the reply; empty without a reply."""
        if self._reply is None:
            return []
        text = well_formed(self._reply.text)
        if self._reply.calls:
            arguments = dumps(well_formed_object(self._reply.calls[0].arguments))
            text = "\n".join(part for part in (text, arguments) if part)
        return self._reply_bodies(raw=text if text.strip() else EMPTY_REPLY)

    def _reply_bodies(self, *, raw: str = "", discarded: str = "") -> list[tl.Body]:
        """Return the bodies that record the last reply, and forget the reply; empty without a reply."""
        reply = self._reply
        self._reply = None
        if reply is None:
            return []
        shown = structs.replace(reply, echo=None, discarded=discarded)
        decision = decision_of(shown, self._model, self._quota, raw=raw)
        return [decision, *thinking_bodies(reply)]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
