"""Session files of coding agents, Claude Code and Codex, as the blocks of a conversation that can only be read.

Each line of such a file is a JSON object. Lines of unknown types are left out, and a file without a message is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from msgspec import Struct, ValidationError, convert, structs

from loopline import timeline as tl
from loopline.clock import milliseconds
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, Usage

START = datetime(1970, 1, 1, tzinfo=UTC)


ReplyPart: TypeAlias = tl.Thinking | tl.Notes | tl.ToolCalled
SessionPart: TypeAlias = tl.UserPrompt | ReplyPart | tl.ToolResult
"""A part of a session: the texts of the model are notes, and a result lacks the name of its tool."""


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A line of a session: its time, its parts, and the reply that they belong to, empty for the user and for results."""

    at: datetime
    parts: tuple[SessionPart, ...]
    reply: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)


def read_session(text: str) -> list[tl.Block]:
    """Return the blocks of a session file of Claude Code or Codex.

    Raises:
        LooplineError: a line is not JSON, or the file has no message of a user.
    """
    program, lines = _session_lines(_read_lines(text))
    builder = _SessionBlocks(program)
    for line in lines:
        builder.take(line)
    builder.end()
    if not any(isinstance(block.body, tl.UserPrompt) for block in builder.blocks):
        raise LooplineError(
            "the file has no message of a user: it must be an exported conversation, or a session of Claude Code or Codex"
        )
    return builder.blocks


class _Usage(Struct, frozen=True):
    """The tokens of a reply of Claude Code."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class _Part(Struct, frozen=True):
    """A part of a message: a text, the reasoning, a call or a result."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: Json = None
    tool_use_id: str = ""
    content: Json = None
    is_error: bool = False


class _Message(Struct, frozen=True):
    """A message of Claude Code."""

    role: str = ""
    id: str = ""
    model: str = ""
    content: str | list[_Part] = ""
    usage: _Usage = _Usage()


class _Payload(Struct, frozen=True):
    """An item of Codex."""

    type: str = ""
    role: str = ""
    name: str = ""
    call_id: str = ""
    model: str = ""
    arguments: str = ""
    input: str = ""
    content: Json = None
    summary: Json = None
    output: Json = None


class _Line(Struct, frozen=True, rename="camel"):
    """A line of a session."""

    type: str = ""
    timestamp: str = ""
    uuid: str = ""
    is_meta: bool = False
    is_sidechain: bool = False
    message: _Message | None = None
    payload: _Payload | None = None


def _read_lines(text: str) -> Iterator[_Line]:
    """Yield the lines that have the form of a session's; lines of other forms are left out.

    Raises:
        LooplineError: a line is not JSON.
    """
    # Not splitlines, which also splits at U+2028, U+2029 and U+0085; a JSON string may have them.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value: Json = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise LooplineError(f"line {number} of the session is not JSON: {error}") from error
        with suppress(ValidationError, UnicodeEncodeError):  # the latter for a lone surrogate
            yield convert(value, _Line)


def _session_lines(rows: Iterable[_Line]) -> tuple[str, list[SessionLine]]:
    """Return the program that wrote the session, and its lines that have parts."""
    program = "claude-code"
    lines: list[SessionLine] = []
    model = ""
    reply = 0
    for row in rows:
        if row.payload is not None and row.type in ("turn_context", "response_item"):
            program = "codex"
            model = row.payload.model or model
            parts = tuple(_codex_parts(row.payload)) if row.type == "response_item" else ()
            is_reply = any(isinstance(part, ReplyPart) for part in parts)
            reply += bool(is_reply and lines and not lines[-1].reply)
            lines.append(SessionLine(_time(row), parts, f"{reply}" if is_reply else "", model))
        elif row.message is not None and row.type in ("user", "assistant"):
            lines.append(_claude_line(row, row.message))
    return program, [line for line in lines if line.parts]


def _claude_line(row: _Line, message: _Message) -> SessionLine:
    """Convert a line of Claude Code, without parts if it is meta or a sidechain; a reply gets model and usage."""
    content = message.content
    rows = [_Part(type="text", text=content)] if isinstance(content, str) else content
    parts: tuple[SessionPart, ...] = ()
    if not (row.is_meta or row.is_sidechain):
        parts = tuple(part for item in rows for part in _claude_parts(item, message.role))
    if message.role != "assistant":
        return SessionLine(_time(row), parts)
    name = message.id or row.uuid or "reply"
    return SessionLine(_time(row), parts, name, message.model, _usage(message.usage))


def _claude_parts(item: _Part, role: str) -> Iterator[SessionPart]:
    """Yield the part of the session for a content part; none for an empty text or an unknown type."""
    match item:
        case _Part(type="text", text=text) if text:
            yield tl.Notes(text=text) if role == "assistant" else tl.UserPrompt(text=text)
        case _Part(type="thinking", thinking=text) if text:
            yield tl.Thinking(text=text)
        case _Part(type="tool_use"):
            arguments = item.input if isinstance(item.input, dict) else {}
            yield tl.ToolCalled(call_id=item.id, tool=item.name, arguments=arguments)
        case _Part(type="tool_result"):
            yield _result(item.tool_use_id, item.content, is_error=item.is_error)
        case _:
            pass


def _result(call_id: str, content: Json, *, is_error: bool = False) -> tl.ToolResult:
    status: tl.ResultStatus = "error" if is_error else "ok"
    return tl.ToolResult(call_id=call_id, tool="", text=_texts(content), status=status)


