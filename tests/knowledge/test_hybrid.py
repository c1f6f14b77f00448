"""Search by words and vectors: what is named is found by words, what is asked in other words by vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from loopline.search import (
    Chunk,
    Hit,
    Kind,
    Vector,
    search,
)
from tests.support.indexes import temporary_index
from tests.support.vectors_in_memory import MemoryVectorIndex, WordEmbedder

SYNONYMS: Mapping[str, str] = {"automobile": "car", "repair": "mend", "broken": "defect"}


class ThesaurusEmbedder(WordEmbedder):
    """Knows that some words mean the same."""

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        return super().embed_passages([self._plain(text) for text in texts])

    def embed_query(self, text: str) -> Vector:
        return super().embed_query(self._plain(text))

    def _plain(self, text: str) -> str:
        return " ".join(SYNONYMS.get(part, part) for part in text.lower().split())


def chunk(path: str, title: str, text: str, kind: Kind = "prose", line: int = 1) -> Chunk:
    return Chunk(path=path, title=title, text=text, lines=(line, line), kind=kind)


CARS = chunk("docs/cars.md", "Cars", "mend a car with a defect")
PARKS = chunk("docs/parks.md", "Parks", "where an automobile may stand at night in the town")
CODE = chunk("src/garage.py", "def open_garage", "def open_garage(): ...", kind="source")
OTHERS = tuple(
    chunk(f"docs/{n}.md", f"Page {n}", f"a page about subject{n} and nothing else")
    for n in range(20)
)
ALL = (CARS, PARKS, CODE, *OTHERS)


def found(query: str, chunks: Sequence[Chunk] = ALL, limit: int = 5) -> list[Hit]:
    embedder = ThesaurusEmbedder()
    vectors = MemoryVectorIndex(embedder.embed_passages([chunk.text for chunk in chunks]))
    question = embedder.embed_query(query)
    return search(query, temporary_index(chunks), vectors, question, limit=limit)


def test_other_words_find_the_passage_that_means_the_same() -> None:
    query = "repair broken automobile"
    assert search(query, temporary_index(ALL), limit=1)[0].chunk == PARKS
    assert found(query)[0].chunk == CARS


def test_a_name_finds_its_definition_whatever_the_vectors_say() -> None:
    (best, *_) = found("open_garage")
    assert best.chunk == CODE
    assert best.why.vector_weight == 0


def test_a_hit_says_why_it_stands_where_it_does() -> None:
    why = found("repair broken automobile")[0].why
    assert why.vector_weight > 0
    assert why.cosine is not None
    assert why.cosine > 0.6
    assert why.coverage == 0
    assert search("car", temporary_index(ALL), limit=1)[0].why.cosine is None


def test_a_query_whose_rare_words_are_nowhere_has_a_low_score() -> None:
    named, unknown = found("open_garage")[0].score, found("subject4 zeppelin hangar lease")[0].score
    assert named > 0.9
    assert unknown < 0.5


def test_words_that_no_chunk_has_lower_the_first_score_by_their_share() -> None:
    whole = search("broken car garage", temporary_index(ALL), limit=1)[0]
    half = search("broken car garage zeppelin hangar lease", temporary_index(ALL), limit=1)[0]
    assert half.chunk == whole.chunk
    assert half.score <= whole.score / 2


def test_no_file_has_more_than_two_of_the_first_five() -> None:
    many = [chunk("docs/tea.md", f"Tea {n}", f"green tea number {n}", line=n) for n in range(1, 9)]
    rest = [chunk(f"docs/{n}.md", "Tea", f"some green tea {n}") for n in range(9)]
    paths = [hit.chunk.path for hit in found("green tea", [*many, *rest], limit=5)]
    assert paths.count("docs/tea.md") <= 2


def test_the_same_text_is_found_once() -> None:
    twice = [chunk("a/tea.md", "Tea", "green tea"), chunk("b/tea.md", "Tea", "green tea"), *OTHERS]
    assert [hit.chunk.text for hit in found("green tea", twice)].count("green tea") == 1


def test_only_the_allowed_chunks_are_found() -> None:
    index = temporary_index(ALL)
    allowed = index.numbers(lambda path: path.startswith("src/"))
    assert [hit.chunk for hit in search("garage car", index, limit=5, among=allowed)] == [CODE]
    assert search("garage car", index, limit=5, among=[]) == []


@given(st.text(max_size=60), st.integers(0, 9))
def test_any_query_has_falling_scores_from_0_to_1(query: str, limit: int) -> None:
    hits = found(query, limit=limit)
    scores = [hit.score for hit in hits]
    assert len(hits) <= limit
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


def test_the_best_passage_by_words_is_among_the_first_five_whatever_vectors_say() -> None:
    near = [chunk(f"docs/car{n}.md", f"Car {n}", f"mend a car with a defect {n}") for n in range(9)]
    hits = found("repair broken automobile", [*near, PARKS, *OTHERS], limit=9)
    assert hits[0].why.vector_weight == 1
    assert [hit.chunk == PARKS for hit in hits[:5]] == [False, False, False, False, True]
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
