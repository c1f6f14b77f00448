"""Compaction: which smaller part of the timeline a prompt shows if it does not fit its window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from msgspec import Struct, structs

from loopline import prompt
from loopline import timeline as tl
from loopline.clock import elapsed_ms
from loopline.errors import ModelError
from loopline.events import Delta
from loopline.models import Message, Model, Options, Prompt, ToolSpec, well_formed
from loopline.models.prompt import estimate
from loopline.react.model_requests import MeteredModel, OutOfBudget, RetryPolicy, request_reply
from loopline.react.tool_runtime import ToolRuntime
from loopline.tasks import compute

SUMMARY_OUTPUT_LIMIT = 1_600
"""The output limit of a summary, in tokens."""
THINKING_ROOM = 8_000
"""Tokens that are added to the output limit of a summary for a model that thinks."""


_Reduced = tuple[tl.Projection, tl.SystemMessage]
"""A smaller window, and the message about it."""


@dataclass(frozen=True, slots=True)
class _SummaryTask:
    """A summary to be written: the range that it replaces, and the messages that the model summarizes.

    `messages` is None if they are longer than the model's window; `shown` is the number of messages of the prompt.
    """

    window: tl.Projection
    covered: prompt.SummaryRange
    hint: tl.SummaryHint
    messages: Sequence[Message] | None
    shown: int


def age_window(window: tl.Projection, runtime: ToolRuntime) -> tl.Projection:
    """Return the window with old turns clipped and new feedback at its turns, as the options of the loop say."""
    options = runtime.options
    return prompt.age(
        structs.replace(window, result_limit=min(window.result_limit, options.result_characters)),
        runtime.recorder.number,
        options.keep_recent_turns,
        options.keep_recent_intact_turns,
        runtime.recorder.timeline.reactions.newest_seq,
    )


class Compaction(Struct, frozen=True, kw_only=True):
    """Makes a prompt fit by showing less of the timeline, and records a message about content that it drops."""

    runtime: ToolRuntime
    model: Model
    protocol: prompt.DecisionProtocol
    view: prompt.View
    system: str
    specs: tuple[ToolSpec, ...]

    async def make_room(
        self, window: tl.Projection, causes: list[str], budget: prompt.Budget
    ) -> tuple[tl.Projection, list[str]]:
        """Return a smaller window if the prompt is near its limit, and `causes` with "compaction" added.

        A message about dropped content is recorded. This may request a summary from the model. If no smaller window is
        found, the window and `causes` are returned unchanged.
        """
        if budget.over(self.view.find_rendering(window), prompt.TRIGGER):
            smaller = await self._compact(window, budget)
            if smaller != window:
                window, causes = smaller, [*causes, "compaction"]
        elif causes == ["prune"]:
            await self._record_prune(window)
        if window != self.view.window:
            # Rendered in a thread, not in the event loop.
            await compute(partial(self.view.render_under, window))
        return window, causes

    async def _record_prune(self, window: tl.Projection) -> None:
        """Record a message if old results are no longer shown; a change of feedback alone is not reported."""
        before = self.view.window
        alike = structs.replace(window, feedback=before.feedback, unbound=before.unbound)
        if (
            await compute(partial(self.view.render_under, alike))
        ).tokens < self.view.rendering.tokens:
            text = (
                "The provider's cache was cold, so what old turns looked up is now only named: "
                "each line says which ref react.read restores."
            )
            await self._record([tl.SystemMessage(code="prune", text=text)])

    def _drop_reasoning(self, window: tl.Projection) -> tl.Projection:
        """Return the window without the reasoning so far, which is only valid with the earlier prompt."""
        return structs.replace(window, unbound=self.view.seq)

    async def _compact(self, current: tl.Projection, budget: prompt.Budget) -> tl.Projection:
        """Return a window under which the prompt fits, by the cheapest sufficient change, and record a message about it.

        First results are cleared, then old rounds are summarized, and at last texts are truncated.
        """
        view = self.view
        window = self._drop_reasoning(age_window(current, self.runtime))
        before = budget.cost(view.rendering)
        self.runtime.listen(
            Delta(type="compaction", channel="context", text=f"about {before} tokens")
        )
        # From here on the layers are tried from cheap to expensive; each one renders the prompt in a thread.
        lighter = await compute(partial(self._clear_least, current, window, budget, before))
        if lighter is not None:
            window, message = lighter
            await self._record([message])
            return window
        summarized = await self._summarize(window, budget, before)
        shorten = partial(_shorten, view, summarized or window, budget, before)
        shorter, message = await compute(shorten)
        if summarized is None and shorter != current:
            await self._record([message])
            return await compute(partial(prompt.truncate, view, shorter, budget))
        return shorter

    def _clear_least(
        self, current: tl.Projection, window: tl.Projection, budget: prompt.Budget, before: int
    ) -> _Reduced | None:
        """Return the window with as few cleared results as possible for the prompt to fit, and the message about it.

        None if clearing is not enough.
        """
        view = self.view
        smaller, enough = prompt.clear_results(view, window, budget)
        if not enough:
            return None
        now = view.render_under(smaller)
        description = (
            "what older calls gave is now only named: each line says which ref restores it"
        )
        if now.tokens == view.render_under(self._drop_reasoning(current)).tokens:
            description = "what was thought in earlier rounds is no longer shown"
        return smaller, _describe(before, description, budget.cost(now))

    async def _summarize(
        self, window: tl.Projection, budget: prompt.Budget, before: int
    ) -> tl.Projection | None:
        """Have the model summarize all but the newest rounds, and return the window with the recorded summary.

        A summary that was recorded before a crash and is not used yet is used instead. None if a summary is not possible.
        """
        task = await compute(partial(self._plan_summary, window, budget))
        if not isinstance(task, _SummaryTask):
            return task
        covered = task.covered
        view = self.view
        written = await self._write_summary(task.messages, prompt.summary_instructions(task.hint))
        make_summary = partial(
            prompt.summarize, covered, written, task.hint, self.runtime.recorder.timeline
        )
        summary = structs.replace(
            await compute(make_summary),
            messages_before=task.shown,
            messages_after=task.shown - covered.cut.messages + 1,
        )
        history = [tl.PlanHistory(text=covered.history)] if covered.history else []
        bodies: list[tl.Body] = [summary, *history]
        turns = f"{tl.turn_id(summary.first_turn)} to {tl.turn_id(summary.last_turn)}"
        await self._record([*bodies, _describe(before, f"{turns} are summed up")])
        recorded = view.state.newest_summary
        seq = recorded[0].seq if recorded else 0
        return structs.replace(task.window, summary=seq, start=covered.cut.seq)

    def _plan_summary(
        self, window: tl.Projection, budget: prompt.Budget
    ) -> _SummaryTask | tl.Projection | None:
        """Return the summary to be written, or the window with a recorded summary that is not used yet.

        None if neither is possible.
        """
        view = self.view
        unused = view.find_unused_summary(window)
        if unused is not None and not budget.over(view.render_under(unused), prompt.TARGET):
            return unused
        window = unused or window
        now = view.render_under(window)
        covered = self._coverage(window, now, budget)
        if covered is None:
            return unused
        usual = "general" if covered.cut.opens_turn else "react_iteration"
        hint = prompt.summary_hint(self.runtime.options.summary_hint or usual)
        messages = self._summary_messages(
            window, covered.cut, prompt.summary_instructions(hint), budget
        )
        return _SummaryTask(window, covered, hint, messages, len(now.messages))

    def _summary_messages(
        self, window: tl.Projection, cut: prompt.CutPoint, request: str, budget: prompt.Budget
    ) -> Sequence[Message] | None:
        """Return the messages before a cut, with the reasoning that the provider has cached, or without it to fit.

        None if they are longer than the model's window.
        """
        thinking = structs.replace(window, unbound=self.view.window.unbound)
        for shown in (self.view.render_under(thinking), self.view.render_under(window)):
            for candidate in shown.cuts:
                if candidate.seq == cut.seq and budget.holds(
                    shown.cost(candidate.messages) + estimate(request)
                ):
                    return shown.messages[: candidate.messages]
        return None

    def _coverage(
        self, window: tl.Projection, now: prompt.Rendering, budget: prompt.Budget
    ) -> prompt.SummaryRange | None:
        """Return the range that a summary must replace for the remaining messages to fit; None if such a range does not exist."""
        view = self.view
        room = budget.room(now)
        if not now.cuts:
            return None
        earlier = view.state.summaries.get(window.summary)
        earlier_block, earlier_summary = earlier or (None, None)
        cut = prompt.choose_cut_point(
            now,
            room,
            prompt.summary_tokens(
                view.list_rendered_blocks(window, now.cuts[-1].seq), earlier_summary, room
            ),
            after=now.cuts[0].messages,
        )
        if cut is None:
            return None
        plans = self.runtime.recorder.timeline.plans
        return prompt.SummaryRange(
            blocks=view.list_rendered_blocks(window, cut.seq),
            cut=cut,
            previous=earlier_summary,
            previous_ref=earlier_block.ref if earlier_block else "",
            later=[
                *map(str, now.messages[cut.messages :]),
                *(
                    step
                    for shown in plans.open_plans[-prompt.OPEN_PLANS_SHOWN :]
                    for step in shown.steps
                ),
            ],
            room=room,
            history=tl.plan.history(plans, int(room * prompt.LEDGER_SHARE * prompt.HISTORY_SHARE)),
        )

    async def _write_summary(
        self, messages: Sequence[Message] | None, request: str
    ) -> prompt.SummaryReply:
        """Request a summary of these messages from the model; if it fails, the reply has the reason in `why`.

        The messages are the beginning of the last request, so most of the prompt is read from the provider's cache. If
        `messages` is None, they are too long, and no request is made.
        """
        if messages is None:
            return prompt.SummaryReply(
                why="what is to be summed up is longer than the model's window"
            )
        capabilities = self.model.capabilities
        longest = SUMMARY_OUTPUT_LIMIT + (THINKING_ROOM if capabilities.thinking else 0)
        request_prompt = Prompt(
            system=self.system,
            tools=self.specs,
            messages=tuple(messages),
            tail=request,
            tail_kind="inside" if capabilities.tail == "inside" else "dropped",
            options=Options(
                allow_calls=False,
                reasoning_effort=self.runtime.options.reasoning_effort or "",
                output_limit=min(longest, capabilities.output_limit),
            ),
            purpose="summary",
        )
        clock = self.runtime.clock
        start = clock.elapsed()
        retries = RetryPolicy(clock=clock, retries=self.runtime.options.model_retries)
        factor = self.view.state.factor_of(self.model.name)
        metered = MeteredModel(self.model, self.runtime.quota, factor=factor)
        written = prompt.SummaryReply(model=self.model.name)
        try:
            reply = await request_reply(metered, request_prompt, lambda _: None, retries)
        except OutOfBudget as error:
            return prompt.SummaryReply(why=str(error))
        except ModelError as error:
            return replace(written, elapsed_ms=elapsed_ms(clock, start), why=str(error))
        text = ""
        if reply.stop_reason != "refusal":  # a model may write the summary in its decision protocol
            decided = self.protocol.decode(reply)
            text = decided.text if isinstance(decided, prompt.Answer) else reply.text
        text = well_formed(text).strip()
        return replace(
            written,
            text=text,
            elapsed_ms=elapsed_ms(clock, start),
            usage=reply.usage,
            cost=capabilities.cost(reply.usage),
            why="" if text else "the model wrote no summary",
        )

    async def _record(self, bodies: Sequence[tl.Body]) -> None:
        await self.runtime.recorder.record(*bodies)
        self.view.extend(self.runtime.recorder.timeline.after(self.view.seq))


def _shorten(
    view: prompt.View, window: tl.Projection, budget: prompt.Budget, before: int
) -> _Reduced:
    """Return the window with all results cleared, and with truncated texts if that is not enough, and the message."""
    if budget.over(view.render_under(window), prompt.TRIGGER):
        window, _ = prompt.clear_results(view, window, budget)
    smaller = prompt.truncate(view, window, budget)
    description = "what calls gave is now only named, and long texts are cut: refs restore them"
    return smaller, _describe(before, description, budget.cost(view.render_under(smaller)))


def _describe(before: int, description: str, after: int = 0) -> tl.SystemMessage:
    """Return the message about a compaction; `before` and `after` are the tokens of the prompt, 0 if not known."""
    to = f" to {after}" if after else ""
    text = f"To make room, from about {before} tokens{to}, {description}."
    return tl.SystemMessage(code="compaction", text=text)
