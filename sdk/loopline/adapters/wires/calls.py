"""Calls that come in pieces, from servers that number, name and cut them as they like."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from loopline.models import (
    BrokenJson,
    Json,
    JsonObject,
    ToolCall,
    dumps,
    has_many_values,
    whole_object,
)


@dataclass(slots=True)
class _Coming:
    """A call on its way."""

    provider_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    extra: JsonObject = field(default_factory=JsonObject)

    @property
    def written(self) -> str:
        return "".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        written = self.written
        if has_many_values(written):
            return False
        try:
            return isinstance(json.loads(written), dict)
        except (ValueError, RecursionError):
            return False


class Calls:
    """The calls of one reply: pieces go in, and come out as calls once the reply is over."""

    def __init__(self) -> None:
        self.size: int = 0
        self._coming: list[_Coming] = []
        self._last: dict[int | None, _Coming] = {}

    def __len__(self) -> int:
        """How many have begun."""
        return len(self._coming)

    @property
    def are_whole(self) -> bool:
        """Whether each has a name, and arguments that are an object."""
        return all(one.name and (one.is_whole or not one.written.strip()) for one in self._coming)

    @property
    def by_provider_id(self) -> dict[str, JsonObject]:
        """What came with calls beside name and arguments, by the ids of those calls."""
        return {one.provider_id: one.extra for one in self._coming}

    def add(
        self,
        *,
        index: int | None,
        provider_id: str,
        name: str,
        arguments: Json,
        extra: JsonObject | None = None,
    ) -> None:
        """Take the next piece; `extra` is what its server wants back with the call.

        It belongs to the call of its index, unless it says that another one has begun: by another id,
        or by a name behind arguments that are whole.
        """
        call = self._of(index, provider_id, name)
        call.provider_id = call.provider_id or provider_id
        call.name = call.name or name
        call.extra.update(extra or {})
        if arguments is not None:
            written = arguments if isinstance(arguments, str) else dumps(arguments)
            call.pieces.append(written)
            self.size += len(written)

    def whole(self, *, cut: bool = False) -> tuple[tuple[ToolCall, ...], str]:
        """The calls, and what is wrong with the first one that cannot be read.

        In a reply that was `cut` off, a last call of which no argument came is not one yet.
        """
        calls, problem = list[ToolCall](), ""
        came = self._coming
        if cut and came and not came[-1].written.strip():
            came = came[:-1]
        for coming in came:
            arguments = whole_object(coming.written)
            if isinstance(arguments, BrokenJson) or not coming.name:
                fault = arguments.problem if isinstance(arguments, BrokenJson) else "it has no name"
                problem = (
                    problem or f"The call of {coming.name or 'a tool'} cannot be read: {fault}"
                )
            else:
                call = ToolCall(
                    name=coming.name, arguments=arguments, provider_id=coming.provider_id
                )
                calls.append(call)
        return tuple(calls), problem

    def _of(self, index: int | None, provider_id: str, name: str) -> _Coming:
        known = self._last.get(index)
        if known is None or _is_another(known, provider_id, name):
            known = self._last[index] = _Coming()
            self._coming.append(known)
        return known


def _is_another(known: _Coming, provider_id: str, name: str) -> bool:
    if provider_id and known.provider_id:
        return provider_id != known.provider_id
    return bool(name) and bool(known.name) and known.is_whole
