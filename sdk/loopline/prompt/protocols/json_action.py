"""The `json` protocol: what to do next as one JSON object, for models without tool calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    scan_json,
    well_formed,
    well_formed_object,
)
from loopline.prompt.protocols.decision import (
    Answer,
    Calls,
    Decided,
    Malformed,
    arguments_of,
    listed,
)

_MANUAL = """Reply with one JSON object and nothing else, in one of these forms:
{"action": "call_tool", "notes": "...", "tool": "<tool name>", "arguments": {...}}
{"action": "final_answer", "notes": "...", "answer": "..."}
Tool results come back as messages. Tools:"""
_FORMS = (
    'Write {"action": "call_tool", "tool": …, "arguments": {…}} '
    'or {"action": "final_answer", "answer": …}.'
)
_FIELD = re.compile(r'"(?:action|notes|tool|arguments|answer)"\s*:')


class JsonAction:
    """One JSON object a reply, for models without tool calls; several that are written all count."""

    name: Literal["json"] = "json"

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """The forms of a reply, and every tool with its schema."""
        return f"{_MANUAL}\n{listed(tools)}"

    def called(self, notes: str, calls: Sequence[ToolCall]) -> AssistantMessage:
        """The object that was written, one for each call."""
        actions: list[JsonObject] = [
            {"action": "call_tool", "tool": call.name, "arguments": call.arguments}
            for call in calls
        ]
        actions[0] = {"notes": notes, **actions[0]}
        return AssistantMessage(text="\n".join(dumps(one) for one in actions))

    def answered(self, text: str) -> AssistantMessage:
        """The object that was written."""
        return AssistantMessage(text=dumps({"action": "final_answer", "answer": text}))

    def result(self, message: ToolMessage) -> Message:
        """Said from the user's side."""
        return UserMessage(text=message.text)

    def decode(self, reply: Reply) -> Decided:
        """The JSON objects of the reply that say what to do; calls come before an answer."""
        return decided(well_formed(reply.text))


def decided(raw: str) -> Decided:
    """What the JSON objects in a text say is to be done.

    An object without an action that has an answer is one. A broken object with a field of an action
    is never passed over for a sound one in it or behind it.
    """
    found = scan_json(raw)
    for one in found:
        if isinstance(one, BrokenJson) and _FIELD.search(one.text):
            return Malformed(raw, f"The JSON of the reply is broken: {one.problem}. {_FORMS}")
    objects = [well_formed_object(one) for one in found if not isinstance(one, BrokenJson)]
    actions = [one for one in objects if "action" in one]
    if not actions:
        answers = [one for one in objects if isinstance(one.get("answer"), str)]
        actions = [{**one, "action": "final_answer"} for one in answers[:1]]
    if not actions:
        return Malformed(raw, f"The reply held no JSON object with an action. {_FORMS}")
    return _done(raw, actions)


def _done(raw: str, actions: Sequence[JsonObject]) -> Decided:
    notes = "\n".join(str(one.get("notes") or "").strip() for one in actions).strip()
    calls, answers = list[ToolCall](), list[str]()
    for one in actions:
        match one:
            case {"action": "call_tool", "tool": str(tool)}:
                arguments = arguments_of(one.get("arguments"))
                if arguments is None:
                    return Malformed(raw, "`arguments` must be a JSON object.")
                calls.append(ToolCall(name=tool, arguments=arguments))
            case {"answer": str(answer)} if answer.strip():
                answers.append(answer)
            case _:
                return Malformed(raw, f"An object has none of the known forms. {_FORMS}")
    return Calls(notes, tuple(calls)) if calls else Answer(notes, "\n\n".join(answers))
