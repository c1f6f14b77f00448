"""Parts of a request as bytes: each is encoded once, and a request joins them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from loopline.models import (
    AssistantMessage,
    Attached,
    Json,
    JsonForm,
    JsonObject,
    Message,
    ToolCall,
    dumps,
    text_in,
)
from loopline.models.prompt import echo_for, sent_id
from loopline.tools import provider_names


def encoded(value: Json) -> bytes:
    """Return the value as JSON in UTF-8."""
    return dumps(value).encode("utf-8", "replace")


def joined(parts: Iterable[JsonObject]) -> bytes:
    """Return the parts as JSON, with commas between them."""
    return b",".join(map(encoded, parts))


def message_bytes(
    message: Message, key: str, parts: Callable[[Message], Iterable[JsonObject]]
) -> bytes:
    """Return the joined parts of a message, which are encoded once for each key and stay with it."""
    cached = message.wire.get(key)
    if cached is None:
        cached = message.wire[key] = joined(parts(message))
    return cached


def data_url(attached: Attached) -> str:
    """Return the file as a data URL, as OpenAI takes it."""
    return f"data:{attached.mime};base64,{attached.data}"


def is_image(attached: Attached) -> bool:
    """Return whether the file travels as an image; any other file travels as a document."""
    return attached.mime.startswith("image/")


def joined_fields(fields: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the JSON object of fields whose values are JSON already."""
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in fields) + b"}"


@lru_cache(maxsize=4_096)
def provider_name(name: str) -> str:
    """Return what a tool is called in every request to a provider."""
    return provider_names([name]).provider_name(name)


@lru_cache(maxsize=256)
def names_by_provider_name(names: tuple[str, ...]) -> dict[str, str]:
    """Return the tools that are offered by what a provider calls them."""
    return {provider_name(name): name for name in names}


def offered_name(called: str, offered: tuple[str, ...]) -> str:
    """Return the tool that a model means; in a name that was never offered, `__` stands for a dot."""
    return names_by_provider_name(offered).get(called, called.replace("__", "."))


class CallForm(NamedTuple):
    """The form of a call in an API: the type and the field for the id of its parts, and its other fields."""

    type: str
    id: str
    fields: Callable[[ToolCall], JsonObject]

    def call(self, call: ToolCall, family: str) -> JsonObject:
        """Return a call as it is sent to this family."""
        return {"type": self.type, self.id: sent_id(call, family), **self.fields(call)}

    def replayed(
        self, message: AssistantMessage, family: str, thinking_types: frozenset[str]
    ) -> list[JsonObject]:
        """Return the parts of a reply as this family wants them back; none of a reply that only thought.

        Calls get their names and arguments again, and those that were never made are left out. Parts of
        the `thinking_types` must have another part behind them.
        """
        echo = echo_for(message, family)
        calls_by_id = {
            call.provider_id: call for call in reversed(message.calls) if call.provider_id
        }
        parts: list[JsonObject] = []
        for part in echo.parts if echo else ():
            if text_in(part, "type") != self.type:
                parts.append(part)
            elif call := calls_by_id.get(text_in(part, self.id)):
                parts.append({**part, **self.fields(call)})
        while parts and text_in(parts[-1], "type") in thinking_types:
            parts.pop()
        return parts


def openai_schema(form: JsonForm) -> JsonObject:
    """Return a form as OpenAI's APIs take it."""
    return {"name": form.name, "schema": form.schema, "strict": form.strict}
