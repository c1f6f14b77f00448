"""What is embedded of a chunk: what it is about, in words, and not all of it."""

from __future__ import annotations

import re

from loopline.search.index import Chunk

PASSAGE_TEXT_VERSION = 2
"""Part of the name of stored vectors: raise it when another text is embedded of the same chunk."""
DESCRIPTION_CHARACTERS = 400
"""Longer texts are about several things, and their vectors near none of the questions."""
READ_CHARACTERS = 4_000
_QUOTES = ('"""', "'''")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*+")
_JOINT = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]|[a-z0-9]_[a-z0-9]")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_ROLE = re.compile(r":[\w+.-]{1,40}(?::[\w+.-]{1,40}){0,3}:`[!~]?([^`<]*)(?:<[^`>]*>)?`")
_LONGEST_PREFIX = 2


def passage_text(chunk: Chunk) -> str:
    """Return what is embedded of a chunk: its title in words, and the beginning of its description.

    Of Python this is the docstring, if there is one. The names in a title are split into words, and markup is left out.
    """
    text = chunk.text[:READ_CHARACTERS]
    description = _docstring(text) if chunk.path.endswith(".py") else ""
    return f"{_in_words(chunk.title)}. {_prose(description or text)[:DESCRIPTION_CHARACTERS]}"


def _in_words(title: str) -> str:
    """Return the title with each compound name as its parts: `CacheKey` gives `Cache Key`."""
    return _IDENTIFIER.sub(
        lambda name: " ".join(_PART.findall(name[0])) if _JOINT.search(name[0]) else name[0], title
    )


def _docstring(text: str) -> str:
    """Return the text of the first string in triple quotes that begins a line; empty if there is none."""
    start = 0
    for line in text.splitlines(keepends=True):
        before = line.strip().lstrip("rRuUbBfF")
        quote = before[:3]
        if quote in _QUOTES and len(line.strip()) - len(before) <= _LONGEST_PREFIX:
            body = start + line.index(quote) + 3
            end = text.find(quote, body)
            return text[body : end if end >= 0 else len(text)]
        start += len(line)
    return ""


def _prose(text: str) -> str:
    """Return the text on one line, without rules, directives and the markup of roles and literals."""
    lines = [line.strip() for line in text.splitlines()]
    words = [line for line in lines if not _is_rule(line) and not _is_directive(line)]
    plain = _ROLE.sub(r"\1", " ".join(words)).replace("``", "")
    return " ".join(plain.split())


def _is_rule(line: str) -> bool:
    return len(line) > 2 and not line[0].isalnum() and line.count(line[0]) == len(line)


def _is_directive(line: str) -> bool:
    return line.startswith(".. ") and "::" in line
