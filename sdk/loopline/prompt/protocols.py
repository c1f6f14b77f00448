"""Protocols: how decisions are asked for and read. Both halves of each, encoding and decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from loopline.errors import LooplineError
from loopline.models import (
    AssistantMessage,
    JsonObject,
    Message,
    Reply,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
    dumps,
    json_objects,
    well_formed,
    well_formed_object,
)

ProtocolName = Literal["native", "json"]


@dataclass(frozen=True, slots=True)
class Calls:
    """The model wants tools run; `notes` is what it said beside."""

    notes: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The model has answered; `notes` is what it said beside, where the protocol has a place for it."""

    notes: str
    text: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """The reply is neither; `problem` tells the model what was wrong."""

    raw: str
    problem: str


Decided = Calls | Answer | Malformed


class DecisionProtocol(Protocol):
    """How a round travels to a model and back."""

    @property
    def name(self) -> ProtocolName:
        """Its name in `turn.header`."""
        ...

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """What the system text says about it; empty when nothing need be said."""
        ...

    def called(self, notes: str, calls: Sequence[ToolCall]) -> Message:
        """A past decision that made calls."""
        ...

    def answered(self, text: str) -> Message:
        """A past answer."""
        ...

    def result(self, message: ToolMessage) -> Message:
        """What came of a past call."""
        ...

    def decode(self, reply: Reply) -> Decided:
        """What the model has decided."""
        ...


class Native:
    """The provider's own tool calls."""

    name: Literal["native"] = "native"

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """The tools travel beside the text."""
        del tools
        return ""

    def called(self, notes: str, calls: Sequence[ToolCall]) -> Message:
        """Notes and calls."""
        return AssistantMessage(text=notes, calls=tuple(calls))

    def answered(self, text: str) -> Message:
        """The text."""
        return AssistantMessage(text=text)

    def result(self, message: ToolMessage) -> Message:
        """As it is."""
        return message

    def decode(self, reply: Reply) -> Decided:
        """Calls when there are any, else the answer."""
        text = well_formed(reply.text)
        if reply.calls:
            return Calls(text.strip(), tuple(map(_sound, reply.calls)))
        if not text.strip():
            return Malformed(text, "The reply was empty: call a tool or answer.")
        return Answer("", text)


_JSON_MANUAL = """Reply with one JSON object and nothing else, in one of these forms:
{"action": "call_tool", "notes": "...", "tool": "<tool name>", "arguments": {...}}
{"action": "final_answer", "notes": "...", "answer": "..."}
Tool results come back as messages. Tools:"""


class JsonAction:
    """One JSON object a reply, for models without tool calls."""

    name: Literal["json"] = "json"

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """The forms of a reply, and every tool with its schema."""
        rows = [f"- {tool.name}: {tool.description}\n  {dumps(tool.parameters)}" for tool in tools]
        return "\n".join([_JSON_MANUAL, *rows])

    def called(self, notes: str, calls: Sequence[ToolCall]) -> Message:
        """The object that was written."""
        actions: list[JsonObject] = [
            {"action": "call_tool", "tool": call.name, "arguments": call.arguments}
            for call in calls
        ]
        actions[0] = {"notes": notes, **actions[0]}
        return AssistantMessage(text="\n".join(dumps(one) for one in actions))

    def answered(self, text: str) -> Message:
        """The object that was written."""
        return AssistantMessage(text=dumps({"action": "final_answer", "answer": text}))

    def result(self, message: ToolMessage) -> Message:
        """Said from the user's side."""
        return UserMessage(text=message.text)

    def decode(self, reply: Reply) -> Decided:
        """The JSON objects of the reply that say what to do; calls come before an answer."""
        raw = well_formed(reply.text)
        objects = [well_formed_object(one) for one in json_objects(raw)]
        actions = [one for one in objects if "action" in one]
        if not actions:
            return Malformed(raw, f"The reply held no JSON object with an action. {_JSON_FORMS}")
        notes = "\n".join(str(one.get("notes") or "").strip() for one in actions).strip()
        calls, answers = list[ToolCall](), list[str]()
        for one in actions:
            match one:
                case {"action": "call_tool", "tool": str(tool)}:
                    arguments = one.get("arguments") or {}
                    if not isinstance(arguments, dict):
                        return Malformed(raw, "`arguments` must be a JSON object.")
                    calls.append(ToolCall(name=tool, arguments=arguments))
                case {"action": "final_answer", "answer": str(answer)} if answer.strip():
                    answers.append(answer)
                case _:
                    return Malformed(raw, f"An object has none of the known forms. {_JSON_FORMS}")
        return Calls(notes, tuple(calls)) if calls else Answer(notes, "\n\n".join(answers))


_JSON_FORMS = (
    'Write {"action": "call_tool", "tool": …, "arguments": {…}} '
    'or {"action": "final_answer", "answer": …}.'
)


def _sound(call: ToolCall) -> ToolCall:
    arguments = well_formed_object(call.arguments)
    return ToolCall(
        name=well_formed(call.name), arguments=arguments, provider_id=well_formed(call.provider_id)
    )


def protocol(name: ProtocolName) -> DecisionProtocol:
    """The protocol of that name."""
    return Native() if name == "native" else JsonAction()


NATIVE = "native"


def protocol_named(name: str) -> DecisionProtocol:
    """The protocol that a log names.

    Raises:
        LooplineError: this loopline does not know it.
    """
    match name:
        case "native" | "json" as known:
            return protocol(known)
        case _:
            raise LooplineError(f"no protocol {name!r} here: a newer loopline wrote this")
