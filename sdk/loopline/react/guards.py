"""Guards as values: who may call what, how often, and whom to ask first; and a chain of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from string import Formatter

from loopline.errors import LooplineError
from loopline.models import JsonObject, dumps
from loopline.react.seams import Allow, Ask, Deny, Guard, GuardedCall, Verdict

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
"""Tools of the loop that reach nothing but the conversation and what it may read."""

QUESTION = "May {tool} run with {arguments}?"
LONGEST_ARGUMENTS = 400
"""Characters of the arguments that a question shows."""


@dataclass(frozen=True, slots=True)
class Guards:
    """Guards in their order, as one guard.

    Arguments that one changes are what the next one sees, and whoever runs the call has its tool check
    them once more. The first that denies decides, wherever it stands; else the first that asks. Results
    pass through the guards in reverse. A guard that breaks before a call is logged: the call is denied
    unless it is a read, which goes on to the next guard. What one raises over a result is not caught
    here, so that nothing of the result is shown.
    """

    guards: tuple[Guard, ...] = ()

    async def before(self, call: GuardedCall) -> Verdict:
        """What the guards make of the call."""
        asked, verdict = await self._judged(call)
        return asked if asked is not None and isinstance(verdict, Allow) else verdict

    async def granted(self, call: GuardedCall) -> Verdict:
        """What they make of it once the user has approved: no guard asks, any may still deny."""
        _, verdict = await self._judged(call)
        return verdict

    async def after(self, call: GuardedCall, text: str) -> str:
        """What they leave of the result."""
        for guard in reversed(self.guards):
            text = _text(await guard.after(replace(call, arguments=deepcopy(call.arguments)), text))
        return text

    async def _judged(self, call: GuardedCall) -> tuple[Ask | None, Allow | Deny]:
        """The first question, and what becomes of the call if the answer to it is yes."""
        asked: Ask | None = None
        changed: JsonObject | None = None
        for guard in self.guards:
            arguments = call.arguments if changed is None else changed
            # A copy: a guard changes arguments by what it returns, not by reaching into them.
            match await _verdict(guard, replace(call, arguments=deepcopy(arguments))):
                case Deny() as denied:
                    return asked, denied
                case Ask() as asks:
                    asked = asked or asks
                case Allow(arguments=given):
                    changed = changed if given is None else given
        return asked, Allow(changed)


def allow_only(patterns: Iterable[str]) -> Guard:
    """Deny every tool but those whose name matches, such as `shop.*`, and the loop's `OWN_TOOLS`."""
    return _AllowOnly(_each(patterns))


def read_only() -> Guard:
    """Deny every call that is not a read, the loop's `OWN_TOOLS` aside."""
    return _ReadOnly()


def rate_limit(most: int, patterns: Iterable[str] = ("*",)) -> Guard:
    """Deny calls of matching tools once the turn has made so many of them, all such tools together.

    Raises:
        LooplineError: `most` is below 0.
    """
    if most < 0:
        raise LooplineError(f"most must be 0 or more, not {most}")
    return _RateLimit(most, _each(patterns))


def block_repeated_failures(most: int = 3) -> Guard:
    """Deny a call that has failed so often in the turn with these very arguments.

    Raises:
        LooplineError: `most` is below 1.
    """
    if most < 1:
        raise LooplineError(f"most must be 1 or more, not {most}")
    return _BlockRepeatedFailures(most)


def ask_before(patterns: Iterable[str], question: str = QUESTION) -> Guard:
    """Have the user approve of calls of matching tools; `{tool}` and `{arguments}` are filled in.

    Raises:
        LooplineError: the question has another place to fill in, or is no template.
    """
    try:
        places = {name for _, name, _, _ in Formatter().parse(question) if name is not None}
    except ValueError as error:
        raise LooplineError(f"the question {question!r} is no template: {error}") from error
    if strange := sorted(places - {"tool", "arguments"}):
        raise LooplineError(f"a question has {{tool}} and {{arguments}}, not {strange[0]!r}")
    return _AskBefore(_each(patterns), question)


class _KeepsResults:
    """A guard that has nothing to say of results."""

    __slots__ = ()

    async def after(self, call: GuardedCall, text: str) -> str:
        """The text as it is."""
        del call
        return text


@dataclass(frozen=True, slots=True)
class _AllowOnly(_KeepsResults):
    patterns: tuple[str, ...]

    async def before(self, call: GuardedCall) -> Verdict:
        if call.tool in OWN_TOOLS or _matches(call.tool, self.patterns):
            return Allow()
        return Deny(
            f"{call.tool} is not allowed here: only {', '.join(self.patterns) or 'nothing'}"
        )


@dataclass(frozen=True, slots=True)
class _ReadOnly(_KeepsResults):
    async def before(self, call: GuardedCall) -> Verdict:
        if call.effect == "read" or call.tool in OWN_TOOLS:
            return Allow()
        return Deny(f"{call.tool} may change something ({call.effect}), and only reads are allowed")


@dataclass(frozen=True, slots=True)
class _RateLimit(_KeepsResults):
    most: int
    patterns: tuple[str, ...]

    async def before(self, call: GuardedCall) -> Verdict:
        if not _matches(call.tool, self.patterns):
            return Allow()
        made = sum(count for tool, count in call.made.items() if _matches(tool, self.patterns))
        if made < self.most:
            return Allow()
        named = ", ".join(self.patterns)
        return Deny(f"no more calls of {named} in this turn: at most {self.most}, {made} were made")


@dataclass(frozen=True, slots=True)
class _BlockRepeatedFailures(_KeepsResults):
    most: int

    async def before(self, call: GuardedCall) -> Verdict:
        if call.failed < self.most:
            return Allow()
        return Deny(
            f"{call.tool} failed {call.failed} times with these arguments, and is not run with them again "
            "in this turn: change them, or take another way"
        )


@dataclass(frozen=True, slots=True)
class _AskBefore(_KeepsResults):
    patterns: tuple[str, ...]
    question: str

    async def before(self, call: GuardedCall) -> Verdict:
        if not _matches(call.tool, self.patterns):
            return Allow()
        arguments = dumps(call.arguments)
        if len(arguments) > LONGEST_ARGUMENTS:
            arguments = f"{arguments[:LONGEST_ARGUMENTS]}…"
        return Ask(self.question.format(tool=call.tool, arguments=arguments))


def _each(patterns: Iterable[str]) -> tuple[str, ...]:
    """The patterns; a text is one of them, and not its letters."""
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _matches(tool: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(tool, pattern) for pattern in patterns)


async def _verdict(guard: Guard, call: GuardedCall) -> Verdict:
    """What one guard says; where it breaks, what stands in for that."""
    try:
        return _checked(await guard.before(call))
    except Exception:
        logger.exception("the guard %r broke before %s", guard, call.tool)
        if call.effect == "read":
            return Allow()
        return Deny(f"{call.tool} was not run: what guards it failed. Do not try it again.")


def _checked(verdict: object) -> Verdict:
    if not isinstance(verdict, Allow | Deny | Ask):
        raise TypeError(f"a guard gives Allow, Deny or Ask, not {verdict!r}")
    return verdict


def _text(left: object) -> str:
    if not isinstance(left, str):
        raise TypeError(f"a guard leaves a text of a result, not {left!r}")
    return left
