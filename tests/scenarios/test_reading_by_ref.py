"""Reading by ref: status first, what exists although some does not, pinned, capped, kept."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, Harness, Store
from loopline.models import ToolMessage
from loopline.models.prompt import estimate
from loopline.search import ANSWER_SCORE
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import ConversationKey
from loopline.tools import NO_ANSWER
from tests.support.git_repositories import commit, git
from tests.support.scripted_conversation import talking

PAGE = """# Tea

## Brewing

Green tea wants water of 80 degrees.
Black tea wants boiling water.

## Storing

Keep it dry and dark.
"""


def guide(repo: Path) -> Bundle:
    return Bundle(
        id="guide", workflow=BaseWorkflow, configuration={"knowledge": {"repo": str(repo)}}
    )


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    commit(tmp_path / "repo", {"docs/tea.md": PAGE, "long.txt": "x" * 60_000 + "\nend\n"})
    return tmp_path / "repo"


async def test_what_exists_is_read_although_some_does_not(repo: Path) -> None:
    async with talking(["Yes."], bundle=guide(repo)) as talk:
        await talk.say("go")
        reading = await talk.read(
            ["ar:turn_1.user.prompt", "tc:turn_1.c1.result", "ks:docs/tea.md"]
        )
    assert [item.status for item in reading] == ["ok", "missing", "ok"]
    assert reading.missing == ["tc:turn_1.c1.result"]
    assert reading.total_tokens == estimate("go") + estimate(PAGE)
    assert [item.text for item in reading if item.readable] == ["go", PAGE]


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("ar:turn_9.user.prompt", "turns are turn_1"),
        ("ar:turn_1.react.decisions", "ar:turn_1.react.decision.1"),
        ("tc:turn_1.c4.result", "similar refs"),
        ("so:sources_pool[4]", "no sources"),
        ("su:turn_1.conv.range.summary", "never compacted"),
        ("fi:turn_1.files/a.txt", "no files"),
        ("sk:public.tea", "no skills"),
        ("ks:docs/coffee.md", "docs/tea.md"),
        ("ks:docs/tea.md#L40-L50", "10 lines"),
        ("cv:other/ar:turn_1.user.prompt", "no conversation 'other'"),
        ("ar:plan.latest:p", "no plan 'p'"),
        ("ef:t:p:chatbot:s:u:c:turn_1:r:a.pdf", "is a resource name"),
        ("x", "refs look like"),
    ],
)
async def test_an_unknown_ref_says_what_was_possible(repo: Path, ref: str, message: str) -> None:
    async with talking(["Yes."], bundle=guide(repo)) as talk:
        await talk.say("go")
        (item,) = await talk.read([ref])
    assert item.status == "missing"
    assert message in item.message


async def test_a_moving_name_says_what_it_resolved_to(repo: Path) -> None:
    async with talking(["One.", "Two."], bundle=guide(repo)) as talk:
        await talk.say("first")
        await talk.say("second")
        newest, page = await talk.read(["ar:turn_2.assistant.completion", "ks:docs/tea.md#L5-L5"])
    assert newest.ref == "ar:turn_2.assistant.completion.1"
    assert page.ref == f"ks:docs/tea.md@{git(repo, 'rev-parse', 'HEAD')[:7]}#L5-L5"
    assert page.text == "Green tea wants water of 80 degrees.\n"


async def test_reading_as_a_tool_gives_the_status_first_and_caps_with_a_ref_that_restores(
    repo: Path,
) -> None:
    script = ScriptedModel(
        [
            Call("react.read", paths=["ks:docs/tea.md", "ks:nothing.md", "ks:long.txt"]),
            Say("", Call("react.read", paths=["ks:docs/tea.md"])),
            "Done.",
        ]
    )
    async with talking(script, bundle=guide(repo)) as talk:
        await talk.say("go")
        first, again = [m for m in script.requests[-1].messages if isinstance(m, ToolMessage)]
        status = json.loads(first.text.splitlines()[1])
        assert status["missing"] == ["ks:nothing.md"]
        assert list(status) == ["paths", "missing", "total_tokens", "exists_in_visible_context"]
        rest = first.text.rpartition("the rest is ")[2].strip()
        (item,) = await talk.read([rest])
        whole_count = 60_000 + len("\nend\n")
        shown = first.text.count("x" * 1000) * 1000
        assert len(item.text) == whole_count - (48_000 - len(PAGE))
        assert shown <= 48_000
    assert json.loads(again.text.splitlines()[1])["exists_in_visible_context"] == [
        status["paths"][0]["path"]
    ]
    assert "Green tea" not in again.text


async def test_a_passage_that_was_shown_reads_the_same_when_the_repository_has_gone(
    repo: Path, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    script: list[Entry] = [
        Call("react.search_knowledge", query="green tea water"),
        Say("80 degrees [[S:1]]."),
    ]
    async with talking(script, bundle=guide(repo), store=store) as talk:
        result = await talk.say("How hot?")
        (before,) = await talk.read([result.sources[0].url])
    shutil.rmtree(repo)
    async with Store.open(store, read_only=True) as kept_store:
        other = kept_store.conversation("c")
        same, gone = await other.read([result.sources[0].url, "ks:long.txt"])
    assert (same.status, same.text) == ("ok", before.text)
    assert gone.status == "gone"
    assert "repository" in gone.message


async def test_lines_asked_for_beyond_the_end_read_the_same_when_the_repository_has_gone(
    repo: Path, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    text = f"ks:docs/tea.md@{git(repo, 'rev-parse', 'HEAD')[:7]}#L9-L90"
    script: list[Entry] = [Call("react.read", paths=[text]), "Dry and dark."]
    async with talking(script, bundle=guide(repo), store=store) as talk:
        await talk.say("How to store it?")
    shutil.rmtree(repo)
    async with Store.open(store, read_only=True) as kept_store:
        (item,) = await kept_store.conversation("c").read(text)
    assert (item.status, item.text) == ("ok", "\nKeep it dry and dark.\n")


async def test_a_commit_on_top_changes_what_a_moving_name_gives_and_nothing_pinned(
    repo: Path,
) -> None:
    script = ScriptedModel([Call("react.search_knowledge", query="green tea"), "One.", "Two."])
    async with talking(script, bundle=guide(repo)) as talk:
        await talk.say("first")
        old = f"ks:docs/tea.md@{git(repo, 'rev-parse', 'HEAD')[:7]}"
        commit(repo, {"docs/tea.md": PAGE.replace("80", "70")})
        await talk.say("second")
        pinned, moving = await talk.read([old, "ks:docs/tea.md"])
    assert "80 degrees" in pinned.text
    assert "70 degrees" in moving.text


async def test_another_process_reads_every_ref_of_the_log(repo: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    script: list[Entry] = [
        Say("… [1]", Call("react.plan", mode="new", steps=["a"])),
        Say("", Call("react.search_knowledge", query="storing tea")),
        Say("✓ [1]\nDark [[S:1]]."),
    ]
    async with talking(script, bundle=guide(repo), store=store) as talk:
        await talk.say("How to store it?")
        refs = [block.ref for block in await talk.blocks()]
    async with Store.open(store, read_only=True) as kept_store:
        reading = await kept_store.conversation("c").read(refs)
    assert {item.status for item in reading} == {"ok"}


async def test_a_conversation_reads_another_of_the_same_user_and_of_nobody_else(
    repo: Path,
) -> None:
    model = ScriptedModel(["One.", "Two.", "Three."])
    async with Harness.open(guide(repo), store="memory:", model=model) as harness:
        await harness.conversation("a").say("mine")
        await harness.conversation("b", user="bob").say("his")
        talk = harness.conversation("c")
        await talk.say("go")
        mine, his = await talk.read(["cv:a/ar:turn_1.user.prompt", "cv:b/ar:turn_1.user.prompt"])
        await harness.log.forget(ConversationKey(name="a"))
        (forgotten,) = await talk.read("cv:a/ar:turn_1.user.prompt")
    assert (mine.text, mine.ref) == ("mine", "cv:a/ar:turn_1.user.prompt")
    assert his.status == "missing"
    assert (forgotten.status, forgotten.text) == ("gone", "")


async def test_the_documents_hold_every_block_and_every_source(repo: Path) -> None:
    script: list[Entry] = [
        Call("react.search_knowledge", query="storing tea"),
        Say("Dark [[S:1]]."),
    ]
    async with talking(script, bundle=guide(repo)) as talk:
        await talk.say("How?")
        timeline, pool = await talk.read(
            ["artifact:conv.timeline.v1", "artifact:conv:sources_pool"]
        )
        blocks = await talk.blocks()
    document = json.loads(timeline.text)
    assert [block["seq"] for block in document["blocks"]] == [block.seq for block in blocks]
    assert (document["version"], document["turn_ids"]) == (1, ["turn_1"])
    rows = json.loads(pool.text)["sources_pool"]
    assert rows[0]["sid"] == 1
    assert "dry and dark" in " ".join(row["text"] for row in rows)


async def test_a_search_looks_only_at_the_files_that_the_model_asks_for(repo: Path) -> None:
    commit(repo, {"docs/tea.md": PAGE, "src/tea.py": "TEA = 'green tea'\n", "src/tea.md": "tea"})
    narrowed = [
        {"root": "ks:docs/"},
        {"language": "py"},
        {"path": "src/*.md"},
        {"root": "src", "language": "md"},
        {"root": "nowhere"},
    ]
    calls = [Call("react.search_knowledge", query="tea", **arguments) for arguments in narrowed]
    model = ScriptedModel([Say("", *calls), "Yes."])
    async with talking(model, bundle=guide(repo)) as talk:
        await talk.say("Where is tea?")
    texts = [part.text for part in model.requests[1].messages if isinstance(part, ToolMessage)]
    found = [set(re.findall(r"— ks:([^@]+)@", text)) for text in texts]
    assert found == [{"docs/tea.md"}, {"src/tea.py"}, {"src/tea.md"}, {"src/tea.md"}, set()]


async def test_a_search_that_finds_no_likely_answer_says_so(repo: Path) -> None:
    queries = ["boiling water", "kubernetes cluster deployment water"]
    calls = [Call("react.search_knowledge", query=query) for query in queries]
    model = ScriptedModel([Say("", *calls), "No."])
    async with talking(model, bundle=guide(repo)) as talk:
        await talk.say("How?")
    texts = [part.text for part in model.requests[1].messages if isinstance(part, ToolMessage)]
    assert [NO_ANSWER in text for text in texts] == [False, True]


async def test_a_cited_passage_has_the_score_of_its_search(repo: Path) -> None:
    call = Call("react.search_knowledge", query="kubernetes cluster deployment water")
    async with talking([call, "No. [[S:1]]"], bundle=guide(repo)) as talk:
        (source,) = (await talk.say("How?")).sources
    assert source.objective_relevance is not None
    assert 0 < source.objective_relevance < ANSWER_SCORE
