"""The `json` protocol: a decision is a JSON object; for models without tool calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from loopline.models import (
    AssistantMessage,
    BrokenJson,
    JsonObject,
    ProtocolName,
    Reply,
    ToolCall,
    dumps,
    well_formed,
    well_formed_object,
)
from loopline.models.json import split_json
from loopline.models.output import JsonText
from loopline.prompt.protocols import decision
from loopline.prompt.protocols.tags import Walk

_MANUAL = """Reply with one JSON object and nothing else, in one of these forms:
{"action": "call_tool", "notes": "...", "tool": "<tool name>", "arguments": {...}}
{"action": "final_answer", "notes": "...", "answer": "..."}
Tool results come back as messages. Tools:"""
_FORMS = (
    'Write {"action": "call_tool", "tool": …, "arguments": {…}} '
    'or {"action": "final_answer", "answer": …}.'
)
_FIELD = re.compile(r'"(?:action|notes|tool|arguments|answer)"\s*:')
_ACTION = re.compile(r'"(?=action"\s*+:\s*+"(?:call_tool|final_answer)")')
_BETWEEN = re.compile(r"(?:[\s,]|```\w*)*+")
_CHANNELS: dict[str, decision.Channel] = {"notes": "notes", "answer": "answer"}
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_HEX = frozenset("0123456789abcdefABCDEF")


class JsonAction(decision.TextProtocol):
    """The JSON protocol: a reply should be one object; if it has several, all of them are used.

    With `values` the answer may be any JSON value, and the text of the answer is its JSON.
    """

    name: ClassVar[ProtocolName] = "json"
    forms = _MANUAL

    def __init__(self, *, values: bool = False) -> None:
        self._values = values

    def splitter(self) -> decision.Splitter:
        """Create a splitter that reads `notes` and `answer` from an unfinished object."""
        return JsonSplitter(values=self._values)

    def render_calls(self, notes: str, calls: Sequence[ToolCall]) -> AssistantMessage:
        """Return a message with an object for each call, one on each line; the first object also has the notes."""
        actions: list[JsonObject] = [
            {"action": "call_tool", "tool": call.name, "arguments": call.arguments}
            for call in calls
        ]
        actions[0] = {"notes": notes, **actions[0]}
        return AssistantMessage(text="\n".join(dumps(action) for action in actions))

    def render_answer(self, text: str) -> AssistantMessage:
        """Return a message with the answer object."""
        return AssistantMessage(text=dumps({"action": "final_answer", "answer": text}))

    def escape(self, text: str) -> str:
        """Return the text with a backslash before the quote of each field `action`."""
        return _ACTION.sub(r'\\"', text)

    def decode(self, reply: Reply) -> decision.DecodedReply:
        """Decode the JSON objects of the reply; if there are calls, an answer is discarded."""
        return decode_actions(well_formed(reply.text), values=self._values)


def decode_actions(raw: str, *, values: bool = False) -> decision.DecodedReply:
    """Decode the JSON objects in a text as calls or an answer.

    If no object has an `action`, the first one with an `answer` is the answer; without that object, the text is malformed.
    A broken object with a field of an action makes the reply malformed, even if valid objects follow. With `values` an
    answer may be any JSON value.
    """
    scanned, between = split_json(raw)
    for item in scanned:
        if isinstance(item, BrokenJson) and _FIELD.search(item.text):
            return decision.Malformed(
                raw, f"The JSON of the reply is broken: {item.problem}. {_FORMS}"
            )
    objects = [well_formed_object(item) for item in scanned if not isinstance(item, BrokenJson)]
    if values:
        objects = [
            {**item, "answer": dumps(item["answer"])} if "answer" in item else item
            for item in objects
        ]
    actions = [item for item in objects if "action" in item]
    if not actions:
        answers = [item for item in objects if isinstance(item.get("answer"), str)]
        actions = [{**item, "action": "final_answer"} for item in answers[:1]]
    if not actions:
        return decision.Malformed(raw, f"The reply has no JSON object with an action. {_FORMS}")
    is_whole = len(actions) == len(scanned) and all(map(_BETWEEN.fullmatch, between))
    return _decide(raw, actions, is_whole=is_whole, values=values)


def _decide(
    raw: str, actions: Sequence[JsonObject], *, is_whole: bool, values: bool
) -> decision.DecodedReply:
    """Return the decision of the actions in a reply.

    The raw reply is stored as discarded text if `is_whole` is false or a part of an action is not used.
    Arguments that are not an object, an unknown form of an object and, with `values`, several answers are malformed.
    """
    notes = decision.join_texts(str(action.get("notes") or "").strip() for action in actions)
    calls: list[ToolCall] = []
    answers: list[str] = []
    for action in actions:
        match action:
            case {"action": "call_tool", "tool": str(tool)}:
                arguments = decision.as_arguments(action.get("arguments"))
                if arguments is None:
                    return decision.Malformed(raw, "`arguments` must be a JSON object.")
                calls.append(ToolCall(name=tool, arguments=arguments))
            case {"answer": str(answer)} if answer.strip():
                answers.append(answer.strip())
            case _:
                return decision.Malformed(raw, f"An object has none of the known forms. {_FORMS}")
    has_unused = any(map(_has_unused_fields, actions)) or (calls and answers)
    discarded = "" if is_whole and not has_unused else raw
    if calls:
        return decision.Calls(notes, tuple(calls), discarded=discarded)
    if values and len(answers) > 1:  # joined, they would not be JSON
        return decision.Malformed(raw, f"The reply gave {len(answers)} answers: give one.")
    return decision.Answer(notes, "\n\n".join(answers), discarded=discarded)


def _has_unused_fields(action: JsonObject) -> bool:
    used = {"notes", "tool", "arguments"} if "tool" in action else {"notes", "answer"}
    return any(value for name, value in action.items() if name not in {"action", *used})


class JsonSplitter(decision.Splitter):
    """Reads `notes` and `answer` from JSON objects while they are written.

    Only fields of an outermost object are read. An object that becomes invalid later is only noticed by `decode`. An
    unfinished field has no text when the reply ends.
    """

    def __init__(self, *, values: bool = False) -> None:
        self._values = values
        self._text: list[str] = []
        self._channel: decision.Channel | None = None
        self._pieces = decision.ChannelPieces({"notes": "\n", "answer": "\n\n"})
        self._reading = self._read()
        next(self._reading)

    def feed(self, text: str) -> list[decision.Piece]:
        """Take the next piece of the reply; return the texts that it adds to channels."""
        for character in text:
            self._reading.send(character)
        self._flush()
        return self._pieces.take()

    def _read(self) -> Walk[None]:
        """Read the reply by characters, and send the `notes` and `answer` of outermost objects to channels."""
        depth = 0
        key = ""
        is_value = False
        character = yield
        while True:
            channel = _CHANNELS.get(key) if is_value and depth == 1 else None
            if character == '"' and depth:
                text = yield from self._read_string(channel)
                key = key if is_value else text
            elif self._values and channel == "answer" and not character.isspace():
                character = yield from self._read_value(character)
                key = ""
                continue
            elif character == ":":
                is_value = True
            elif character in "{}[],":
                key = ""
                is_value = False
                depth += character in "{["
                depth -= character in "}]" and depth > 0
            character = yield

    def _read_string(self, channel: decision.Channel | None) -> Walk[str]:
        """Read a string after its first quote, and return its text, or "" if the text is sent to a channel."""
        self._open(channel)
        character = yield
        while character != '"':
            if character == "\\":
                character = yield from self._read_escape()
            else:
                self._text.append(character)
                character = yield
        return self._close()

    def _read_escape(self) -> Walk[str]:
        """Read an escape after its backslash, and return the character after it.

        An escape that JSON does not define is kept as text.
        """
        name = yield
        if name != "u":
            self._text.append(_ESCAPES.get(name, f"\\{name}"))
            return (yield)
        digits = ""
        while len(digits) < 4:
            character = yield
            if character not in _HEX:
                self._text.append(f"\\u{digits}")
                return character
            digits += character
        self._text.append(chr(int(digits, 16)))
        return (yield)

    def _read_value(self, character: str) -> Walk[str]:
        """Read an answer that is a JSON value other than a string; return the character after it."""
        value = JsonText()
        self._open("answer")
        while not value.is_over:
            self._text.append(value.feed(character))
            if not value.remainder:
                character = yield
        self._close()
        return character

    def _open(self, channel: decision.Channel | None) -> None:
        self._channel = channel
        if channel:
            self._pieces.begin(channel)

    def _close(self) -> str:
        self._flush(is_complete=True)
        text = "".join(self._text)
        self._text.clear()
        self._channel = None
        return text

    def _flush(self, *, is_complete: bool = False) -> None:
        """Send the text of a channel, but hold back the first half of a surrogate pair."""
        if self._channel is None:
            return
        text = "".join(self._text)
        half = text[-1:] if not is_complete and "\ud800" <= text[-1:] <= "\udbff" else ""
        self._text[:] = [half] if half else []
        self._pieces.add(self._channel, _join_surrogates(text.removesuffix(half)))


def _join_surrogates(text: str) -> str:
    """Return the text with surrogate pairs joined to characters, and lone surrogates as escapes."""
    if text.isascii():
        return text
    return well_formed(text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass"))
