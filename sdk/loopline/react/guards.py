"""Guards around tool calls: their combination, and the check of each call before it runs."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import dropwhile

from msgspec import Struct, structs
from msgspec.json import decode as decode_json

from loopline.clock import Clock, done_within
from loopline.errors import LooplineError, ToolError, WrongBundle
from loopline.models import Json, JsonObject, dumps
from loopline.react.approvals import (
    EDITED,
    OfferedTool,
    approval_digest,
    approval_question,
    question_of,
)
from loopline.react.extensions import Allow, Ask, Deny, Guard, GuardedCall, Verdict
from loopline.react.tool_runtime import ToolRuntime
from loopline.timeline import Effect, ToolCalled, edited_arguments, is_approval
from loopline.tools import (
    REQUEST_TOOLS,
    BoundTool,
    Outcome,
    RequestTools,
    Tool,
    ToolSet,
)

logger: logging.Logger = logging.getLogger("loopline")

OWN_TOOLS: frozenset[str] = frozenset(
    {
        "react.plan",
        "react.read",
        "react.hide",
        "react.search_knowledge",
        "react.request_tools",
    }
)
"""Tools of the loop that access only the conversation and the sources that it may read."""


@dataclass(frozen=True, slots=True)
class Guards:
    """Several guards in order, combined into one.

    Each guard sees the arguments as changed by the guards before it; the tool checks changed arguments again. If a guard
    denies the call, it is denied; otherwise the question of the first guard that asks is the verdict, for the largest
    number of people that a guard asks for. Results pass
    through the guards in reverse order. If a guard raises before a call, the error is logged, and the call is denied; a
    call that only reads goes on to the next guard. If a guard raises after a call, the error is raised here.
    """

    guards: tuple[Guard, ...] = ()

    async def before(self, call: GuardedCall) -> Verdict:
        """Return the verdict of the guards on the call."""
        question, verdict = await self._verdicts(call)
        return question if question is not None and isinstance(verdict, Allow) else verdict

    async def granted(self, call: GuardedCall) -> Verdict:
        """Return the verdict after the user has approved the call: questions are skipped, and a guard may still deny."""
        _, verdict = await self._verdicts(call)
        return verdict

    async def after(self, call: GuardedCall, text: str) -> str:
        """Return the text of the result as the guards change it, the last guard first.

        Raises:
            TypeError: a guard returned a value that is not a string.
        """
        for guard in reversed(self.guards):
            text = _check_text(
                await guard.after(replace(call, arguments=deepcopy(call.arguments)), text)
            )
        return text

    async def _verdicts(self, call: GuardedCall) -> tuple[Ask | None, Allow | Deny]:
        """Return the first question of a guard, or None, and the verdict that counts if the user approves.

        The question has the greatest number of people that a guard requires.
        """
        question: Ask | None = None
        changed: JsonObject | None = None
        for guard in self.guards:
            arguments = call.arguments if changed is None else changed
            # The arguments are copied because a guard may change them only by the verdict that it returns.
            match await _verdict(guard, replace(call, arguments=deepcopy(arguments))):
                case Deny() as denied:
                    return question, denied
                case Ask(people=people) as asks:
                    question = question or asks
                    question = replace(question, people=max(question.people, people))
                case Allow(arguments=replacement):
                    changed = changed if replacement is None else replacement
        return question, Allow(changed)


async def _verdict(guard: Guard, call: GuardedCall) -> Verdict:
    """Return the verdict of one guard; if it raises, reads are allowed and other calls denied."""
    try:
        return _check_verdict(await guard.before(call))
    except Exception:
        logger.exception("the guard %r broke before %s", guard, call.tool)
        if call.effect == "read":
            return Allow()
        return Deny(f"{call.tool} was not run: what guards it failed. Do not try it again.")


def _check_verdict(verdict: object) -> Verdict:
    if not isinstance(verdict, Allow | Deny | Ask):
        raise TypeError(f"a guard must return Allow, Deny or Ask, not {verdict!r}")
    return verdict


def _check_text(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a guard must return the text of a result, not {text!r}")
    return text


GUARD_FAILED = "A guard of this bundle broke over this result: it is not shown."
"""The text that replaces a result if a guard raises after the call."""


class Claim(Struct, frozen=True):
    """The claim of a call: calls with conflicting claims run one after the other, in their order."""

    effect: Effect
    key: str = ""

    def conflicts(self, other_claim: Claim) -> bool:
        """Return whether the two calls may not run at once."""
        if "exclusive" in (self.effect, other_claim.effect):
            return True
        return self == other_claim and self.effect != "read"


ALLOWED = Allow()


class CheckedCall(Struct, frozen=True):
    """A call with its tool, or the error if it cannot run, the verdict on it, and the id of the rule that let it run.

    `note` tells the model before the result that the user changed the arguments, else it is empty.
    """

    call: ToolCalled
    tool: Tool | LooplineError
    claim: Claim
    arguments: JsonObject
    guarded: GuardedCall | None = None
    verdict: Verdict = ALLOWED
    rule: str = ""
    note: str = ""

    @property
    def reads(self) -> bool:
        """Whether the call only reads; a call that cannot run counts as one."""
        return isinstance(self.tool, LooplineError) or self.tool.effect == "read"


def needs_approval(tool: Tool) -> bool:
    """Return whether calls of a tool need approval, or a function of its author decides about each."""
    return isinstance(tool, BoundTool) and bool(tool.function.approve)


class CallChecker:
    """Finds the tools of a turn's calls, checks their arguments, and applies the guards to calls and results."""

    def __init__(self, runtime: ToolRuntime, tools: Callable[[], ToolSet]) -> None:
        """Take the runtime, and a function that returns the tools of the current round."""
        self._recorder = runtime.recorder
        self._tools = tools
        self._guards = Guards(tuple(runtime.guards))
        self._options = runtime.options
        self._deps = runtime.deps
        self._rules = runtime.rules

    def parse(self, call: ToolCalled) -> CheckedCall:
        """Return the call with its tool, after a check of its arguments.

        An unknown tool or invalid arguments become the error in `tool`, and the call conflicts with no other call. In
        the mode "plan" a call with an effect is denied, except for calls that have started and tools of the loop. The
        guards have not judged the call yet.
        """
        try:
            tool = self._tools().find(call.tool)
            tool.check(call.arguments)
        except LooplineError as error:
            refused = self._find_requestable(call.tool) or error
            return CheckedCall(call, refused, Claim("read"), call.arguments)
        turn = self._recorder.turn
        is_effect = tool.effect != "read" and call.tool not in OWN_TOOLS
        if (
            is_effect
            and self._recorder.timeline.mode == "plan"
            and call.call_id not in turn.started
        ):
            planned = Deny(
                f"{call.tool} was not run: this conversation only plans, and nothing may change"
            )
            return CheckedCall(call, tool, Claim("read"), call.arguments, verdict=planned)
        asks = isinstance(tool, BoundTool) and tool.function.approve
        is_judged = asks or self._guards.guards or call.call_id in turn.answers
        guarded = self._make_guarded_call(call, tool.effect) if is_judged else None
        return CheckedCall(call, tool, self._claim(tool, call.arguments), call.arguments, guarded)

    def check_offers(self) -> None:
        """Check that the tools of open calls that may start are the tools that the model was offered.

        Only another version of the bundle can have changed them. The check is skipped if any bundle may run the turn.

        Raises:
            WrongBundle: a tool was removed, or its schema was changed.
        """
        recorder = self._recorder
        turn = recorder.turn
        version = recorder.header.version if recorder.header else ""
        last = recorder.timeline.last_round
        if recorder.any_bundle or turn.versions <= {version} or last is None:
            return
        text = recorder.timeline.tool_texts.get(last.tools_sha256, "[]")
        offered = {spec.name: spec for spec in decode_json(text, type=list[OfferedTool])}
        for call in turn.open_calls.values():
            answer, pending = turn.answers.get(call.call_id), turn.pending.get(call.call_id)
            # The answer to a question, or of the client, is the result of the call, whatever it says.
            may_start = pending is None or (
                pending.kind == "approval" and answer is not None and is_approval(answer.value)
            )
            if not may_start or call.call_id in turn.started:
                continue
            tool, spec = self.parse(call).tool, offered.get(call.tool)
            if isinstance(tool, LooplineError):
                raise WrongBundle(
                    f"{call.call_id} cannot run in version {version!r} of the bundle: {tool}"
                )
            if spec is not None and dumps(spec.parameters) != dumps(tool.spec.parameters):
                raise WrongBundle(
                    f"{call.call_id} calls {call.tool}, whose schema version {version!r} of the bundle has changed"
                )

    def _find_requestable(self, name: str) -> ToolError | None:
        """Return the error for a tool that is not offered but that the model may request; None for other names."""
        tools = self._tools()
        requests = tools.get(REQUEST_TOOLS)
        if isinstance(requests, RequestTools) and requests.can_add(name) and name not in tools:
            return ToolError(f"{name} is not offered yet: bring it in with {REQUEST_TOOLS}")
        return None

    def _claim(self, tool: Tool, arguments: JsonObject) -> Claim:
        """Return the claim of a call; a tool without a declared effect has the effect of the option `unknown_effect`.

        If the tool's function for the key fails, the error is logged, and the call runs alone.
        """
        if isinstance(tool, BoundTool) and not tool.function.declared:
            return Claim(self._options.unknown_effect)
        try:
            return Claim(tool.effect, tool.key(arguments))
        except Exception:
            logger.exception("the key of %s cannot be made: it runs alone", tool.spec.name)
            return Claim("exclusive")

    async def check(
        self, parsed: CheckedCall, guarded: GuardedCall, *, approval: Json = None
    ) -> CheckedCall:
        """Return the call with the verdict on it, and with the arguments that the user or the guards changed.

        `approval` is the user's answer about a call of a program. A call that the user has approved, that a rule lets
        run, or that has started is not asked about; a guard may still deny it. If the tool refuses changed arguments,
        `tool` is the error.
        """
        tool = parsed.tool
        call = parsed.call
        if isinstance(tool, LooplineError):
            return parsed
        turn = self._recorder.turn
        answer = turn.answers.get(call.call_id)
        waiting = turn.pending.get(call.call_id)
        # An answer to a child run is for a call of that run.
        is_own = answer is not None and waiting is not None and not waiting.child
        if answer and waiting and is_own and waiting.digest == approval_digest(call):
            approval = answer.value
        changed = edited_arguments(approval)
        if changed is not None:
            guarded = replace(guarded, arguments=changed)
        rule = ""
        if is_approval(approval) or call.call_id in turn.started:
            verdict = await self._guards.granted(guarded)
        else:
            verdict = await self._guards.before(guarded)
            if isinstance(verdict, Allow):
                verdict = await self._ask_for_tool(tool, guarded, verdict)
            if isinstance(verdict, Ask):
                question = replace(verdict, people=self._people(tool, guarded, verdict))
                verdict, rule = await self._answer_by_rule(guarded, question)
        note = "" if changed is None else EDITED.format(arguments=dumps(changed))
        parsed = structs.replace(parsed, verdict=verdict, rule=rule, note=note)
        if isinstance(verdict, Allow) and verdict.arguments is not None:
            changed = verdict.arguments
        if changed is None:
            return parsed
        try:
            tool.check(changed)
        except LooplineError as error:
            return structs.replace(parsed, tool=error, claim=Claim("read"))
        return structs.replace(parsed, claim=self._claim(tool, changed), arguments=changed)

    async def check_again(self, parsed: CheckedCall) -> CheckedCall:
        """Return a call that has waited for others with the verdict on it now: its rule may be revoked, or the mode "plan" set."""
        if not parsed.rule and self._recorder.timeline.mode != "plan":
            return parsed
        now = self.parse(parsed.call)
        if parsed.rule and now.guarded is not None:
            return await self.check(now, now.guarded)
        return now if isinstance(now.verdict, Deny) else parsed

    async def _ask_for_tool(self, tool: Tool, call: GuardedCall, allowed: Allow) -> Allow | Ask:
        """Return the question of a tool that needs approval, or `allowed` if it needs none."""
        if not isinstance(tool, BoundTool) or not tool.function.approve:
            return allowed
        arguments = call.arguments if allowed.arguments is None else allowed.arguments
        seen = replace(call, arguments=deepcopy(arguments))
        question = await question_of(tool.function.approve, approval_question(seen), seen)
        return Ask(question) if question else allowed

    def _people(self, tool: Tool, call: GuardedCall, question: Ask) -> int:
        """Return how many people must approve a call: the most of the guard, the tool and the limits of the bundle."""
        people = question.people
        if isinstance(tool, BoundTool) and tool.function.approve:
            people = max(people, tool.function.people)
        return max(people, self._rules.limits.people_for(call.tool))

    async def _answer_by_rule(self, call: GuardedCall, question: Ask) -> tuple[Verdict, str]:
        """Return the verdict without asking if the mode or a rule permits it, and the id of the rule.

        In the mode "deny" the call is denied. A call that several people must approve is never run without asking. If
        the user must be asked, `question` is returned; the id is empty if no rule applies.
        """
        recorder = self._recorder
        mode = recorder.timeline.mode
        if mode == "deny":
            return Deny(
                f"{call.tool} needs approval, which this conversation denies to every call"
            ), ""
        if question.people > 1:
            return question, ""
        may_loosen = self._rules.limits.rules != "none"
        if mode == "accept_reads" and call.effect == "read" and may_loosen:
            return await self._guards.granted(call), ""
        bundle = recorder.header.bundle if recorder.header else ""
        rule = await self._rules.find(recorder.conversation, bundle, call.tool, call.arguments)
        return (await self._guards.granted(call), rule.rule_id) if rule else (question, "")

    def _make_guarded_call(self, call: ToolCalled, effect: Effect) -> GuardedCall:
        """Return the call for the guards, with the numbers of earlier calls by tool and of its earlier failures."""
        recorder = self._recorder
        return GuardedCall(
            call_id=call.call_id,
            tool=call.tool,
            effect=effect,
            arguments=call.arguments,
            turn_id=f"turn_{recorder.number}",
            conversation=recorder.conversation.name,
            user=recorder.conversation.user,
            earlier_calls=dict(self._earlier_calls(call)),
            failures=recorder.turn.failures(call),
            deps=self._deps,
        )

    def _earlier_calls(self, call: ToolCalled) -> Counter[str]:
        """Count the calls of the turn before `call`, by tool."""
        turn = self._recorder.turn
        batch = turn.batches[-1].calls if turn.batches else []
        parent, dash, _ = call.call_id.partition("-")
        since = list(dropwhile(lambda batch_call: batch_call.call_id != parent, batch))
        # A call of a program has the id of its parent, a dash and a number, and comes after its parent.
        later = [*since[1:], call] if dash else since
        return Counter(turn.call_counts) - Counter(later_call.tool for later_call in later)

    async def filter_result(self, guarded: GuardedCall | None, outcome: Outcome) -> Outcome:
        """Return the outcome with its text and sections as the guards change them.

        If a guard raises, the error is logged, and the outcome has only the text `GUARD_FAILED`. The outcome of a call
        that is not guarded is returned unchanged.
        """
        if guarded is None:
            return outcome
        guards = self._guards
        try:
            sections = [
                structs.replace(section, text=await guards.after(guarded, section.text))
                for section in outcome.sections
            ]
            text = await guards.after(guarded, outcome.text)
        except Exception:
            logger.exception("a guard broke over the result of %s", guarded.tool)
            return Outcome(text=GUARD_FAILED)
        return structs.replace(outcome, text=text, sections=tuple(sections))


