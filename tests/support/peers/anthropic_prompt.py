"""A request for a message, parsed: tools, system and turns, each as a list of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from loopline.models.json import Json, JsonObject
from loopline.prompt.caching import PartKind

Role: TypeAlias = Literal["user", "assistant", "system"]
ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}


class Refused(Exception):
    """The request is not taken; it says why."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message; what is only a text is one block of text."""

    role: Role
    blocks: tuple[JsonObject, ...]

    def of_type(self, kind: str) -> list[JsonObject]:
        return [block for block in self.blocks if block["type"] == kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a model is to read, in the order of the wire."""

    model: str
    tools: tuple[JsonObject, ...]
    system: tuple[JsonObject, ...]
    turns: tuple[Turn, ...]
    cache_control: Json
    """The marker of the whole request, which stands for one on its last block."""

    def parts(self) -> Iterator[tuple[PartKind, str, JsonObject]]:
        """All blocks with the kind of each, and the role it is said in."""
        for tool in self.tools:
            yield "tools", "", tool
        for block in self.system:
            yield "system", "", block
        for turn in self.turns:
            for block in turn.blocks:
                yield "message", turn.role, block

    def markers(self) -> list[tuple[int, JsonObject]]:
        """Each cache_control with the number of parts up to the one that has it."""
        rows = [
            (place, marker)
            for place, (_, _, block) in enumerate(self.parts(), 1)
            for marker in _markers_in(block)
        ]
        if isinstance(self.cache_control, dict):
            rows.append((sum(1 for _ in self.parts()), self.cache_control))
        return rows


def _markers_in(block: JsonObject) -> list[JsonObject]:
    marker = block.get("cache_control")
    inner = block.get("content")
    within = [found for item in _objects(inner) for found in _markers_in(item)]
    return [*within, marker] if isinstance(marker, dict) else within


def parse(body: JsonObject) -> Prompt:
    """The prompt of a request; `Refused` if it lacks what every request has, or has a part of no known form."""
    for required in ("model", "max_tokens", "messages"):
        if required not in body:
            raise Refused(f"{required}: Field required")
    messages = _objects(body["messages"])
    return Prompt(
        model=str(body["model"]),
        tools=tuple(_objects(body.get("tools"))),
        system=_blocks(body.get("system", []), "system"),
        turns=tuple(_turn(message, at) for at, message in enumerate(messages)),
        cache_control=body.get("cache_control"),
    )


def _turn(message: JsonObject, at: int) -> Turn:
    role = ROLES.get(str(message.get("role")))
    if role is None:
        raise Refused(f'messages: Unexpected role "{message.get("role")}"')
    texts = {"role", "content", *({"clear_at"} if role == "system" else ())}
    if extra := message.keys() - texts:
        raise Refused(f"messages.{at}.{min(extra)}: Extra inputs are not permitted")
    return Turn(role, _blocks(message.get("content"), f"messages.{at}.content"))


def _blocks(content: Json, where: str) -> tuple[JsonObject, ...]:
    match content:
        case str():
            return ({"type": "text", "text": content},)
        case list():
            blocks = tuple(_objects(content))
        case _:
            raise Refused(f"{where}: Input should be a valid list")
    for at, block in enumerate(blocks):
        if not isinstance(block.get("type"), str):
            raise Refused(f"{where}.{at}.type: Field required")
    return blocks


def _objects(value: Json) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def without_markers(block: JsonObject) -> JsonObject:
    """The block as a model reads it: no cache_control anywhere, and nothing that is null."""
    return cast("JsonObject", _plain(block))


def _plain(value: Json) -> Json:
    match value:
        case dict():
            kept = {name: item for name, item in value.items() if name != "cache_control"}
            return {name: _plain(item) for name, item in kept.items() if item is not None}
        case list():
            return [_plain(item) for item in value]
        case _:
            return value
