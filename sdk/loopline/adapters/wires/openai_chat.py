"""OpenAI's chat completions, as OpenAI and many other servers speak them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loopline.adapters.wires.bytes import (
    a_count,
    a_list,
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
from loopline.adapters.wires.thinking import ThinkTags
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
    dumps,
)

WIRE = "openai"
_DONE = "[DONE]"


class OpenAiChat:
    """A model behind `/chat/completions`."""

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
        legacy_limit: bool = False,
    ) -> None:
        """`legacy_limit` is for servers that know `max_tokens` alone."""
        self.name = name
        self.abilities = abilities
        self._model = model
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._account = account
        self._http = http
        self._timeouts = timeouts or Timeouts()
        self._limit = "max_tokens" if legacy_limit else "max_completion_tokens"
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
                if event.data == _DONE:
                    break
                for delta in coming.take(_chunk(event.data, self._account)):
                    yield delta
        finally:
            await events.aclose()
        for delta in coming.rest():
            yield delta
        yield coming.reply(self._account)

    async def close(self, *, failed: bool) -> None:
        """The harness closes."""
        del failed
        await self._http.close()

    @property
    def _headers(self) -> Mapping[str, str]:
        key = {"Authorization": f"Bearer {self._account.key}"} if self._account.key else {}
        return {"Content-Type": "application/json", "Accept": "text/event-stream", **key}

    def body(self, prompt: Prompt) -> bytes:
        """The request as it travels."""
        messages = [part(message, WIRE, _encoded) for message in prompt.messages]
        if prompt.system:
            messages.insert(0, encoded({"role": "system", "content": prompt.system}))
        if prompt.tail:
            messages.append(encoded({"role": "user", "content": prompt.tail}))
        fields = [("model", encoded(self._model)), ("messages", b"[%s]" % b",".join(messages))]
        if prompt.tools:
            fields.append(("tools", self._encoded_tools(prompt.tools)))
        fields += [(name, encoded(value)) for name, value in self._options(prompt)]
        return joined(fields)

    def _options(self, prompt: Prompt) -> Iterator[tuple[str, Json]]:
        options = prompt.options
        yield "stream", True
        yield "stream_options", {"include_usage": True}
        if prompt.tools and options.force_tool:
            named: JsonObject = {"name": wire_name(options.force_tool)}
            yield "tool_choice", {"type": "function", "function": named}
        elif prompt.tools and not options.allow_calls:
            yield "tool_choice", "none"
        if options.json_object:
            yield "response_format", {"type": "json_object"}
        if options.output_limit is not None:
            yield self._limit, options.output_limit
        if options.reasoning_effort:
            yield "reasoning_effort", options.reasoning_effort

    def _encoded_tools(self, tools: tuple[ToolSpec, ...]) -> bytes:
        if self._tools[0] is not tools:
            self._tools = (tools, b"[%s]" % b",".join(map(_tool, tools)))
        return self._tools[1]


def _tool(spec: ToolSpec) -> bytes:
    function: JsonObject = {
        "name": wire_name(spec.name),
        "description": spec.description,
        "parameters": spec.parameters,
    }
    return encoded({"type": "function", "function": function})


def _encoded(message: Message) -> bytes:
    match message:
        case UserMessage(text=text):
            return encoded({"role": "user", "content": text})
        case ToolMessage(call_id=call_id, text=text):
            return encoded({"role": "tool", "tool_call_id": call_id, "content": text})
        case AssistantMessage(text=text, calls=calls):
            said: JsonObject = {"role": "assistant", "content": text or None}
            if calls:
                said["tool_calls"] = [
                    {
                        "id": call.call_id,
                        "type": "function",
                        "function": {
                            "name": wire_name(call.name),
                            "arguments": dumps(call.arguments),
                        },
                    }
                    for call in calls
                ]
            return encoded(said)


def _chunk(data: str, account: Account) -> JsonObject:
    chunk = piece(data, account)
    wrong = chunk.get("error")
    if wrong:
        found = wrong if isinstance(wrong, dict) else {"message": str(wrong)}
        kind = str(found.get("code") or found.get("type") or "")
        raise failed_midway(kind, str(found.get("message") or ""), account)
    return chunk


@dataclass(slots=True)
class _Coming:
    """A reply on its way."""

    offered: tuple[str, ...]
    calls: Calls = field(default_factory=Calls)
    usage: Usage = field(default_factory=Usage)
    finish: str = ""
    refused: bool = False
    _tags: ThinkTags = field(default_factory=ThinkTags)
    _text: list[str] = field(default_factory=list[str])
    _thoughts: list[str] = field(default_factory=list[str])

    def take(self, chunk: JsonObject) -> Iterator[TextDelta]:
        """What a chunk adds."""
        usage = an_object(chunk.get("usage"))
        if usage:
            self.usage = _usage(usage)
        for choice in map(an_object, a_list(chunk.get("choices"))):
            self.finish = str(choice.get("finish_reason") or self.finish)
            delta = an_object(choice.get("delta")) or an_object(choice.get("message"))
            for one in map(an_object, a_list(delta.get("tool_calls"))):
                self._take_call(one)
            yield from self._take_text(delta)

    def rest(self) -> Iterator[TextDelta]:
        """What was held back for half a tag."""
        yield from self._kept(self._tags.close())

    def reply(self, account: Account) -> Reply:
        """The reply, whole.

        Raises:
            ModelStreamBroken: nothing said that it was over.
        """
        if not self.finish:
            raise ModelStreamBroken(f"{account.model}: the reply ended without a reason")
        calls, problem = self.calls.whole()
        return Reply(
            text="".join(self._text),
            calls=calls,
            thinking="".join(self._thoughts),
            problem=problem,
            stop_reason=self._stop_reason(),
            usage=self.usage,
        )

    def _stop_reason(self) -> StopReason:
        if self.refused or self.finish == "content_filter":
            return "refusal"
        if self.finish == "length":
            return "length"
        return "tool_use" if self.calls else "stop"

    def _take_call(self, piece: JsonObject) -> None:
        function, index = an_object(piece.get("function")), piece.get("index")
        name = str(function.get("name") or "")
        self.calls.add(
            index=index if isinstance(index, int) else None,
            provider_id=str(piece.get("id") or ""),
            name=tool_name(name, self.offered) if name else "",
            arguments=function.get("arguments"),
        )

    def _take_text(self, delta: JsonObject) -> Iterator[TextDelta]:
        refusal = str(delta.get("refusal") or "")
        self.refused = self.refused or bool(refusal)
        thought = str(delta.get("reasoning_content") or delta.get("reasoning") or "")
        if thought:
            yield from self._kept([TextDelta(text=thought, channel="thinking")])
        text = delta.get("content")
        if isinstance(text, str) and text:
            yield from self._kept(self._tags.feed(text))
        if refusal:
            yield from self._kept([TextDelta(text=refusal)])

    def _kept(self, deltas: Sequence[TextDelta]) -> Iterator[TextDelta]:
        for delta in deltas:
            (self._text if delta.channel == "answer" else self._thoughts).append(delta.text)
            yield delta


def _usage(said: JsonObject) -> Usage:
    details = an_object(said.get("prompt_tokens_details"))
    cached = details.get("cached_tokens") or said.get("prompt_cache_hit_tokens")
    return Usage(
        input_tokens=a_count(said.get("prompt_tokens")),
        output_tokens=a_count(said.get("completion_tokens")),
        cache_read_tokens=a_count(cached),
        cache_write_tokens=a_count(details.get("cache_write_tokens")),
    )
