"""The context of a turn: what the model is shown, made to fit, and recorded before it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from math import ceil
from typing import Literal

from loopline.clock import Clock
from loopline.errors import ModelError
from loopline.events import Delta, Listen
from loopline.models import Model, Options, Prompt, TextDelta
from loopline.models.tokens import estimate
from loopline.prompt import (
    KEEP_INTACT_TURNS,
    KEEP_TURNS,
    MIN_ROUNDS,
    NATIVE,
    OFFSET_ROUNDS,
    RENDERER,
    TRIGGER,
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
    needed,
    place_to_cut,
    shortened,
    summarized,
    tools_text,
)
from loopline.react.asking import ask
from loopline.react.limits import Limits, checked, chosen_protocol
from loopline.timeline import (
    Block,
    Body,
    PlanHistory,
    RangeSummary,
    Recorder,
    RoundStart,
    SystemMessage,
    Window,
    checkpoint,
    place_for,
    plan,
)
from loopline.tools import ToolSet

CACHE_TTL_SECONDS = 300
PRUNE_BUFFER_SECONDS = 10
"""So long before the provider's cache is cold it counts as cold."""
SUMMARY_OUTPUT_LIMIT = 1_600

RoundPurpose = Literal["decision", "answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Which decision of the turn a round is to make: so many were made, of at most `limit`."""

    made: int
    limit: int
    purpose: RoundPurpose = "decision"

    @property
    def takes_input(self) -> bool:
        """Whether what the user has said can still be answered to."""
        return self.made == 0 or self.made + 1 < self.limit


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
        limits: Limits,
    ) -> None:
        self._recorder = recorder
        self._model = model
        self.protocol: DecisionProtocol = chosen_protocol(limits, model)
        self._clock = clock
        self._listen = listen
        self._limits = checked(limits)
        self._native = self.protocol.name == NATIVE
        self._specs = tuple(tools.specs) if self._native else ()
        manual = self.protocol.manual(tools.specs)
        self._system = "\n\n".join(part for part in (system, manual) if part)
        self._tools_text = tools_text(tools.specs)
        self._system_sha256 = _digest(self._system)
        self._tools_sha256 = _digest(self._tools_text)
        self._fixed = estimate(self._system) + (estimate(self._tools_text) if self._native else 0)
        learned = recorder.timeline.base.learned
        self.view: View = recorder.timeline.folded(
            View, f"view.{self.protocol.name}", lambda: View(self.protocol, learned=learned)
        )

    async def begin(self, iteration: Iteration) -> bool:
        """Begin a round; False when there is nothing to answer, for the user took it back.

        A round that was begun before a cut stands when it would begin the same way now.
        """
        recorder = self._recorder
        await recorder.catch_up()
        recorder.round = iteration.made + 1
        self._extend()
        begun = recorder.turn.undecided
        if begun is None or self._differs(begun, iteration):
            await self._open(iteration)
        prompt = recorder.turn.prompt
        return prompt is None or prompt.seq not in recorder.timeline.recalled

    def prompt(self, purpose: RoundPurpose) -> Prompt:
        """The request of the round that was begun.

        Raises:
            ModelError: it cannot be made to fit.
        """
        begun = self._recorder.turn.undecided
        prompt = Prompt(
            system=self._system,
            tools=self._specs,
            messages=tuple(self.view.messages),
            tail=begun.tail if begun else "",
            options=self._options(calls=purpose == "decision"),
            purpose=purpose,
            cache_points=tuple(point.messages for point in begun.points) if begun else (),
        )
        self._check_fits(prompt)
        return prompt

    def _options(self, *, calls: bool) -> Options:
        abilities = self._model.abilities
        return Options(
            allow_calls=calls,
            protocol=self.protocol.name,
            json_object=self.protocol.name == "json" and abilities.json_mode,
            output_limit=abilities.output_limit,
        )

    def _extend(self) -> None:
        self.view.extend(self._recorder.timeline.after(self.view.seq))

    def _differs(self, begun: RoundStart, iteration: Iteration) -> bool:
        """Whether a round that was begun before a cut would be another one now."""
        return (
            begun.model,
            begun.protocol,
            begun.renderer,
            begun.system_sha256,
            begun.tools_sha256,
            begun.limit,
            begun.purpose,
        ) != (
            self._model.name,
            self.protocol.name,
            RENDERER,
            self._system_sha256,
            self._tools_sha256,
            iteration.limit,
            iteration.purpose,
        )

    async def _open(self, iteration: Iteration) -> None:
        timeline = self._recorder.timeline
        inputs = timeline.inputs_for(self._recorder.number) if iteration.takes_input else []
        tail = self._tail(iteration, self.view.now)
        window, causes = await self._window(inputs, tail)
        changed = window != self.view.window
        now = self.view.under(window) if changed else self.view.now
        pointing = Pointing(
            fixed=self._fixed,
            anew=bool(causes),
            min_rounds=self._limits.get("cache_point_min_rounds", MIN_ROUNDS),
            offset_rounds=self._limits.get("cache_point_offset_rounds", OFFSET_ROUNDS),
        )
        if changed:
            tail = self._tail(iteration, now)
        tokens = now.tokens + self.view.said(inputs) + self._fixed + estimate(tail)
        known = timeline.known_texts
        before = timeline.last_round
        start = RoundStart(
            saw=self.view.seq,
            takes=tuple(block.seq for block in inputs),
            epoch=(before.epoch if before else 0) + bool(causes),
            opened_by=",".join(causes),
            protocol=self.protocol.name,
            model=self._model.name,
            renderer=RENDERER,
            system_sha256=self._system_sha256,
            tools_sha256=self._tools_sha256,
            stable_sha256=now.sha256,
            tail=tail,
            limit=iteration.limit,
            purpose=iteration.purpose,
            tokens=self.view.priced(tokens),
            points=cache_points(self.view, now, self._recorder.number, inputs, pointing),
            window=window if changed else None,
            system="" if self._system_sha256 in known else self._system,
            tools="" if self._tools_sha256 in known else self._tools_text,
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
            iteration=min(iteration.made + 1, iteration.limit),
            limit=iteration.limit,
            now=self._clock.now(),
            turn_id=f"turn_{self._recorder.number}",
            plans=timeline.plans.open,
            feedback=timeline.reactions.new_since(now.window.feedback),
            unseen=[(sid, sources[sid].title or sources[sid].url) for sid in unseen],
        )

    def _budget(self, inputs: Sequence[Block], tail: str) -> Budget:
        abilities = self._model.abilities
        return Budget(
            total=abilities.window - abilities.output_limit,
            fixed=self._fixed + estimate(tail) + self.view.said(inputs),
            factor=self.view.facts.factor,
        )

    async def _window(self, inputs: Sequence[Block], tail: str) -> tuple[Window, list[str]]:
        """The window of the round, and what opens an epoch with it, if anything does."""
        view = self.view
        window, causes = view.window, self._changes()
        if causes and causes != ["start"]:
            window = self._aged(window)
        hidden = view.facts.last_hide
        if hidden > window.hides:
            window, causes = replace(window, hides=hidden), [*causes, "hide"]
        if self._cold() and not causes:
            pruned = self._aged(window)
            if self._is_worth_it(pruned):
                window, causes = pruned, ["prune"]
        budget = self._budget(inputs, tail)
        now = view.now if window == view.window else view.under(window)
        if budget.over(now.tokens, TRIGGER):
            smaller = await self._compacted(self._aged(window), budget)
            if smaller != view.window:
                window, causes = smaller, [*causes, "compaction"]
        elif causes == ["prune"]:
            text = (
                "The provider's cache was cold, so what old turns looked up is now only named: "
                "each line says which ref react.read restores."
            )
            await self._tell([SystemMessage(code="prune", text=text)])
        return window, causes

    def _changes(self) -> list[str]:
        """What makes this prompt another one than that of the round before, from its beginning."""
        before = self._recorder.timeline.last_round
        if before is None:
            return ["start"]
        causes = {
            "model": before.model != self._model.name,
            "protocol": before.protocol != self.protocol.name,
            "renderer": before.renderer != RENDERER,
            "instructions": before.system_sha256 != self._system_sha256,
            "tools": before.tools_sha256 != self._tools_sha256,
        }
        return [cause for cause, is_one in causes.items() if is_one]

    def _aged(self, window: Window) -> Window:
        newest = self._recorder.timeline.reactions.newest
        return aged(
            window,
            self._recorder.number,
            self._limits.get("keep_recent_turns", KEEP_TURNS),
            self._limits.get("keep_recent_intact_turns", KEEP_INTACT_TURNS),
            newest,
        )

    def _cold(self) -> bool:
        """Whether the provider has forgotten the prompt of the round before."""
        last = self._recorder.timeline.last_asked
        ttl = self._limits.get("cache_ttl_seconds", CACHE_TTL_SECONDS)
        if last is None or not ttl:
            return False
        return self._clock.now() - last.ts >= timedelta(seconds=ttl - PRUNE_BUFFER_SECONDS)

    def _is_worth_it(self, pruned: Window) -> bool:
        """Whether the window makes the prompt smaller, or puts feedback where it belongs."""
        if pruned == self.view.window:
            return False
        smaller = self.view.under(pruned).tokens < self.view.now.tokens
        return smaller or pruned.feedback > self.view.window.feedback

    async def _compacted(self, window: Window, budget: Budget) -> Window:
        """A window under which the prompt fits, the cheapest change first; it says what it dropped."""
        view = self.view
        before = budget.cost(view.now.tokens)
        self._listen(Delta(type="compaction", channel="context", text=f"about {before} tokens"))
        smaller, enough = lightened(view, window, budget)
        if enough:
            named = "what older calls gave is now only named: each line says which ref restores it"
            await self._tell([self._made_room(before, view.under(smaller), budget, named)])
            return smaller
        summed = await self._summed_up(window, budget, before)
        window = window if summed is None else summed
        if budget.over(view.under(window).tokens, TRIGGER):
            window, _ = lightened(view, window, budget)
        if summed is None:
            named = "what calls gave is now only named, and long texts are cut: refs restore them"
            await self._tell([self._made_room(before, view.under(window), budget, named)])
        return shortened(view, window, budget)

    async def _summed_up(self, window: Window, budget: Budget, before: int) -> Window | None:
        """The window under which a new summary stands for all but the newest rounds."""
        view, timeline = self.view, self._recorder.timeline
        made = view.facts.newest_summary
        if made is not None and made.seq > window.summary:  # recorded before a cut, and never used
            match made.body:
                case RangeSummary(covers=covers):
                    return replace(window, summary=made.seq, start=covers)
                case _:
                    pass
        now = view.under(window)
        earlier = view.facts.summaries.get(window.summary)
        known = earlier.body if earlier and isinstance(earlier.body, RangeSummary) else None
        if not now.cuts:
            return None
        cut = place_to_cut(
            now,
            budget.room,
            needed(view.covered(now.cuts[-1].seq), known, budget.room),
            covers_something=now.cuts[0].messages,
        )
        if cut is None:
            return None
        covered = Covered(
            blocks=view.covered(cut.seq),
            cut=cut,
            before=known,
            before_ref=earlier.ref if earlier else "",
            later=[
                *map(str, now.messages[cut.messages :]),
                *(step for one in timeline.plans.open for step in one.steps),
            ],
            room=budget.room,
        )
        hint = hint_named(
            self._limits.get("summary_hint", "general" if cut.opens_turn else "react_iteration")
        )
        written = await self._written(now, cut.messages, instructions(hint), budget)
        summary = summarized(covered, written, hint, timeline)
        history = plan.history(timeline.plans)
        told: list[Body] = [summary, *([PlanHistory(text=history)] if history else [])]
        named = f"{summary.covered_turn_ids[0]} to {summary.covered_turn_ids[-1]} are summed up"
        await self._tell([*told, self._made_room(before, None, budget, named)])
        recorded = view.facts.newest_summary
        return replace(window, summary=recorded.seq if recorded else 0, start=cut.seq)

    async def _written(self, now: Rendering, messages: int, asked: str, budget: Budget) -> Written:
        """What the model writes for a summary of so many messages.

        They are the beginning of the last request, so that most of it is read from the provider's cache.
        """
        if budget.over(now.cost(messages) + estimate(asked)):
            return Written(why="what is to be summed up is longer than the model's window")
        prompt = Prompt(
            system=self._system,
            tools=self._specs,
            messages=tuple(now.messages[:messages]),
            tail=asked,
            options=replace(self._options(calls=False), output_limit=SUMMARY_OUTPUT_LIMIT),
            purpose="summary",
        )
        try:
            reply = await ask(self._model, prompt, _unheard)
        except ModelError as error:
            return Written(why=str(error))
        if reply.stop_reason == "refusal" or not reply.text.strip():
            return Written(usage=reply.usage, why="the model wrote no summary")
        return Written(text=reply.text, usage=reply.usage)

    def _made_room(
        self, before: int, now: Rendering | None, budget: Budget, named: str
    ) -> SystemMessage:
        after = "" if now is None else f" to {budget.cost(now.tokens)}"
        text = f"To make room, from about {before} tokens{after}, {named}."
        return SystemMessage(code="compaction", text=text)

    async def _tell(self, bodies: Sequence[Body]) -> None:
        await self._recorder.record(*bodies)
        self._extend()

    def _check_fits(self, prompt: Prompt) -> None:
        """Nothing is sent whose estimate exceeds the window less what the answer may need."""
        abilities = self._model.abilities
        fixed = self._fixed + estimate(prompt.tail)
        needed_tokens = ceil((self.view.now.tokens + fixed) * self.view.facts.factor)
        room = abilities.window - abilities.output_limit
        if needed_tokens > room:
            raise ModelError(
                f"the prompt needs about {needed_tokens} tokens and {self._model.name} has room for "
                f"{room}: begin another conversation, or use a model with a larger window"
            )


def _unheard(piece: TextDelta) -> None:
    """Nobody listens to a summary being written."""


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
