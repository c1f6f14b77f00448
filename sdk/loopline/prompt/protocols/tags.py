"""A text in tagged channels, split while it is still being written.

The tags are `<channel:NAME>…</channel:NAME>`, and the calls `<tool_call …>…</tool_call>`, `<tool …>…</tool>` and
`<agent_call …>…</agent_call>`, which may be self-closing. Tags are not nested. To write a tag as text, put a backslash
after its `<`. A tag in a string literal of a `code` channel, or of JSON, is also text.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

Walk = Generator[None, str, T]
"""A coroutine that reads a part of the text: it is sent each character, then "" at the end of the text."""
Literals = Generator[bool, str, None]
"""A coroutine that is sent each character, and yields whether it is part of a string literal."""

_CALLS = {"<tool_call": "tool_call", "<tool": "tool_call", "<agent_call": "agent_call"}
_CHANNEL = "<channel:"
_TAG_WORDS = (*_CALLS, _CHANNEL, "</tool_call", "</agent_call", "</channel:")
_TAG_STARTS = {tag[:length] for tag in _TAG_WORDS for length in range(1, len(tag) + 1)}
_TAG = re.compile(r"<(\\*)(?=/?(?:channel:|tool|agent_call))", re.IGNORECASE)
_ESCAPED = re.compile(r"<\\+/?(?:channel:|tool|agent_call)", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9_-]")
_SPACE = " \t\r\n"
_LONGEST_NAME = 64
_LONGEST_SPACE = 80


def escape_tags(text: str) -> str:
    """Return the text with a backslash in each tag, for text outside of code and JSON."""
    return _TAG.sub(lambda tag: f"<\\{tag[1]}", text)


@dataclass(slots=True, eq=False)
class Element:
    """A channel or a call or, with the `name` "", text outside of them.

    `name` is in lower case; that of a call is `tool_call` or `agent_call`. `attributes` is the text between a call's name and the end of its opening tag. `closed` says whether the closing tag
    was found.
    """

    name: str = ""
    is_call: bool = False
    attributes: str = ""
    closed: bool = False
    parts: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        """The text inside the element."""
        return "".join(self.parts)


def elements(text: str) -> list[Element]:
    """Split a complete text into its elements, in order."""
    reading = ChannelSplitter()
    result: list[Element] = []
    for element, part in [*reading.feed(text), *reading.close()]:
        if not result or result[-1] is not element:
            result.append(element)
        element.parts.append(part)
    return result


class ChannelSplitter:
    """Splits a text into channels while it is streamed, independent of how it is cut into pieces.

    `feed` and `close` return pairs of an element and the next text in it, which is "" where the element begins. Text that
    may become a tag is held back. Each character is read once.
    """

    def __init__(self) -> None:
        self._element = Element(closed=True)
        self._pending: list[str] = []
        self._parts: list[tuple[Element, str]] = []
        self._reading: Walk[None] | None = self._outside()
        next(self._reading)

    def feed(self, text: str) -> list[tuple[Element, str]]:
        """Take the next piece of the text; return the texts that it adds to elements."""
        if self._reading is not None:
            for character in text:
                self._reading.send(character)
        return self._take_parts()

    def close(self) -> list[tuple[Element, str]]:
        """Return the texts that were held back when the text ends; an unfinished tag is text."""
        walk = self._reading
        self._reading = None
        if walk is not None:
            walk.send("")
        return self._take_parts()

    def _take_parts(self) -> list[tuple[Element, str]]:
        self._flush()
        parts = self._parts
        self._parts = []
        return parts

    def _flush(self) -> None:
        if self._pending:
            self._parts.append((self._element, "".join(self._pending)))
            self._pending.clear()

    def _open(self, element: Element) -> None:
        self._flush()
        self._element = element
        if element.name:
            self._parts.append((element, ""))

    def _outside(self) -> Walk[None]:
        """Read text outside of elements, and the elements in it, to its end; an invalid tag remains text."""
        character = yield
        while character:
            if character != "<":
                self._pending.append(character)
                character = yield
                continue
            tag, character = yield from _tag_start()
            lowered = tag.lower()
            if lowered in _CALLS and character and character in f"{_SPACE}/>":
                character = yield from self._call(lowered, character)
            elif lowered == _CHANNEL:
                character = yield from self._channel(tag, character)
            else:
                self._pending.append(_unescape(tag))
        yield

    def _channel(self, tag: str, character: str) -> Walk[str]:
        """Read a channel from the text after `<channel:` to its end; return the character after it."""
        name = ""
        while _NAME.match(character) and len(name) < _LONGEST_NAME:
            name += character
            character = yield
        space, character = yield from _space(character)
        if not name or character != ">":
            self._pending.append(tag + name + space)
            return character
        name = name.lower()
        literals = {"code": _code_literals, "decision": _json_literals}.get(name)
        self._open(Element(name))
        return (yield from self._body(f"</channel:{name}", literals() if literals else None))

    def _call(self, opening: str, character: str) -> Walk[str]:
        """Read a call from the text after a tag name such as `<tool_call` to its end; return the character after it."""
        name = _CALLS[opening]
        attributes, character = yield from _attributes(character)
        is_closed = bool(character) and attributes.endswith("/")
        self._open(Element(name, True, attributes.removesuffix("/"), is_closed))
        if not character:
            return ""
        if not is_closed:
            literals = _json_literals() if name == "tool_call" else None
            return (yield from self._body(f"</{opening[1:]}", literals))
        self._open(Element(closed=True))
        return (yield)

    def _body(self, closing: str, literals: Literals | None) -> Walk[str]:
        """Read the inside of an element and its closing tag; return the character after the tag."""
        if literals is not None:
            next(literals)
        character = yield
        while character:
            if (literals is not None and literals.send(character)) or character != "<":
                self._pending.append(character)
                character = yield
                continue
            tag, character = yield from _tag_start()
            if closing.startswith(tag.lower()):
                tag, character = yield from _closing_tag(tag, character, closing)
                if tag.endswith(">"):
                    self._element.closed = True
                    break
            if literals is None:
                self._pending.append(_unescape(tag))
                continue
            self._pending.append(tag)
            for passed in tag[1:]:
                literals.send(passed)
        self._open(Element(closed=True))
        return character


def _tag_start() -> Walk[tuple[str, str]]:
    """Read the text after a `<` while it may become a tag; return it with the `<`, and the character after it."""
    escapes = matched = ""
    character = yield
    while character == "\\":
        escapes += character
        character = yield
    while character and f"<{matched}{character}".lower() in _TAG_STARTS:
        matched += character
        character = yield
    return f"<{escapes}{matched}", character


def _attributes(character: str) -> Walk[tuple[str, str]]:
    """Read the attributes of an opening tag from `character` to its unquoted `>`; return them and that character.

    The character is empty if the text ends first. The `/` of a tag without content is one of the attributes.
    """
    attributes: list[str] = []
    quote = ""
    is_escaped = False
    while character and (quote or character != ">"):
        attributes.append(character)
        if is_escaped or (quote and character == "\\"):
            is_escaped = not is_escaped
        elif character in "\"'" and quote in ("", character):
            quote = "" if quote else character
        character = yield
    return "".join(attributes).strip(), character


def _closing_tag(tag: str, character: str, closing: str) -> Walk[tuple[str, str]]:
    """Read the rest of a possible closing tag; return it, ending with `>` if complete, and the character after it."""
    for expected in closing[len(tag) :]:
        if character.lower() != expected:
            return tag, character
        tag += character
        character = yield
    space, character = yield from _space(character)
    tag += space
    if character == ">":
        tag += character
        character = yield
    return tag, character


def _space(character: str) -> Walk[tuple[str, str]]:
    """Read up to 80 characters of white space from `character` on; return them and the character after them."""
    space = ""
    while character and character in _SPACE and len(space) < _LONGEST_SPACE:
        space += character
        character = yield
    return space, character


def _unescape(tag: str) -> str:
    return f"<{tag[2:]}" if _ESCAPED.match(tag) else tag


def _json_literals() -> Literals:
    """Recognize strings of JSON, including their quotes; a backslash escapes the next character."""
    character = yield False
    while True:
        if character == '"':
            character = yield True
            while character != '"':
                if character == "\\":
                    yield True
                character = yield True
            character = yield True
        else:
            character = yield False


def _code_literals() -> Literals:
    """Recognize Python strings with one quote or three, except in comments; one quote ends at a line end."""
    character = yield False
    while True:
        if character == "#":
            while character != "\n":
                character = yield False
        if character in "'\"":
            character = yield from _string(character)
        else:
            character = yield False


def _string(quote: str) -> Generator[bool, str, str]:
    """Read a string after its first quote; return the character after it."""
    character = yield True
    if character != quote:
        return (yield from _string_end(quote, character))
    character = yield True
    if character != quote:
        return character
    character = yield True
    run = 0
    while run < 3:
        run = run + 1 if character == quote else 0
        if character == "\\":
            yield True
        character = yield True
    return character


def _string_end(quote: str, character: str) -> Generator[bool, str, str]:
    """Read the rest of a string with single quotes; return the character after it."""
    while character not in (quote, "\n"):
        if character == "\\":
            yield True
        character = yield True
    return (yield True)
