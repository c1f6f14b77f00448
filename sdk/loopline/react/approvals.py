"""Approvals: what a person answers to a call that waits for approval, the rules that answers grant, and their limits."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from typing import Literal, get_args
from uuid import uuid4

import msgspec
from msgspec import Struct

from loopline import timeline as tl
from loopline.clock import Clock
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, dumps
from loopline.react.extensions import GuardedCall
from loopline.tasks import compute

logger: logging.Logger = logging.getLogger("loopline")

QUESTION = "May {tool} run with {arguments}?"
LONGEST_ARGUMENTS = 400
"""Characters of the arguments that a question shows."""

EDITED = "The user approved this call with changed arguments, and it ran with these: {arguments}\n"
"""What the model reads before the result of a call whose arguments the user changed."""

Approve = bool | Callable[[JsonObject, GuardedCall], bool | str | Awaitable[bool | str]]
"""Whether a call needs approval: always, or what a function of its arguments and the call returns; a text is the question."""


_SCOPES = ("none", *get_args(tl.RuleScope))
"""From the narrowest to the widest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalLimits:
    """What users may decide about later calls when they approve one.

    `rules` is the widest scope of a rule that may be granted: none, the conversation, or all conversations of the user
    with the bundle. Rules may be granted for `tools`, patterns such as `shop.*`, and for `seconds` at most. Granted rules
    that are outside of the limits do not count.

    `people` has the number of different people who must approve a call, by patterns of tools: with `{"shop.refund": 2}`
    a refund that needs approval waits for a second person. No rule and no mode lets such a call run.

    Raises:
        LooplineError: `rules` is unknown, `seconds` is not above 0, or a number of people is below 1.
    """

    rules: Literal["none"] | tl.RuleScope = "conversation"
    tools: Sequence[str] = ("*",)
    seconds: float | None = None
    people: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        for pattern, people in self.people.items():
            if people < 1:
                raise LooplineError(f"people[{pattern!r}] is {people}: it must be 1 or more")
        if self.rules not in _SCOPES:
            raise LooplineError(f"rules is {self.rules!r}: it must be {' or '.join(_SCOPES)}")
        if self.seconds is not None and not self.seconds > 0:
            raise LooplineError(f"seconds is {self.seconds!r}: it must be above 0")

    def find_problem(self, tool: str, scope: tl.RuleScope, seconds: float | None) -> str:
        """Return why a rule may not be granted; empty if it may. With `seconds` None the rule never expires."""
        if _SCOPES.index(scope) > _SCOPES.index(self.rules):
            return f"no rule for the {scope} may be granted here"
        if not any(fnmatchcase(tool, pattern) for pattern in self.tools):
            return f"no rule for {tool} may be granted here, only for {', '.join(self.tools)}"
        if self.seconds is not None and (seconds is None or seconds > self.seconds):
            return f"a rule may be granted here for {self.seconds:g} seconds at most"
        return ""

    def with_people(self, people: Mapping[str, int]) -> ApprovalLimits:
        """Return the limits with further numbers of people, by patterns of tools; the greater number counts."""
        both = {
            pattern: max(self.people.get(pattern, 1), people.get(pattern, 1))
            for pattern in (*self.people, *people)
        }
        return replace(self, people=both) if people else self

    def people_for(self, tool: str) -> int:
        """Return how many people must approve a call of the tool, 1 if no pattern says more."""
        counts = [count for pattern, count in self.people.items() if fnmatchcase(tool, pattern)]
        return max(counts, default=1)


DEFAULT_APPROVALS: ApprovalLimits = ApprovalLimits()


class OfferedTool(Struct, frozen=True):
    """A tool as a round offered it to the model."""

    name: str
    parameters: JsonObject


class RuleRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The rule that an approving answer asks for: also let later calls of the tool run, with the same or any arguments."""

    scope: tl.RuleScope = "conversation"
    arguments: Literal["any", "same"] = "any"
    seconds: float | None = None


class ApprovalReply(Struct, frozen=True, forbid_unknown_fields=True):
    """An answer to an approval in full: with edited `arguments` and a rule if it approves, or with the reason if not."""

    approved: bool
    reason: str = ""
    arguments: JsonObject | None = None
    rule: RuleRequest | None = None


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call that waits for approval, with the JSON list of the tools that its model was offered last."""

    tool: str
    arguments: JsonObject
    bundle: str
    offered: str = "[]"


