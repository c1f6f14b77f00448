"""Thoughts that a server sends between `<think>` tags in the text, cut anywhere."""

from __future__ import annotations

from loopline.models import TextDelta

_OPEN, _CLOSE = "<think>", "</think>"


class ThinkTags:
    """Tells thoughts from text: only a tag that begins the reply opens them, and they end once."""

    def __init__(self) -> None:
        self._held = ""
        self._state = "before"

    def feed(self, text: str) -> list[TextDelta]:
        """What the next piece adds to text and thoughts; what may be half a tag is held back."""
        self._held += text
        match self._state:
            case "before":
                return self._begin()
            case "thinking":
                return self._think()
            case "thought":
                return self._answer()
            case _:
                return self._take(len(self._held), "answer")

    def close(self) -> list[TextDelta]:
        """What was held back, when nothing more comes."""
        return self._take(len(self._held), "thinking" if self._state == "thinking" else "answer")

    def _begin(self) -> list[TextDelta]:
        text = self._held.lstrip()
        if text.startswith(_OPEN):
            self._held, self._state = text[len(_OPEN) :], "thinking"
            return self._think()
        if _OPEN.startswith(text):
            return []
        self._state = "answer"
        return self._take(len(self._held), "answer")

    def _think(self) -> list[TextDelta]:
        end = self._held.find(_CLOSE)
        if end < 0:
            held = next(
                n for n in range(len(_CLOSE) - 1, -1, -1) if self._held.endswith(_CLOSE[:n])
            )
            return self._take(len(self._held) - held, "thinking")
        thought = self._take(end, "thinking")
        self._held, self._state = self._held[len(_CLOSE) :], "thought"
        return [*thought, *self._answer()]

    def _answer(self) -> list[TextDelta]:
        """The text behind thoughts, without the line ends before it."""
        self._held = self._held.lstrip("\n")
        self._state = "answer" if self._held else "thought"
        return self._take(len(self._held), "answer")

    def _take(self, length: int, channel: str) -> list[TextDelta]:
        text, self._held = self._held[:length], self._held[length:]
        if not text:
            return []
        return [TextDelta(text=text, channel="thinking" if channel == "thinking" else "answer")]
