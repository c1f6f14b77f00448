"""The turn as its prompt shows it: the questions, the calls and their results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loopline.models import AssistantMessage, Message, Prompt, ToolCall, ToolMessage, UserMessage

_QUESTION = re.compile(r"\A\[ar:([^\]\s]+)\.user\.(?:prompt|followup|steer)(?:\.\d+)?\]\s*")
_LABEL = re.compile(r"\A\[[a-z]{2,8}:[^\]\n]*\][ \t]*(?:\n|\Z)")
_BUNDLE = re.compile(r"^Bundle: (.+)$", re.MULTILINE)
_DRAFT = "[DRAFT] "
_RESULT = re.compile(r"\A\[RESULT (\S+)\] ([\w.-]+)\(.*?\): (\w+)\n(.*)\Z", re.DOTALL)
_RESULT_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class UserQuestion:
    """A text of the user, the index of its message, and its turn if a label names it."""

    text: str
    index: int
    turn: str = ""


@dataclass(frozen=True, slots=True)
class PromptCall:
    """A call with its result, if there is one; `index` is that of the message that made it."""

    call: ToolCall
    index: int
    result: ToolMessage | None = None

    @property
    def ok(self) -> bool:
        """Return whether the call succeeded."""
        return self.result is not None and self.result.ok

    @property
    def text(self) -> str:
        """Return the text of the result without the ref in brackets before it."""
        return _LABEL.sub("", self.result.text, count=1) if self.result else ""

    @property
    def query(self) -> str:
        """Return the query of a search."""
        match self.call.arguments:
            case {"query": query}:
                return str(query)
            case _:
                return ""


@dataclass(frozen=True, slots=True)
class PromptTurn:
    """The questions of this turn, the texts of those before it, and the calls of this turn in order."""

    previous: tuple[str, ...]
    questions: tuple[UserQuestion, ...]
    calls: tuple[PromptCall, ...]
    bundle: str

    def calls_of(self, tool: str) -> tuple[PromptCall, ...]:
        """Return the calls of one tool in this turn."""
        return tuple(call for call in self.calls if call.call.name == tool)


def read_turn(prompt: Prompt) -> PromptTurn:
    """Return the turn that the prompt is for."""
    questions = list(_questions(prompt.messages))
    start = _start(prompt.messages, questions)
    bundle = _BUNDLE.search(prompt.system)
    return PromptTurn(
        previous=tuple(question.text for question in questions if question.index < start),
        questions=tuple(question for question in questions if question.index >= start),
        calls=tuple(_calls(prompt.messages, start)),
        bundle=bundle[1].strip() if bundle else "",
    )


def answer_from_trace(prompt: Prompt) -> str:
    """Return the draft in the prompt, else the results of its calls, else an empty text."""
    texts = [message.text for message in prompt.messages if isinstance(message, UserMessage)]
    drafts = [text.removeprefix(_DRAFT) for text in texts if text.startswith(_DRAFT)]
    if drafts:
        return drafts[-1]
    lines = [_result_line(match) for match in map(_RESULT.match, texts) if match]
    return (
        "\n".join(["The work ended before there was an answer. It gave:", *lines]) if lines else ""
    )


def _result_line(match: re.Match[str]) -> str:
    ref, tool, status, text = match.groups()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
    return f"- {tool} ({status}): {first[:_RESULT_CHARACTERS]} — {ref}"


def _start(messages: Sequence[Message], questions: Sequence[UserQuestion]) -> int:
    """Return the index of the first question of the last turn that comes after the last answer.

    An answer with no question after it was held back, so it does not end the turn.
    """
    if not questions:
        return 0
    last = questions[-1]
    answers = [
        index
        for index, message in enumerate(messages[: last.index])
        if isinstance(message, AssistantMessage) and not message.calls
    ]
    after = answers[-1] + 1 if answers else 0
    return min(item.index for item in questions if item.index >= after and item.turn == last.turn)


def _questions(messages: Sequence[Message]) -> Iterator[UserQuestion]:
    """Yield the user messages with a question's label or without any label."""
    for index, message in enumerate(messages):
        if not isinstance(message, UserMessage):
            continue
        label = _QUESTION.match(message.text)
        text = message.text[label.end() :] if label else message.text
        if text.strip() and (label or not _LABEL.match(text)):
            yield UserQuestion(text.strip(), index, label[1] if label else "")


def _calls(messages: Sequence[Message], start: int) -> Iterator[PromptCall]:
    for index, message in enumerate(messages[start:], start):
        if isinstance(message, AssistantMessage):
            yield from _with_results(messages, index, message.calls)


def _with_results(
    messages: Sequence[Message], index: int, calls: Sequence[ToolCall]
) -> Iterator[PromptCall]:
    """Yield each call with its result, matched by id or, without ids, by order."""
    results: list[ToolMessage] = []
    for message in messages[index + 1 :]:
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolMessage):
            results.append(message)
    for number, call in enumerate(calls):
        by_id = [item for item in results if call.call_id and item.call_id == call.call_id]
        in_order = [item for item in results[number : number + 1] if item.name == call.name]
        yield PromptCall(call, index, next(iter(by_id or in_order), None))
