"""Cutting a file into chunks: by heading, by definition or by lines, as suits its format."""

from __future__ import annotations

import re
from functools import lru_cache

from loopline.refs import split_lines
from loopline.search.index import Chunk, Kind
from loopline.search.sections import (
    TextSection,
    markdown_sections,
    python_sections,
    restructured_sections,
    split_section,
    windows,
)

REMEMBERED_PATHS = 50_000
"""The paths whose kind is remembered: a space sorts all of its files whenever its commit moves."""
# Part of the signature of an index: raise it when the same text is cut in another way.
CHUNKS_VERSION = 1

PROSE = frozenset({"md", "markdown", "mdx", "rst", "txt", "adoc", "asciidoc", "org", "textile"})
_SOURCE = """
py pyi pyx js mjs cjs jsx ts tsx vue svelte java kt kts scala go rs c h cc cpp cxx hpp hh cs fs m mm
swift rb php pl pm lua r jl ex exs erl hs ml clj dart sh bash zsh fish ps1 sql proto graphql tf nix
zig html htm css scss less toml yaml yml ini cfg dockerfile makefile mk cmake gradle
"""
SOURCE = frozenset(_SOURCE.split())
_TESTS = re.compile(
    r"(?:^|/)(?:tests?|testing|__tests__|spec|specs|fixtures)/|(?:^|/)test_[^/]*$|_test\.\w+$"
)
_FAR = re.compile(
    r"(?:^|/)(?:locale|locales|i18n|vendor|node_modules|dist|third_party|_vendor)/|\.egg-info/|\.min\."
)


def chunk(path: str, text: str) -> list[Chunk]:
    """Return the text in chunks that can each be read alone; together they are the text, in order."""
    lines = split_lines(text)
    kind = kind_of(path)
    parts = [piece for section in sections(path, lines) for piece in split_section(lines, section)]
    return [
        Chunk(
            path=path,
            title=piece.title,
            text="".join(lines[piece.start : piece.end]),
            lines=(piece.start + 1, piece.end),
            kind=kind,
        )
        for piece in parts
    ]


@lru_cache(maxsize=REMEMBERED_PATHS)
def kind_of(path: str) -> Kind:
    """Return the kind of a file, as its path suggests."""
    if _FAR.search(path):
        return "other"
    if _TESTS.search(path):
        return "tests"
    ending = _ending(path)
    if ending in PROSE:
        return "prose"
    return "source" if ending in SOURCE else "other"


def sections(path: str, lines: list[str]) -> list[TextSection]:
    """Return the sections of a file: where they begin and end, and their titles."""
    name = path.rpartition("/")[2]
    match _ending(path):
        case "md" | "markdown" | "mdx":
            return markdown_sections(name, lines)
        case "rst" | "txt":
            return restructured_sections(name, lines)
        case "py" | "pyi" | "pyx":
            return python_sections(name, lines)
        case _:
            return windows(lines, TextSection(name, 0, len(lines)))


def _ending(path: str) -> str:
    name = path.rpartition("/")[2].lower()
    return name.rpartition(".")[2]