# A global, because a thread that outlives its call may also outlive its harness.
_claimed: dict[Future[object], tuple[str, Claim]] = {}
"""The threads that outlived their calls, each with the uid of its conversation and its claim."""


def claim_for_thread(uid: str, claim: Claim, thread: Future[object]) -> None:
    """Keep the claim of a tool call until its thread ends, because the thread outlives the call.

    `uid` is that of the conversation; its later calls with a conflicting claim wait for the thread.
    """
    _claimed[thread] = (uid, claim)
    thread.add_done_callback(_claimed.pop)


def threads_remain() -> bool:
    """Return whether a thread that outlived its call still runs in this process."""
    return bool(_claimed)


async def wait_for_threads(uid: str, claim: Claim, clock: Clock, seconds: float | None) -> None:
    """Wait for the threads with a conflicting claim that outlived their calls; without a limit if `seconds` is None.

    Raises:
        ToolError: such a thread still runs after `seconds`.
    """
    entries = list(_claimed.items())  # a thread that ends removes its entry meanwhile
    threads = [
        thread for thread, (of, claimed) in entries if of == uid and claimed.conflicts(claim)
    ]
    if not threads:
        return
    await done_within(clock, seconds, _all_done(threads))
    if not all(thread.done() for thread in threads):
        raise ToolError(
            "This call was not begun: an earlier one that it must not run beside was cut off, and still runs. "
            "Try again later."
        )


async def _all_done(threads: Sequence[Future[object]]) -> None:
    await asyncio.gather(*map(asyncio.wrap_future, threads), return_exceptions=True)
