"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loopline.adapters.wires.bytes import (
    a_count,
    an_object,
    encoded,
    joined,
    part,
    tool_name,
    wire_name,
)
from loopline.adapters.wires.calls import Calls
from loopline.adapters.wires.failing import Account, failed_midway, piece
from loopline.adapters.wires.http import Http, Timeouts
from loopline.errors import ModelStreamBroken
from loopline.models import (
    Abilities,
    AssistantMessage,
    Json,
    JsonObject,
    Message,
    Prompt,
    Reply,
    StopReason,
    TextDelta,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)

WIRE = "anthropic"
VERSION = "2023-06-01"
MARKERS = 4
"""So many `cache_control` markers a request may carry."""
_MARK = b',"cache_control":{"type":"ephemeral"}}'
_STOPS: Mapping[str, StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_use",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


class AnthropicMessages:
    """A model behind `/v1/messages`."""

    def __init__(
        self,
        name: str,
        *,
        model: str,
        url: str,
        account: Account,
        abilities: Abilities,
        http: Http,
        timeouts: Timeouts | None = None,
    ) -> None:
        self.name = name
        self.abilities = abilities
        self._model = model
        self._url = f"{url.rstrip('/')}/v1/messages"
        self._account = account
        self._http = http
        self._timeouts = timeouts or Timeouts()
        self._tools: tuple[tuple[ToolSpec, ...], bytes] = ((), b"[]")

    def __repr__(self) -> str:
        return f"<{self.name} at {self._url}>"

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Deltas while it writes, then the reply.

        Raises:
            ModelError: it could not be asked, or broke off.
        """
        coming = _Coming(tuple(tool.name for tool in prompt.tools))
        events = self._http.events(
            self._url,
            self.body(prompt),
            self._headers,
            account=self._account,
            timeouts=self._timeouts,
        )
        try:
            async for event in events:
                for delta in coming.take(piece(event.data, self._account), self._account):
                    yield delta
                if coming.is_over:
                    break
        finally:
            await events.aclose()
        yield coming.reply(self._account)

    async def close(self, *, failed: bool) -> None:
        """The harness closes."""
        del failed
        await self._http.close()

    @property
    def _headers(self) -> Mapping[str, str]:
        return {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "anthropic-version": VERSION,
            "x-api-key": self._account.key,
        }

    def body(self, prompt: Prompt) -> bytes:
        """The request as it travels."""
        fields = [
            ("model", encoded(self._model)),
            ("max_tokens", encoded(prompt.options.output_limit or self.abilities.output_limit)),
            ("stream", b"true"),
        ]
        if prompt.system:
            text: JsonObject = {"type": "text", "text": prompt.system}
            marked = prompt.cache_points and len(prompt.cache_points) < MARKERS
            fields.append(
                ("system", b"[%s]" % (_marked(encoded(text)) if marked else encoded(text)))
            )
        if prompt.tools:
            fields.append(("tools", self._encoded_tools(prompt.tools)))
            fields += [("tool_choice", encoded(one)) for one in _choice(prompt)]
        fields.append(("messages", _messages(prompt)))
        return joined(fields)

    def _encoded_tools(self, tools: tuple[ToolSpec, ...]) -> bytes:
        if self._tools[0] is not tools:
            self._tools = (tools, b"[%s]" % b",".join(map(_tool, tools)))
        return self._tools[1]


def _choice(prompt: Prompt) -> Iterator[JsonObject]:
    if prompt.options.force_tool:
        yield {"type": "tool", "name": wire_name(prompt.options.force_tool)}
    elif not prompt.options.allow_calls:
        yield {"type": "none"}


def _tool(spec: ToolSpec) -> bytes:
    return encoded(
        {
            "name": wire_name(spec.name),
            "description": spec.description,
            "input_schema": spec.parameters,
        }
    )


def _messages(prompt: Prompt) -> bytes:
    """The messages, neighbours of one side in one; the last block before each cache point is marked."""
    points, turns = set(prompt.cache_points), list[tuple[bytes, list[bytes]]]()
    for number, message in enumerate(prompt.messages, start=1):
        blocks = part(message, WIRE, _blocks)
        if not blocks:
            continue
        role = b"assistant" if isinstance(message, AssistantMessage) else b"user"
        if not turns or turns[-1][0] != role:
            turns.append((role, []))
        turns[-1][1].append(_marked(blocks) if number in points else blocks)
    if prompt.tail:
        if not turns or turns[-1][0] != b"user":
            turns.append((b"user", []))
        turns[-1][1].append(encoded({"type": "text", "text": prompt.tail}))
    written = [
        b'{"role":"%s","content":[%s]}' % (role, b",".join(blocks)) for role, blocks in turns
    ]
    return b"[%s]" % b",".join(written)


def _marked(blocks: bytes) -> bytes:
    """The blocks, of which the last one ends a prefix to keep."""
    return blocks[:-1] + _MARK


def _blocks(message: Message) -> bytes:
    """The content blocks of a message, with commas between them; a text of nothing is none."""
    return b",".join(encoded(block) for block in _content(message))


def _content(message: Message) -> Iterator[JsonObject]:
    match message:
        case ToolMessage(call_id=call_id, text=text, ok=ok):
            result: JsonObject = {"type": "tool_result", "tool_use_id": call_id, "content": text}
            yield result if ok else {**result, "is_error": True}
        case UserMessage(text=text):
            if text.strip():
                yield {"type": "text", "text": text}
        case AssistantMessage(text=text, calls=calls):
            if text.strip():
                yield {"type": "text", "text": text.rstrip()}
            for call in calls:
                yield {
                    "type": "tool_use",
                    "id": call.call_id,
                    "name": wire_name(call.name),
                    "input": call.arguments,
                }


@dataclass(slots=True)
class _Coming:
    """A reply on its way."""

    offered: tuple[str, ...]
    is_over: bool = False
    _calls: Calls = field(default_factory=Calls)
    _usage: Usage = field(default_factory=Usage)
    _stop: str = ""
    _text: list[str] = field(default_factory=list[str])
    _thoughts: list[str] = field(default_factory=list[str])

    def take(self, event: JsonObject, account: Account) -> Sequence[TextDelta]:
        """What an event adds.

        Raises:
            ModelError: it is an error.
        """
        match event.get("type"):
            case "message_start":
                self._count(an_object(an_object(event.get("message")).get("usage")))
            case "content_block_start":
                return self._begun(event.get("index"), an_object(event.get("content_block")))
            case "content_block_delta":
                return self._added(event.get("index"), an_object(event.get("delta")))
            case "message_delta":
                said = an_object(event.get("delta")).get("stop_reason")
                self._stop = str(said or self._stop)
                self._count(an_object(event.get("usage")))
            case "message_stop":
                self.is_over = True
            case "error":
                wrong = an_object(event.get("error"))
                kind, words = str(wrong.get("type") or ""), str(wrong.get("message") or "")
                raise failed_midway(kind, words, account)
            case _:  # a ping, or what is newer than this
                pass
        return ()

    def reply(self, account: Account) -> Reply:
        """The reply, whole.

        Raises:
            ModelStreamBroken: nothing said that it was over.
        """
        if not self._stop:
            raise ModelStreamBroken(f"{account.model}: the reply ended without a reason")
        calls, problem = self._calls.whole()
        stop = _STOPS.get(self._stop, "stop")
        return Reply(
            text="".join(self._text),
            calls=calls,
            thinking="".join(self._thoughts),
            problem="" if stop == "length" else problem,
            stop_reason=stop,
            usage=self._usage,
        )

    def _begun(self, index: Json, block: JsonObject) -> Sequence[TextDelta]:
        match block.get("type"):
            case "tool_use":
                given = an_object(block.get("input"))
                self._calls.add(
                    index=a_count(index),
                    provider_id=str(block.get("id") or ""),
                    name=tool_name(str(block.get("name") or ""), self.offered),
                    arguments=given or None,
                )
                return ()
            case "text":
                return self._kept(str(block.get("text") or ""), is_thought=False)
            case "thinking":
                return self._kept(str(block.get("thinking") or ""), is_thought=True)
            case _:
                return ()

    def _added(self, index: Json, delta: JsonObject) -> Sequence[TextDelta]:
        match delta.get("type"):
            case "text_delta":
                return self._kept(str(delta.get("text") or ""), is_thought=False)
            case "thinking_delta":
                return self._kept(str(delta.get("thinking") or ""), is_thought=True)
            case "input_json_delta":
                piece_of = str(delta.get("partial_json") or "")
                self._calls.add(index=a_count(index), provider_id="", name="", arguments=piece_of)
                return ()
            case _:
                return ()

    def _kept(self, text: str, *, is_thought: bool) -> Sequence[TextDelta]:
        if not text:
            return ()
        (self._thoughts if is_thought else self._text).append(text)
        return [TextDelta(text=text, channel="thinking" if is_thought else "answer")]

    def _count(self, said: JsonObject) -> None:
        """What was used; later counts stand in for earlier ones, and the input is all of it."""
        if "input_tokens" in said:
            read = a_count(said.get("cache_read_input_tokens"))
            written = a_count(said.get("cache_creation_input_tokens"))
            self._usage = replace(
                self._usage,
                input_tokens=a_count(said.get("input_tokens")) + read + written,
                cache_read_tokens=read,
                cache_write_tokens=written,
            )
        if "output_tokens" in said:
            self._usage = replace(self._usage, output_tokens=a_count(said.get("output_tokens")))
