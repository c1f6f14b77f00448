"""The context of a turn: what the model is shown, made to fit, and recorded before it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from math import ceil
from typing import Literal

from loopline.clock import Clock
from loopline.errors import ModelError
from loopline.events import Delta, Listen
from loopline.models import Message, Model, Options, Prompt, Reply, TextDelta, Usage, well_formed
from loopline.models.tokens import estimate
from loopline.prompt import (
    NATIVE,
    RENDERER,
    TARGET,
    TRACE_TAIL,
    TRIGGER,
    Answer,
    Budget,
    Covered,
    DecisionProtocol,
    Facts,
    Pointing,
    Rendering,
    View,
    Written,
    aged,
    announce,
    cache_points,
    hint_named,
    instructions,
    lightened,
    messages_digest,
    needed,
    place_to_cut,
    placed,
    shortened,
    summarized,
    trace,
    trace_limit,
)
from loopline.react.asking import ask
from loopline.react.offering import Offer, Offers
from loopline.react.policies import Policies, chosen_protocol
from loopline.timeline import (
    Body,
    PlanHistory,
    RangeSummary,
    Recorder,
    RoundStart,
    SystemMessage,
    UserSteer,
    Window,
    checkpoint,
    place_for,
    plan,
)
from loopline.tools import ToolSet

PRUNE_BUFFER_SECONDS = 10
"""So long before the provider's cache is cold it counts as cold."""
SUMMARY_OUTPUT_LIMIT = 1_600

