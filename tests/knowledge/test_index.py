"""What every index promises, and what the one in files promises besides."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopline.adapters.fts import FtsIndexes
from loopline.errors import KnowledgeError
from loopline.knowledge import IndexStore
from loopline.search import Chunk, Index, IndexDamaged, Kind, search

Make = Callable[[Sequence[Chunk]], Index]


def a_chunk(
    path: str = "docs/a.md",
    title: str = "A",
    text: str = "text\n",
    *,
    line: int = 1,
    kind: Kind = "prose",
) -> Chunk:
    return Chunk(path=path, title=title, text=text, lines=(line, line), kind=kind)


CACHE = a_chunk("docs/cache.md", "Caching \u203a Per-site cache", "Cache every page of the site.\n")
LOGIN = a_chunk("docs/auth.md", "Login", "How users log in; the page is cached.\n")
CODE = a_chunk("src/cache.py", "class CacheMiddleware", "class CacheMiddleware: x\n", kind="source")
FEW = (CACHE, LOGIN, CODE)


def found(index: Index, query: str, limit: int = 5) -> list[str]:
    return [hit.chunk.path for hit in search(query, index, limit=limit)]


def test_a_hit_is_the_chunk_that_was_given(index_of: Make) -> None:
    (first, *_) = search("per-site cache", index_of(FEW), limit=5)
    assert first.chunk == CACHE


def test_more_of_the_words_come_first(index_of: Make) -> None:
    assert found(index_of(FEW), "cache every page")[0] == "docs/cache.md"


def test_scores_fall_along_the_list(index_of: Make) -> None:
    many = [a_chunk(f"docs/{n}.md", text="cache " * n + "\n") for n in range(1, 12)]
    scores = [hit.score for hit in search("cache", index_of(many), limit=10)]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 10


def test_words_that_say_nothing_find_nothing_unless_there_are_no_others(index_of: Make) -> None:
    index = index_of([*FEW, a_chunk("docs/to.md", "To the", "to the\n")])
    assert found(index, "how do the users log in")[0] == "docs/auth.md"
    assert found(index, "to the")[0] == "docs/to.md"


def test_a_part_of_a_compound_name_finds_it(index_of: Make) -> None:
    assert "src/cache.py" in found(index_of(FEW), "middleware")
    assert found(index_of(FEW), "CacheMiddleware")[0] == "src/cache.py"


def test_the_place_that_is_called_like_a_dotted_name_comes_first(index_of: Make) -> None:
    named = a_chunk("docs/b.md", "API \u203a update_or_create()", "Updates it.\n")
    other = a_chunk("docs/c.md", "API \u203a bulk update", "Updates or creates; create, update.\n")
    assert found(index_of([other, named]), "objects.update_or_create")[0] == "docs/b.md"


def test_a_plural_finds_the_singular(index_of: Make) -> None:
    assert found(index_of(FEW), "caches") != []


def test_documentation_comes_before_tests_that_say_the_same(index_of: Make) -> None:
    test = a_chunk("tests/a.py", "A", "migrate the database!\n", kind="tests")
    document = a_chunk("docs/z.md", "A", "migrate the database\n")
    assert found(index_of([test, document]), "migrate database") == ["docs/z.md", "tests/a.py"]


def test_no_file_has_more_than_two_of_the_first_five(index_of: Make) -> None:
    one = [a_chunk("docs/one.md", "Cache", f"cache cache {n}\n", line=n) for n in range(1, 7)]
    rest = [a_chunk(f"docs/{n}.md", "B", f"a cache among other things {n}\n") for n in range(4)]
    paths = found(index_of([*one, *rest]), "cache", limit=10)
    assert paths[:5].count("docs/one.md") == 2
    assert len(paths) == 10


def test_a_limit_is_kept(index_of: Make) -> None:
    assert len(found(index_of(FEW), "cache", limit=1)) == 1
    assert found(index_of(FEW), "cache", limit=0) == []


def test_an_empty_index_finds_nothing(index_of: Make) -> None:
    assert found(index_of([]), "cache") == []


@pytest.mark.parametrize(
    "query",
    [
        "",
        " ",
        "*",
        '"',
        '"cache',
        "NEAR(",
        "a AND",
        "title:",
        "-",
        "^x",
        "(",
        "\0",
        "\ud800",
        "日本",
    ],
)
def test_no_text_is_a_mistake(index_of: Make, query: str) -> None:
    assert len(found(index_of(FEW), query)) <= len(FEW)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.text(max_size=60))
def test_whatever_is_asked_is_answered(index_of: Make, query: str) -> None:
    assert len(found(index_of(FEW), query)) <= len(FEW)


def test_scripts_without_spaces_and_marks_are_found_by_their_words(index_of: Make) -> None:
    index = index_of([a_chunk("docs/hi.md", "नमस्ते", "नमस्ते दुनिया\n"), *FEW])
    assert found(index, "दुनिया") == ["docs/hi.md"]


def test_many_threads_may_search_at_once(index_of: Make) -> None:
    index = index_of(FEW)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(found, [index] * 50, ["cache every page"] * 50))
    assert all(answer == answers[0] for answer in answers)


def test_an_index_may_be_closed_twice(index_of: Make) -> None:
    index = index_of(FEW)
    index.close()
    index.close()


def test_a_store_opens_only_what_was_built(indexes: IndexStore) -> None:
    assert indexes.open("one") is None
    indexes.build("one", FEW, lambda: "notes").index.close()
    assert indexes.open("two") is None


def test_notes_are_taken_when_every_chunk_has_been(indexes: IndexStore) -> None:
    taken: list[Chunk] = []

    def chunks() -> Iterator[Chunk]:
        for item in FEW:
            taken.append(item)
            yield item

    built = indexes.build("one", chunks(), lambda: f"{len(taken)} chunks")
    assert built.notes == "3 chunks"
    built.index.close()


def test_what_is_built_already_takes_no_chunk(indexes: IndexStore) -> None:
    first = indexes.build("one", FEW, lambda: "first")
    second = indexes.build("one", iter(()), lambda: "second")
    assert second.notes == "first"
    assert found(second.index, "cache every page")[0] == "docs/cache.md"
    first.index.close()
    second.index.close()


def test_what_is_discarded_is_built_again(indexes: IndexStore) -> None:
    indexes.build("one", FEW, lambda: "first").index.close()
    indexes.discard("one")
    again = indexes.build("one", FEW, lambda: "second")
    assert again.notes == "second"
    again.index.close()


def test_a_build_that_fails_leaves_nothing(indexes: IndexStore) -> None:
    def chunks() -> Iterator[Chunk]:
        yield CACHE
        raise KnowledgeError("no more")

    with pytest.raises(KnowledgeError, match="no more"):
        indexes.build("one", chunks(), str)
    assert indexes.open("one") is None


def test_a_file_is_found_by_the_next_process(tmp_path: Path) -> None:
    FtsIndexes(tmp_path).build("one", FEW, lambda: "notes").index.close()
    opened = FtsIndexes(tmp_path).open("one")
    assert opened is not None
    assert opened.notes == "notes"
    assert found(opened.index, "cache every page")[0] == "docs/cache.md"
    opened.index.close()


def _the_file(folder: Path) -> Path:
    (file,) = folder.glob("*.fts")
    return file


@pytest.mark.parametrize("damage", ["empty", "half", "other bytes", "another index"])
def test_a_damaged_or_foreign_file_is_built_again(tmp_path: Path, damage: str) -> None:
    indexes = FtsIndexes(tmp_path)
    indexes.build("one", FEW, lambda: "first").index.close()
    file = _the_file(tmp_path)
    whole_data = file.read_bytes()
    match damage:
        case "empty":
            file.write_bytes(b"")
        case "half":
            file.write_bytes(whole_data[: len(whole_data) // 2])
        case "other bytes":
            file.write_bytes(b"not a database at all" * 500)
        case _:
            FtsIndexes(tmp_path / "b").build("two", FEW, lambda: "x").index.close()
            _the_file(tmp_path / "b").replace(file)
    assert indexes.open("one") is None
    built = indexes.build("one", FEW, lambda: "second")
    assert built.notes == "second"
    built.index.close()


def test_damage_that_shows_only_in_a_search_is_said(tmp_path: Path) -> None:
    many = [a_chunk(f"docs/{n}.md", text=f"cache word{n} " * 200) for n in range(300)]
    indexes = FtsIndexes(tmp_path)
    indexes.build("one", many, str).index.close()
    opened = indexes.open("one")
    assert opened is not None
    file = _the_file(tmp_path)
    size = file.stat().st_size
    with file.open("r+b") as raw:
        raw.seek(4 * 8192)
        raw.write(b"\xff" * (size - 4 * 8192))
    with pytest.raises(IndexDamaged):
        search("cache word7", opened.index, limit=5)
    opened.index.close()


def test_only_the_newest_files_are_kept_and_those_in_use(tmp_path: Path) -> None:
    indexes = FtsIndexes(tmp_path)
    used = indexes.build("s0", FEW, str)
    for n in range(1, 8):
        indexes.build(f"s{n}", FEW, str).index.close()
        for place, file in enumerate(sorted(tmp_path.glob("*.fts"))):
            os.utime(file, (1_000 + place, 1_000 + place))
    names = sorted(file.name.partition(".")[0] for file in tmp_path.glob("*.fts"))
    assert names == ["s0", "s4", "s5", "s6", "s7"]
    assert found(used.index, "cache every page")[0] == "docs/cache.md"
    used.index.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(KnowledgeError, match="file"):
        FtsIndexes(tmp_path / "file").build("one", FEW, str)


def _build(folder: str, log: str) -> str:
    def chunks() -> Iterator[Chunk]:
        with Path(log).open("a") as file:
            file.write("built\n")
        for n in range(2_000):
            yield a_chunk(f"docs/{n}.md", text=f"cache number {n}\n")

    built = FtsIndexes(Path(folder)).build("one", chunks(), lambda: "notes")
    answer = found(built.index, "number 1999")[0]
    built.index.close()
    return answer


def test_eight_processes_that_start_together_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with multiprocessing.get_context("spawn").Pool(8) as pool:
        answers = pool.starmap(_build, [(str(tmp_path / "indexes"), str(log))] * 8)
    assert answers == ["docs/1999.md"] * 8
    assert log.read_text() == "built\n"


def test_what_is_written_is_for_its_owner_alone(tmp_path: Path) -> None:
    FtsIndexes(tmp_path / "search").build("one", FEW, lambda: "notes").index.close()
    made = [tmp_path / "search", *(tmp_path / "search").iterdir()]
    assert len(made) > 2
    assert [path for path in made if path.stat().st_mode & 0o077] == []