def approval_digest(call: tl.ToolCalled) -> str:
    """Return the sha256 of the call id, the tool and the arguments that the user approves."""
    approved_text = dumps([call.call_id, call.tool, call.arguments])
    return sha256(approved_text.encode("utf-8", "surrogatepass")).hexdigest()


def parse_approval(line: str) -> Json:
    """Return the answer for a line that a person types at an approval.

    `yes` and `no` are returned as they are, and `yes` with a JSON object approves with these arguments. `always` also
    lets later calls of the tool run in this conversation. A `yes` with other words or malformed JSON is returned as
    it is, and `check_answer` refuses it. Any other line denies the call, with the line as the reason.
    """
    first, *words = line.split() or [""]
    match first.strip(",.:;!").casefold():
        case "always" if not words:
            return {"approved": True, "rule": {}}
        case word if tl.is_approval(word) and words and words[0].startswith("{"):
            try:
                arguments: Json = json.loads(line[line.index("{") :])
            except (ValueError, RecursionError):
                return line
            return {"approved": True, "arguments": arguments}
        case "no" if words:
            return {"approved": False, "reason": line.strip()}
        case word if tl.is_approval(word) or tl.read_approval(line) is False:
            return line
        case _:
            return {"approved": False, "reason": line.strip()}


def denial_text(value: Json) -> str:
    """Return the text for the model about a call that an answer does not approve, with the `reason` of `{"approved": false}`."""
    match value:
        case {"reason": str(reason)} if reason.strip():
            return f"The user did not approve of this call. The user's reason: {reason.strip()}"
        case _:
            return "The user did not approve of this call."


def check_answer(pending: tl.ToolPending | tl.ToolQuestion, value: Json) -> ApprovalReply | None:
    """Check that an answer fits the question of a call. Returns the answer in full if the call waits for approval.

    Any value is an answer to another question; then None is returned.

    Raises:
        LooplineError: the call awaits approval, and the value is neither yes nor no, or has an unknown or unfit
            field.
    """
    if pending.kind != "approval":
        return None
    approved = tl.read_approval(value)
    if approved is None:
        head, brace, _ = value.partition("{") if isinstance(value, str) else ("", "", "")
        if brace and tl.is_approval(head.strip(" ,.:;!") or "yes"):
            raise LooplineError(
                f"{pending.call_id} awaits approval: the text from {{ on is not valid JSON: {value!r}"
            )
        fields = ", or an object with approved: true or false" if isinstance(value, dict) else ""
        raise LooplineError(
            f"{pending.call_id} awaits approval: answer yes or no{fields}, not {value!r}"
        )
    if not isinstance(value, dict):
        return ApprovalReply(approved)
    try:
        answer = msgspec.convert(value, ApprovalReply)
    except msgspec.ValidationError as error:
        raise LooplineError(
            f"the answer to {pending.call_id} is not valid: {error}; an answer has approved, reason, arguments and "
            "rule, and a rule has scope, arguments and seconds"
        ) from error
    if not approved and (answer.arguments is not None or answer.rule is not None):
        raise LooplineError(
            f"the answer to {pending.call_id} denies the call: it may have a reason, but no arguments and no rule"
        )
    return answer


def check_person(
    pending: tl.ToolPending | tl.ToolQuestion,
    approvals: Sequence[tl.UserAnswer],
    answer: tl.UserAnswer,
) -> None:
    """Check that an answer to an approval by several people is a new one; `approvals` are all answers before it.

    A denial, and any answer to a call that needs a single approval, pass the check.

    Raises:
        LooplineError: the same person has approved the same arguments before, or the answer grants a rule.
    """
    if pending.people <= 1 or not tl.is_approval(answer.value):
        return
    reply = check_answer(pending, answer.value)
    if reply is not None and reply.rule is not None:
        raise LooplineError(
            f"{pending.call_id} needs the approval of {pending.people} people, so that no rule can be granted: approve it "
            "without a rule"
        )
    if tl.approvals_of([*approvals, answer]) == tl.approvals_of(approvals):
        raise LooplineError(
            f"{answer.by} has approved {pending.call_id} already: it needs {pending.people} different people, so another "
            "person must approve it"
        )


async def check_edited(call: AskedCall, arguments: JsonObject) -> None:
    """Check edited arguments by the schema that the model was offered last; without one the tool checks them later.

    A large schema or large arguments are checked in a thread.

    Raises:
        LooplineError: an argument is missing, unknown, or of another type.
    """
    characters = len(call.offered) + len(dumps(arguments))
    await compute(partial(_check_edited, call, arguments), characters=characters)