def _codex_parts(item: _Payload) -> Iterator[SessionPart]:
    """Yield the part of a Codex item; none for empty texts, the environment context and unknown types."""
    match item.type:
        case "message" if item.role in ("user", "assistant"):
            text = _texts(item.content)
            if text and not text.startswith("<environment_context>"):
                yield tl.Notes(text=text) if item.role == "assistant" else tl.UserPrompt(text=text)
        case "reasoning":
            text = _texts(item.summary)
            if text:
                yield tl.Thinking(text=text)
        case "function_call" | "custom_tool_call":
            arguments = _parse_arguments(item)
            yield tl.ToolCalled(call_id=item.call_id, tool=item.name, arguments=arguments)
        case "function_call_output" | "custom_tool_call_output":
            yield _result(item.call_id, item.output)
        case _:
            pass


def _parse_arguments(item: _Payload) -> JsonObject:
    """Return the arguments of a call as a JSON object; any other text or value as `{"input": text}`."""
    text = item.arguments or item.input
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return {"input": text}
    return value if isinstance(value, dict) else {"input": text}


def _texts(value: Json) -> str:
    """Return a text, the texts of a list of parts joined by line breaks, or any other value as JSON."""
    match value:
        case str():
            return value
        case list():
            return "\n".join(text for part in value for text in _text_of_part(part))
        case {"content": str(content)}:
            return content
        case None:
            return ""
        case _:
            return json.dumps(value, ensure_ascii=False)


def _text_of_part(part: Json) -> Iterator[str]:
    match part:
        case {"text": str(text)}:
            yield text
        case _:
            pass


def _usage(usage: _Usage) -> Usage:
    """Convert the usage of Claude Code; input tokens include cached tokens, and negative numbers count as 0."""
    read = max(usage.cache_read_input_tokens, 0)
    written = max(usage.cache_creation_input_tokens, 0)
    return Usage(
        input_tokens=max(usage.input_tokens, 0) + read + written,
        output_tokens=max(usage.output_tokens, 0),
        cache_read_tokens=read,
        cache_write_tokens=written,
    )


def _time(row: _Line) -> datetime:
    """Return the time of a line, to the millisecond; START if it is not a time, or is out of range in UTC."""
    try:
        return milliseconds(tl.to_utc(datetime.fromisoformat(row.timestamp)))
    except (ValueError, OverflowError):
        return START


class _SessionBlocks:
    """The blocks of a session, line by line. Lines of one reply are collected, because a decision comes before its parts."""

    def __init__(self, program: str) -> None:
        self.blocks: list[tl.Block] = []
        self._program = program
        self._turn = 0
        self._round = 0
        self._counts: dict[tuple[int, str], int] = {}
        self._tools: dict[str, str] = {}
        self._reply: list[SessionLine] = []

    def take(self, line: SessionLine) -> None:
        """Add one more line: collect it if it is part of a reply, or append its prompts and results to `blocks`.

        A collected reply is appended first if the line is not part of it. A prompt ends the turn and starts the next.
        """
        if self._reply and line.reply != self._reply[0].reply:
            self._write_reply(is_last=any(isinstance(part, tl.UserPrompt) for part in line.parts))
        if line.reply:
            self._reply.append(line)
            return
        for part in line.parts:
            if isinstance(part, tl.ToolResult):
                tool = self._tools.get(part.call_id, "")
                self._add(line.at, structs.replace(part, tool=tool), self._round)
            elif isinstance(part, tl.UserPrompt):
                self._end_turn()
                self._turn += 1
                self._round = 0
                self._add(line.at, part)
                self._add(line.at, tl.TurnHeader(bundle=self._program, model="", protocol=""))

    def end(self) -> None:
        """Write the last reply, and end the last turn."""
        self._write_reply(is_last=True)
        self._end_turn()

    def _end_turn(self) -> None:
        if self._turn and self.blocks:
            self._add(self.blocks[-1].ts, tl.Exit(reason="complete", rounds=self._round))

    def _write_reply(self, *, is_last: bool) -> None:
        """Write the collected lines as one round: its start, its decision and its parts, without tool results.

        Lines before the first prompt are dropped. In a last reply without calls, each text is an answer.
        """
        lines, self._reply = self._reply, []
        if not lines or not self._turn:
            return
        self._round += 1
        parts = [(line.at, part) for line in lines for part in line.parts]
        calls = [part for _, part in parts if isinstance(part, tl.ToolCalled)]
        model = next((line.model for line in lines if line.model), "")
        began = self.blocks[-1].ts
        start = tl.RoundStart(
            saw=len(self.blocks),
            takes=(),
            epoch=1,
            opened_by="",
            model=model,
            protocol="",
            renderer=0,
            system_sha256="",
            tools_sha256="",
            stable_sha256="",
        )
        self._add(began, start, self._round)
        self._add(
            lines[-1].at,
            tl.Decision(
                model=model,
                stop_reason="tool_use" if calls else "stop",
                calls=len(calls),
                usage=lines[-1].usage,
            ),
            self._round,
        )
        self._tools |= {call.call_id: call.tool for call in calls}
        is_answer = is_last and not calls
        for at, part in parts:
            if isinstance(part, tl.Notes) and is_answer:
                self._add(at, tl.Completion(text=part.text), self._round)
            elif not isinstance(part, tl.ToolResult):
                self._add(at, part, self._round)

    def _add(self, at: datetime, body: tl.Body, number: int = 0) -> None:
        """Append a block with the next seq and count of its type in the turn; ignored before the first turn."""
        if not self._turn:
            return
        key = (self._turn, body.type)
        self._counts[key] = self._counts.get(key, 0) + 1
        self.blocks.append(
            tl.Block(
                seq=len(self.blocks) + 1,
                turn=self._turn,
                round=number,
                n=self._counts[key],
                ts=at,
                term=0 if isinstance(body, tl.UserPrompt) else 1,
                body=body,
            )
        )
