"""Several repositories under names: one space, whose refs begin with a name and are pinned to its commit."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, Harness, Store
from loopline.errors import KnowledgeError, RefError
from loopline.harness import find_stale_answers
from loopline.knowledge import (
    KnowledgeConfig,
    KnowledgeSpace,
    SearchFilter,
)
from loopline.knowledge.fts import FtsIndexes
from loopline.models import JsonObject, ToolMessage
from loopline.refs import KnowledgeRef, parse
from loopline.search import SharedEmbedder
from loopline.testing import Call, ScriptedModel
from loopline.timeline import TurnHeader
from tests.support.memory_repository import MemoryRepository
from tests.support.vectors_in_memory import MemoryVectors, WordEmbedder

from .conftest import GitFolder

WEB = {
    "guide/login.md": "# Login\n\nUsers log in with a password.\n\nSee ks:web/docs/lost.md and ks:api/any.md.\n",
    "app.py": "def login() -> None:\n    pass\n",
}
API = {
    "README.md": "# API\n\nTokens are signed, so that no password is sent twice.\n",
    "tokens.py": "class Token:\n    '''A signed token.'''\n",
}
CONFIG = KnowledgeConfig(
    repositories={"web": KnowledgeConfig(docs_root="guide"), "api": KnowledgeConfig()}
)


async def space(
    config: KnowledgeConfig = CONFIG, *, files: Mapping[str, str] = API
) -> tuple[KnowledgeSpace, MemoryRepository]:
    web, api = MemoryRepository("web"), MemoryRepository("api")
    web.commit(WEB)
    api.commit(files)
    made = KnowledgeSpace(
        {"web": web, "api": api},
        FtsIndexes(),
        config,
        embedder=SharedEmbedder(lambda: WordEmbedder(32)),
        vectors=MemoryVectors(),
    )
    await made.ready()
    return made, api


async def test_a_search_finds_passages_of_every_repository_under_its_name() -> None:
    made, _ = await space()
    found = await made.search("password")
    assert {passage.path for passage in found} == {"web/docs/login.md", "api/README.md"}
    scores = [passage.score or 0.0 for passage in found]
    assert scores == sorted(scores, reverse=True)


async def test_every_ref_that_a_search_or_a_listing_prints_resolves() -> None:
    made, _ = await space()
    refs = [
        passage.ref
        for query in ("password", "token", "login")
        for passage in await made.search(query)
    ]
    for folder in ("ks:/", "ks:web/", "ks:web/docs", "ks:api"):
        refs += re.findall(r"^- (ks:\S+)$", (await made.read(folder)).text, re.MULTILINE)
    assert len(refs) > 6
    for ref in refs:
        passage = await made.read(ref)
        again = await made.read(passage.ref)
        assert (again.ref, again.text) == (passage.ref, passage.text)


async def test_each_ref_is_pinned_to_the_commit_of_its_own_repository() -> None:
    made, api = await space()
    states = made.state.repositories
    old = await made.read("ks:api/README.md")
    assert f"@{states['api'].short_commit}" in old.ref
    assert f"@{states['web'].short_commit}" in (await made.read("ks:web/docs/login.md")).ref
    api.commit({**API, "README.md": "# API\n\nNew.\n"})
    moved = await made.ensure()
    assert moved.repositories["web"].commit == states["web"].commit
    assert moved.repositories["api"].commit != states["api"].commit
    assert (await made.read(old.ref)).text == old.text
    assert (await made.read("ks:api/README.md")).text == "# API\n\nNew.\n"


async def test_a_filter_by_root_narrows_to_a_repository_or_a_folder_of_it() -> None:
    made, _ = await space()
    for root, paths in (
        ("api", {"api/README.md"}),
        ("web/docs", {"web/docs/login.md"}),
        ("docs", set[str]()),
    ):
        found = await made.search("password", within=SearchFilter(root=root))
        assert {passage.path for passage in found} == paths


async def test_a_repository_without_that_name_is_an_error_that_lists_the_names() -> None:
    made, _ = await space()
    with pytest.raises(RefError, match=r"no repository 'docs'; there is ks:web/, ks:api/"):
        await made.read("ks:docs/login.md")
    with pytest.raises(RefError, match=r"no 'api/README.txt' at"):
        await made.read("ks:api/README.txt")


async def test_the_state_adds_up_and_names_the_repository_of_each_warning() -> None:
    made, _ = await space()
    state = made.state
    assert list(state.repositories) == ["web", "api"]
    assert (state.files, state.commit) == (3, "")
    (warning,) = state.warnings
    assert warning.startswith("web/docs/login.md:5: ks:web/docs/lost.md does not exist")
    elsewhere = f"web/docs/login.md:5: the knowledge space has no 'api/any.md' at {state.repositories['api'].short_commit}"
    listed = list(await made.check())
    assert [line.partition(";")[0] for line in listed] == [warning.partition(";")[0], elsewhere]
    assert made.vectors is not None
    assert (made.vectors.is_ready, made.vectors.total) == (True, state.passages)


async def test_a_ref_that_names_no_commit_is_an_error_with_the_repository() -> None:
    config = KnowledgeConfig(
        repositories={"web": KnowledgeConfig(), "api": KnowledgeConfig(ref="v9")}
    )
    with pytest.raises(
        KnowledgeError, match=r"^knowledge\.repositories\.api: knowledge\.ref is 'v9'"
    ):
        await space(config)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    GitFolder(tmp_path / "web").commit(WEB)
    GitFolder(tmp_path / "api").commit(API)
    repositories: JsonObject = {
        "web": {"repo": str(tmp_path / "web"), "docs_root": "guide"},
        "api": {"repo": (tmp_path / "api").as_uri()},
    }
    return Bundle(
        id="guide",
        workflow=BaseWorkflow,
        configuration={"knowledge": {"repositories": repositories}},
    )


async def test_a_turn_records_the_commit_of_each_repository_and_its_refs_outlive_a_move(
    bundle: Bundle, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    script = ScriptedModel([Call("react.search_knowledge", query="password"), "So. [[S:1,2]]"])
    async with Harness.open(bundle, store=store, model=script) as harness:
        result = await harness.conversation("c").say("How?")
        blocks = await harness.conversation("c").blocks()
    texts = [part.text for part in script.requests[1].messages if isinstance(part, ToolMessage)]
    assert "— ks:web/docs/login.md@" in texts[0]
    headers = [block.body for block in blocks if isinstance(block.body, TurnHeader)]
    assert [commit.name for commit in headers[0].repositories] == ["web", "api"]
    assert headers[0].knowledge is None
    pinned = [parse(source.url) for source in result.sources]
    assert {ref.commit for ref in pinned if isinstance(ref, KnowledgeRef)} == {
        commit.commit[:7] for commit in headers[0].repositories
    }
    GitFolder(tmp_path / "web").commit({"guide/login.md": "# Login\n\nGone.\n"})
    async with Harness.open(bundle, store=store, model=ScriptedModel([])) as harness:
        items = await harness.conversation("c").read([source.url for source in result.sources])
    assert {item.status for item in items} == {"ok"}
    shutil.rmtree(tmp_path / "web")
    async with Store.open(store, read_only=True) as kept:
        items = await kept.conversation("c").read([source.url for source in result.sources])
    assert {item.status for item in items} == {"ok"}


async def test_a_conversation_reads_other_lines_of_a_named_repository_without_the_bundle(
    bundle: Bundle, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(bundle, store=store, model=ScriptedModel(["Hi."])) as harness:
        await harness.conversation("c").say("Hi")
    shutil.rmtree(tmp_path / "api")  # what was given by URL is read from its mirror
    async with Store.open(store, read_only=True) as kept:
        items = await kept.conversation("c").read(
            ["ks:web/docs/login.md#L1", "ks:api/README.md#L1"]
        )
    assert [(item.status, item.text) for item in items] == [("ok", "# Login\n"), ("ok", "# API\n")]


async def test_an_answer_is_stale_when_lines_of_any_of_its_repositories_have_changed(
    bundle: Bundle, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    script = ScriptedModel([Call("react.search_knowledge", query="password"), "So. [[S:1,2]]"])
    async with Harness.open(bundle, store=store, model=script) as harness:
        await harness.conversation("c").say("How?")
    assert await changes(store) == []
    readme = API["README.md"]
    moved = GitFolder(tmp_path / "api").commit({"README.md": readme.replace("signed", "sealed")})
    [(ref, diff, problem)] = await changes(store)
    assert (ref.partition("@")[0], problem) == ("ks:api/README.md", "")
    assert "+Tokens are sealed, so that no password is sent twice." in diff
    assert await changes(store, since=moved) == []
    GitFolder(tmp_path / "web").commit({"guide/login.md": "# Login\n"})
    assert [ref.partition("@")[0] for ref, _, _ in await changes(store, since=moved)] == [
        "ks:web/docs/login.md"
    ]


async def changes(store: str, since: str = "") -> list[tuple[str, tuple[str, ...], str]]:
    """The cited sources that have changed, with the difference."""
    async with Store.open(store, read_only=True) as opened:
        answers = find_stale_answers(opened, user=None, project=None, tenant=None, since=since)
        return [
            (source.ref, source.diff, source.problem)
            async for answer in answers
            for source in answer.sources
        ]


@pytest.mark.parametrize(
    ("repositories", "problem"),
    [
        ({"a b": {"repo": "."}}, "knowledge.repositories.a b: a name can have letters"),
        ({"web": "."}, "knowledge.repositories.web must be a section with a key 'repo'"),
        ({"web": {"repo": ".", "root": "x"}}, "knowledge.repositories.web.root: the settings are"),
        ({"web": {"repo": "nowhere"}}, "knowledge.repositories.web: knowledge.repo is 'nowhere'"),
    ],
)
async def test_a_wrong_repository_is_an_error_that_names_its_key(
    repositories: JsonObject, problem: str
) -> None:
    bundle = Bundle(id="guide", workflow=BaseWorkflow)
    with pytest.raises(KnowledgeError, match=re.escape(problem)):
        async with Harness.open(
            bundle,
            store="memory:",
            model=ScriptedModel([]),
            properties={"knowledge.repositories": repositories},
        ):
            pass
