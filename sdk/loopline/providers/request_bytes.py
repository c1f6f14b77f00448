"""Parts of a request as bytes: each part is encoded once, and each request joins its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from loopline import models
from loopline.models.prompt import choose_call_id, echo_for
from loopline.tools import provider_names


def encode_json(value: models.Json) -> bytes:
    """Return the value as JSON in UTF-8."""
    return models.dumps(value).encode("utf-8", "replace")


def join_parts(parts: Iterable[models.JsonObject]) -> bytes:
    """Return the parts as JSON, with commas between them."""
    return b",".join(map(encode_json, parts))


def message_bytes(
    message: models.Message,
    key: str,
    parts: Callable[[models.Message], Iterable[models.JsonObject]],
) -> bytes:
    """Return the parts of a message as joined JSON, which is stored in the message under the key.

    `parts` is called only for the first request with this message and key.
    """
    cached = message.wire.get(key)
    if cached is None:
        cached = message.wire[key] = join_parts(parts(message))
    return cached


def data_url(attached: models.Attached) -> str:
    """Return the file as a data URL, the form that the APIs of OpenAI accept."""
    return f"data:{attached.mime};base64,{attached.data}"


def is_image(attached: models.Attached) -> bool:
    """Return whether the file is sent as an image, not as a document."""
    return attached.mime.startswith("image/")


Field = tuple[str, models.Json | bytes]
"""A field of a request; bytes are a value that is encoded already."""


def join_fields(fields: Iterable[Field]) -> bytes:
    """Return a JSON object of these fields."""
    encoded = (
        (name, value if isinstance(value, bytes) else encode_json(value)) for name, value in fields
    )
    return b"{%s}" % b",".join(b'"%s":%s' % (name.encode(), value) for name, value in encoded)


@lru_cache(maxsize=4_096)
def provider_name(name: str) -> str:
    """Return the name of a tool in requests to a provider: its id without dots."""
    return provider_names([name]).provider_name(name)


@lru_cache(maxsize=256)
def names_by_provider_name(names: tuple[str, ...]) -> dict[str, str]:
    """Return the offered tools by their names in requests."""
    return {provider_name(name): name for name in names}


def resolve_tool_name(called: str, offered: tuple[str, ...]) -> str:
    """Return the id of the tool that a model calls; in a name that was not offered, `__` becomes a dot."""
    return names_by_provider_name(offered).get(called, called.replace("__", "."))


class CallForm(NamedTuple):
    """The form of a call in an API: the type of its part, the name of its id field, and a function for the other fields."""

    type: str
    id: str
    fields: Callable[[models.ToolCall], models.JsonObject]

    def call(self, call: models.ToolCall, family: str) -> models.JsonObject:
        """Return a call as the API of this family expects it."""
        return {"type": self.type, self.id: choose_call_id(call, family), **self.fields(call)}

    def replay(
        self, message: models.AssistantMessage, family: str, thinking_types: frozenset[str]
    ) -> list[models.JsonObject]:
        """Return the parts of a reply as this family sent them; an empty list if it sent only thinking.

        Calls get their names and arguments from the message; calls that were not made are left out. Parts of the
        `thinking_types` at the end are left out, because the API requires another part after them.
        """
        echo = echo_for(message, family)
        calls_by_id = {
            call.provider_id: call for call in reversed(message.calls) if call.provider_id
        }
        parts: list[models.JsonObject] = []
        for part in echo.parts if echo else ():
            if models.text_in(part, "type") != self.type:
                parts.append(part)
            elif call := calls_by_id.get(models.text_in(part, self.id)):
                parts.append({**part, **self.fields(call)})
        while parts and models.text_in(parts[-1], "type") in thinking_types:
            parts.pop()
        return parts


def openai_schema(form: models.JsonForm) -> models.JsonObject:
    """Return the form in the fields that the APIs of OpenAI expect."""
    return {"name": form.name, "schema": form.schema, "strict": form.strict}
