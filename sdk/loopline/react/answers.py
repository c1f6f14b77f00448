"""The answer of a turn: accepted from a decision, written by a request of its own, forced, or a fallback."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from loopline.errors import ModelError
from loopline.models import Reply, well_formed
from loopline.prompt import Answer, Malformed
from loopline.react.context import Context
from loopline.react.interrupter import Interrupted, Interrupter
from loopline.react.journal import FallbackStyle, Journal, LoopEnd, cut_off_text
from loopline.react.model_chain import ModelChain
from loopline.react.model_requests import RequestSkipped
from loopline.react.replies import ChannelTexts, decision_text
from loopline.react.router import NEW_INPUT
from loopline.react.tool_runtime import ToolRuntime
from loopline.timeline import AnswerFlag, Body, Draft, ExitReason, Notice

MAX_REPAIRS = 3
"""How often an answer is requested again where only the rounds limit repairs: its request is none of them."""


class AnswerWriter:
    """Ends a turn with an answer, whatever is left of its rounds, time and budget."""

    def __init__(
        self,
        runtime: ToolRuntime,
        context: Context,
        chain: ModelChain,
        journal: Journal,
        texts: ChannelTexts,
        interrupter: Interrupter,
    ) -> None:
        self._runtime = runtime
        self._recorder = runtime.recorder
        self._options = runtime.options
        self._context = context
        self._chain = chain
        self._journal = journal
        self._texts = texts
        self._interrupter = interrupter

    async def from_tool(self) -> LoopEnd | None:
        """End the turn with the answer that a tool gave, unless the user has said more since."""
        recorder, text = self._recorder, self._recorder.turn.tool_answer
        if text is None:
            return None
        await recorder.catch_up()
        if recorder.timeline.inputs_for(recorder.number) and self._runtime.asks_again:
            await self._journal.record(Draft(text=text, reason=NEW_INPUT))
            return None
        completion = await self._journal.completion(text, "", "complete")
        await self._journal.record(completion)
        return LoopEnd(completion.reason)

    async def save_partial(self) -> None:
        """Record what was written of an answer as the answer of a turn that is stopped."""
        text = well_formed("".join(self._texts.written)).strip()
        if text and not self._recorder.turn.completion:
            await self._journal.record(await self._journal.completion(text, "partial", "stopped"))

    async def accept(self, reply: Reply, notes: str, text: str, flag: AnswerFlag) -> LoopEnd | None:
        """End the turn with the answer of a decision, or have one written with that as its draft."""
        if flag == "unparsed":
            text = cut_off_text(self._recorder.turn) + text
        if not self._options.synthesizes:
            completion = await self._journal.completion(text, flag, "complete")
            return await self._journal.close(reply, completion, notes)
        await self._journal.record_decision(reply, notes, Draft(text=text, reason="synthesis"))
        return await self._synthesize("complete")

    async def exhausted(self, reason: ExitReason) -> LoopEnd | None:
        """End the turn although no round, no time or no budget is left."""
        may_ask = reason in ("max_iterations", "stagnation") or (
            reason == "budget" and self._context.can_afford_answer
        )
        if may_ask and self._options.synthesizes:
            return await self._synthesize(reason)
        if may_ask and self._options.on_exhausted == "force":
            return await self._force(reason)
        return await self._collect(reason)

    async def refused(self, reply: Reply, *, is_answer: bool = False) -> LoopEnd:
        """End the turn with the model's refusal."""
        text = well_formed(reply.text).strip() or "The model refused to answer."
        completion = await self._journal.completion(text, "", "refused")
        return await self._journal.close(reply, completion, "", is_answer=is_answer)

    async def without_model(self, error: ModelError) -> LoopEnd:
        """End the turn with what was found, because no model answers."""
        text = well_formed(str(error))
        notice = Notice(code="model_error", text=text)
        await self._journal.record(notice, await self._journal.fallback("error", text))
        return LoopEnd("error", text)

    async def _synthesize(self, reason: ExitReason) -> LoopEnd | None:
        """Have the answer written by a request of its own; repair one that is no value of its type."""
        repairs = self._options.repairs
        attempts_left = MAX_REPAIRS if repairs is None else repairs
        outcome = await self._write(reason)
        while isinstance(outcome, Malformed) and attempts_left:
            attempts_left -= 1
            outcome = await self._write(reason)
        if isinstance(outcome, Malformed):
            return await self.without_model(ModelError(outcome.problem))
        return outcome

    async def _write(self, reason: ExitReason) -> LoopEnd | Malformed | None:
        """Request an answer that sees every result of the turn."""
        try:
            reply = await self._interrupter.run(partial(self._chain.request, "answer", traces=True))
        except RequestSkipped:
            return await self._from_draft("budget") or await self._collect("budget")
        except ModelError as error:
            notice = Notice(code="model_error", text=well_formed(str(error)))
            return await self._from_draft(reason, notice) or await self.without_model(error)
        except Interrupted:
            self._texts.retract()
            return None
        draft = self._recorder.turn.draft
        if reply.stop_reason == "refusal":
            if draft is None:
                return await self.refused(reply, is_answer=True)
            completion = await self._journal.completion(draft.text, "draft", reason)
            return await self._journal.close(reply, completion, "", is_answer=True)
        text = well_formed(reply.text).strip() or (draft.text if draft else "")
        if not text:
            completion = await self._journal.fallback(reason)
            return await self._journal.close(reply, completion, "", is_answer=True)
        typed = self._context.answer(traces=True)
        answer = typed.read_text(text) if typed else Answer("", text)
        if isinstance(answer, Malformed):
            await self._journal.record_malformed(reply, text, answer.problem, is_answer=True)
            return answer
        completion = await self._journal.completion(answer.text, "", reason)
        reply = replace(reply, discarded=answer.discarded)
        return await self._journal.close(reply, completion, "", is_answer=True)

    async def _from_draft(self, reason: ExitReason, *before: Body) -> LoopEnd | None:
        """End the turn with the draft as its answer; None without a draft."""
        draft = self._recorder.turn.draft
        if draft is None:
            return None
        completion = await self._journal.completion(draft.text, "draft", reason)
        await self._journal.record(*before, completion)
        return LoopEnd(completion.reason, completion.error)

    async def _force(self, reason: ExitReason) -> LoopEnd | None:
        """Request an answer without calls; what was found stands in for it."""
        traces = reason == "budget"  # what the trace costs can be chosen
        request = partial(self._chain.request, "answer", traces=traces)
        try:
            reply = await self._interrupter.run(request, steerable=reason != "budget")
        except RequestSkipped:
            return await (self._collect("budget") if traces else self.exhausted("budget"))
        except ModelError as error:
            return await self.without_model(error)
        except Interrupted:  # the next step sees why, and asks again where there is time
            self._texts.retract()
            return None
        if reply.stop_reason == "refusal":
            return await self.refused(reply, is_answer=True)
        reply, decided, marks = await self._chain.read(reply, traces=traces)
        text = decision_text(decided)
        if not text.strip() or (marks and isinstance(decided, Malformed)):
            completion = await self._journal.fallback(reason)
        else:
            completion = await self._journal.completion(text, "forced", reason)
        return await self._journal.close(reply, completion, marks, is_answer=True)

    async def _collect(self, reason: ExitReason) -> LoopEnd:
        """End the turn with the draft, or with what the calls gave."""
        style: FallbackStyle = "partial" if self._options.on_exhausted == "partial" else "summary"
        completion = await self._journal.fallback(reason, style=style)
        await self._journal.record(completion)
        return LoopEnd(completion.reason, completion.error)
