"""Guards, which check every call of a tool, what they decide, and the ready-made guards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from string import Formatter

from loopline.errors import LooplineError
from loopline.names import caller_location
from loopline.react import OWN_TOOLS
from loopline.react import Allow as Allow
from loopline.react import ApprovalLimits as ApprovalLimits
from loopline.react import Ask as Ask
from loopline.react import Deny as Deny
from loopline.react import Guard as Guard
from loopline.react import GuardedCall as GuardedCall
from loopline.react import Guards as Guards
from loopline.react import Verdict as Verdict
from loopline.react.approvals import QUESTION, approval_question
from loopline.tools import ToolPattern


def allow_only(patterns: Iterable[str]) -> Guard:
    """Allow only tools with names that match, such as `shop.*`, and the loop's `OWN_TOOLS`."""
    return _AllowOnly(_pattern_tuple(patterns), location=caller_location())


def read_only() -> Guard:
    """Deny every call that is not a read, except calls of the loop's `OWN_TOOLS`."""
    return _ReadOnly()


def rate_limit(limit: int, patterns: Iterable[str] = ("*",)) -> Guard:
    """Deny calls of matching tools once the turn has made `limit` calls of matching tools, counted together.

    Raises:
        LooplineError: `limit` is below 0.
    """
    if limit < 0:
        raise LooplineError(f"limit must be 0 or more, not {limit}")
    return _RateLimit(_pattern_tuple(patterns), limit, location=caller_location())


def block_repeated_failures(limit: int = 3) -> Guard:
    """Deny a call that has failed `limit` times in the turn with the same arguments.

    Raises:
        LooplineError: `limit` is below 1.
    """
    if limit < 1:
        raise LooplineError(f"limit must be 1 or more, not {limit}")
    return _BlockRepeatedFailures(limit)


def ask_before(patterns: Iterable[str], question: str = QUESTION, *, people: int = 1) -> Guard:
    """Ask the user to approve calls of matching tools; `{tool}` and `{arguments}` are filled in.

    With `people=2` a second person must approve such a call, too.

    Raises:
        LooplineError: the question has another field to fill in, or is not a valid template; or `people` is below 1.
    """
    if people < 1:
        raise LooplineError(f"people must be 1 or more, not {people}")
    try:
        fields = {name for _, name, _, _ in Formatter().parse(question) if name is not None}
    except ValueError as error:
        raise LooplineError(f"the question {question!r} is no template: {error}") from error
    if unknown := sorted(fields - {"tool", "arguments"}):
        raise LooplineError(f"a question has {{tool}} and {{arguments}}, not {unknown[0]!r}")
    return _AskBefore(_pattern_tuple(patterns), question, people, location=caller_location())


class _UnchangedResult:
    """A guard that leaves results as they are."""

    __slots__ = ()

    async def after(self, call: GuardedCall, text: str) -> str:
        del call
        return text


@dataclass(frozen=True, slots=True)
class _AllowOnly(_UnchangedResult):
    setting = "allow_only"
    patterns: tuple[str, ...]
    location: str = field(default="", compare=False)

    async def before(self, call: GuardedCall) -> Verdict:
        if call.tool in OWN_TOOLS or _matches(call.tool, self.patterns):
            return Allow()
        return Deny(
            f"{call.tool} is not allowed here: only {', '.join(self.patterns) or 'nothing'}"
        )


@dataclass(frozen=True, slots=True)
class _ReadOnly(_UnchangedResult):
    async def before(self, call: GuardedCall) -> Verdict:
        if call.effect == "read" or call.tool in OWN_TOOLS:
            return Allow()
        return Deny(f"{call.tool} may change something ({call.effect}), and only reads are allowed")


@dataclass(frozen=True, slots=True)
class _RateLimit(_UnchangedResult):
    setting = "rate_limit"
    patterns: tuple[str, ...]
    limit: int
    location: str = field(default="", compare=False)

    async def before(self, call: GuardedCall) -> Verdict:
        """Deny a matching call after `limit` matching calls in this turn, counted together for all patterns."""
        if not _matches(call.tool, self.patterns):
            return Allow()
        calls_made = sum(
            count for tool, count in call.earlier_calls.items() if _matches(tool, self.patterns)
        )
        if calls_made < self.limit:
            return Allow()
        named = ", ".join(self.patterns)
        return Deny(
            f"no more calls of {named} in this turn: at most {self.limit}, {calls_made} were made"
        )


@dataclass(frozen=True, slots=True)
class _BlockRepeatedFailures(_UnchangedResult):
    limit: int

    async def before(self, call: GuardedCall) -> Verdict:
        """Deny a call that failed `limit` times with the same arguments in this turn; allow all other calls."""
        if call.failures < self.limit:
            return Allow()
        return Deny(
            f"{call.tool} failed {call.failures} times with these arguments, and is not run with them again "
            "in this turn: change them, or take another way"
        )


@dataclass(frozen=True, slots=True)
class _AskBefore(_UnchangedResult):
    setting = "ask_before"
    patterns: tuple[str, ...]
    question: str
    people: int
    location: str = field(default="", compare=False)

    async def before(self, call: GuardedCall) -> Verdict:
        if not _matches(call.tool, self.patterns):
            return Allow()
        return Ask(approval_question(call, self.question), self.people)


def tool_patterns(guards: Iterable[Guard]) -> Iterator[ToolPattern]:
    """Yield the names and patterns of tools in the ready-made guards; guards of other classes are skipped."""
    for guard in guards:
        match guard:
            case Guards(guards=inner):
                yield from tool_patterns(inner)
            case _AllowOnly() | _RateLimit() | _AskBefore():
                for pattern in guard.patterns:
                    yield ToolPattern(guard.setting, pattern, guard.location)
            case _:
                pass


def _pattern_tuple(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns as a tuple; a string is one pattern."""
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _matches(tool: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(tool, pattern) for pattern in patterns)
