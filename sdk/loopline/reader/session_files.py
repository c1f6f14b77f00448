"""Session files of coding agents, Claude Code and Codex, as the blocks of a conversation that can only be read.

Each line of such a file is a JSON object. Lines of unknown types are left out, and a file without a message is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, Usage
from loopline.timeline import (
    Block,
    Body,
    Completion,
    Decision,
    Exit,
    Notes,
    RoundStart,
    Thinking,
    ToolCalled,
    ToolResult,
    TurnHeader,
    UserPrompt,
)

START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SessionText:
    """A text: a message of the user, the reasoning, or a text of the model."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class SessionCall:
    """A call of a tool."""

    call_id: str
    tool: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class SessionResult:
    """The result of a call."""

    call_id: str
    text: str
    ok: bool = True


SessionPart: TypeAlias = SessionText | SessionCall | SessionResult


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A line of a session: its time, its parts, and the reply that they belong to, empty for the user and for results."""

    at: datetime
    parts: tuple[SessionPart, ...]
    reply: str = ""
    model: str = ""
    usage: Usage = field(default_factory=Usage)


def read_session(text: str) -> list[Block]:
    """Return the blocks of a session file of Claude Code or Codex.

    Raises:
        LooplineError: a line is not JSON, or the file has no message of a user.
    """
    program, lines = _session_lines(_objects(text))
    builder = _SessionBlocks(program)
    for line in lines:
        builder.take(line)
    builder.end()
    if not any(isinstance(block.body, UserPrompt) for block in builder.blocks):
        raise LooplineError(
            "the file has no message of a user: it must be an exported conversation, or a session of Claude Code or Codex"
        )
    return builder.blocks


def _objects(text: str) -> Iterator[JsonObject]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value: Json = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise LooplineError(f"line {number} of the session is not JSON: {error}") from error
        if isinstance(value, dict):
            yield value


def _session_lines(objects: Iterable[JsonObject]) -> tuple[str, list[SessionLine]]:
    """Return the program that wrote the session, and its lines."""
    program = "claude-code"
    lines: list[SessionLine] = []
    model = ""
    reply = 0
    for value in objects:
        match value:
            case {"type": "turn_context", "payload": {"model": str(named)}}:
                program, model = "codex", named
            case {"type": "response_item", "payload": dict(payload)}:
                program = "codex"
                parts = tuple(_codex_parts(payload))
                is_reply = _is_reply(parts)
                reply += lines[-1].reply == "" if is_reply and lines else 0
                lines.append(
                    SessionLine(_time(value), parts, f"{reply}" if is_reply else "", model)
                )
            case {"type": "user" | "assistant", "message": dict(message)}:
                lines.append(_claude_line(value, message))
            case _:
                pass
    return program, [line for line in lines if line.parts]


def _is_reply(parts: tuple[SessionPart, ...]) -> bool:
    return any(
        isinstance(part, SessionCall) or (isinstance(part, SessionText) and part.role != "user")
        for part in parts
    )


def _claude_line(value: JsonObject, message: JsonObject) -> SessionLine:
    content = message.get("content")
    is_meta = value.get("isMeta") is True or value.get("isSidechain") is True
    role = _text(message.get("role"))
    text: JsonObject = {"type": "text", "text": content}
    rows: Json = [text] if isinstance(content, str) else content
    parts: tuple[SessionPart, ...] = ()
    if isinstance(rows, list) and not is_meta:
        parts = tuple(
            part for row in rows if isinstance(row, dict) for part in _claude_part(row, role)
        )
    if role != "assistant":
        return SessionLine(_time(value), parts)
    name = _text(message.get("id")) or _text(value.get("uuid")) or "reply"
    return SessionLine(
        _time(value), parts, name, _text(message.get("model")), _usage(message.get("usage"))
    )


def _claude_part(row: JsonObject, role: str) -> Iterator[SessionPart]:
    match row:
        case {"type": "text", "text": str(text)}:
            yield SessionText(role, text)
        case {"type": "thinking", "thinking": str(text)}:
            yield SessionText("thinking", text)
        case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
            yield SessionCall(call_id, name, _object(row.get("input")))
        case {"type": "tool_result", "tool_use_id": str(call_id)}:
            ok = row.get("is_error") is not True
            yield SessionResult(call_id, _texts(row.get("content")), ok)
        case _:
            pass


def _codex_parts(payload: JsonObject) -> Iterator[SessionPart]:
    match payload:
        case {"type": "message", "role": "user" | "assistant" as role}:
            text = _texts(payload.get("content"))
            if text and not text.startswith("<environment_context>"):
                yield SessionText(str(role), text)
        case {"type": "reasoning"}:
            text = _texts(payload.get("summary"))
            if text:
                yield SessionText("thinking", text)
        case {
            "type": "function_call" | "custom_tool_call",
            "call_id": str(call_id),
            "name": str(name),
        }:
            yield SessionCall(call_id, name, _parse_arguments(payload))
        case {"type": "function_call_output" | "custom_tool_call_output", "call_id": str(call_id)}:
            yield SessionResult(call_id, _texts(payload.get("output")))
        case _:
            pass


def _parse_arguments(payload: JsonObject) -> JsonObject:
    text = _text(payload.get("arguments")) or _text(payload.get("input"))
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return {"input": text}
    return value if isinstance(value, dict) else {"input": text}


def _object(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: Json) -> str:
    """Return a text, the texts of a list of parts joined by line breaks, or any other value as JSON."""
    match value:
        case str():
            return value
        case list():
            return "\n".join(_text(part.get("text")) for part in value if isinstance(part, dict))
        case {"content": str(content)}:
            return content
        case None:
            return ""
        case _:
            return json.dumps(value, ensure_ascii=False)


def _usage(value: Json) -> Usage:
    numbers = _object(value)

    def tokens(name: str) -> int:
        count = numbers.get(name)
        return count if isinstance(count, int) and count > 0 else 0

    read = tokens("cache_read_input_tokens")
    written = tokens("cache_creation_input_tokens")
    return Usage(
        input_tokens=tokens("input_tokens") + read + written,
        output_tokens=tokens("output_tokens"),
        cache_read_tokens=read,
        cache_write_tokens=written,
    )


def _time(value: Mapping[str, Json]) -> datetime:
    try:
        moment = datetime.fromisoformat(_text(value.get("timestamp")))
    except ValueError:
        return START
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).replace(microsecond=moment.microsecond // 1000 * 1000)


class _SessionBlocks:
    """The blocks of a session, line by line. Lines of one reply are collected, because a decision comes before its parts."""

    def __init__(self, program: str) -> None:
        self.blocks: list[Block] = []
        self._program = program
        self._turn = 0
        self._round = 0
        self._counts: dict[tuple[int, str], int] = {}
        self._tools: dict[str, str] = {}
        self._reply: list[SessionLine] = []

    def take(self, line: SessionLine) -> None:
        """Take one more line."""
        if self._reply and line.reply != self._reply[0].reply:
            self._write_reply(is_last=any(_is_prompt(part) for part in line.parts))
        if line.reply:
            self._reply.append(line)
            return
        for part in line.parts:
            if isinstance(part, SessionResult):
                self._add(line.at, self._result(part), self._round)
            elif isinstance(part, SessionText):
                self._begin_turn(line, part.text)

    def end(self) -> None:
        """Write the last reply, and end the last turn."""
        self._write_reply(is_last=True)
        self._end_turn()

    def _begin_turn(self, line: SessionLine, text: str) -> None:
        self._end_turn()
        self._turn += 1
        self._round = 0
        self._add(line.at, UserPrompt(text=text))
        self._add(line.at, TurnHeader(bundle=self._program, model="", protocol=""))

    def _end_turn(self) -> None:
        if self._turn and self.blocks:
            self._add(self.blocks[-1].ts, Exit(reason="complete", rounds=self._round))

    def _write_reply(self, *, is_last: bool) -> None:
        lines, self._reply = self._reply, []
        if not lines or not self._turn:
            return
        self._round += 1
        parts = [(line.at, part) for line in lines for part in line.parts]
        calls = [part for _, part in parts if isinstance(part, SessionCall)]
        model = next((line.model for line in lines if line.model), "")
        began = self.blocks[-1].ts
        self._add(began, self._round_start(model), self._round)
        self._add(
            lines[-1].at,
            Decision(
                model=model,
                stop_reason="tool_use" if calls else "stop",
                calls=len(calls),
                usage=lines[-1].usage,
            ),
            self._round,
        )
        for at, part in parts:
            body = self._reply_body(part, is_answer=is_last and not calls)
            if body is not None:
                self._add(at, body, self._round)

    def _round_start(self, model: str) -> RoundStart:
        return RoundStart(
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

    def _reply_body(self, part: SessionPart, *, is_answer: bool) -> Body | None:
        match part:
            case SessionText(role="thinking", text=text):
                return Thinking(text=text) if text else None
            case SessionText(text=text):
                return Completion(text=text) if is_answer else Notes(text=text)
            case SessionCall(call_id=call_id, tool=name, arguments=arguments):
                self._tools[call_id] = name
                return ToolCalled(call_id=call_id, tool=name, arguments=arguments)
            case SessionResult():
                return None

    def _result(self, part: SessionResult) -> ToolResult:
        return ToolResult(
            call_id=part.call_id,
            tool=self._tools.get(part.call_id, ""),
            text=part.text,
            status="ok" if part.ok else "error",
        )

    def _add(self, at: datetime, body: Body, number: int = 0) -> None:
        if not self._turn:
            return
        key = (self._turn, body.type)
        self._counts[key] = self._counts.get(key, 0) + 1
        self.blocks.append(
            Block(
                seq=len(self.blocks) + 1,
                turn=self._turn,
                round=number,
                n=self._counts[key],
                ts=at,
                term=0 if isinstance(body, UserPrompt) else 1,
                body=body,
            )
        )


def _is_prompt(part: SessionPart) -> bool:
    return isinstance(part, SessionText) and part.role == "user"
