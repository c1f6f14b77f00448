"""A knowledge space: built once for a commit, searched by words, read by ref."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline.errors import KnowledgeError, RefError
from loopline.knowledge import (
    IndexStore,
    KnowledgeConfig,
    KnowledgeSpace,
    Passage,
    SearchFilter,
)
from loopline.knowledge.fts import FtsIndexes
from loopline.knowledge.git import GitRepository
from loopline.knowledge.repository import RepositoryFile
from loopline.knowledge.tree import Root, Tree, read_roots, repository_path
from loopline.refs import KnowledgeRef, Lines, parse
from loopline.search import Embedder, EmbeddingError, SharedEmbedder, Vector
from tests.support.memory_repository import MemoryRepository
from tests.support.vectors_in_memory import MemoryVectors, WordEmbedder

from .conftest import GitFolder, Writer

FILES = {
    "handbook/cache.md": "# Caching\n\nWhy.\n\n## Per-site cache\n\nCache every page.\n",
    "handbook/auth/login.md": "# Login\n\nHow users log in.\n",
    "lib/cache.py": "class CacheMiddleware:\n    pass\n",
    "README.md": "# Project\n\nSee [cache](handbook/cache.md).\n",
}
ROOTED = KnowledgeConfig(docs_root="handbook", src_root="lib")


FENCED = """\
[lost 1](lost.md)
```text
[in code](lost.md)
~~~
[in code](lost.md)
```python
[in code](lost.md)
```
[lost 9](lost.md)
~~~~
~~~
````
[in code](lost.md)
~~~~~ \t
[lost 15](lost.md)
"""


async def ready(
    files: dict[str, str | bytes] | None = None, config: KnowledgeConfig | None = None
) -> KnowledgeSpace:
    repository = MemoryRepository("project")
    repository.commit(files if files is not None else dict(FILES))
    space = KnowledgeSpace(repository, FtsIndexes(), config)
    await space.ensure()
    return space


def test_an_embedder_without_a_store_for_its_vectors_is_refused() -> None:
    with pytest.raises(KnowledgeError, match="pass vectors="):
        KnowledgeSpace(MemoryRepository(), FtsIndexes(), embedder=SharedEmbedder(WordEmbedder))


async def test_a_passage_is_found_and_its_ref_reads_the_same_text(
    writer: Writer, indexes: IndexStore
) -> None:
    commit = writer.commit(FILES)
    space = KnowledgeSpace(writer.repository, indexes, ROOTED)
    (passage, *_) = await space.search("per-site cache")
    assert passage.ref == f"ks:docs/cache.md@{commit[:7]}#L5-L7"
    assert passage.title == "Caching \u203a Per-site cache"
    assert passage.path == "docs/cache.md"
    assert passage.commit == commit
    assert passage.lines == (5, 7)
    assert passage.score is not None
    read = await space.read(passage.ref)
    assert (read.text, read.ref, read.lines) == (passage.text, passage.ref, passage.lines)
    await space.close()


async def test_no_more_passages_come_than_asked_for() -> None:
    space = await ready()
    assert len(await space.search("cache", limit=1)) == 1


async def test_the_state_says_what_the_space_holds(writer: Writer, indexes: IndexStore) -> None:
    commit = writer.commit(
        {**FILES, "lib/logo.png": b"\x89PNG\0\0", "lib/big.txt": "x\n" * 600_000}
    )
    space = KnowledgeSpace(writer.repository, indexes, ROOTED)
    state = await space.ensure()
    assert state is space.state
    assert (state.repository, state.commit, state.short_commit) == ("project", commit, commit[:7])
    assert (state.files, state.passages) == (3, 4)
    assert [(passage.path, passage.reason) for passage in state.skipped] == [
        ("src/big.txt", "too large"),
        ("src/logo.png", "binary"),
    ]
    assert not state.reused
    await space.close()


async def test_before_it_is_ready_a_space_has_no_state() -> None:
    space = KnowledgeSpace(MemoryRepository(), FtsIndexes())
    with pytest.raises(KnowledgeError, match="ensure"):
        _ = space.state


async def test_progress_counts_files_to_the_end() -> None:
    repository = MemoryRepository("project")
    repository.commit(FILES)
    told: list[tuple[int, int, str]] = []
    space = KnowledgeSpace(repository, FtsIndexes())
    await space.ensure(lambda done, total, what: told.append((done, total, what)))
    assert told[0] == (0, 4, "reading project")
    assert told[-1] == (4, 4, "reading project")


async def test_the_next_space_opens_what_the_first_built(
    writer: Writer, indexes: IndexStore
) -> None:
    writer.commit({**FILES, "handbook/lost.md": "[x](nowhere.md)\n"})
    first = KnowledgeSpace(writer.repository, indexes, ROOTED)
    built = await first.ensure()
    second = KnowledgeSpace(writer.repository, indexes, ROOTED)
    opened = await second.ensure()
    assert (built.reused, opened.reused) == (False, True)
    assert (opened.files, opened.passages) == (built.files, built.passages)
    assert opened.warnings == built.warnings != ()
    assert (await second.search("per-site cache"))[0].path == "docs/cache.md"
    await first.close()
    await second.close()


async def test_a_fence_is_closed_by_its_own_mark_alone_as_long_as_it_was_opened() -> None:
    space = await ready({"guide.md": FENCED})
    report = await space.ensure()
    assert [warning.split(": ")[0] for warning in report.warnings] == [
        "guide.md:1",
        "guide.md:9",
        "guide.md:15",
    ]


async def test_a_new_commit_is_taken_in_by_reconcile_and_the_old_ref_still_reads(
    writer: Writer, indexes: IndexStore
) -> None:
    writer.commit(FILES)
    space = KnowledgeSpace(writer.repository, indexes, ROOTED)
    old = (await space.search("per-site cache"))[0]
    second = writer.commit({"handbook/cache.md": "# Caching\n\nDifferent now.\n"})
    assert (await space.search("per-site cache"))[0] == old
    state = await space.ensure()
    assert state.commit == second
    assert (await space.read("ks:docs/cache.md")).text.endswith("Different now.\n")
    assert (await space.read(old.ref)).text == old.text
    await space.close()


async def test_reconcile_without_a_new_commit_keeps_the_state() -> None:
    space = await ready()
    before = space.state
    assert await space.ensure() is before


async def test_other_roots_are_another_index(indexes: IndexStore) -> None:
    repository = MemoryRepository("project")
    repository.commit(FILES)
    whole_space = KnowledgeSpace(repository, indexes)
    rooted = KnowledgeSpace(repository, indexes, ROOTED)
    assert (await whole_space.ensure()).files == 4
    assert (await rooted.ensure()).files == 3
    assert {passage.path for passage in await whole_space.search("project")} >= {"README.md"}
    assert {passage.path for passage in await rooted.search("project")} == set()
    await whole_space.close()
    await rooted.close()


async def test_a_closed_space_opens_again(indexes: IndexStore) -> None:
    repository = MemoryRepository("project")
    repository.commit(FILES)
    space = KnowledgeSpace(repository, indexes)
    await space.ensure()
    await space.close()
    assert (await space.search("per-site cache"))[0].path == "handbook/cache.md"
    await space.close()


async def test_many_searches_while_commits_come(writer: Writer, indexes: IndexStore) -> None:
    writer.commit(FILES)
    space = KnowledgeSpace(writer.repository, indexes)
    await space.ensure()

    async def search() -> None:
        for _ in range(10):
            assert await space.search("cache")

    searches = asyncio.gather(*(search() for _ in range(6)))
    for n in range(4):
        await asyncio.to_thread(writer.commit, {"handbook/new.md": f"# New {n}\n\ncache\n"})
        await space.ensure()
    await searches
    await space.close()


@pytest.mark.parametrize("closed", [False, True])
async def test_a_search_ends_in_the_index_where_it_began(
    writer: Writer, indexes: IndexStore, *, closed: bool
) -> None:
    writer.commit(FILES)
    space = KnowledgeSpace(writer.repository, indexes)
    await space.ensure()
    search_began, search_may_end = threading.Event(), threading.Event()

    class SlowFilter(SearchFilter):
        def accepts(self, path: str) -> bool:
            search_began.set()
            search_may_end.wait()
            return super().accepts(path)

    search = asyncio.create_task(space.search("cache", within=SlowFilter()))
    await asyncio.to_thread(search_began.wait)
    for n in range(2):
        writer.commit({"handbook/cache.md": f"# New {n}\n"})
        await space.ensure()
    if closed:
        await space.close()
    search_may_end.set()
    assert "handbook/cache.md" in {passage.path for passage in await search}
    await space.close()


async def test_an_index_damaged_under_way_is_built_again(folder: GitFolder, tmp_path: Path) -> None:
    many = {f"docs/{n}.md": f"# Part {n}\n\n" + f"cache word{n} " * 300 for n in range(300)}
    folder.commit(many)
    indexes = FtsIndexes(tmp_path / "indexes")
    space = KnowledgeSpace(GitRepository.open(str(folder.path)), indexes)
    await space.ensure()
    (file,) = (tmp_path / "indexes").glob("*.fts")
    with file.open("r+b") as raw:
        raw.seek(2 * 8192)
        raw.write(b"\xff" * (file.stat().st_size - 2 * 8192))
    assert (await space.search("word7"))[0].path == "docs/7.md"
    assert not space.state.reused
    await space.close()


class BreakingRepository(MemoryRepository):
    """A repository that breaks after its files were read."""

    def abbreviate(self, commit: str) -> str:
        raise KnowledgeError(f"{self.name} was removed")


def open_files(folder: Path) -> list[Path]:
    """The files in the folder that this process has open."""
    files = list[Path]()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            files.append(entry.readlink())
    return [file for file in files if file.parent == folder]


async def test_the_index_of_a_repository_that_breaks_is_closed(tmp_path: Path) -> None:
    repository = BreakingRepository()
    repository.commit(dict(FILES))
    space = KnowledgeSpace(repository, FtsIndexes(tmp_path / "indexes"))
    with pytest.raises(KnowledgeError, match="was removed") as broken:
        await space.ensure()
    assert len([*(tmp_path / "indexes").glob("*.fts")]) == 1
    assert open_files(tmp_path / "indexes") == []
    assert broken.value.__traceback__ is not None  # it refers to the index, which is not removed
    await space.close()


async def test_a_file_is_read_whole_and_its_ref_is_pinned() -> None:
    space = await ready()
    passage = await space.read("ks:handbook/cache.md")
    assert passage.text == FILES["handbook/cache.md"]
    assert passage.ref == f"ks:handbook/cache.md@{space.state.short_commit}"
    assert (passage.title, passage.lines, passage.score) == ("Caching", (1, 7), None)


async def test_lines_are_read_and_a_range_that_goes_past_the_end_stops_there() -> None:
    space = await ready()
    passage = await space.read(KnowledgeRef(path="handbook/cache.md", span=Lines(5, 99)))
    assert passage.text == "## Per-site cache\n\nCache every page.\n"
    assert passage.lines == (5, 7)
    assert passage.ref.endswith("#L5-L7")
    assert passage.title == "Caching \u203a Per-site cache"


async def test_characters_are_read() -> None:
    space = await ready()
    passage = await space.read("ks:handbook/cache.md#C3-C9")
    assert passage.text == "Caching"
    assert passage.lines == (1, 1)


async def test_lines_beyond_the_file_say_how_many_there_are() -> None:
    space = await ready()
    with pytest.raises(RefError, match="has 7 lines"):
        await space.read("ks:handbook/cache.md#L8-L9")


async def test_a_folder_reads_as_a_list_of_what_is_in_it() -> None:
    space = await ready(config=ROOTED)
    passage = await space.read("ks:docs/")
    assert passage.text == "- ks:docs/auth/\n- ks:docs/cache.md"
    assert passage.ref == f"ks:docs/@{space.state.short_commit}"
    assert (await space.read("ks:/")).text == "- ks:docs/\n- ks:src/"
    assert (await space.read("ks:docs/auth")).text == "- ks:docs/auth/login.md"


async def test_a_path_that_is_not_there_says_what_is_near() -> None:
    space = await ready(config=ROOTED)
    with pytest.raises(RefError, match=r"ks:docs/auth/login\.md"):
        await space.read("ks:docs/login.md")
    with pytest.raises(RefError, match=r"ks:docs/cache\.md"):
        await space.read("ks:docs/cach.md")
    with pytest.raises(RefError, match=r"has no 'README\.md'"):
        await space.read("ks:README.md")


@pytest.mark.parametrize(
    "path", ["../secret", "docs/../../secret", "/etc/passwd", "docs//cache.md"]
)
async def test_no_path_leads_out_of_the_space(path: str) -> None:
    space = await ready(config=ROOTED)
    with pytest.raises(RefError):
        await space.read(KnowledgeRef(path=path))


async def test_an_unknown_commit_says_which_is_the_current_one() -> None:
    space = await ready()
    with pytest.raises(RefError, match=f"current one is {space.state.short_commit}"):
        await space.read("ks:README.md@fffffff")


async def test_a_ref_of_another_kind_is_refused() -> None:
    space = await ready()
    with pytest.raises(RefError, match="begin with ks:"):
        await space.read("ar:plan.latest:p1")
    with pytest.raises(RefError):
        await space.read("no ref at all")


async def test_a_binary_file_is_not_read() -> None:
    space = await ready({"a.bin": b"\0\1\2", "b.md": "x\n"})
    with pytest.raises(RefError, match="not text"):
        await space.read("ks:a.bin")


async def test_text_that_is_not_utf8_is_read_as_latin_1() -> None:
    space = await ready({"a.md": "caf\xe9\r\n".encode("latin-1")})
    assert (await space.read("ks:a.md")).text == "caf\xe9\r\n"
    assert (await space.search("café"))[0].path == "a.md"


@pytest.mark.parametrize(
    "name", ["with space.md", "ünï.md", "100%.md", "a#b@c.md", "new\nline.md", "d/e [f].md"]
)
async def test_any_name_of_a_file_has_a_ref_that_reads_it(writer: Writer, name: str) -> None:
    writer.commit({name: "# Heading\n\nparticular words\n"})
    space = KnowledgeSpace(writer.repository, FtsIndexes())
    (passage,) = await space.search("particular words")
    assert passage.path == name
    assert parse(passage.ref) == KnowledgeRef(
        path=name, commit=space.state.short_commit, span=Lines(1, 3)
    )
    assert (await space.read(passage.ref)).text == passage.text


async def test_an_empty_repository_is_a_space_without_passages(
    writer: Writer, indexes: IndexStore
) -> None:
    writer.commit({})
    space = KnowledgeSpace(writer.repository, indexes)
    assert (await space.ensure()).passages == 0
    assert list(await space.search("anything")) == []
    await space.close()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (KnowledgeConfig(docs_root="dcos"), r"knowledge\.docs_root is 'dcos'.*handbook, lib"),
        (KnowledgeConfig(src_root="README.md"), r"knowledge\.src_root .* is a file"),
        (KnowledgeConfig(ref="v9"), r"knowledge\.ref is 'v9'"),
    ],
)
async def test_a_setting_that_names_nothing_is_named(
    writer: Writer, indexes: IndexStore, config: KnowledgeConfig, message: str
) -> None:
    writer.commit(FILES)
    with pytest.raises(KnowledgeError, match=message):
        await KnowledgeSpace(writer.repository, indexes, config).ensure()


@pytest.mark.parametrize("root", ["../docs", "/docs", "a/../../b"])
def test_a_root_may_not_leave_the_repository(root: str) -> None:
    with pytest.raises(KnowledgeError, match=r"knowledge\.tests_root"):
        read_roots(KnowledgeConfig(tests_root=root))


def test_roots_may_be_written_in_several_ways() -> None:
    found_configured_roots = read_roots(
        KnowledgeConfig(docs_root="./docs/", src_root="a//b", deploy_root=".")
    )
    assert found_configured_roots == (Root("docs", "docs"), Root("src", "a/b"), Root("deploy", ""))


def space_path(roots: tuple[Root, ...], path: str) -> str | None:
    """The path in the space of a repository's only file, None if it has none there."""
    return next(iter(Tree(roots, [RepositoryFile(path, 1, "")]).files), None)


def test_the_deepest_root_names_a_file() -> None:
    both = read_roots(KnowledgeConfig(docs_root=".", src_root="src"))
    assert space_path(both, "src/a.py") == "src/a.py"
    assert space_path(both, "b.md") == "docs/b.md"
    assert space_path(both, "src/deep/c.py") == "src/deep/c.py"
    assert repository_path(both, "docs/src/a.py") == "src/a.py"


_NAME = st.text("abc.", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
_PATH = st.lists(_NAME, min_size=1, max_size=4).map("/".join)


@given(_PATH, _PATH | st.just(""), _PATH | st.just("."))
def test_a_path_of_the_space_leads_back_to_its_file(path: str, docs: str, src: str) -> None:
    found_configured_roots = read_roots(KnowledgeConfig(docs_root=docs, src_root=src))
    where = space_path(found_configured_roots, path)
    assert where is not None or "." not in (docs, src)
    if where is not None and len({root.folder for root in found_configured_roots}) == len(
        found_configured_roots
    ):
        assert repository_path(found_configured_roots, where) == path


async def warnings_of(files: dict[str, str | bytes], config: KnowledgeConfig) -> tuple[str, ...]:
    return (await ready(files, config)).state.warnings


async def test_links_and_refs_that_lead_nowhere_are_warned_of_with_file_and_line() -> None:
    text = "# A\n\n[x](b.md) and [y](../lib)\n\nSee ks:docs/nothing.md and ks:docs/b.md.\n\n[z]: gone.md\n"
    found = await warnings_of(
        {"d/a.md": text, "d/c.md": "c\n", "lib/x": "x\n"}, KnowledgeConfig(docs_root="d")
    )
    assert [item.partition(" ")[0] for item in found] == [
        "docs/a.md:3:",
        "docs/a.md:5:",
        "docs/a.md:5:",
        "docs/a.md:7:",
    ]
    assert "'b.md'" in found[0]
    assert "ks:docs/nothing.md" in found[1]


@pytest.mark.parametrize(
    "text",
    [
        "[x](https://example.org/a)",
        "[x](mailto:a@b)",
        "[x](#here)",
        "[x](/from/the/top)",
        "[x](b)",
        "[x](b.md#part)",
        "[x](b.md?plain=1 'title')",
        "[x](<with space.md>)",
        "[x](with%20space.md)",
        "[x](../../outside.md)",
        "[x](.)",
        "`[x](gone.md)`",
        "```\n[x](gone.md) ks:gone.md\n```",
        "[^1]: a footnote",
        "[Note]: this is prose",
        "ks:<path>",
        "ks:b.md@abcdef0",
        "ks:b.md#L1-L2, and more",
    ],
)
async def test_a_link_that_leads_somewhere_or_is_not_ours_is_not_warned_of(text: str) -> None:
    files: dict[str, str | bytes] = {
        "d/a.md": text,
        "d/b.md": "b\n",
        "d/with space.md": "x\n",
        "b.md": "",
    }
    assert await warnings_of(files, KnowledgeConfig()) == ()


async def test_links_are_not_looked_at_when_that_is_switched_off() -> None:
    files: dict[str, str | bytes] = {"a.md": "[x](gone.md)\n"}
    assert await warnings_of(files, KnowledgeConfig(validate_refs=False)) == ()


async def test_an_index_with_warnings_is_not_taken_for_one_without(indexes: IndexStore) -> None:
    repository = MemoryRepository("project")
    repository.commit({"a.md": "[x](gone.md)\n"})
    for looked_at in (True, False, True):
        config = KnowledgeConfig(validate_refs=looked_at)
        space = KnowledgeSpace(repository, indexes, config)
        assert bool((await space.ensure()).warnings) is looked_at
        await space.close()


def test_a_passage_of_ones_own_needs_little() -> None:
    passage = Passage(ref="ks:x", title="X", text="x")
    assert (passage.commit, passage.lines, passage.score) == ("", (0, 0), None)


class AwayEmbedder(WordEmbedder):
    """Its server is away for questions, and from a given passage on."""

    def __init__(self, fails_at: str = "", error: Exception | None = None) -> None:
        super().__init__()
        self._fails_at = fails_at
        self._error = error or EmbeddingError("the server is away")

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        if self._fails_at and any(self._fails_at in text for text in texts):
            raise self._error
        return super().embed_passages(texts)

    def embed_query(self, text: str) -> Vector:
        raise self._error


async def space_with(embedder: Embedder) -> KnowledgeSpace:
    repository = MemoryRepository("project")
    repository.commit(dict(FILES))
    space = KnowledgeSpace(
        repository, FtsIndexes(), embedder=SharedEmbedder(lambda: embedder), vectors=MemoryVectors()
    )
    await space.ensure()
    return space


async def test_a_question_that_cannot_be_embedded_is_searched_by_words_and_says_why() -> None:
    space = await space_with(AwayEmbedder())
    await space.ready()
    assert (await space.search("per-site cache"))[0].path == "handbook/cache.md"
    assert space.vectors is not None
    assert (space.vectors.is_ready, space.vectors.problem) == (True, "the server is away")
    await space.close()


@pytest.mark.parametrize("error", [EmbeddingError("away"), ValueError("the tokenizer broke")])
async def test_vectors_that_cannot_be_made_leave_words_and_say_why(error: Exception) -> None:
    space = await space_with(AwayEmbedder("log in", error))
    with pytest.raises(EmbeddingError, match=str(error)):
        await space.ready()
    (passage, *_) = await space.search("per-site cache")
    assert (passage.path, passage.why and passage.why.cosine) == ("handbook/cache.md", None)
    await space.close()


class CountingEmbedder(WordEmbedder):
    """Keeps the texts that it embedded."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        self.texts += texts
        return super().embed_passages(texts)


async def test_a_new_commit_embeds_only_the_passages_that_it_changed() -> None:
    embedder, repository = CountingEmbedder(), MemoryRepository("project")
    repository.commit(dict(FILES))
    space = KnowledgeSpace(
        repository, FtsIndexes(), embedder=SharedEmbedder(lambda: embedder), vectors=MemoryVectors()
    )
    await space.ready()
    embedder.texts.clear()
    moved = {path: text for path, text in FILES.items() if path != "README.md"}
    repository.commit({**moved, "copy/README.md": FILES["README.md"], "new.md": "# New\n\nTea.\n"})
    await space.ready()
    assert embedder.texts == ["New. # New Tea."]
    await space.close()


HEADINGS = {
    "tea.md": "# Tea\n\nGreen.\n\n## How it's stored\n\nDry.\n\n### In tins\n\nDark.\n\n## Brewing\n\nHot.\n",
    "tea.rst": "Tea\n===\n\nGreen.\n\nBrewing\n-------\n\nHot.\n",
    "tea.py": "class Tea:\n    pass\n\n\ndef brew() -> None:\n    pass\n",
}


@pytest.mark.parametrize(
    ("ref", "lines"),
    [
        ("tea.md#how-its-stored", (5, 12)),
        ("tea.md#How%20it's%20stored", (5, 12)),
        ("tea.md#in-tins", (9, 12)),
        ("tea.md#tea", (1, 15)),
        ("tea.rst#brewing", (6, 9)),
        ("tea.py#brew", (5, 6)),
        ("tea.py#class-tea", (1, 4)),
    ],
)
async def test_a_heading_resolves_to_its_lines_and_those_below_it(
    ref: str, lines: tuple[int, int]
) -> None:
    space = await ready(dict(HEADINGS))
    passage = await space.read(f"ks:{ref}")
    assert passage.lines == lines
    assert passage.ref.endswith(f"@{space.state.short_commit}#L{lines[0]}-L{lines[1]}")
    assert (await space.read(passage.ref)).text == passage.text


async def test_a_heading_that_is_not_there_is_an_error_that_lists_near_ones() -> None:
    space = await ready(dict(HEADINGS))
    with pytest.raises(RefError, match=r"no heading 'brew'; there is #brewing"):
        await space.read("ks:tea.md#brew")


async def test_a_folder_lists_its_files_with_or_without_a_slash() -> None:
    space = await ready()
    assert (await space.read("ks:handbook")).text == "- ks:handbook/auth/\n- ks:handbook/cache.md"
    assert (await space.read("ks:handbook/")).text == (await space.read("ks:handbook")).text


async def test_only_files_that_fit_a_filter_are_searched() -> None:
    space = await ready()
    found = {
        within: {passage.path for passage in await space.search("cache", within=within)}
        for within in (
            SearchFilter(root="lib"),
            SearchFilter(language=".py"),
            SearchFilter(path="handbook/*.md"),
            SearchFilter(root="lib", language="md"),
        )
    }
    assert list(found.values()) == [
        {"lib/cache.py"},
        {"lib/cache.py"},
        {"handbook/cache.md"},
        set(),
    ]


QUOTED = """\
See `docs/tea.md`, `docs/tea.md#L3`, `tea.md`, `../src/shop.py` and `src/shop.py`.
`docs/coffee.md` is gone, `src/` stays, `src/old/` went.
A `text/html` page, `a/b`, [lost](lost.md).
```text
`docs/fenced.md`
```
"""


async def test_a_check_names_each_path_in_backticks_that_is_gone() -> None:
    space = await ready({"docs/a.md": QUOTED, "docs/tea.md": "tea", "src/shop.py": "x = 1\n"})
    assert await space.check() == [
        "docs/a.md:2: there is no `docs/coffee.md`",
        "docs/a.md:2: there is no `src/old/`",
        "docs/a.md:3: the link to 'lost.md' is broken",
    ]


async def test_a_check_lists_more_than_a_build_warns_of() -> None:
    space = await ready({"a.md": "[lost](lost.md)\n" * 300})
    assert len(await space.check()) == 300
    assert len(space.state.warnings) == 201


LINKED = """\
[a](b.md#how-its-stored), [b](b.md#brewing), [c](#here), [d](#gone), [e](b.md#L3), [f](b.md#own-name).
See ks:docs/b.md#brewing, ks:docs/b.md#tea, ks:docs/b.md#L90, ks:src/shop.py#price and ks:src/shop.py#cost.

# Here
"""


async def test_a_check_names_each_heading_and_line_that_a_document_lacks() -> None:
    text = '# Tea\n\n<a id="own-name"></a>\n\n## How it\'s stored\n\nDry.\n'
    files = {"docs/a.md": LINKED, "docs/b.md": text, "src/shop.py": "def price():\n    pass\n"}
    space = await ready(dict(files))
    assert [line.partition(";")[0] for line in await space.check()] == [
        "docs/a.md:1: the link to 'b.md#brewing' is broken: no heading #brewing",
        "docs/a.md:1: the link to '#gone' is broken: no heading #gone",
        "docs/a.md:2: ks:docs/b.md has no heading 'brewing'",
        "docs/a.md:2: ks:docs/b.md has 7 lines, so none from 90 on",
        "docs/a.md:2: ks:src/shop.py has no heading 'cost'",
    ]
    assert space.state.warnings == ()


LABELLED = """\
(here)=
# Tea

[a](cup), [b](#cup), [c](<the pot>), [d](Old Page), [e](lost), [f](#lost), {ref}`cup`, {ref}`the cup <Cup>`.
{ref}`lost`, {ref}`python:cup`, {ref}`genindex`, ``{ref}`shown` ``, {numref}`here`, [g](tray).
A role `{ref}` in backticks is `none`.

```md
(tray)=
```
"""
LABELS = "(cup)=\n## Cups\n\n(the pot)=\nA pot.\n"


async def test_labels_of_a_document_are_no_broken_links() -> None:
    files = {
        "docs/a.md": LABELLED,
        "docs/b.md": LABELS,
        "docs/c.rst": ".. _old page:\n\nOld\n===\n\n.. _site: https://example.org\n",
    }
    space = await ready(dict(files))
    broken = [
        "docs/a.md:4: the link to 'lost' is broken",
        "docs/a.md:5: no document has the label 'lost'",
        "docs/a.md:5: the link to 'tray' is broken",
    ]
    assert list(space.state.warnings) == broken
    headings = "docs/a.md:4: the link to '#lost' is broken: no heading #lost"
    assert await space.check() == [broken[0], headings, *broken[1:]]


class CountedRepository(MemoryRepository):
    """Keeps the ids of the bytes that were read."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.blobs: list[str] = []

    def contents(self, blobs: Sequence[str]) -> Iterator[bytes]:
        self.blobs += blobs
        return super().contents(blobs)


async def test_a_moved_commit_reads_only_the_files_that_changed(indexes: IndexStore) -> None:
    repository = CountedRepository("project")
    files: dict[str, str | bytes] = {f"docs/{n}.md": f"# Page {n}\n\nTea.\n" for n in range(60)}
    files["docs/0.md"] = "[lost](lost.md) [one](1.md)\n"
    files["docs/logo.png"] = b"\0"
    repository.commit(files)
    space = KnowledgeSpace(repository, indexes)
    await space.ensure()
    repository.blobs.clear()
    moved = {**files, "docs/7.md": "# Coffee\n\nBlack.\n"}
    del moved["docs/1.md"]
    commit = repository.commit(moved)
    state = await space.ensure()
    changed = [entry.blob for entry in repository.entries(commit) if entry.path == "docs/7.md"]
    assert repository.blobs == changed
    assert (state.commit, state.files, state.passages) == (commit, 59, 59)
    assert [file.path for file in state.skipped] == ["docs/logo.png"]
    assert list(state.warnings) == [
        "docs/0.md:1: the link to 'lost.md' is broken",
        "docs/0.md:1: the link to '1.md' is broken",
    ]
    assert (await space.search("coffee"))[0].path == "docs/7.md"
    await space.close()
