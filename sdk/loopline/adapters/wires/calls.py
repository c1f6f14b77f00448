"""Calls that come in pieces, from servers that number, name and cut them as they like."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from loopline.models import BrokenJson, Json, ToolCall, dumps, whole_object


@dataclass(slots=True)
class _Coming:
    """A call on its way."""

    index: int | None
    provider_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])

    @property
    def written(self) -> str:
        return "".join(self.pieces)

    @property
    def is_whole(self) -> bool:
        try:
            return isinstance(json.loads(self.written), dict)
        except ValueError:
            return False


class Calls:
    """The calls of one reply: pieces go in, and come out as calls once the reply is over."""

    def __init__(self) -> None:
        self._coming: list[_Coming] = []

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._coming)

    def add(self, *, index: int | None, provider_id: str, name: str, arguments: Json) -> None:
        """Take the next piece.

        It belongs to the call of its index, unless it says that another one has begun: by another id,
        or by a name behind arguments that are whole.
        """
        call = self._of(index, provider_id, name)
        call.provider_id = call.provider_id or provider_id
        call.name = call.name or name
        match arguments:
            case str():
                call.pieces.append(arguments)
            case None:
                pass
            case _:
                call.pieces.append(dumps(arguments))

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
        known = next((one for one in reversed(self._coming) if one.index == index), None)
        if known is None or _is_another(known, provider_id, name):
            known = _Coming(index)
            self._coming.append(known)
        return known


def _is_another(known: _Coming, provider_id: str, name: str) -> bool:
    if provider_id and known.provider_id:
        return provider_id != known.provider_id
    return bool(name) and bool(known.name) and known.is_whole
