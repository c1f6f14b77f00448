"""The chain of models of a run: the first that answers is used, and a model that fails hands over to the next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from loopline.errors import (
    ModelAccessError,
    ModelError,
    ModelOverflow,
    ModelRequestError,
)
from loopline.models import Model, Reply, Usage, well_formed
from loopline.prompt import NATIVE, DecodedReply, protocol
from loopline.react.context import Context, Iteration, RoundPurpose
from loopline.react.model_requests import RequestSkipped, RetryPolicy, request_reply
from loopline.react.quota import OutOfBudget, check_prices
from loopline.react.replies import (
    ChannelTexts,
    ReplyFormat,
    ReplyStream,
    cut_off_text,
)
from loopline.react.state import decision_limit
from loopline.react.tool_runtime import ToolRuntime
from loopline.tasks import LONG_TEXT, compute
from loopline.timeline import ModelSwitched, SwitchCause

MAX_REFUSALS = 3
"""How often a request that is too long is sent again: with a shorter reply, and at last with less content, once."""


class ModelChain:
    """Requests decisions and answers from the models of a run, and reads their replies."""

    def __init__(
        self,
        runtime: ToolRuntime,
        models: Sequence[Model],
        context: Context,
        texts: ChannelTexts,
    ) -> None:
        self._runtime = runtime
        self._recorder = runtime.recorder
        self._models = models if runtime.options.chain == "next" else models[:1]
        self._context = context
        self._texts = texts
        self._reading: ReplyFormat | None = None
        check_prices(runtime.options, context.priced(self._models))

    async def request(self, purpose: RoundPurpose, *, traces: bool = False) -> Reply:
        """Return the reply of the first model of the chain that gives one.

        Raises:
            RequestSkipped: there is nothing to decide, or too little of the budget is left.
            ModelError: no model of the chain can answer.
        """
        context, position = (
            self._context,
            min(self._recorder.turn.model_index, len(self._models) - 1),
        )
        refusals = 0
        while True:
            context.use(self._models[position])
            turn = self._recorder.turn
            is_needed = await context.begin(
                Iteration(
                    decisions=turn.rounds,
                    limit=decision_limit(turn, self._runtime.options) or 0,
                    purpose=purpose,
                    traces=traces,
                )
            )
            if purpose == "decision" and not is_needed:
                raise RequestSkipped("recalled")
            is_last = position + 1 == len(self._models)
            try:
                reply = await self._stream(purpose, traces=traces, has_fallback=not is_last)
            except OutOfBudget as error:
                raise RequestSkipped("budget") from error
            except ModelError as error:
                if isinstance(error, ModelOverflow) and refusals < MAX_REFUSALS:
                    drops_content = await context.overflow(error)
                    refusals = MAX_REFUSALS if drops_content else refusals + 1
                    continue
                if is_last or isinstance(error, ModelRequestError | ModelAccessError):
                    raise
                position, refusals = position + 1, 0
                await self._hand_over(position, "unavailable", str(error), Usage())
            else:
                if is_last or reply.stop_reason != "refusal":
                    return reply
                position, refusals = position + 1, 0
                await self._hand_over(position, "refusal", reply.text, reply.usage)

    async def read(self, reply: Reply, *, traces: bool = False) -> tuple[Reply, DecodedReply, str]:
        """Return the reply of the last request with its thinking, what it decides, and the plan marks before its answer."""
        reading = self._reading or self._format(traces=traces)
        size = len(reading.before) + len(reply.text)
        if size < LONG_TEXT:
            return reading.read(reply)
        return await compute(partial(reading.read, reply))

    async def _hand_over(self, position: int, why: SwitchCause, text: str, usage: Usage) -> None:
        self._texts.retract()
        switched = ModelSwitched(
            model=self._context.model.name,
            to=self._models[position].name,
            why=why,
            place=position,
            text=well_formed(text),
            usage=usage,
            cost=self._context.cost(usage),
        )
        await self._recorder.record(switched)

    async def _stream(self, purpose: RoundPurpose, *, traces: bool, has_fallback: bool) -> Reply:
        """Request the reply and pass its pieces to subscribers as they arrive."""
        prompt = self._context.prompt(purpose, longer=self._recorder.turn.cut_off)
        self._reading = reading = self._format(traces=traces)
        stream = ReplyStream(self._texts, reading)
        retries = RetryPolicy(
            clock=self._runtime.clock,
            retries=self._runtime.options.model_retries,
            has_fallback=has_fallback,
            on_retry=stream.retry,
        )
        await stream.open(1)
        reply = await request_reply(self._context.metered, prompt, stream, retries)
        stream.close()
        return reply

    def _format(self, *, traces: bool) -> ReplyFormat:
        """Return how the reply is read; an answer from the trace continues no reply that was cut off."""
        timeline, synthesizes = self._recorder.timeline, self._runtime.options.synthesizes
        current = timeline.plans.current
        return ReplyFormat(
            protocol=protocol(NATIVE) if traces else self._context.protocol,
            pool=timeline.pool,
            in_prose=traces,
            steps=0 if current is None or (traces and synthesizes) else len(current.steps),
            before="" if traces else cut_off_text(self._recorder.turn),
            is_draft=synthesizes and not traces,
            answer=self._context.answer(traces=traces),
        )
