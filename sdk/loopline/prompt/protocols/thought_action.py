"""The `thought_action` protocol: lines of text that start with Thought, Action and Action Input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from loopline import models
from loopline.prompt.protocols import decision
from loopline.prompt.protocols.tags import Walk

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
    r"(?P<bold>\*\*)?(?P<word>Thought|Action Input|Action|Input|Observation|Final Answer)[ \t]*"
    r"(?(bold)(?:\*\*:|:\*\*)|:)"
)
_MARK = re.compile(rf"^[ \t]*{_WORD}[ \t]*", re.MULTILINE)
_PLAIN = re.compile(rf"^([ \t]*)(\\*)(?={_WORD})", re.MULTILINE)
_ESCAPED = re.compile(rf"^([ \t]*)\\(\\*)(?={_WORD})", re.MULTILINE)
# The first line of a thought follows its mark on the same line, so only the later lines are escaped.
_LATER_PLAIN = re.compile(rf"(?<=\n)([ \t]*)(\\*)(?={_WORD})")
_LATER_ESCAPED = re.compile(rf"(?<=\n)([ \t]*)\\(\\*)(?={_WORD})")
_MAYBE = re.compile(r"[ \t]*+\\*+\*{0,2}[A-Za-z ]{0,12}[ \t]*+\*{0,2}:?\*{0,2}[ \t]*+")
_LONGEST_MARK = 64
_GAP = re.compile(r"(?:\s|```)*+")
_BEFORE_INPUT = re.compile(r"\s*(?:```\w*\s*)?")
_NO_INPUT = re.compile(r"(?:null|None)\b")


class ThoughtAction(decision.TextProtocol):
    """The protocol of Thought, Action and Observation lines, for models that follow only this form."""

    name: ClassVar[models.ProtocolName] = "thought_action"
    stop: ClassVar[tuple[str, ...]] = ("\nObservation:",)
    forms = _MANUAL
    before_result = "Observation: "

    def splitter(self) -> decision.Splitter:
        """Create a splitter that separates the final answer from the thoughts before it."""
        return ThoughtSplitter()

    def render_calls(self, notes: str, calls: Sequence[models.ToolCall]) -> models.AssistantMessage:
        """Return a message with the lines of the thought, and of each action and its input."""
        escaped = _LATER_PLAIN.sub(r"\1\\\2", notes)
        lines = [f"Thought: {escaped}"] if notes.strip() else []
        for call in calls:
            lines.append(f"Action: {' '.join(call.name.split())}")
            lines.append(f"Action Input: {models.dumps(call.arguments)}")
        return models.AssistantMessage(text="\n".join(lines))

    def render_answer(self, text: str) -> models.AssistantMessage:
        """Return a message with the final answer."""
        return models.AssistantMessage(text=f"Final Answer: {text}")

    def escape(self, text: str) -> str:
        """Return the text with a backslash before each line that starts like a mark."""
        return _PLAIN.sub(r"\1\\\2", text)

    def decode(self, reply: models.Reply) -> decision.DecodedReply:
        """Decode the actions before the first observation that the model invented; without an action, the final answer."""
        return _LineDecoder(models.well_formed(reply.text)).decode()


class _LineDecoder:
    """A decoder of one reply, mark by mark.

    `_action` is the name of an action that still lacks its input.
    """

    def __init__(self, raw: str) -> None:
        self._raw = raw
        self._at = 0
        self._thoughts: list[str] = []
        self._action: str | None = None
        self._calls: list[models.ToolCall] = []
        self._answer: str | None = None
        self._discarded: list[str] = []
        self._problem = ""

    def decode(self) -> decision.DecodedReply:
        """Return the calls, without a final answer after them; or, without calls, the final answer.

        An observation after an action ends the reply. A reply that has neither a call nor an answer, or an action without valid
        input, is malformed.
        """
        mark = self._next(0)
        if mark is not None and (before := self._raw[: mark.start()].strip()):
            self._thoughts.append(before)
        while mark is not None and not self._problem and self._answer is None:
            if mark["word"] == "Observation" and (self._calls or self._action):
                self._discarded.append(self._raw[mark.start() :])
                break
            self._take(mark)
            mark = self._next(self._at)
            self._discard(self._at, mark.start() if mark else len(self._raw))
        return self._decision()

    def _next(self, at: int) -> re.Match[str] | None:
        """Return the next mark; the word `Input` is a mark only after an action without input."""
        mark = _MARK.search(self._raw, at)
        while mark is not None and mark["word"] == "Input" and self._action is None:
            mark = _MARK.search(self._raw, mark.end())
        return mark

    def _discard(self, start: int, end: int) -> None:
        """Add the text from `start` to `end` to the discarded text, except blanks, fences, or after an answer."""
        gap = _GAP.match(self._raw, start, end)
        if gap is not None and gap.end() < end and self._answer is None:
            self._discarded.append(self._raw[start:end])

    def _take(self, mark: re.Match[str]) -> None:
        """Store the text after a mark as a thought, action, input or answer; discard it if it is an observation."""
        match mark["word"]:
            case "Thought":
                self._thoughts.append(_LATER_ESCAPED.sub(r"\1\2", self._text(mark)).strip())
            case "Action":
                self._check_complete()
                self._action = ""  # from here on, the word `Input` is a mark
                self._action = self._text(mark).strip().strip("`'\"")
            case "Action Input" | "Input":
                self._text(mark)
                self._take_input(mark.end())
            case "Final Answer":
                self._at = len(self._raw)
                self._answer = self._raw[mark.end() :].strip()
            case _:  # an observation without an action before it
                self._discarded.append(self._text(mark).strip())

    def _text(self, mark: re.Match[str]) -> str:
        """Return the text after a mark, up to the next one."""
        following = self._next(mark.end())
        self._at = following.start() if following else len(self._raw)
        return self._raw[mark.end() : self._at]

    def _take_input(self, at: int) -> None:
        """Add the call of the pending action with the JSON object at `at`; `null` counts as an empty object.

        Without a pending action, or if the object is broken, set the problem of the reply.
        """
        if self._action is None:
            self._problem = "An Action Input needs an Action before it."
            return
        before = _BEFORE_INPUT.match(self._raw, at)
        start = before.end() if before else at
        arguments: models.JsonObject = {}
        if not _NO_INPUT.match(self._raw, start):
            scanned = models.parse_object_at(self._raw, start)
            if isinstance(scanned, models.BrokenJson):
                self._problem = (
                    f"The Action Input is not a complete JSON object: {scanned.problem}."
                )
                return
            arguments, self._at = scanned
        self._calls.append(
            models.ToolCall(name=self._action, arguments=models.well_formed_object(arguments))
        )
        self._action = None

    def _check_complete(self) -> None:
        if self._action is not None and not self._problem:
            self._problem = f"The Action {self._action!r} has no Action Input."

    def _decision(self) -> decision.DecodedReply:
        """Return the calls or, without calls, the answer; a reply with neither, or with a problem, is malformed."""
        if self._answer is None or self._calls:
            self._check_complete()
        notes = decision.join_texts(self._thoughts)
        if self._problem:
            return decision.Malformed(self._raw, f"{self._problem} {_FORMS}")
        if self._calls:
            discarded = decision.join_texts([*self._discarded, self._answer])
            return decision.Calls(notes, tuple(self._calls), discarded=discarded)
        if self._answer:
            action = f"Action: {self._action}" if self._action else ""
            return decision.Answer(
                notes, self._answer, discarded=decision.join_texts([*self._discarded, action])
            )
        return decision.Malformed(
            self._raw, f"The reply has neither an Action nor a Final Answer. {_FORMS}"
        )


class ThoughtSplitter(decision.Splitter):
    """Separates the final answer from the thoughts before it, line by line.

    Marks, lines of actions, and invented observations after an action are left out. A line is held back while it may
    become a mark.
    """

    def __init__(self) -> None:
        self._channel: decision.Channel | None = "notes"
        self._mark = ""
        self._has_action = False
        self._run: list[str] = []
        self._pieces = decision.ChannelPieces({"notes": "\n", "answer": ""})
        self._reading = self._read()
        next(self._reading)

    def feed(self, text: str) -> list[decision.Piece]:
        """Take the next piece of the reply; return the texts that it adds to channels."""
        for character in text:
            self._reading.send(character)
        self._flush()
        return self._pieces.take()

    def close(self) -> list[decision.Piece]:
        """Return the texts that were held back when the reply ends."""
        self._reading.send("")
        self._flush()
        return self._pieces.take()

    def _read(self) -> Walk[None]:
        """Read the reply by lines: a mark switches the channel and is dropped; other text is collected."""
        while True:
            line = character = yield
            while character and len(line) <= _LONGEST_MARK and _MAYBE.fullmatch(line):
                character = yield
                line += character
            mark = _MARK.match(line)
            if mark is not None and self._begin(mark["word"]):
                self._run.append(line[mark.end() :])
            else:
                self._run.append(_ESCAPED.sub(r"\1\2", line))
            while character != "\n" or self._mark == "Final Answer":
                character = yield
                self._run.append(character)

    def _begin(self, mark: str) -> bool:
        """Switch to the channel of a mark; return False if the word is not a mark here."""
        if mark == "Input" and self._mark != "Action":
            return False
        self._flush()
        is_over = self._mark == "Observation" and self._has_action
        self._has_action = self._has_action or mark == "Action"
        if not is_over:
            self._mark = mark
            self._channel = _channel_after(mark, acted=self._has_action)
        if self._channel:
            self._pieces.begin(self._channel)
        return True

    def _flush(self) -> None:
        if self._channel:
            self._pieces.add(self._channel, "".join(self._run))
        self._run.clear()


def _channel_after(mark: str, *, acted: bool) -> decision.Channel | None:
    """Return the channel of the text after a mark; None for an answer after an action, and for other marks."""
    match mark:
        case "Thought":
            return "notes"
        case "Final Answer" if not acted:
            return "answer"
        case _:
            return None
