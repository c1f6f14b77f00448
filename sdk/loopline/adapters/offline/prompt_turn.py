"""The turn as a prompt shows it: what is asked, what was called, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loopline.models import AssistantMessage, Message, Prompt, ToolCall, ToolMessage, UserMessage

_ASKED = re.compile(r"\A\[ar:([^\]\s]+)\.user\.(?:prompt|followup|steer)(?:\.\d+)?\]\s*")
_LABEL = re.compile(r"\A\[[a-z]{2,8}:[^\]\n]*\][ \t]*(?:\n|\Z)")
_BUNDLE = re.compile(r"^Bundle: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Asked:
    """Something the user asked, the place of its message, and its turn where a label names that."""

    text: str
    place: int
    turn: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """A call with its result, if one has come; `place` is that of the message that made it."""

    call: ToolCall
    place: int
    result: ToolMessage | None = None

    @property
    def ok(self) -> bool:
        """Whether the call came to good."""
        return self.result is not None and self.result.ok

    @property
    def text(self) -> str:
        """What came of it, without its label."""
        return unlabelled(self.result.text) if self.result else ""


@dataclass(frozen=True, slots=True)
class Turn:
    """What is asked now, what was asked before, and the calls made since, in order."""

    before: tuple[str, ...]
    asked: tuple[Asked, ...]
    done: tuple[Done, ...]
    bundle: str

    def calls(self, name: str) -> tuple[Done, ...]:
        """The calls of one tool in this turn."""
        return tuple(done for done in self.done if done.call.name == name)


def read(prompt: Prompt) -> Turn:
    """The turn that the prompt is about."""
    asked = list(_questions(prompt.messages))
    start = _start(prompt.messages, asked)
    bundle = _BUNDLE.search(prompt.system)
    return Turn(
        before=tuple(each.text for each in asked if each.place < start),
        asked=tuple(each for each in asked if each.place >= start),
        done=tuple(_done(prompt.messages, start)),
        bundle=bundle[1].strip() if bundle else "",
    )


def unlabelled(text: str) -> str:
    """The text without the ref in brackets that leads it."""
    return _LABEL.sub("", text, count=1)


def _start(messages: Sequence[Message], asked: Sequence[Asked]) -> int:
    """Where the turn begins: after the last answer, and with the first question of the last turn.

    An answer with no question behind it was held back, so it does not end the turn.
    """
    if not asked:
        return 0
    answers = [
        place
        for place, message in enumerate(messages)
        if isinstance(message, AssistantMessage) and not message.calls and place < asked[-1].place
    ]
    after = answers[-1] + 1 if answers else 0
    last = asked[-1].turn
    return min(each.place for each in asked if each.place >= after and each.turn == last)


def _questions(messages: Sequence[Message]) -> Iterator[Asked]:
    """User messages that ask something: those with a question's label, or without any."""
    for place, message in enumerate(messages):
        if not isinstance(message, UserMessage):
            continue
        label = _ASKED.match(message.text)
        text = message.text[label.end() :] if label else message.text
        if text.strip() and (label or not _LABEL.match(text)):
            yield Asked(text.strip(), place, label[1] if label else "")


def _done(messages: Sequence[Message], start: int) -> Iterator[Done]:
    for place in range(start, len(messages)):
        message = messages[place]
        if isinstance(message, AssistantMessage):
            yield from _with_results(messages, place, message.calls)


def _with_results(
    messages: Sequence[Message], place: int, calls: Sequence[ToolCall]
) -> Iterator[Done]:
    """Each call with its result: by id where there are ids, else in order."""
    results: list[ToolMessage] = []
    for message in messages[place + 1 :]:
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolMessage):
            results.append(message)
    for number, call in enumerate(calls):
        by_id = [each for each in results if call.call_id and each.call_id == call.call_id]
        in_order = [each for each in results[number : number + 1] if each.name == call.name]
        yield Done(call, place, next(iter(by_id or in_order), None))


_DRAFT = "[DRAFT] "
_RESULT = re.compile(r"\A\[RESULT (\S+)\] ([\w.-]+)\(.*?\): (\w+)\n(.*)\Z", re.DOTALL)
_LONGEST = 160


def traced(prompt: Prompt) -> str:
    """The answer that a trace holds; empty when the prompt shows none."""
    told = [message.text for message in prompt.messages if isinstance(message, UserMessage)]
    drafts = [text.removeprefix(_DRAFT) for text in told if text.startswith(_DRAFT)]
    if drafts:
        return drafts[-1]
    found = [line for text in told for line in _found(text)]
    return (
        "\n".join(["The work ended before there was an answer. It gave:", *found]) if found else ""
    )


def _found(text: str) -> Iterator[str]:
    result = _RESULT.match(text)
    if result is not None:
        ref, tool, status, said = result.groups()
        first = next((line.strip() for line in said.splitlines() if line.strip()), "nothing")
        yield f"- {tool} ({status}): {first[:_LONGEST]} — {ref}"
