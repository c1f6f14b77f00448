"""The `tagged` protocol: calls and the answer in tags, which can be split while they are streamed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape, unescape
from typing import ClassVar, TypeVar

from msgspec import structs

from loopline import models
from loopline.prompt.protocols import decision
from loopline.prompt.protocols.json_action import JsonSplitter, decode_actions
from loopline.prompt.protocols.tags import ChannelSplitter, Element, elements, escape_tags

V = TypeVar("V")

_MANUAL = """Reply in tags. To call tools, say in a few words what you do, then for each call:
<tool_call name="<tool name>">{"its arguments": "as one JSON object"}</tool_call>
A long `code` argument may follow its call as it is, in <channel:code>…</channel:code>.
Tool results come back as messages. Once you can answer:
<channel:answer>the answer, as long as it need be</channel:answer>
What you think goes before, in <channel:thinking>…</channel:thinking>, one or two sentences.
To write one of these tags as text, put a backslash behind its <. Tools:"""
_FORMS = (
    'Write <tool_call name="…">{…}</tool_call> for each call, '
    "or <channel:answer>…</channel:answer>."
)

_ATTRIBUTE = re.compile(
    r"""(?<![\w:-])([\w:-]++)\s*+=\s*+"""
    r"""(?:"((?:[^"\\]|\\.)*+)"|'((?:[^'\\]|\\.)*+)'|([^\s"'>]++))""",
    re.DOTALL,
)
_FENCE = re.compile(r"\A```[^\n`]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_FENCES_ONLY = re.compile(r"\A(?:\s*```\w*)*\s*\Z")
_ODD_CALL = re.compile(
    r"(?:<|&lt;|&#0?60;|\\u003c)\|?/?"  # a tag, also with its bracket as an entity
    r"(?:tool[_ -]?calls?|tool_use|tool_code|function[_ -]?calls?|function=|invoke\b|python_tag)"
    r"|^[ \t]*\[/?(?:tool[_ -]?calls?|tool|agent_call|function_calls?)\b"
    r"|^[ \t>`*-]*+\[?@?\w[\w-]*+(?:\.[\w-]++)++[ \t:]*+\(?[ \t]*+\{"  # [shop.find {…}], shop.find({…})
    r"|^[ \t>`*-]*+Action[ \t]?Input[ \t`*]*+:"
    r"|^[ \t>`*-]*+Action[ \t`*]*+:[ \t`*]*+\w[\w-]*+(?:\.[\w-]++)++[ \t`*]*+(?:[({]|$)"
    r'|"(?:tool_calls?|function_call)"\s*+:',
    re.IGNORECASE | re.MULTILINE,
)
"""The look of calls in other forms, which are malformed here."""
_NAMES = ("name", "tool", "function", "action")
_ARGUMENTS = ("args", "arguments", "parameters", "input")


class Tagged(decision.TextProtocol):
    """The tagged protocol, for models without tool calls that follow instructions; its answer can be streamed."""

    name: ClassVar[models.ProtocolName] = "tagged"
    forms = _MANUAL

    def __init__(self, *, delegate: str = "") -> None:
        """`delegate` is the tool that `<agent_call agent="…" task="…"/>` calls; without it, an agent_call is malformed."""
        self._delegate = delegate

    def splitter(self) -> decision.Splitter:
        """Create a splitter for answer, notes and thinking."""
        return TaggedSplitter()

    def render_calls(self, notes: str, calls: Sequence[models.ToolCall]) -> models.AssistantMessage:
        """Return a message with the notes, and a tag for each call."""
        lines = [escape_tags(notes)] if notes.strip() else []
        return models.AssistantMessage(text="\n".join([*lines, *map(_call_tags, calls)]))

    def render_answer(self, text: str) -> models.AssistantMessage:
        """Return a message with the answer channel."""
        return models.AssistantMessage(text=f"<channel:answer>{escape_tags(text)}</channel:answer>")

    def escape(self, text: str) -> str:
        """Return the text with a backslash in each tag."""
        return escape_tags(text)

    def decode(self, reply: models.Reply) -> decision.DecodedReply:
        """Decode the calls, with the text outside of tags as notes, or if there are no calls the answer.

        A reply without tags is an answer; if it looks like a call in another form, it is malformed. A `decision` channel
        has objects of the `json` protocol. Channels with unknown names are part of the answer.
        """
        return _TaggedDecoder(models.well_formed(reply.text), delegate=self._delegate).decode()


class _TaggedDecoder:
    """A decoder of one reply, element by element."""

    def __init__(self, raw: str, *, delegate: str = "") -> None:
        self._raw = raw
        self._delegate = delegate
        self._outside: list[str] = []
        self._notes: list[str] = []
        self._thoughts: list[str] = []
        self._answers: list[str] = []
        self._calls: list[models.ToolCall] = []
        self._discarded: list[str] = []
        self._problem = ""

    def decode(self) -> decision.DecodedReply:
        """Return the decision: calls, or an answer if there are none; without one, the text outside of the tags is the answer.

        An answer beside calls is discarded. A reply with an invalid element, with neither calls nor an answer, or with a call
        in an unknown form is malformed.
        """
        for element in elements(self._raw):
            self._take(element)
            if self._problem:
                return decision.Malformed(self._raw, f"{self._problem} {_FORMS}")
        outside = "".join(self._outside).strip()
        notes = decision.join_texts(
            part for part in [*self._notes, outside] if not _FENCES_ONLY.match(part)
        )
        thinking = decision.join_texts(self._thoughts)
        answer = decision.join_texts(self._answers, "\n\n")
        if self._calls:
            discarded = decision.join_texts([*self._discarded, answer])
            return decision.Calls(notes, tuple(self._calls), thinking, discarded)
        discarded = decision.join_texts(self._discarded)
        if answer:
            return decision.Answer(notes, answer, thinking, discarded)
        if outside and not self._answers:
            if _is_odd_call(outside):
                return decision.Malformed(
                    self._raw, f"The reply has a call in an unknown form. {_FORMS}"
                )
            return decision.Answer(decision.join_texts(self._notes), outside, thinking, discarded)
        return decision.Malformed(
            self._raw, f"The reply has neither a call nor an answer. {_FORMS}"
        )

    def _take(self, element: Element) -> None:
        """Add an element to the decision by its name; a channel with an unknown name is added to the answer."""
        match element.name:
            case "":
                self._outside.append(element.text)
            case "thinking":
                self._thoughts.append(element.text.strip())
            case "code":
                self._take_code(element)
            case "decision":
                self._take_decision(element.text)
            case "agent_call" if element.is_call:
                self._take_agent_call(element)
            case "tool_call" if element.is_call:
                self._take_call(element)
            case _:
                self._answers.append(element.text.strip())

    def _take_call(self, element: Element) -> None:
        call = _tool_call(element)
        if isinstance(call, str):
            self._problem = call
        else:
            self._calls.append(call)

    def _take_agent_call(self, element: Element) -> None:
        """Add a call of the tool `delegate`; without that tool, an agent or a task, set the problem of the reply."""
        fields = {"agent": "", "task": element.text.strip(), **_attributes(element)}
        if not self._delegate:
            self._problem = "There are no agents to call here."
        elif not fields["agent"].strip() or not fields["task"].strip():
            self._problem = (
                'An agent_call needs an agent and a task: <agent_call agent="…" task="…"/>.'
            )
        else:
            names = ("agent", "task", "context")
            arguments: models.JsonObject = {name: fields[name] for name in names if name in fields}
            self._calls.append(models.ToolCall(name=self._delegate, arguments=arguments))

    def _take_code(self, element: Element) -> None:
        """Set the argument `code` of the last call; without a call or a closing tag, set the problem of the reply."""
        if not self._calls:
            self._problem = "A code channel needs a call before it."
        elif not element.closed:
            self._problem = "The code channel is not closed."
        else:
            last = self._calls[-1]
            code = _code(element.text)
            self._calls[-1] = structs.replace(last, arguments={**last.arguments, "code": code})

    def _take_decision(self, text: str) -> None:
        """Add the notes, calls or answer of a `decision` channel; set the problem of the reply if it is malformed."""
        match decode_actions(text):
            case decision.Calls(notes=notes, calls=calls, discarded=discarded):
                self._notes.append(notes)
                self._discarded.append(discarded)
                self._calls += calls
            case decision.Answer(notes=notes, text=answer, discarded=discarded):
                self._notes.append(notes)
                self._discarded.append(discarded)
                self._answers.append(answer)
            case decision.Malformed(problem=problem):
                self._problem = f"The decision channel cannot be read. {problem}"


class TaggedSplitter(decision.Splitter):
    """Splits a tagged text into answer, notes and thinking, without the calls."""

    def __init__(self) -> None:
        self._channels = ChannelSplitter()
        self._decision = JsonSplitter()
        self._element: Element | None = None
        self._pieces = decision.ChannelPieces({"notes": "", "thinking": "\n", "answer": "\n\n"})
        self._has_calls = False

    def feed(self, text: str) -> list[decision.Piece]:
        """Take the next piece of the reply; return the texts that it adds to channels."""
        return self._split(self._channels.feed(text))

    def close(self) -> list[decision.Piece]:
        """Return the texts that were held back when the reply ends."""
        return self._split(self._channels.close())

    def _split(self, parts: Iterable[tuple[Element, str]]) -> list[decision.Piece]:
        """Add texts to their channels, and return the pieces; calls, and answers after a call, are left out."""
        for element, text in parts:
            begins = element is not self._element
            self._element = element
            match element.name:
                case "tool_call" | "agent_call" | "code":
                    self._has_calls = True
                case "decision":
                    self._pieces.extend(self._decision.feed(text))
                case "":
                    self._pieces.add("notes", text)
                case "thinking":
                    self._add_section("thinking", text, begins=begins)
                case _ if not self._has_calls:  # after a call, an answer is discarded
                    self._add_section("answer", text, begins=begins)
                case _:
                    pass
        return self._pieces.take()

    def _add_section(self, channel: decision.Channel, text: str, *, begins: bool) -> None:
        if begins:
            self._pieces.begin(channel)
        self._pieces.add(channel, text)


def _is_odd_call(text: str) -> bool:
    """Return whether a text looks like a call in an unsupported form, such as JSON with a name and arguments."""
    return bool(_ODD_CALL.search(text)) or any(
        isinstance(_first_field(candidate, _NAMES), str)
        and _first_field(candidate, _ARGUMENTS) is not None
        for candidate in models.json_objects(text)
    )


def _first_field(written: models.JsonObject, names: Iterable[str]) -> models.Json:
    return next((written[name] for name in names if name in written), None)


def _call_tags(call: models.ToolCall) -> str:
    """Render a call as tags; its argument `code` gets a channel if it can be decoded from there unchanged."""
    name = escape(call.name).replace("\\", "&#92;")
    arguments = dict(call.arguments)
    code = arguments.get("code")
    channel = ""
    if isinstance(code, str) and "\n" in code:
        channel = f"\n<channel:code>\n{code}\n</channel:code>"
        read = elements(channel.lstrip())
        if [(element.name, element.closed) for element in read] != [("code", True)] or _code(
            read[0].text
        ) != code:
            channel = ""
        else:
            del arguments["code"]
    body = models.dumps(arguments).replace("</", "<\\/")
    return f'<tool_call name="{name}">{body}</tool_call>{channel}'


def _code(text: str) -> str:
    """Return the code of a channel without one line break next to each tag, and without a fence around it."""
    code = text.removeprefix("\n").removesuffix("\n")
    fenced = _FENCE.match(code)
    return fenced[1] if fenced else code


def _tool_call(element: Element) -> models.ToolCall | str:
    """Decode the call of an element; return a sentence about the error if it is invalid."""
    attributes = _attributes(element)
    name = attributes.get("name", "").removeprefix("@")
    source = _first_of(attributes, "args", "arguments") or _strip_fence(element.text)
    if not element.closed and not source:
        return "A tool_call is not closed."
    arguments = _arguments(source)
    if isinstance(arguments, str):
        return f"The arguments of tool_call {name!r} {arguments}."
    if not name:
        return _call_in_json(arguments)
    return models.ToolCall(name=name, arguments=arguments)


def _call_in_json(written: models.JsonObject) -> models.ToolCall | str:
    """Decode a call with its name and arguments in one JSON object; return an error sentence if one is invalid."""
    name = _first_of(written, "name", "tool")
    arguments = decision.as_arguments(written.get("arguments", written.get("args")))
    if not isinstance(name, str) or arguments is None:
        return "A tool_call has no name."
    return models.ToolCall(name=name, arguments=arguments)


def _first_of(values: Mapping[str, V], *keys: str) -> V | None:
    """Return the first value that is not empty among those of `keys`, or None."""
    return next((values[key] for key in keys if values.get(key)), None)


def _attributes(element: Element) -> dict[str, str]:
    matches = _ATTRIBUTE.finditer(element.attributes)
    return {match[1].lower(): unescape(match[2] or match[3] or match[4] or "") for match in matches}


def _arguments(source: str) -> models.JsonObject | str:
    """Parse `source` as one JSON object; return the end of an error sentence if it is not one.

    The arguments are {} if the source is empty or `null`. A broken object is parsed again with its quotes unescaped.
    """
    if source in ("", "null"):
        return {}
    scanned = models.parse_object_at(source, 0)
    if isinstance(scanned, models.BrokenJson) and '\\"' in source:
        source = source.replace('\\"', '"')
        scanned = models.parse_object_at(source, 0)
    if isinstance(scanned, models.BrokenJson):
        return f"are not a complete JSON object: {scanned.problem}"
    arguments, end = scanned
    if source[end:].strip():
        return "have text after their JSON object"
    return models.well_formed_object(arguments)


def _strip_fence(text: str) -> str:
    text = text.strip()
    fenced = _FENCE.match(text)
    return (fenced[1] if fenced else text).strip()
