"""What every index promises, and what the one in files promises besides."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from loopline.errors import KnowledgeError
from loopline.knowledge import IndexedFile, IndexKey, IndexStore
from loopline.knowledge.fts import FtsIndexes
from loopline.search import Chunk, Index, IndexDamaged, Kind, kind_of, name_parts, search
from tests.support.examples import examples
from tests.support.forked_processes import forked
from tests.support.indexes import index_of_chunks, temporary_index
from tests.support.warm_programs import warm_program


def key(name: str) -> IndexKey:
    return IndexKey(name, name)


class History:
    """Commits of one repository, each with an index; every file is one chunk, or several with lines between."""

    def __init__(self, store: IndexStore) -> None:
        self._store = store
        self._commits = 0
        self.read: list[str] = []

    def moves_to(self, files: Mapping[str, str]) -> Index:
        """The index of a commit with these files; `read` has what was read for it."""
        self._commits += 1
        self.read.clear()

        def read(paths: Sequence[str]) -> Iterator[IndexedFile]:
            self.read += paths
            for path in paths:
                chunks = [
                    a_chunk(path, f"{path} {n}", part, line=n, kind=kind_of(path))
                    for n, part in enumerate(files[path].split("\n---\n"), start=1)
                ]
                yield IndexedFile(path, files[path], chunks)

        name = IndexKey(str(self._commits), "history")
        return self._store.build(name, files, read, lambda notes: repr(sorted(notes)))


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


def test_a_hit_is_the_chunk_that_was_given() -> None:
    (first, *_) = search("per-site cache", temporary_index(FEW), limit=5)
    assert first.chunk == CACHE


def test_more_of_the_words_come_first() -> None:
    assert found(temporary_index(FEW), "cache every page")[0] == "docs/cache.md"


def test_scores_fall_along_the_list() -> None:
    many = [a_chunk(f"docs/{n}.md", text="cache " * n + "\n") for n in range(1, 12)]
    scores = [hit.score for hit in search("cache", temporary_index(many), limit=10)]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 10


@given(
    st.sets(st.tuples(*[st.sampled_from(["Cache", "Http", "Middleware", "Ber"])] * 3)),
    st.sampled_from([" ", "_", ".", "(", "é", "\ud800", "\n", "\u3000", "\x1c"]),
)
def test_the_parts_of_each_compound_name_are_found_once_whatever_stands_around_it(
    names: set[tuple[str, ...]], between: str
) -> None:
    words = [*("".join(name) for name in names), "plain", "Title", "UPPER", "9"] * 2
    parts = name_parts(between.join(words)).split()
    assert sorted(parts) == sorted(part for name in names for part in name)


def test_words_that_say_nothing_find_nothing_unless_there_are_no_others() -> None:
    index = temporary_index([*FEW, a_chunk("docs/to.md", "To the", "to the\n")])
    assert found(index, "how do the users log in")[0] == "docs/auth.md"
    assert found(index, "to the")[0] == "docs/to.md"


def test_a_part_of_a_compound_name_finds_it() -> None:
    assert "src/cache.py" in found(temporary_index(FEW), "middleware")
    assert found(temporary_index(FEW), "CacheMiddleware")[0] == "src/cache.py"


def test_the_place_that_is_called_like_a_dotted_name_comes_first() -> None:
    named = a_chunk("docs/b.md", "API \u203a update_or_create()", "Updates it.\n")
    other = a_chunk("docs/c.md", "API \u203a bulk update", "Updates or creates; create, update.\n")
    assert found(temporary_index([other, named]), "objects.update_or_create")[0] == "docs/b.md"


def test_a_plural_finds_the_singular() -> None:
    assert found(temporary_index(FEW), "caches") != []


def test_documentation_comes_before_tests_that_say_the_same() -> None:
    test = a_chunk("tests/a.py", "A", "migrate the database!\n", kind="tests")
    document = a_chunk("docs/z.md", "A", "migrate the database\n")
    assert found(temporary_index([test, document]), "migrate database") == [
        "docs/z.md",
        "tests/a.py",
    ]


def test_no_file_has_more_than_two_of_the_first_five() -> None:
    one = [a_chunk("docs/one.md", "Cache", f"cache cache {n}\n", line=n) for n in range(1, 7)]
    rest = [a_chunk(f"docs/{n}.md", "B", f"a cache among other things {n}\n") for n in range(4)]
    paths = found(temporary_index([*one, *rest]), "cache", limit=10)
    assert paths[:5].count("docs/one.md") == 2
    assert len(paths) == 10


def test_a_limit_is_kept() -> None:
    assert len(found(temporary_index(FEW), "cache", limit=1)) == 1
    assert found(temporary_index(FEW), "cache", limit=0) == []


def test_an_empty_index_finds_nothing() -> None:
    assert found(temporary_index([]), "cache") == []


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
def test_no_text_is_a_mistake(query: str) -> None:
    assert len(found(temporary_index(FEW), query)) <= len(FEW)


@examples(50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60))
def test_whatever_is_asked_is_answered(query: str) -> None:
    assert len(found(temporary_index(FEW), query)) <= len(FEW)


def test_scripts_without_spaces_and_marks_are_found_by_their_words() -> None:
    index = temporary_index([a_chunk("docs/hi.md", "नमस्ते", "नमस्ते दुनिया\n"), *FEW])
    assert found(index, "दुनिया") == ["docs/hi.md"]


def test_many_threads_may_search_at_once() -> None:
    index = temporary_index(FEW)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(found, [index] * 50, ["cache every page"] * 50))
    assert all(answer == answers[0] for answer in answers)


def test_an_index_may_be_closed_twice() -> None:
    index = temporary_index(FEW)
    index.close()
    index.close()


def test_a_store_opens_only_what_was_built(indexes: IndexStore) -> None:
    assert indexes.open(key("one")) is None
    index_of_chunks(indexes, "one", FEW).close()
    assert indexes.open(key("two")) is None


def test_notes_are_made_of_those_of_every_file(indexes: IndexStore) -> None:
    files = [IndexedFile(each.path, "blob", [each], note=f"note of {each.title}") for each in FEW]
    built = indexes.build(
        key("one"), {each.path: "blob" for each in FEW}, lambda _: files, lambda notes: repr(notes)
    )
    assert built.notes == repr({file.path: file.note for file in files})
    built.close()


def test_what_is_built_already_reads_no_file(indexes: IndexStore) -> None:
    first = index_of_chunks(indexes, "one", FEW, "first")
    second = index_of_chunks(indexes, "one", (), "second")
    assert second.notes == "first"
    assert found(second, "cache every page")[0] == "docs/cache.md"
    first.close()
    second.close()


def test_what_is_discarded_is_built_again(indexes: IndexStore) -> None:
    index_of_chunks(indexes, "one", FEW, "first").close()
    indexes.discard(key("one"))
    again = index_of_chunks(indexes, "one", FEW, "second")
    assert again.notes == "second"
    again.close()


def test_a_build_that_fails_leaves_nothing(indexes: IndexStore) -> None:
    def read(paths: Sequence[str]) -> Iterator[IndexedFile]:
        yield IndexedFile(paths[0], "blob", [CACHE])
        raise KnowledgeError("no more")

    with pytest.raises(KnowledgeError, match="no more"):
        indexes.build(key("one"), {CACHE.path: "blob", LOGIN.path: "blob"}, read, repr)
    assert indexes.open(key("one")) is None


def test_a_file_is_found_by_the_next_process(tmp_path: Path) -> None:
    index_of_chunks(FtsIndexes(tmp_path), "one", FEW).close()
    opened = FtsIndexes(tmp_path).open(key("one"))
    assert opened is not None
    assert opened.notes == "notes"
    assert found(opened, "cache every page")[0] == "docs/cache.md"
    opened.close()


WITHOUT_A_FOLDER = """
import tempfile
from pathlib import Path
from loopline.knowledge.fts import FtsIndexes
from tests.knowledge.test_index import FEW, index_of_chunks

