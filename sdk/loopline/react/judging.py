"""Judging: what a call excludes, and what the guards make of it and of what it gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile

from loopline.errors import LooplineError
from loopline.models import JsonObject
from loopline.react.approving import approved, digest_of
from loopline.react.guards import Guards, logger
from loopline.react.policies import LoopOptions
from loopline.react.seams import Allow, Guard, GuardedCall, Verdict
from loopline.timeline import Effect, Recorder, ToolCalled
from loopline.tools import BoundTool, Outcome, Tool, ToolSet


BROKEN = "A guard of this bundle broke over this result: it is not shown."
"""What the model reads where a guard could not say what it may read."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a call excludes: calls whose claims conflict keep their order."""

    effect: Effect
    key: str = ""

    def conflicts(self, other: Claim) -> bool:
        """Whether the two must not run at once."""
        match self.effect, other.effect:
            case ("exclusive", _) | (_, "exclusive"):
                return True
            case ("write", "write") | ("meta", "meta"):
                return self.key == other.key
            case _:
                return False


@dataclass(frozen=True, slots=True)
class Judged:
    """A call with the tool that runs it, or with why none does, and what the guards make of it."""

    call: ToolCalled
    tool: Tool | LooplineError
    claim: Claim
    arguments: JsonObject
    guarded: GuardedCall | None = None
    verdict: Verdict = field(default_factory=Allow)

    @property
    def reads(self) -> bool:
        """Whether the call changes nothing; one that no tool runs does not either."""
        return isinstance(self.tool, LooplineError) or self.tool.effect == "read"


class Judge:
    """Reads the calls of a turn, and has its guards judge them and look over their results."""

    def __init__(
        self,
        recorder: Recorder,
        tools: Callable[[], ToolSet],
        guards: Sequence[Guard],
        policies: LoopOptions,
        *,
        deps: object,
    ) -> None:
        self._recorder = recorder
        self._tools = tools
        self._guards = Guards(tuple(guards)) if guards else None
        self._policies = policies
        self._deps = deps

    def parsed(self, call: ToolCalled) -> Judged:
        """The call with its tool, once its arguments are right; what cannot run excludes nothing."""
        try:
            tool = self._tools().find(call.tool)
            tool.check(call.arguments)
        except LooplineError as error:
            return Judged(call, error, Claim("read"), call.arguments)
        guarded = None if self._guards is None else self._guarded(call, tool.effect)
        return Judged(call, tool, self._claim(tool, call.arguments), call.arguments, guarded)

    def claim(self, call: ToolCalled) -> Claim:
        """What a call excludes; nothing where no tool could run it."""
        try:
            tool = self._tools().find(call.tool)
            tool.check(call.arguments)
        except LooplineError:
            return Claim("read")
        return self._claim(tool, call.arguments)

    def _claim(self, tool: Tool, arguments: JsonObject) -> Claim:
        """What the call excludes. Beside what a tool runs that declares nothing is a policy."""
        if isinstance(tool, BoundTool) and not tool.function.declared:
            return Claim(self._policies.unknown_effect)
        try:
            return Claim(tool.effect, tool.key(arguments))
        except Exception:
            logger.exception("the key of %s cannot be made: it runs alone", tool.spec.name)
            return Claim("exclusive")

    async def judged(self, parsed: Judged) -> Judged:
        """The call as the guards leave it."""
        tool, call, guards, guarded = parsed.tool, parsed.call, self._guards, parsed.guarded
        if isinstance(tool, LooplineError) or guards is None or guarded is None:
            return parsed
        turn = self._recorder.turn
        answer, waiting = turn.answers.get(call.call_id), turn.waiting.get(call.call_id)
        same = waiting is not None and waiting.digest == digest_of(call)
        agreed = same and answer is not None and approved(answer.value)
        agreed = agreed or call.call_id in turn.started  # what its children do is carried on
        verdict = await (guards.granted(guarded) if agreed else guards.before(guarded))
        parsed = replace(parsed, verdict=verdict)
        match verdict:
            case Allow(arguments=dict() as changed):
                try:
                    tool.check(changed)
                except LooplineError as error:
                    return replace(parsed, tool=error, claim=Claim("read"))
                return replace(parsed, claim=self._claim(tool, changed), arguments=changed)
            case _:
                return parsed

    def _guarded(self, call: ToolCalled, effect: Effect) -> GuardedCall:
        recorder = self._recorder
        return GuardedCall(
            call_id=call.call_id,
            tool=call.tool,
            effect=effect,
            arguments=call.arguments,
            turn_id=f"turn_{recorder.number}",
            conversation=recorder.conversation.name,
            user=recorder.conversation.user,
            made=dict(self._made_before(call)),
            failed=recorder.turn.failures(call),
            deps=self._deps,
        )

    def _made_before(self, call: ToolCalled) -> Counter[str]:
        """How many calls the turn made before this one, by tool: all but those of its batch from this one on."""
        turn = self._recorder.turn
        batch = turn.batches[-1].calls if turn.batches else []
        since = dropwhile(lambda one: one.call_id != call.call_id, batch)
        return turn.made - Counter(one.tool for one in since)

    async def looked_over(self, judged: Judged, outcome: Outcome) -> Outcome:
        """The outcome as the guards let the model read it: its text, and that of each section."""
        guards, guarded = self._guards, judged.guarded
        if guards is None or guarded is None:
            return outcome
        try:
            sections = [
                replace(section, text=await guards.after(guarded, section.text))
                for section in outcome.sections
            ]
            text = await guards.after(guarded, outcome.text)
        except Exception:
            logger.exception("a guard broke over the result of %s", guarded.tool)
            return Outcome(text=BROKEN)
        return replace(outcome, text=text, sections=tuple(sections))
