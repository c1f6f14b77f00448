"""The `thought_action` protocol: lines of text that begin with Thought, Action and Action Input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from loopline.models import (
    AssistantMessage,
    BrokenJson,
    JsonObject,
    Message,
    Reply,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
    dumps,
    object_at,
    well_formed,
    well_formed_object,
)
from loopline.prompt.protocols.decision import Answer, Calls, Decided, Malformed, listed

_MANUAL = """Reply with these lines, to call a tool:
Thought: what you know, and what you do next
Action: <tool name>
Action Input: {"its arguments": "as one JSON object"}
Or, once you can answer:
Thought: why that is enough
Final Answer: the answer, as long as it need be
Stop after Action Input: the Observation comes back as a message, never write one yourself.
A line of a thought that would begin with one of these words begins with a backslash. Tools:"""
_FORMS = (
    "Write the lines `Thought: …`, `Action: <tool name>`, `Action Input: {…}`, "
    "or `Thought: …`, `Final Answer: …`."
)

_WORD = (
    r"(?P<bold>\*\*)?(?P<word>Thought|Action Input|Action|Observation|Final Answer)[ \t]*"
    r"(?(bold)(?:\*\*:|:\*\*)|:)"
)
_MARK = re.compile(rf"^[ \t]*{_WORD}[ \t]*", re.MULTILINE)
_PLAIN = re.compile(rf"^([ \t]*)(\\*)(?={_WORD})", re.MULTILINE)
_ESCAPED = re.compile(rf"^([ \t]*)\\(\\*)(?={_WORD})", re.MULTILINE)
_MAYBE = re.compile(r"[ \t]*+\*{0,2}[A-Za-z ]{0,12}[ \t]*+\*{0,2}:?\*{0,2}[ \t]*+")
_LONGEST_MARK = 64
_SHOWN = {"Thought": "thinking", "Final Answer": "answer"}
_BEFORE_INPUT = re.compile(r"\s*(?:```\w*\s*)?")
_NO_INPUT = re.compile(r"(?:null|None)\b")


class ThoughtAction:
    """Thought, action and observation as lines of text, for models that know nothing else."""

    name: Literal["thought_action"] = "thought_action"

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """The lines of a reply, and every tool with its schema."""
        return f"{_MANUAL}\n{listed(tools)}"

    def called(self, notes: str, calls: Sequence[ToolCall]) -> AssistantMessage:
        """The lines that were written."""
        thought = _PLAIN.sub(r"\1\\\2", notes)
        lines = [f"Thought: {thought}"] if notes.strip() else []
        for call in calls:
            lines.append(f"Action: {' '.join(call.name.split())}")
            lines.append(f"Action Input: {dumps(call.arguments)}")
        return AssistantMessage(text="\n".join(lines))

    def answered(self, text: str) -> AssistantMessage:
        """The line that was written."""
        return AssistantMessage(text=f"Final Answer: {text}")

    def result(self, message: ToolMessage) -> Message:
        """Said from the user's side, as what was observed."""
        return UserMessage(text=f"Observation: {message.text}")

    def decode(self, reply: Reply) -> Decided:
        """The actions up to the first invented observation behind one; else the final answer."""
        return _Lines(well_formed(reply.text)).decided()


class _Lines:
    """A reply, read mark by mark from the top."""

    def __init__(self, raw: str) -> None:
        self._raw = raw
        self._at = 0
        self._thoughts: list[str] = []
        self._named: str | None = None
        self._calls: list[ToolCall] = []
        self._answer: str | None = None
        self._problem = ""

    def decided(self) -> Decided:
        """What the lines come to."""
        mark = _MARK.search(self._raw)
        if mark is not None and (before := self._raw[: mark.start()].strip()):
            self._thoughts.append(before)
        while mark is not None and not self._problem and self._answer is None:
            if mark["word"] == "Observation" and (self._calls or self._named):
                break
            self._take(mark)
            mark = _MARK.search(self._raw, self._at)
        return self._outcome()

    def _take(self, mark: re.Match[str]) -> None:
        following = _MARK.search(self._raw, mark.end())
        self._at = following.start() if following else len(self._raw)
        text = self._raw[mark.end() : self._at].strip()
        match mark["word"]:
            case "Thought":
                self._thoughts.append(_ESCAPED.sub(r"\1\2", text))
            case "Action":
                self._check_complete()
                self._named = text.strip("`'\"")
            case "Action Input":
                self._take_input(mark.end())
            case "Final Answer":
                self._answer = self._raw[mark.end() :].strip()
            case _:
                pass  # an observation of nothing: no action stands before it

    def _take_input(self, at: int) -> None:
        if self._named is None:
            self._problem = "An Action Input stands without an Action before it."
            return
        before = _BEFORE_INPUT.match(self._raw, at)
        begun = before.end() if before else at
        arguments: JsonObject = {}
        if not _NO_INPUT.match(self._raw, begun):
            found = object_at(self._raw, begun)
            if isinstance(found, BrokenJson):
                self._problem = f"The Action Input is no whole JSON object: {found.problem}."
                return
            arguments, self._at = found
        self._calls.append(ToolCall(name=self._named, arguments=well_formed_object(arguments)))
        self._named = None

    def _check_complete(self) -> None:
        if self._named is not None and not self._problem:
            self._problem = f"The Action {self._named!r} has no Action Input."

    def _outcome(self) -> Decided:
        if self._answer is None or self._calls:
            self._check_complete()
        notes = "\n".join(part for part in self._thoughts if part)
        if self._problem:
            return Malformed(self._raw, f"{self._problem} {_FORMS}")
        if self._calls:
            return Calls(notes, tuple(self._calls))
        if self._answer:
            return Answer(notes, self._answer)
        return Malformed(self._raw, f"The reply has neither an Action nor a Final Answer. {_FORMS}")


class ThoughtSplitter:
    """Tells a final answer from what stands before it, while the text comes in line by line.

    `feed` and `close` give pairs of "thinking" or "answer", and the next text of that. Marks and the
    lines of actions are passed over. A line is held back as long as it may still become a mark.
    """

    def __init__(self) -> None:
        self._line: str | None = ""
        self._channel = "thinking"
        self._pieces: list[tuple[str, str]] = []

    def feed(self, text: str) -> list[tuple[str, str]]:
        """What the next piece of the text adds to which channel."""
        for character in text:
            self._take(character)
        return self._given()

    def close(self) -> list[tuple[str, str]]:
        """What is left when nothing more comes."""
        self._decide()
        return self._given()

    def _take(self, character: str) -> None:
        if self._line is None:
            self._say(character)
            return
        self._line += character
        if len(self._line) > _LONGEST_MARK or not _MAYBE.fullmatch(self._line):
            self._decide()

    def _decide(self) -> None:
        """The beginning of the line is a mark or it is none; what is behind that is text."""
        line, self._line = self._line or "", None
        mark = _MARK.match(line)
        if mark is not None:
            self._channel = _SHOWN.get(mark["word"], "")
        for character in line[mark.end() if mark else 0 :]:
            self._say(character)

    def _say(self, character: str) -> None:
        if self._channel:
            self._pieces.append((self._channel, character))
        if character == "\n" and self._channel != "answer":
            self._line = ""

    def _given(self) -> list[tuple[str, str]]:
        pieces, self._pieces = self._pieces, []
        runs = groupby(pieces, key=lambda piece: piece[0])
        return [(channel, "".join(text for _, text in run)) for channel, run in runs]
