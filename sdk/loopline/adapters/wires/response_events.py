"""Responses of OpenAI as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopline.adapters.wires.bytes import a_count, a_list, a_text, an_object, tool_name
from loopline.adapters.wires.failing import Account, failed_midway, piece
from loopline.adapters.wires.wired import Coming
from loopline.errors import ModelRequestError
from loopline.models import Echo, Json, JsonObject, StopReason, TextDelta, Usage

WIRE = "responses"
THOUGHTS = frozenset({"reasoning"})


class ComingResponse(Coming):
    """A reply on its way."""

    def __init__(self, offered: tuple[str, ...], account: Account) -> None:
        super().__init__(offered, account)
        self._status = self._why = ""
        self._refused = False

    def take(self, data: str) -> Sequence[TextDelta]:
        """What an event adds."""
        event = piece(data, self.account)
        said = a_text(event.get("delta"))
        match event.get("type"):
            case "response.output_text.delta":
                return self.heard(said)
            case "response.refusal.delta":
                self._refused = True
                return self.heard(said)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self.heard(said, is_thought=True)
            case "response.output_item.added":
                self._begun(event.get("output_index"), an_object(event.get("item")))
            case "response.output_item.done":
                self._grow(len(data))
                self._ended(an_object(event.get("item")))
            case "response.function_call_arguments.delta":
                index = a_count(event.get("output_index"))
                self.calls.add(index=index, provider_id="", name="", arguments=said)
            case "response.completed" | "response.incomplete" | "response.failed":
                self._take_end(an_object(event.get("response")))
            case "error":
                raise failed_midway(event, self.account)
            case _:  # what a delta has said already, or what is newer than this
                pass
        return ()

    def take_document(self, data: str) -> Iterator[TextDelta]:
        """What a whole response says."""
        response = piece(data, self.account)
        if not a_list(response.get("output")):
            raise ModelRequestError(f"{self.account.model}: what came is no response")
        for number, item in enumerate(map(an_object, a_list(response.get("output")))):
            self._begun(number, item)
            for part in map(an_object, a_list(item.get("summary"))):
                yield from self.heard(a_text(part.get("text")), is_thought=True)
            for part in map(an_object, a_list(item.get("content"))):
                refusal = a_text(part.get("refusal"))
                self._refused = self._refused or bool(refusal)
                is_thought = item.get("type") == "reasoning"
                yield from self.heard(refusal or a_text(part.get("text")), is_thought=is_thought)
            self._ended(item)
        self._take_end(response)

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it ended."""
        if not self._status:
            return None
        if self._refused or self._why == "content_filter":
            return "refusal"
        if self._status == "incomplete":
            return "length"
        return "tool_use" if self.calls else "stop"

    @property
    def echo(self) -> Echo | None:
        """The items, where thinking is among them."""
        thinks = any(one.get("type") == "reasoning" for one in self.parts)
        return Echo(wire=WIRE, parts=tuple(self.parts)) if thinks else None

    def _begun(self, index: Json, item: JsonObject) -> None:
        if item.get("type") == "function_call":
            self.calls.add(
                index=a_count(index),
                provider_id=a_text(item.get("call_id")),
                name=tool_name(a_text(item.get("name")), self.offered),
                arguments=item.get("arguments"),
            )

    def _ended(self, item: JsonObject) -> None:
        """Keep the item as it is, of a call what the call does not say itself."""
        if item.get("type") == "reasoning" and not item.get("encrypted_content"):
            return  # nobody but the server that stored it could read it again
        left_out = {"name", "arguments"} if item.get("type") == "function_call" else set[str]()
        self.parts.append({name: value for name, value in item.items() if name not in left_out})

    def _take_end(self, response: JsonObject) -> None:
        if response.get("error"):
            raise failed_midway(response, self.account)
        self._end()
        self._status = a_text(response.get("status")) or "completed"
        self._why = a_text(an_object(response.get("incomplete_details")).get("reason"))
        said = an_object(response.get("usage"))
        read = an_object(said.get("input_tokens_details"))
        written = an_object(said.get("output_tokens_details"))
        if said:
            self._use(
                Usage(
                    input_tokens=a_count(said.get("input_tokens")),
                    output_tokens=a_count(said.get("output_tokens")),
                    cache_read_tokens=a_count(read.get("cached_tokens")),
                    cache_write_tokens=a_count(read.get("cache_write_tokens")),
                    reasoning_tokens=a_count(written.get("reasoning_tokens")),
                )
            )
