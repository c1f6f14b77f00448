"""What the answers to a call say: whether they approve it, with which arguments, and whether enough people have answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from loopline.models import Json, JsonObject
from loopline.timeline.bodies import UserAnswer

_YES = frozenset({"yes", "y", "true", "ok", "approve", "approved", "allow"})
_NO = frozenset({"no", "n", "false", "deny", "denied", "reject", "rejected"})


def read_approval(value: Json) -> bool | None:
    """Return whether an answer says yes, or None if it says neither yes nor no."""
    match value:
        case bool(approved) | {"approved": bool(approved)}:
            return approved
        case str():
            word = value.strip().casefold()
            return word in _YES if word in _YES | _NO else None
        case _:
            return None


def is_approval(value: Json) -> bool:
    """Return whether an answer approves a call: True, a text such as "yes", or `{"approved": true}`."""
    return read_approval(value) is True


def edited_arguments(value: Json) -> JsonObject | None:
    """Return the arguments that an approving answer changed, or None."""
    match value:
        case {"approved": True, "arguments": dict(arguments)}:
            return arguments
        case _:
            return None


def approvals_of(answers: Iterable[UserAnswer]) -> list[UserAnswer]:
    """Return the approvals that count among the answers to a call, oldest first, at most one of each person.

    The first of them has the arguments that were edited last. An approval without arguments approves those; one with other
    arguments takes the place of all earlier ones, because nobody else has approved these.
    """
    approvals = list[UserAnswer]()
    for answer in answers:
        changed = edited_arguments(answer.value)
        if approvals and changed not in (None, edited_arguments(approvals[0].value)):
            approvals.clear()
        if is_approval(answer.value) and answer.by not in {approval.by for approval in approvals}:
            approvals.append(answer)
    return approvals


def deciding_answer(answers: Sequence[UserAnswer], people: int = 1) -> UserAnswer | None:
    """Return the answer that decides about a call, None while it waits for more people.

    `answers` are all answers since the question, oldest first. The first answer decides if one person is enough, and so
    does the first that does not approve. Otherwise the approval of the last of `people` different people decides, with
    the arguments that all of them approve.
    """
    if people <= 1:
        return answers[0] if answers else None
    for number, answer in enumerate(answers, 1):
        if not is_approval(answer.value):
            return answer
        approvals = approvals_of(answers[:number])
        if len(approvals) >= people:
            return structs.replace(answer, value=approvals[0].value)
    return None
