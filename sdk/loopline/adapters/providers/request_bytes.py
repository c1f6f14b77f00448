"""Parts of a request as bytes: each is made once, and a request is made by joining them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from loopline.adapters.providers.failures import Credentials
from loopline.models import Attached, Json, JsonForm, JsonObject, Message, ReasoningReplay, dumps
from loopline.tools import provider_names


def encoded(value: Json) -> bytes:
    """The value as JSON, in UTF-8."""
    return dumps(value).encode("utf-8", "replace")


def part(message: Message, wire: str, make: Callable[[Message], bytes]) -> bytes:
    """The bytes of a message on a wire; they stay with it."""
    known = message.wire.get(wire)
    if known is None:
        known = message.wire[wire] = make(message)
    return known


def data_url(attached: Attached) -> str:
    """The file in a URL, as OpenAI takes it."""
    return f"data:{attached.mime};base64,{attached.data}"


def is_image(attached: Attached) -> bool:
    """Whether the file goes as an image; any other that is given goes as a document."""
    return attached.mime.startswith("image/")


def joined(fields: Iterable[tuple[str, bytes]]) -> bytes:
    """An object of fields whose values are JSON already."""
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in fields) + b"}"


@lru_cache(maxsize=4_096)
def wire_name(name: str) -> str:
    """What a tool is called on the wire; the same in every request."""
    return provider_names([name]).provider_name(name)


@lru_cache(maxsize=256)
def names_by_wire(names: tuple[str, ...]) -> dict[str, str]:
    """The tools that are offered, by what they are called on the wire."""
    return {wire_name(name): name for name in names}


def tool_name(wire: str, offered: tuple[str, ...]) -> str:
    """The tool that the model means; one that was never offered has a dot for each `__`."""
    return names_by_wire(offered).get(wire, wire.replace("__", "."))


def given_back(
    echo: ReasoningReplay | None,
    thoughts: frozenset[str],
    call_of: Callable[[JsonObject], JsonObject | None],
) -> list[JsonObject]:
    """The parts of a reply as its provider wants them back; nothing is left of one that only thought.

    `thoughts` are the types of parts that must have something behind them. `call_of` is the whole call of
    a part that is one, None where it was never made.
    """
    if echo is None:
        return []
    parts = [one for one in map(call_of, echo.parts) if one is not None]
    while parts and a_text(parts[-1].get("type")) in thoughts:
        parts.pop()
    return parts


@dataclass(slots=True)
class PartialObject:
    """An object on its way, whose texts come in pieces."""

    fields: JsonObject = field(default_factory=JsonObject)
    _pieces: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, name: str, text: str) -> None:
        """Take the next piece of a text."""
        if name not in self._pieces:
            self._pieces[name] = [a_text(self.fields.get(name))]
        self._pieces[name].append(text)

    @property
    def whole(self) -> JsonObject:
        """The object as far as it has come."""
        return {**self.fields, **{name: "".join(texts) for name, texts in self._pieces.items()}}


def an_object(value: Json) -> JsonObject:
    """The value, if it is an object; else an empty one."""
    return value if isinstance(value, dict) else {}


def a_list(value: Json) -> list[Json]:
    """The value, if it is a list; else an empty one."""
    return value if isinstance(value, list) else []


def a_text(value: Json) -> str:
    """The value, if it is a text; else an empty one."""
    return value if isinstance(value, str) else ""


def a_count(value: Json) -> int:
    """The value, if it is a whole number; else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def schema_of(form: JsonForm) -> JsonObject:
    """A form as OpenAI's wires have it."""
    return {"name": form.name, "schema": form.schema, "strict": form.strict}


def bearing(account: Credentials) -> Mapping[str, str]:
    """The headers of a request whose key, if there is one, is a bearer's."""
    key = {"Authorization": f"Bearer {account.key}"} if account.key else {}
    return {"Content-Type": "application/json", "Accept": "text/event-stream", **key}