indexes = FtsIndexes()
index_of_chunks(indexes, "one", FEW)
assert len([*Path(tempfile.gettempdir()).glob("*/*.fts")]) == 1
"""


def test_indexes_without_a_folder_leave_no_file(tmp_path: Path) -> None:
    command = warm_program("-c", WITHOUT_A_FOLDER)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, check=True)
    assert [*tmp_path.iterdir()] == []


def _the_file(folder: Path) -> Path:
    (file,) = folder.glob("*.fts")
    return file


@pytest.mark.parametrize("damage", ["empty", "half", "other bytes", "another index"])
def test_a_damaged_or_foreign_file_is_built_again(tmp_path: Path, damage: str) -> None:
    indexes = FtsIndexes(tmp_path)
    index_of_chunks(indexes, "one", FEW, "first").close()
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
            index_of_chunks(FtsIndexes(tmp_path / "b"), "two", FEW).close()
            _the_file(tmp_path / "b").replace(file)
    assert indexes.open(key("one")) is None
    built = index_of_chunks(indexes, "one", FEW, "second")
    assert built.notes == "second"
    built.close()


def test_damage_that_shows_only_in_a_search_is_said(tmp_path: Path) -> None:
    many = [a_chunk(f"docs/{n}.md", text=f"cache word{n} " * 200) for n in range(300)]
    indexes = FtsIndexes(tmp_path)
    index_of_chunks(indexes, "one", many).close()
    opened = indexes.open(key("one"))
    assert opened is not None
    file = _the_file(tmp_path)
    size = file.stat().st_size
    with file.open("r+b") as raw:
        raw.seek(4 * 8192)
        raw.write(b"\xff" * (size - 4 * 8192))
    with pytest.raises(IndexDamaged):
        search("cache word7", opened, limit=5)
    opened.close()


def test_the_newest_of_each_family_are_kept_and_those_in_use(tmp_path: Path) -> None:
    indexes = FtsIndexes(tmp_path)
    history = History(indexes)
    index_of_chunks(indexes, "other", FEW).close()
    used = history.moves_to({"a.md": "first"})
    for n in range(7):
        history.moves_to({"a.md": f"text {n}"}).close()
        for place, file in enumerate(sorted(tmp_path.glob("*.fts"), key=_modified)):
            os.utime(file, (1_000 + place, 1_000 + place))
    names = sorted(file.name.partition("-")[2] for file in tmp_path.glob("*.fts"))
    assert names == [f"{n}.v3.fts" for n in (1, 5, 6, 7, 8, "other")]
    assert found(used, "first") == ["a.md"]
    used.close()


def _modified(path: Path) -> float:
    return path.stat().st_mtime


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(KnowledgeError, match="file"):
        index_of_chunks(FtsIndexes(tmp_path / "file"), "one", FEW)


def _build(folder: str, log: str) -> str:
    def read(paths: Sequence[str]) -> Iterator[IndexedFile]:
        with Path(log).open("a") as file:
            file.write("built\n")
        for n, path in enumerate(paths):
            yield IndexedFile(path, "blob", [a_chunk(path, text=f"cache number {n}\n")])

    files = {f"docs/{n}.md": "blob" for n in range(2_000)}
    built = FtsIndexes(Path(folder)).build(key("one"), files, read, repr)
    answer = found(built, "number 1999")[0]
    built.close()
    return answer


def test_eight_processes_that_start_together_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with forked.Pool(8) as pool:
        answers = pool.starmap(_build, [(str(tmp_path / "indexes"), str(log))] * 8)
    assert answers == ["docs/1999.md"] * 8
    assert log.read_text() == "built\n"


def test_what_is_written_is_for_its_owner_alone(tmp_path: Path) -> None:
    index_of_chunks(FtsIndexes(tmp_path / "search"), "one", FEW).close()
    made = [tmp_path / "search", *(tmp_path / "search").iterdir()]
    assert len(made) > 2
    assert [path for path in made if path.stat().st_mode & 0o077] == []


TEXTS = st.text(alphabet="abcd \n-", max_size=12).map(lambda text: f"tea {text}")
PATHS = st.sampled_from(["a.md", "b.md", "src/c.py", "src/d.py", "tests/test_e.py", "data.json"])
TREES = st.lists(st.dictionaries(PATHS, TEXTS, max_size=6), min_size=2, max_size=6)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TREES)
def test_an_index_made_from_an_earlier_one_is_that_of_its_files(
    tmp_path: Path, trees: list[dict[str, str]]
) -> None:
    """Numbered without a gap, and with the hits that an index from nothing has."""
    with TemporaryDirectory(dir=tmp_path) as folder:
        history = History(FtsIndexes(Path(folder)))
        for tree in trees:
            index, fresh = history.moves_to(tree), History(FtsIndexes()).moves_to(tree)
            assert _chunks(index) == _chunks(fresh)
            for query in ("tea", "a b", "c tea d", "test"):
                assert _scores(index, query) == _scores(fresh, query)
            index.close()


def _chunks(index: Index) -> list[Chunk]:
    chunks = index.read(range(1, index.size + 1))
    assert len(chunks) == index.size
    return sorted(chunks, key=lambda chunk: (chunk.path, chunk.lines))


def _scores(index: Index, query: str) -> list[float]:
    return [round(hit.score, 9) for hit in search(query, index, limit=30)]


def test_only_files_that_changed_are_read(indexes: IndexStore) -> None:
    history = History(indexes)
    files = {f"docs/{n}.md": f"page {n}" for n in range(50)}
    history.moves_to(files).close()
    moved = {**files, "docs/7.md": "another page 7", "docs/new.md": "new"}
    del moved["docs/9.md"]
    index = history.moves_to(moved)
    assert history.read == ["docs/7.md", "docs/new.md"]
    assert found(index, "another page")[0] == "docs/7.md"
    assert "docs/9.md" not in found(index, "page 9", limit=50)
    index.close()


def test_texts_that_stay_keep_their_numbers(tmp_path: Path) -> None:
    history = History(FtsIndexes(tmp_path))
    files = {f"docs/{n}.md": f"page {n}\n---\nmore" for n in range(20)}
    first = history.moves_to(files)
    second = history.moves_to({**files, "docs/7.md": "one part"})
    assert second.base is not None
    assert second.size == first.size - 1
    for number in range(1, second.size + 1):
        same = first.read([number]) == second.read([number])
        assert same is (number not in second.base.changed)
    assert (
        len(second.base.changed) == 2
    )  # the part that is new, and the last one in the place of the other
    first.close()
    second.close()


def test_a_commit_with_other_files_is_read_anew(tmp_path: Path) -> None:
    history = History(FtsIndexes(tmp_path))
    history.moves_to({f"docs/{n}.md": "page" for n in range(20)}).close()
    index = history.moves_to({f"src/{n}.py": "page" for n in range(20)})
    assert (index.base, len(history.read)) == (None, 20)
    index.close()


def test_an_earlier_index_that_is_damaged_is_not_used(tmp_path: Path) -> None:
    history = History(FtsIndexes(tmp_path))
    files = {f"docs/{n}.md": f"page {n} " * 300 for n in range(200)}
    history.moves_to(files).close()
    file = _the_file(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[: 8 * 8192] + b"\xff" * (len(whole) - 8 * 8192))
    index = history.moves_to({**files, "docs/7.md": "another"})
    assert found(index, "another")[0] == "docs/7.md"
    assert "docs/150.md" in found(index, "page 150")
    index.close()


KILLED = """
import os, sys
from pathlib import Path
from loopline.knowledge import fts
from loopline.knowledge.fts import FtsIndexes
from tests.knowledge.test_index import FILES, MOVED, History