RoundPurpose = Literal["decision", "answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Which decision of the turn a round is to make: so many were made, of at most `limit` if not 0."""

    made: int
    limit: int
    purpose: RoundPurpose = "decision"

    @property
    def number(self) -> int:
        """Its number, from 1; a request beyond the last decision has the number of that."""
        return min(self.made + 1, self.limit) if self.limit else self.made + 1

    @property
    def takes_input(self) -> bool:
        """Whether what the user has said can still be answered to."""
        return self.made == 0 or not self.limit or self.made + 1 < self.limit


class Context:
    """Opens the rounds of a turn, and makes their requests."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        model: Model,
        tools: ToolSet,
        system: str,
        clock: Clock,
        listen: Listen,
        policies: Policies,
    ) -> None:
        self._recorder = recorder
        self._every = tools
        self._instructions = system
        self._clock = clock
        self._listen = listen
        self._policies = policies
        self._traced: Sequence[Message] | None = None
        self.tokens: int = 0
        self._appends: int = 0
        self._wire(model)

    def use(self, model: Model) -> None:
        """Make the requests of this model from now on, in the protocol that it keeps."""
        if model is not self.model:
            self._wire(model)

    def _wire(self, model: Model) -> None:
        timeline = self._recorder.timeline
        self.model: Model = model
        self.protocol: DecisionProtocol = chosen_protocol(self._policies, model)
        self._offers = Offers(self._recorder, self._every, self._instructions, self.protocol)
        self._offer = self._offers.now
        self.view: View = timeline.folded(
            View,
            f"view.{self.protocol.name}",
            lambda: View(self.protocol, learned=timeline.base.learned),
        )

    @property
    def tools(self) -> ToolSet:
        """The tools of the round: a call of any other is refused."""
        return self._offer.tools

    async def select_tools(self) -> None:
        """Have the model choose among many tools, where the limits ask for that."""
        if self._policies.select_tools:
            await self._offers.select(self.model, self._listen)

    def cost(self, usage: Usage) -> float | None:
        """What was used costs, in US dollars; None while nobody knows a price."""
        price = self.model.abilities.price
        return None if price is None else price.of(usage)

    def price(self, tokens: int) -> float | None:
        """What so many tokens cost to ask, in US dollars."""
        return self.cost(Usage(input_tokens=tokens))

    async def begin(self, iteration: Iteration) -> bool:
        """Begin a round; False when there is nothing to answer, for the user took it back.

        A round that was begun before a cut stands when it would begin the same way now.
        """
        recorder = self._recorder
        if recorder.appends == self._appends:  # else the last append has caught up
            await recorder.catch_up()
        recorder.round = iteration.made + 1
        self._extend()
        begun = recorder.turn.undecided
        traces = iteration.purpose == "answer" and self._policies.synthesizes
        self._offer = Offer.of_trace() if traces else self._offers.now
        self._traced = None
        if traces:
            await self._open_trace(iteration)
        elif begun is None or self._differs(begun, iteration) or self._is_steered():
            await self._open(iteration)
        else:
            self.tokens = begun.tokens
        self._appends = recorder.appends
        prompt = recorder.turn.prompt
        return prompt is None or prompt.seq not in recorder.timeline.recalled

    def _is_steered(self) -> bool:
        """Whether the round that was begun was cut off for something that it does not take."""
        pending = self._recorder.timeline.inputs_for(self._recorder.number)
        return any(isinstance(block.body, UserSteer) for block in pending)

    async def _open_trace(self, iteration: Iteration) -> None:
        """Begin the request that writes the answer, which sees the turn in another way."""
        timeline = self._recorder.timeline
        blocks = [one for one in timeline.blocks if one.turn == self._recorder.number]
        abilities = self.model.abilities
        factor = self.view.facts.factor_of(self.model.name)
        fixed = self._offer.fixed + estimate(TRACE_TAIL)
        room = int((abilities.window - abilities.output_limit) / factor) - fixed
        limit = trace_limit(blocks, room)
        self._traced = trace(blocks, limit)
        tokens = sum(estimate(repr(one)) for one in self._traced) + fixed
        self.tokens = ceil(tokens * factor)
        known = timeline.known_texts
        start = RoundStart(
            saw=timeline.seq,
            takes=(),
            epoch=timeline.last_round.epoch if timeline.last_round else 1,
            opened_by="",
            protocol=self.protocol.name,
            model=self.model.name,
            renderer=RENDERER,
            system_sha256=self._offer.system_sha256,
            tools_sha256=self._offer.tools_sha256,
            stable_sha256=messages_digest(self._traced),
            tail=TRACE_TAIL,
            limit=iteration.limit,
            purpose=iteration.purpose,
            shows="trace",
            tokens=self.tokens,
            window=Window(result_limit=limit),
            system="" if self._offer.system_sha256 in known else self._offer.system,
        )
        await self._recorder.record(start)
        self._extend()

    def prompt(self, purpose: RoundPurpose, *, longer: int = 0) -> Prompt:
        """The request of the round that was begun; its reply may be `longer` times twice as long.

        Raises:
            ModelError: it cannot be made to fit.
        """
        begun = self._recorder.turn.undecided
        prompt = Prompt(
            system=self._offer.system,
            tools=self._offer.specs,
            messages=tuple(self.view.messages if self._traced is None else self._traced),
            tail=begun.tail if begun else "",
            options=self._options(calls=purpose == "decision", longer=longer),
            purpose=purpose,
            cache_points=placed(begun.points if begun else (), len(self.view.messages)),
        )
        self._check_fits(prompt)
        return prompt

    def _options(self, *, calls: bool, longer: int = 0) -> Options:
        abilities = self.model.abilities
        limit = min(abilities.output_limit << longer, max(abilities.window // 2, 1))
        # A trace is answered in prose, whatever the decisions are written in.
        spoken = self.protocol.name if self._traced is None else NATIVE
        return Options(
            allow_calls=calls,
            protocol=spoken,
            json_object=spoken == "json" and abilities.json_mode,
            output_limit=max(limit, abilities.output_limit),
            reasoning_effort=self._policies.reasoning_effort or "",
        )

    def _extend(self) -> None:
        self.view.extend(self._recorder.timeline.after(self.view.seq))

    def _differs(self, begun: RoundStart, iteration: Iteration) -> bool:
        """Whether a round that was begun before would be another one now."""
        stands = begun.points and begun.points[-1].messages == len(self.view.messages)
        return not stands or (
            begun.model,
            begun.protocol,
            begun.renderer,
            begun.system_sha256,
            begun.tools_sha256,
            begun.limit,
            begun.purpose,
        ) != (
            self.model.name,
            self.protocol.name,
            RENDERER,
            self._offer.system_sha256,
            self._offer.tools_sha256,
            iteration.limit,
            iteration.purpose,
        )

    async def _open(self, iteration: Iteration) -> None:
        timeline, number = self._recorder.timeline, self._recorder.number
        inputs = timeline.inputs_for(number) if iteration.takes_input else []
        tail = cache(partial(self._tail, iteration))
        factor = self.view.facts.factor_of(self.model.name)
        budget = Budget(
            total=self.model.abilities.window - self.model.abilities.output_limit,
            fixed=self._offer.fixed,
            beside=lambda now: estimate(tail(now)) + now.saying(inputs),
            factor=factor,
        )
        window, causes = await self._window(budget)
        inputs = [block for block in inputs if block.seq in timeline.pending]  # else just recalled
        changed = window != self.view.window
        now = self.view.under(window) if changed else self.view.now
        pointing = Pointing(
            fixed=self._offer.fixed,
            factor=factor,
            anew=bool(causes),
            kept=0 if set(causes) - {"hide"} else self.view.facts.kept_before(number),
            min_rounds=self._policies.cache_point_min_rounds,
            offset_rounds=self._policies.cache_point_offset_rounds,
        )
        self.tokens = budget.cost(now)
        known = timeline.known_texts
        before = timeline.last_round
        start = RoundStart(
            saw=self.view.seq,
            takes=tuple(block.seq for block in inputs),
            epoch=(before.epoch if before else 0) + bool(causes),
            opened_by=",".join(causes),
            protocol=self.protocol.name,
            model=self.model.name,
            renderer=RENDERER,
            system_sha256=self._offer.system_sha256,
            tools_sha256=self._offer.tools_sha256,
            stable_sha256=now.sha256,
            tail=tail(now),
            limit=iteration.limit,
            purpose=iteration.purpose,
            tokens=self.tokens,
            points=cache_points(now, number, inputs, pointing),
            window=window if changed else None,
            system="" if self._offer.system_sha256 in known else self._offer.system,
            tools="" if self._offer.tools_sha256 in known else self._offer.tools_text,
        )
        await self._recorder.record(start, *(self._checkpoints(window.start) if changed else ()))
        self._extend()

    def _checkpoints(self, start: int) -> Sequence[Body]:
        """From where to open the conversation, now that prompts show nothing up to a place."""
        timeline = self._recorder.timeline
        covers, before = place_for(timeline, start), timeline.checkpoint
        facts = Facts(before.learned)
        for block in timeline.until(covers):
            if block.seq > before.covers:
                facts.take(block)
        made = checkpoint(timeline, covers, facts.learned) if covers else None
        return [made] if made else []

    def _tail(self, iteration: Iteration, now: Rendering) -> str:
        timeline = self._recorder.timeline
        sources = timeline.pool.sources
        unseen = [sid for sid in sources if sid not in now.marked]
        return announce(
            iteration=iteration.number,
            limit=iteration.limit,
            tokens=self._tokens_left(),
            now=self._clock.now(),
            turn_id=f"turn_{self._recorder.number}",
            plans=timeline.plans.open,
            feedback=timeline.reactions.new_since(now.window.feedback),
            unseen=[(sid, sources[sid].title or sources[sid].url) for sid in unseen],
        )

    def _tokens_left(self) -> int | None:
        """What the turn may still use, where tokens are all that limits its rounds."""
        most, used = self._policies.max_tokens, self._recorder.turn.usage
        if most is None or self._policies.max_iterations is not None:
            return None
        return max(most - used.input_tokens - used.output_tokens, 0)

    async def _window(self, budget: Budget) -> tuple[Window, list[str]]:
        """The window of the round, and what opens an epoch with it, if anything does."""
        view = self.view
        window, causes = view.window, self._changes()
        if causes == ["start"]:
            window = replace(window, result_limit=self._policies.result_characters)
        elif causes:
            window = self._aged(window)
        hidden = view.facts.last_hide
        if hidden > window.hides:
            window, causes = replace(window, hides=hidden), [*causes, "hide"]
        if self._cold() and not causes:
            pruned = self._aged(window)
            if self._is_worth_it(pruned):
                window, causes = pruned, ["prune"]
        now = view.now if window == view.window else view.under(window)
        if budget.over(now, TRIGGER):
            smaller = await self._compacted(window, budget)
            if smaller != window:
                window, causes = smaller, [*causes, "compaction"]
        elif causes == ["prune"]:
            await self._tell_pruned(window)
        return window, causes

    async def _tell_pruned(self, window: Window) -> None:
        """Say that something is no longer shown, if so: feedback alone takes nothing away."""
        before = self.view.window
        alike = replace(window, feedback=before.feedback)
        if self.view.under(alike).tokens < self.view.now.tokens:
            text = (
                "The provider's cache was cold, so what old turns looked up is now only named: "
                "each line says which ref react.read restores."
            )
            await self._tell([SystemMessage(code="prune", text=text)])

    def _changes(self) -> list[str]:
        """What makes this prompt another one than that of the round before, from its beginning."""
        before = self._recorder.timeline.last_round
        if before is None:
            return ["start"]
        causes = {
            "model": before.model != self.model.name,
            "protocol": before.protocol != self.protocol.name,
            "renderer": before.renderer != RENDERER,
            "instructions": before.system_sha256 != self._offer.system_sha256,
            "tools": before.tools_sha256 != self._offer.tools_sha256,
        }
        return [cause for cause, is_one in causes.items() if is_one]

    def _aged(self, window: Window) -> Window:
        newest = self._recorder.timeline.reactions.newest
        return aged(
            window,
            self._recorder.number,
            self._policies.keep_recent_turns,
            self._policies.keep_recent_intact_turns,
            newest,
        )

    def _cold(self) -> bool:
        """Whether the provider has forgotten the prompt of the round before."""
        last = self._recorder.timeline.last_asked
        ttl = self._policies.cache_ttl_seconds
        if last is None or not ttl:
            return False
        return self._clock.now() - last.ts >= timedelta(seconds=ttl - PRUNE_BUFFER_SECONDS)

    def _is_worth_it(self, pruned: Window) -> bool:
        """Whether the window makes the prompt smaller, or puts feedback where it belongs."""
        if pruned == self.view.window:
            return False
        smaller = self.view.under(pruned).tokens < self.view.now.tokens
        return smaller or pruned.feedback > self.view.window.feedback

    async def _compacted(self, given: Window, budget: Budget) -> Window:
        """A window under which the prompt fits, the cheapest change first; it says what it dropped."""
        view, window = self.view, self._aged(given)
        before = budget.cost(view.now)
        self._listen(Delta(type="compaction", channel="context", text=f"about {before} tokens"))
        smaller, enough = lightened(view, window, budget)
        if enough:
            named = "what older calls gave is now only named: each line says which ref restores it"
            await self._tell([self._made_room(before, view.under(smaller), budget, named)])
            return smaller
        summed = await self._summed_up(window, budget, before)
        window = window if summed is None else summed
        if budget.over(view.under(window), TRIGGER):
            window, _ = lightened(view, window, budget)
        smaller = shortened(view, window, budget)
        if summed is None and smaller != given:
            named = "what calls gave is now only named, and long texts are cut: refs restore them"
            await self._tell([self._made_room(before, view.under(smaller), budget, named)])
            smaller = shortened(view, smaller, budget)
        return smaller

    async def _summed_up(self, window: Window, budget: Budget, before: int) -> Window | None:
        """The window under which a new summary stands for all but the newest rounds.

        One that was recorded before a cut, and never used, is used first.
        """
        view, timeline = self.view, self._recorder.timeline
        unused = view.unused_summary(window)
        if unused is not None and not budget.over(view.under(unused), TARGET):
            return unused
        window = unused or window
        now = view.under(window)
        covered = self._to_cover(window, now, budget)
        if covered is None:
            return unused
        cut = covered.cut
        usual = "general" if cut.opens_turn else "react_iteration"
        hint = hint_named(self._policies.summary_hint or usual)
        written = await self._written(now, cut.messages, instructions(hint), budget)
        summary = replace(
            summarized(covered, written, hint, timeline),
            messages_before=len(now.messages),
            messages_after=len(now.messages) - cut.messages + 1,
        )
        history = plan.history(timeline.plans)
        told: list[Body] = [summary, *([PlanHistory(text=history)] if history else [])]
        named = f"{summary.covered_turn_ids[0]} to {summary.covered_turn_ids[-1]} are summed up"
        await self._tell([*told, self._made_room(before, None, budget, named)])
        recorded = view.facts.newest_summary
        return replace(window, summary=recorded.seq if recorded else 0, start=cut.seq)

    def _to_cover(self, window: Window, now: Rendering, budget: Budget) -> Covered | None:
        """What a summary is to stand for, so that the rest fits beside it; None when there is nothing."""
        view, room = self.view, budget.room(now)
        if not now.cuts:
            return None
        earlier = view.facts.summaries.get(window.summary)
        known = earlier.body if earlier and isinstance(earlier.body, RangeSummary) else None
        cut = place_to_cut(
            now,
            room,
            needed(view.covered(window, now.cuts[-1].seq), known, room),
            covers_something=now.cuts[0].messages,
        )
        if cut is None:
            return None
        plans = self._recorder.timeline.plans.open
        return Covered(
            blocks=view.covered(window, cut.seq),
            cut=cut,
            before=known,
            before_ref=earlier.ref if earlier else "",
            later=[
                *map(str, now.messages[cut.messages :]),
                *(step for one in plans for step in one.steps),
            ],
            room=room,
        )

    async def _written(self, now: Rendering, messages: int, asked: str, budget: Budget) -> Written:
        """What the model writes for a summary of so many messages.

        They are the beginning of the last request, so that most of it is read from the provider's cache.
        """
        if not budget.holds(now.cost(messages) + estimate(asked)):
            return Written(why="what is to be summed up is longer than the model's window")
        prompt = Prompt(
            system=self._offer.system,
            tools=self._offer.specs,
            messages=tuple(now.messages[:messages]),
            tail=asked,
            options=Options(
                allow_calls=False,
                output_limit=min(SUMMARY_OUTPUT_LIMIT, self.model.abilities.output_limit),
            ),
            purpose="summary",
        )
        try:
            reply = await ask(self.model, prompt, _unheard)
        except ModelError as error:
            return Written(why=str(error))
        text = well_formed(self._said(reply)).strip()
        if reply.stop_reason == "refusal" or not text:
            return Written(usage=reply.usage, why="the model wrote no summary")
        return Written(text=text, usage=reply.usage)

    def _said(self, reply: Reply) -> str:
        """The words of a summary, from a model that may keep to the protocol of its decisions."""
        match self.protocol.decode(reply):
            case Answer(text=text):
                return text
            case _:
                return reply.text

    def _made_room(
        self, before: int, now: Rendering | None, budget: Budget, named: str
    ) -> SystemMessage:
        after = "" if now is None else f" to {budget.cost(now)}"
        text = f"To make room, from about {before} tokens{after}, {named}."
        return SystemMessage(code="compaction", text=text)

    async def _tell(self, bodies: Sequence[Body]) -> None:
        await self._recorder.record(*bodies)
        self._extend()

    def _check_fits(self, prompt: Prompt) -> None:
        """Nothing is sent whose estimate exceeds the window less what the answer may need."""
        abilities = self.model.abilities
        fixed = self._offer.fixed + estimate(prompt.tail)
        shown = self.view.now.tokens
        if self._traced is not None:
            shown = sum(estimate(repr(one)) for one in self._traced)
        factor = self.view.facts.factor_of(self.model.name)
        needed_tokens = ceil((shown + fixed) * factor)
        room = abilities.window - abilities.output_limit
        if needed_tokens > room:
            raise ModelError(
                f"the prompt needs about {needed_tokens} tokens and {self.model.name} has room for "
                f"{room}: begin another conversation, or use a model with a larger window"
            )


def _unheard(piece: TextDelta) -> None:
    """Nobody listens to a summary being written."""
