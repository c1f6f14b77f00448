"""Details of reasoning, as OpenRouter streams them and wants them back."""

from __future__ import annotations

from loopline.adapters.wires.bytes import Growing, a_text, an_object
from loopline.models import Json, JsonObject

_TEXTS = ("text", "summary")


class Details:
    """The details of one reply: pieces go in, and come out as they would in a reply of one piece.

    Form: "Reasoning tokens", openrouter.ai/docs. Neighbours of one type and index are pieces of one detail,
    but for encrypted ones, each of which is whole.
    """

    def __init__(self) -> None:
        self._parts: list[Growing] = []

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._parts)

    @property
    def parts(self) -> list[Json]:
        """The details, whole."""
        return [part.whole for part in self._parts]

    def add(self, pieces: list[Json]) -> str:
        """Take the pieces of a chunk, and return what of them can be read."""
        return "".join(self._add(an_object(piece)) for piece in pieces)

    def _add(self, piece: JsonObject) -> str:
        texts = {name: a_text(piece.get(name)) for name in _TEXTS}
        rest: JsonObject = {
            name: value for name, value in piece.items() if name not in texts and value is not None
        }
        last = self._parts[-1].fields if self._parts else {}
        if not self._parts or not _goes_on(last, piece):
            self._parts.append(Growing())
        part = self._parts[-1]
        part.fields.update(rest)
        for name, text in texts.items():
            if name in piece:
                part.add(name, text)
        return "".join(texts.values())


def _goes_on(last: JsonObject, piece: JsonObject) -> bool:
    kinds = (last.get("type"), last.get("index")), (piece.get("type"), piece.get("index"))
    return kinds[0] == kinds[1] and piece.get("type") != "reasoning.encrypted"