steps = [int(sys.argv[2])]

def step(function):
    def counted(*arguments):
        steps[0] -= 1
        if not steps[0]:
            os.kill(os.getpid(), 9)
        return function(*arguments)
    return counted

history = History(FtsIndexes(Path(sys.argv[1])))
history.moves_to(FILES)
for name in ("_remove", "_delete_words", "_insert_files", "_fill_holes", "_insert_rows", "_write_about"):
    setattr(fts, name, step(getattr(fts, name)))
history.moves_to(MOVED)
"""
FILES = {f"docs/{n}.md": f"page {n}\n---\nmore" for n in range(30)}
MOVED = {**FILES, "docs/3.md": "another", "docs/new.md": "new"}


@pytest.mark.parametrize("step", [1, 2, 4, 6, 8])
def test_a_killed_build_leaves_the_earlier_index_and_is_done_again(
    tmp_path: Path, step: int
) -> None:
    command = warm_program("-c", KILLED, str(tmp_path), str(step))
    assert subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode == -9
    assert FtsIndexes(tmp_path).open(IndexKey("2", "history")) is None
    history = History(FtsIndexes(tmp_path))
    history.moves_to(FILES).close()
    assert history.read == []
    index = history.moves_to(MOVED)
    assert history.read == ["docs/3.md", "docs/new.md"]
    assert _chunks(index) == _chunks(History(FtsIndexes()).moves_to(MOVED))
    assert list(tmp_path.glob("*.new")) == []
    index.close()
