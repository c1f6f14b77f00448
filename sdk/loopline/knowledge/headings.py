"""The headings of a Markdown document, as links name them."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator

from loopline.search import SEPARATOR, chunk

MARKDOWN = (".md", ".markdown", ".mdx")
_ATX = re.compile(r" {0,3}#{1,6}[ \t]")
_NAMED = re.compile(r"""\b(?:id|name)=["']([^"'\s>]+)["']""")
_OWN_NAME = re.compile(r"\{[^{}]*#([\w.:-]+)[^{}]*\}")
_MARKUP = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)|<[^<>]*>")


def heading_slug(heading: str) -> str:
    """Return a heading as a link names it: in lower case, with dashes for spaces, without punctuation."""
    return "-".join("".join(c for c in heading.lower() if c.isalnum() or c in " -_").split())


def document_headings(path: str, text: str) -> frozenset[str]:
    """Return the names that links to a Markdown document may end in; none for other files.

    These are its headings, numbered when one comes twice, and the names that it gives itself.
    """
    if posixpath.splitext(path)[1].lower() not in MARKDOWN:
        return frozenset()
    return frozenset(_names(path, text))


def _names(path: str, text: str) -> Iterator[str]:
    counts = Counter[str]()
    for line in text.split("\n"):
        if match := _ATX.match(line):
            for slug in _heading_slugs(_without_closing_marks(line[match.end() :])):
                yield f"{slug}-{counts[slug]}" if counts[slug] else slug
                counts[slug] += 1
        for pattern in (_NAMED, _OWN_NAME):
            yield from (name.lower() for name in pattern.findall(line))
    for piece in chunk(path, text):
        yield from map(heading_slug, piece.title.split(SEPARATOR))


def _without_closing_marks(heading: str) -> str:
    text = heading.strip(" \t")
    bare = text.rstrip("#")
    return bare.rstrip(" \t") if not bare or bare.endswith((" ", "\t")) else text


def _heading_slugs(heading: str) -> set[str]:
    """Return the names of a heading; those who print pages differ in what they make of spaces between signs."""
    plain = _MARKUP.sub(r"\1", _OWN_NAME.sub("", heading)).strip()
    slug = "".join(c for c in plain.lower() if c.isalnum() or c in " -_")
    return {heading_slug(plain), slug.replace(" ", "-")}
