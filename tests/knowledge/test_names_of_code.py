"""A query that names code finds the definition first, whatever the vectors say."""

from __future__ import annotations

import pytest

from loopline.search import Chunk, Kind, search
from loopline.search.ranking import defines, query_names
from loopline.search.static_vectors import load_static_embedder
from tests.support.indexes import temporary_index


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("what does read_lines do?", ("read_lines",)),
        ("how does CacheMiddleware work", ("cachemiddleware",)),
        ("QuerySet.update_or_create", ("update_or_create",)),
        ("call `close()` twice", ("close",)),
        ("__init__ of a model", ("__init__",)),
        ("e.g. the U.S. law of HTTP", ()),
        ("where is green tea stored", ()),
        ("", ()),
    ],
)
def test_the_names_of_code_in_a_query(query: str, names: tuple[str, ...]) -> None:
    assert query_names(query) == names


@pytest.mark.parametrize(
    ("text", "is_definition"),
    [
        ("async def close(self):", True),
        ("pub fn close() {}", True),
        ("function close() {", True),
        ("x = 1\nclose = 2\n", True),
        ("self.close()", False),
        ("def closed():", False),
        ("undefclose", False),
        ("", False),
    ],
)
def test_a_definition_is_told_from_a_use(text: str, is_definition: bool) -> None:
    assert defines(text, ["close"]) == is_definition


def chunk(path: str, title: str, text: str, kind: Kind = "source") -> Chunk:
    return Chunk(path=path, title=title, text=text, lines=(1, 1), kind=kind)


def test_the_definition_of_a_named_function_comes_before_its_uses() -> None:
    uses = [
        chunk(f"src/use{n}.js", f"use{n}.js", f"open_gate(); open_gate(); // gate {n}\n")
        for n in range(9)
    ]
    defined = chunk("src/gate.js", "gate.js", "function open_gate() { return lift(bar) }\n" * 2)
    index = temporary_index([*uses, defined], load_static_embedder())
    [first, *_] = search("what happens when open_gate is called by a visitor", index, limit=3)
    assert first.chunk == defined