def _check_edited(call: AskedCall, arguments: JsonObject) -> None:
    """Check edited arguments by the schema of the offered tool; accept all arguments if it was not offered.

    Raises:
        LooplineError: the schema cannot be used, or the arguments do not fit it; the message has the first error.
    """
    from loopline.models.bounded_schema import check_schema, find_errors

    offered = msgspec.json.decode(call.offered, type=list[OfferedTool])
    schema = next((spec.parameters for spec in offered if spec.name == call.tool), None)
    if schema is None:
        return
    check_schema(schema, skip_unreadable=True)
    try:
        errors = find_errors(schema)(arguments, 1)
    except RecursionError as error:
        raise LooplineError(f"the arguments of {call.tool} are nested too deeply") from error
    if errors:
        raise LooplineError(f"the arguments of {call.tool} are not valid: {errors[0].message}")


def make_rule(
    call_id: str, call: AskedCall, request: RuleRequest, limits: ApprovalLimits, now: datetime
) -> tl.ApprovalRule:
    """Return the rule that an answer grants; it is not stored.

    Without seconds in the request the rule expires after those of the limits, or never if these have none either.

    Raises:
        LooplineError: the limits of the bundle do not permit it, its seconds are not above 0, or it would expire after
            the year 9999.
    """
    if request.seconds is not None and not request.seconds > 0:
        raise LooplineError(
            f"a rule of {request.seconds:g} seconds never counts: write more than 0"
        )
    seconds = request.seconds if request.seconds is not None else limits.seconds
    if problem := limits.find_problem(call.tool, request.scope, seconds):
        raise LooplineError(f"{problem}: approve the call without a rule")
    try:
        until = None if seconds is None else now + timedelta(seconds=seconds)
    except OverflowError as error:
        raise LooplineError(
            f"a rule of {seconds:g} seconds would expire after the year 9999: write fewer seconds"
        ) from error
    return tl.ApprovalRule(
        rule_id=f"rule_{uuid4().hex[:12]}",
        tool=call.tool,
        arguments=call.arguments if request.arguments == "same" else None,
        scope=request.scope,
        bundle=call.bundle,
        until=until,
        call_id=call_id,
    )


@dataclass(frozen=True, slots=True)
class RuleBook:
    """The rules that count for the calls of a bundle, within the limits of its author."""

    rules: tl.ApprovalRules
    limits: ApprovalLimits
    clock: Clock

    async def find(
        self, conversation: tl.ConversationKey, bundle: str, tool: str, arguments: JsonObject
    ) -> tl.GrantedRule | None:
        """Return the oldest rule that lets a call run without a question, None if there is none.

        The rules of a child run are those of the conversation that started it.
        """
        for rule in await self.rules.of(root_of(conversation), self.clock.now()):
            seconds = None if rule.until is None else (rule.until - rule.ts).total_seconds()
            is_permitted = not self.limits.find_problem(rule.tool, rule.scope, seconds)
            if rule.bundle == bundle and is_permitted and rule.covers(tool, arguments):
                return rule
        return None


def root_of(conversation: tl.ConversationKey) -> tl.ConversationKey:
    """Return the conversation of the user that started a child run, or `conversation` if it is no child run."""
    while (parent := tl.parent_name(conversation.name)) is not None:
        conversation = msgspec.structs.replace(conversation, name=parent)
    return conversation


def approval_question(call: GuardedCall, template: str = QUESTION) -> str:
    """Return the question about a call, with the beginning of its arguments if these are long."""
    arguments = dumps(call.arguments)
    if len(arguments) > LONGEST_ARGUMENTS:
        arguments = f"{arguments[:LONGEST_ARGUMENTS]}…"
    return template.format(tool=call.tool, arguments=arguments)


async def question_of(approve: Approve, question: str, call: GuardedCall) -> str:
    """Return the question that a tool with `approve` asks about a call; empty if the call does not need approval.

    A text from the author's function is the question, in place of `question`. If the function fails, the error is
    logged, and the call needs approval.
    """
    if not callable(approve):
        return question if approve else ""
    try:
        needed = approve(call.arguments, call)
        if inspect.isawaitable(needed):
            needed = await needed
    except Exception:
        logger.exception("what decides whether %s needs approval broke: it does", call.tool)
        return question
    return needed if isinstance(needed, str) else question if needed else ""
