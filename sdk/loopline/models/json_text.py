"""The text of a JSON value, read off a text that is still being written."""

from __future__ import annotations

import re

from loopline.models.output import VALUE

_STRING = re.compile(r'(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
_PLAIN = re.compile(r'[^"{}\[\]\s,:]++')
_FIRST = re.compile(r'[{\["0-9tfn-]')
_OPENING = re.compile(r"[{\[]")
_WRAPPER = f'{{"{VALUE}":'


class JsonText:
    """Gives the compact text of the first JSON value in a text, without what stands around it.

    With `wrapped` the value may stand in an object as its field `value`, of which only that is given. `is_over`
    says that the value is whole, and `rest` is the text behind it in the piece that ended it. Each
    character is looked at once.
    """

    def __init__(self, *, wrapped: bool = False) -> None:
        self.is_over: bool = False
        self.rest: str = ""
        self._wrapped = wrapped
        self._begun = self._is_prose = self._in_string = False
        self._cut = ""
        self._depth = 0
        self._least = 0
        self._held: str | None = "" if wrapped else None

    def feed(self, text: str) -> str:
        """Return what the next piece adds to the value's text."""
        if self.is_over:
            return ""
        at = 0 if self._begun else self._begin(text)
        text, self._cut = self._cut + text[at:], ""
        return self._unwrapped(self._compact(text)) if self._begun else ""

    def _begin(self, text: str) -> int:
        """Find where the value begins: at the first character, or, behind words, with the first bracket."""
        if not self._is_prose:
            written = text.lstrip()
            if not written:
                return len(text)
            if _FIRST.match(written):
                self._begun = True
                return len(text) - len(written)
            self._is_prose = True
        opening = _OPENING.search(text)
        self._begun = opening is not None
        return opening.start() if opening else len(text)

    def _compact(self, text: str) -> str:
        pieces, at = list[str](), 0
        while at < len(text) and not self.is_over:
            at = self._in(text, at, pieces) if self._in_string else self._out(text, at, pieces)
        self.rest = text[at:] if self.is_over else ""
        return "".join(pieces)

    def _in(self, text: str, at: int, pieces: list[str]) -> int:
        """Take the text of a string; an escape that is not whole waits for more."""
        found = _STRING.match(text, at)
        end = found.end() if found else at
        pieces.append(text[at:end])
        if found and found[1]:
            self._in_string = False
            self._end_value()
        elif end < len(text):  # a backslash, and nothing yet behind it
            self._cut = text[end:]
            return len(text)
        return end

    def _out(self, text: str, at: int, pieces: list[str]) -> int:
        character = text[at]
        if character == '"':
            pieces.append(character)
            self._in_string = True
        elif character in "{[":
            self._depth += 1
            pieces.append(character)
        elif character in "}]" and self._depth:
            self._depth -= 1
            pieces.append(character)
            self._end_value()
        elif character.isspace() or not self._depth:
            return self._outermost(text, at, pieces)
        elif character in ",:":
            pieces.append(character)
        else:
            return self._word(text, at, pieces)
        return at + 1

    def _outermost(self, text: str, at: int, pieces: list[str]) -> int:
        """Take white space, or a number or word that is all of the value: what follows it ends it."""
        if not self._depth and (text[at].isspace() or text[at] in "}],:"):
            self.is_over = True
            return at
        return at + 1 if text[at].isspace() else self._word(text, at, pieces)

    def _word(self, text: str, at: int, pieces: list[str]) -> int:
        found = _PLAIN.match(text, at)
        end = found.end() if found else at + 1
        pieces.append(text[at:end])
        return end

    def _end_value(self) -> None:
        self.is_over = not self._depth

    def _unwrapped(self, text: str) -> str:
        """Return the text without the object around it, once it is known whether there is one."""
        if self._held is not None:
            text, self._held = self._held + text, None
            if len(text) < len(_WRAPPER) and _WRAPPER.startswith(text) and not self.is_over:
                self._held = text
                return ""
            self._wrapped = text.startswith(_WRAPPER)
            text = text.removeprefix(_WRAPPER)
        return text.removesuffix("}") if self._wrapped and self.is_over else text
