"""A bundle chooses built-in tools by name; reading by ref tells what exists; a search may imagine the answer first."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from loopline import (
    BaseWorkflow,
    Bundle,
    BundleError,
    Harness,
    Passage,
    Store,
    ToolError,
    TurnPayload,
    TurnResult,
)
from loopline.bundle import load, load_tools
from loopline.crew import Hyde, Quality
from loopline.errors import ModelError
from loopline.models import Json, JsonObject, Prompt, Reply, TextDelta, ToolMessage, Usage
from loopline.models.prompt import estimate
from loopline.search import ANSWER_SCORE
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import (
    Block,
    ConversationKey,
    MemoryLog,
    SearchExpanded,
    ToolResult,
)
from loopline.tools import (
    NO_ANSWER,
    Calculator,
    KnowledgeSearchTool,
    MemoryWeb,
    Outcome,
    Tool,
    WebFetchTool,
    WebHit,
    WebPage,
    WebSearchTool,
)
from loopline.tools.builtin.knowledge_search import merge_passages
from loopline.tools.builtin.web import PAGE_LIMIT, SNIPPET_LIMIT, TITLE_LIMIT
from tests.authoring.bundle_files import a_call, guide, line_of
from tests.support.git_repositories import commit, git
from tests.support.rows import each_row
from tests.support.scripted_conversation import play_turn, talking

TEA = WebPage(
    url="https://tea.example/green",
    title="Green tea",
    text="Brew it at 70 °C.",
    published_time_iso="2026-01-02",
    favicon_url="https://tea.example/icon.png",
)
WEB = MemoryWeb([TEA])


@dataclass
class Given:
    gives: object
    asked: list[str] = field(default_factory=list[str])

    async def search(self, query: str, limit: int) -> Sequence[WebHit]:
        self.asked.append(query)
        if isinstance(self.gives, Exception):
            raise self.gives
        return cast("Sequence[WebHit]", self.gives)

    async def fetch(self, url: str) -> WebPage:
        self.asked.append(url)
        if isinstance(self.gives, Exception):
            raise self.gives
        return cast("WebPage", self.gives)


def passage(name: str, score: float | None = None, text: str = "Lines.") -> Passage:
    return Passage(ref=f"ks:{name}@abc", title=name.title(), text=text, score=score)


@dataclass(frozen=True)
class Space:
    passages: Sequence[Passage] = ()
    error: Exception | None = None

    async def __call__(self, query: str, *, limit: int = 5) -> Sequence[Passage]:
        if self.error is not None:
            raise self.error
        return self.passages[:limit]


async def outcome(tool: Tool, **arguments: Json) -> Outcome:
    tool.check(arguments)
    return await tool.run(arguments, a_call())


def titles(result: Outcome) -> list[str]:
    return [section.source.title for section in result.sections if section.source]


async def test_the_calculator_gives_the_value_alone() -> None:
    result = await outcome(Calculator(), expression="2 * (3 + 4)")
    assert result == Outcome(text="14")


@each_row(
    [
        (Calculator(), {}, "expression must be a string that is not empty"),
        (Calculator(), {"expression": " "}, "expression must be a string"),
        (Calculator(), {"expression": 2}, "expression must be a string"),
        (Calculator(), {"expresion": "2"}, "calculator has no field 'expresion': ['expression']"),
        (WebSearchTool(WEB), {"query": ""}, "query must be a string"),
        (WebSearchTool(WEB), {"query": "tea", "limit": 0}, "limit must be an integer from 1 to 20"),
        (WebSearchTool(WEB), {"query": "tea", "limit": 21}, "limit must be an integer"),
        (WebSearchTool(WEB), {"query": "tea", "limit": True}, "limit must be an integer"),
        (WebSearchTool(WEB), {"query": "tea", "n": 1}, "web_search has no field 'n'"),
        (WebFetchTool(WEB), {"url": "ftp://tea.example/"}, "http:// or https://"),
        (WebFetchTool(WEB), {"url": "file:///etc/passwd"}, "http:// or https://"),
        (WebFetchTool(WEB), {"url": "javascript:alert(1)"}, "http:// or https://"),
        (WebFetchTool(WEB), {"url": "tea.example"}, "http:// or https://"),
        (WebFetchTool(WEB), {"url": "https://"}, "http:// or https://"),
        (WebFetchTool(WEB), {"url": "https://tea.example/a b"}, "http:// or https://"),
        (WebFetchTool(WEB), {"url": "https://tea.example/\udc80"}, "http:// or https://"),
        (WebFetchTool(WEB), {"url": "https://tea.example/" + "a" * 2_000}, "http:// or https://"),
        (KnowledgeSearchTool({"a": Space()}), {}, "query must be a string"),
        (
            KnowledgeSearchTool({"a": Space()}),
            {"query": "x", "score_threshold": 2},
            "score_threshold must be a number from 0 to 1",
        ),
        (
            KnowledgeSearchTool({"docs": Space(), "mail": Space()}),
            {"query": "x", "spaces": ["mial"]},
            "there is no 'mial', only ['mail', 'docs']",
        ),
        (KnowledgeSearchTool({"a": Space()}), {"query": "x", "spaces": []}, "a list of names"),
        (KnowledgeSearchTool({"a": Space()}), {"query": "x", "spaces": "a"}, "a list of names"),
        (KnowledgeSearchTool({"a": Space()}), {"query": "x", "spaces": [1]}, "a list of names"),
    ]
)
async def test_wrong_arguments_are_told_by_their_name(
    tool: Tool, arguments: JsonObject, message: str
) -> None:
    with pytest.raises(ToolError) as raised:
        tool.check(arguments)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "tool",
    [Calculator(), WebSearchTool(WEB), WebFetchTool(WEB), KnowledgeSearchTool({"a": Space()})],
)
def test_built_in_tools_are_reads_under_plain_names(tool: Tool) -> None:
    assert (tool.effect, tool.key({})) == ("read", "")
    assert tool.spec.name.isidentifier()
    assert tool.spec.parameters["additionalProperties"] is False


async def test_each_hit_of_a_search_is_a_source() -> None:
    result = await outcome(WebSearchTool(WEB), query="green tea")
    (section,) = result.sections
    assert (result.text, result.match_count) == ('1 hit for "green tea"', 1)
    assert section.heading == "Green tea — https://tea.example/green — 2026-01-02"
    assert section.source is not None
    assert section.source.source_type == "web"
    assert section.source.text == "Brew it at 70 °C."
    assert section.source.favicon_url == "https://tea.example/icon.png"
    assert section.source.published_time_iso == "2026-01-02"


async def test_a_search_without_hits_says_so() -> None:
    assert await outcome(WebSearchTool(WEB), query="cocoa") == Outcome(
        text='no hit for "cocoa"', match_count=0
    )


async def test_what_a_search_gives_is_bounded_and_of_the_web() -> None:
    hits = [
        WebHit(url="javascript:alert(1)", title="no"),
        WebHit(
            url="https://a.example/",
            title="A\n" * 300,
            snippet="s" * 5_000,
            published_time_iso="yesterday",
            favicon_url="data:image/png;base64,AAAA",
        ),
        WebHit(url="http://b.example/", snippet="\udc80"),
        WebHit(url="https://c.example/"),
    ]
    result = await outcome(WebSearchTool(Given(hits)), query="x", limit=2)
    first, second = result.sections
    assert first.source is not None
    assert second.source is not None
    assert [len(first.source.title), len(first.source.text)] == [TITLE_LIMIT, SNIPPET_LIMIT]
    assert "\n" not in first.heading
    assert (first.source.published_time_iso, first.source.favicon_url) == ("", "")
    assert first.text.endswith("… cut: 4000 characters")
    assert second.source.text == "\\udc80"


async def test_a_page_is_read_as_a_source() -> None:
    result = await outcome(WebFetchTool(WEB), url=" https://tea.example/green ")
    (section,) = result.sections
    assert section.source is not None
    assert (section.source.url, section.source.title) == (TEA.url, TEA.title)
    assert section.text == section.source.text == TEA.text


async def test_of_a_long_page_the_beginning_is_shown() -> None:
    page = WebPage(url="https://long.example/", text="a" * (PAGE_LIMIT + 7))
    (section,) = (await outcome(WebFetchTool(Given(page)), url="https://long.example/")).sections
    assert section.source is not None
    assert len(section.source.text) == PAGE_LIMIT
    assert section.text.endswith("… cut: 7 characters")


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (OSError("no route"), "https://x.example/ failed: OSError: no route"),
        (ToolError("not allowed"), "not allowed"),
        ("a text", "it returned 'a text', not a WebPage"),
        (WebPage(url="file:///etc/passwd", text=""), "redirects to 'file:///etc/passwd'"),
    ],
)
async def test_a_page_that_cannot_be_had_is_an_error_for_the_model(
    gives: object, message: str
) -> None:
    with pytest.raises(ToolError) as raised:
        await outcome(WebFetchTool(Given(gives)), url="https://x.example/")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (OSError("no route"), "the search failed: OSError: no route"),
        (ToolError("no key"), "no key"),
        ([{"url": "https://x.example/"}], "not a WebHit"),
        (None, "the search failed: TypeError"),
    ],
)
async def test_a_search_that_fails_is_an_error_for_the_model(gives: object, message: str) -> None:
    with pytest.raises(ToolError) as raised:
        await outcome(WebSearchTool(Given(gives)), query="x")
    assert message in str(raised.value)


async def test_spaces_are_searched_together_and_the_best_come_first() -> None:
    tool = KnowledgeSearchTool(
        {
            "docs": Space([passage("a", 0.9), passage("b", 0.3)]),
            "mail": Space([passage("c", 0.6), passage("d", 0.1)]),
        }
    )
    result = await outcome(tool, query="x", limit=3)
    assert titles(result) == ["A", "C", "B"]
    assert result.text == '3 passages for "x" in docs, mail'
    assert result.sections[0].heading == "A — ks:a@abc (docs, 0.90)"
    assert [ref for ref, _ in result.shows] == ["ks:a@abc", "ks:c@abc", "ks:b@abc"]


async def test_a_threshold_leaves_out_what_scored_less() -> None:
    tool = KnowledgeSearchTool({"docs": Space([passage("a", 0.9), passage("b", 0.3)])})
    assert titles(await outcome(tool, query="x", score_threshold=0.3)) == ["A", "B"]
    assert titles(await outcome(tool, query="x", score_threshold=0.31)) == ["A"]
    nothing = await outcome(tool, query="x", score_threshold=1)
    assert nothing.text == 'no passage for "x" in docs'


async def test_only_the_named_spaces_are_searched() -> None:
    tool = KnowledgeSearchTool(
        {"docs": Space(error=ToolError("down")), "mail": Space([passage("c")])}
    )
    assert titles(await outcome(tool, query="x", spaces=["mail", "mail"])) == ["C"]
    with pytest.raises(ToolError, match="docs: down"):
        await outcome(tool, query="x")


def test_scores_that_do_not_compare_count_by_their_share_of_the_best() -> None:
    passages = merge_passages(
        {"bm25": [passage("a", 12.0), passage("b", 3.0)], "cosine": [passage("c", 0.5)]}, 9
    )
    assert [(passage.passage.title, passage.score) for passage in passages] == [
        ("A", 1),
        ("C", 0.5),
        ("B", 0.25),
    ]


def test_passages_without_a_score_count_by_their_place() -> None:
    answers = {"plain": [passage("a"), passage("b")], "scored": [passage("c", 0.7)]}
    assert [passage.passage.title for passage in merge_passages(answers, 9)] == ["A", "C", "B"]
    assert [passage.passage.title for passage in merge_passages(answers, 9, 0.1)] == ["C"]


def test_a_passage_that_two_spaces_have_stands_once_with_its_better_score() -> None:
    (found_passage,) = merge_passages({"one": [passage("a", 0.2)], "two": [passage("a", 0.8)]}, 9)
    assert (found_passage.space, found_passage.score) == ("two", 0.8)


async def test_several_spaces_without_a_likely_answer_say_so() -> None:
    spaces = {"weak": Space([passage("a", 0.2)]), "likely": Space([passage("b", 0.7)])}
    tool = KnowledgeSearchTool(spaces)
    both = await outcome(tool, query="x")
    weak = await outcome(tool, query="x", spaces=["weak"])
    assert [NO_ANSWER in found.text for found in (both, weak)] == [False, True]


def test_of_equals_the_earlier_place_and_then_the_earlier_space_comes_first() -> None:
    answers = {"one": [passage("a", 0.5), passage("b", 0.5)], "two": [passage("c", 0.5)]}
    assert [passage.passage.title for passage in merge_passages(answers, 9)] == ["A", "C", "B"]


PORTS = """
    from loopline import Passage
    from loopline.tools import MemoryWeb, WebPage

    web = MemoryWeb([WebPage(url="https://tea.example/", title="Tea", text="Brew it.")])

    async def search(query, *, limit=5):
        return [Passage(ref="ks:tea@abc", title="Tea", text="Brew it.")]

    async def breaks(query, *, limit=5):
        raise OSError("no disk")

    TOOLS_SPECS = [
        {"builtin": "calculator"},
        {"builtin": "web_search", "port": web},
        {"builtin": "web_fetch", "port": web},
        {"builtin": "knowledge_search", "port": {"docs": search, "mail": breaks}},
        {"ref": "tools.py", "alias": "shop"},
    ]
    TOOL_RUNTIME = {"calculator": "local"}
"""


async def test_a_descriptor_chooses_built_in_tools_by_name(tmp_path: Path) -> None:
    loaded = load(guide(tmp_path, {"tools_descriptor.py": PORTS}))
    tools = load_tools("guide.tools_descriptor", loaded)
    assert list(tools) == ["calculator", "web_search", "web_fetch", "knowledge_search", "shop.find"]
    assert list(tools.allow(["calculator", "shop.*"])) == ["calculator", "shop.find"]
    found = await outcome(tools["knowledge_search"], query="x", spaces=["docs"])
    assert found.match_count == 1
    with pytest.raises(ToolError, match="mail: the search failed: OSError: no disk"):
        await outcome(tools["knowledge_search"], query="x")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ('{"builtin": "calcualtor"}', "no built-in tool is called 'calcualtor', nearest is 'calc"),
        ('{"builtin": "calculator", "alias": "c"}', "the key 'alias' is unknown"),
        ('{"builtin": "calculator", "port": 3}', "calculator needs no port, and was given 3"),
        ('{"builtin": "web_search"}', "web_search needs a port with `async search(query, limit)`"),
        ('{"builtin": "web_fetch", "port": 3}', "web_fetch needs a port with `async fetch(url)`"),
        ('{"builtin": "knowledge_search"}', "knowledge_search needs as its port a dict such as"),
        ('{"builtin": "knowledge_search", "port": {}}', "needs as its port a dict"),
        ('{"builtin": "knowledge_search", "port": {"docs": 3}}', "needs as its port a dict"),
        ('{"builtin": "knowledge_search", "port": {3: print}}', "needs as its port a dict"),
    ],
)
def test_a_wrong_choice_is_told_with_its_line(tmp_path: Path, spec: str, message: str) -> None:
    descriptor = f"TOOLS_SPECS = [\n    {spec},\n]\n"
    loaded = load(guide(tmp_path, {"tools_descriptor.py": descriptor}))
    with pytest.raises(BundleError) as raised:
        load_tools("guide.tools_descriptor", loaded)
    location = line_of(tmp_path / "guide" / "tools_descriptor.py", "builtin")
    assert str(raised.value).startswith(f"{location}: ")
    assert message in str(raised.value)


TOOLS_SPECS = [
    {"builtin": "calculator"},
    {"builtin": "web_search", "port": WEB},
    {"builtin": "web_fetch", "port": WEB},
    {"builtin": "knowledge_search", "port": {"docs": Space([passage("tea", 0.5)])}},
]


class Chooser(BaseWorkflow):
    """A loop with built-in tools."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(tools_module=__name__)
        return await react.run(payload)


async def test_in_a_turn_built_in_tools_are_called_and_cited() -> None:
    script: list[Entry] = [
        Call("calculator", expression="70 + 1/0"),
        Call("calculator", expression="70 + 2"),
        Call("web_search", query="green tea"),
        Call("web_fetch", url="https://tea.example/green"),
        Call("knowledge_search", query="tea"),
        "Brew it at 72 °C. [[S:1,2]]",
    ]
    async with talking(script, bundle=Bundle(id="chooser", workflow=Chooser)) as talk:
        result = await talk.say("How?")
        bodies = [block.body for block in await talk.blocks()]
        (source,) = await talk.read(["so:sources_pool[1]"])
    results = [body for body in bodies if isinstance(body, ToolResult)]
    assert [(result.tool, result.status) for result in results] == [
        ("calculator", "error"),
        ("calculator", "ok"),
        ("web_search", "ok"),
        ("web_fetch", "ok"),
        ("knowledge_search", "ok"),
    ]
    assert "divides by zero (at character 7" in results[0].text
    assert results[1].text == "72"
    assert "[[S:1]] Green tea — https://tea.example/green" in results[3].text
    assert [source.url for source in result.sources] == ["https://tea.example/green", "ks:tea@abc"]
    assert "Brew it at 70 °C." in source.text


PAGE = """# Tea

## Brewing

Green tea wants water of 80 degrees.
Black tea wants boiling water.

## Storing

Keep it dry and dark.
"""


def guide_of(repo: Path) -> Bundle:
    return Bundle(
        id="guide", workflow=BaseWorkflow, configuration={"knowledge": {"repo": str(repo)}}
    )


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    commit(tmp_path / "repo", {"docs/tea.md": PAGE, "long.txt": "x" * 60_000 + "\nend\n"})
    return tmp_path / "repo"


async def test_what_exists_is_read_although_some_does_not(repo: Path) -> None:
    async with talking(["Yes."], bundle=guide_of(repo)) as talk:
        await talk.say("go")
        reading = await talk.read(
            ["ar:turn_1.user.prompt", "tc:turn_1.c1.result", "ks:docs/tea.md"]
        )
    assert [item.status for item in reading] == ["ok", "missing", "ok"]
    assert reading.missing == ["tc:turn_1.c1.result"]
    assert reading.total_tokens == estimate("go") + estimate(PAGE)
    assert [item.text for item in reading if item.readable] == ["go", PAGE]


async def test_an_unknown_ref_says_what_was_possible(repo: Path) -> None:
    messages = {
        "ar:turn_9.user.prompt": "turns are turn_1",
        "ar:turn_1.react.decisions": "ar:turn_1.react.decision.1",
        "tc:turn_1.c4.result": "similar refs",
        "so:sources_pool[4]": "no sources",
        "su:turn_1.conv.range.summary": "never compacted",
        "fi:turn_1.files/a.txt": "no files",
        "fi:turn_1.files/../../etc/passwd": "no files",
        "sk:public.tea": "no skills",
        "ks:docs/coffee.md": "docs/tea.md",
        "ks:docs/tea.md#L40-L50": "10 lines",
        "cv:other/ar:turn_1.user.prompt": "no conversation 'other'",
        "ar:plan.latest:p": "no plan 'p'",
        "ef:t:p:chatbot:s:u:c:turn_1:r:a.pdf": "is a resource name",
        "x": "refs look like",
    }
    async with talking(["Yes."], bundle=guide_of(repo)) as talk:
        await talk.say("go")
        items = list(await talk.read(list(messages)))
    assert [item.status for item in items] == ["missing"] * len(messages)
    given = {item.requested: item.message for item in items}
    assert [ref for ref, message in messages.items() if message not in given[ref]] == []


class CountingLog(MemoryLog):
    """A log that counts its reads."""

    reads: int = 0

    async def read(self, conversation: ConversationKey, **options: Any) -> Sequence[Block]:
        self.reads += 1
        return await super().read(conversation, **options)


async def test_missing_refs_of_another_conversation_are_looked_up_in_one_view_of_it() -> None:
    log = CountingLog()
    async with talking(["Yes."], store=log, name="other") as other:
        await other.say("go")
    async with talking(["Yes."], store=log) as talk:
        await talk.say("go")
        counts = list[int]()
        for number in (1, 10):
            before = log.reads
            items = await talk.read(
                [f"cv:other/tc:turn_1.c{n}.result" for n in range(1, number + 1)]
            )
            counts.append(log.reads - before)
            assert items.missing == [item.requested for item in items]
    assert counts[0] == counts[1]


async def test_a_source_is_read_once_however_often_its_number_is_in_the_ranges() -> None:
    finds = [Call("play.find", url=f"https://{name}.example") for name in "ab"]
    async with talking([Say("", *finds), "Done."]) as talk:
        await talk.say("go")
        (item,) = await talk.read(["so:sources_pool[2,1-2,1,1-9]"])
    assert [row["sid"] for row in json.loads(item.text)] == [2, 1]


async def test_a_moving_name_says_what_it_resolved_to(repo: Path) -> None:
    async with talking(["One.", "Two."], bundle=guide_of(repo)) as talk:
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
    async with talking(script, bundle=guide_of(repo)) as talk:
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
    async with talking(script, bundle=guide_of(repo), store=store) as talk:
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
    await play_turn(script, "How to store it?", bundle=guide_of(repo), store=store)
    shutil.rmtree(repo)
    async with Store.open(store, read_only=True) as kept_store:
        (item,) = await kept_store.conversation("c").read(text)
    assert (item.status, item.text) == ("ok", "\nKeep it dry and dark.\n")


async def test_a_commit_on_top_changes_what_a_moving_name_gives_and_nothing_pinned(
    repo: Path,
) -> None:
    script = ScriptedModel([Call("react.search_knowledge", query="green tea"), "One.", "Two."])
    async with talking(script, bundle=guide_of(repo)) as talk:
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
    _, blocks = await play_turn(script, "How to store it?", bundle=guide_of(repo), store=store)
    refs = [block.ref for block in blocks]
    async with Store.open(store, read_only=True) as kept_store:
        talk_again = kept_store.conversation("c")
        reading = await talk_again.read([*refs, "ar:plan.latest:plan:turn_1:c1"])
        whole_result, part = await talk_again.read(
            ["tc:turn_1.c2.result", "tc:turn_1.c2.result#C1-C4"]
        )
    assert {item.status for item in reading} == {"ok"}
    assert (part.status, part.text) == ("ok", whole_result.text[:4])


async def test_a_conversation_reads_another_of_the_same_user_and_of_nobody_else(
    repo: Path,
) -> None:
    model = ScriptedModel(["One.", "Two.", "Three."])
    async with Harness.open(guide_of(repo), store="memory:", model=model) as harness:
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
    async with talking(script, bundle=guide_of(repo)) as talk:
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
    fields = {"url", "title", "source_type", "objective_relevance", "published_time_iso"}
    assert fields | {"favicon_url"} <= set(rows[0])
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
    await play_turn(model, "Where is tea?", bundle=guide_of(repo))
    texts = [part.text for part in model.requests[1].messages if isinstance(part, ToolMessage)]
    found = [set(re.findall(r"— ks:([^@]+)@", text)) for text in texts]
    assert found == [{"docs/tea.md"}, {"src/tea.py"}, {"src/tea.md"}, {"src/tea.md"}, set()]


async def test_a_search_that_finds_no_likely_answer_says_so(repo: Path) -> None:
    queries = ["boiling water", "kubernetes cluster deployment water"]
    calls = [Call("react.search_knowledge", query=query) for query in queries]
    model = ScriptedModel([Say("", *calls), "No."])
    await play_turn(model, "How?", bundle=guide_of(repo))
    texts = [part.text for part in model.requests[1].messages if isinstance(part, ToolMessage)]
    assert [NO_ANSWER in text for text in texts] == [False, True]


async def test_a_cited_passage_has_the_score_of_its_search(repo: Path) -> None:
    call = Call("react.search_knowledge", query="kubernetes cluster deployment water")
    async with talking([call, "No. [[S:1]]"], bundle=guide_of(repo)) as talk:
        (source,) = (await talk.say("How?")).sources
    assert source.objective_relevance is not None
    assert 0 < source.objective_relevance < ANSWER_SCORE


IMAGINED = "The samovar is heated with charcoal. Charcoal burns in its pipe; Samovar tea is strong."


class Fast(ScriptedModel):
    name = "fast"


async def test_a_memory_search_finds_what_only_the_imagined_answer_names() -> None:
    model = ScriptedModel(
        [Say("Ok."), Call("react.memsearch", query="How is that urn made hot?"), "By charcoal."]
    )
    fast = Fast([], aux={"search": [Say(IMAGINED, usage=Usage(input_tokens=7))]})
    bundle = Bundle(id="tea", quality=Quality(hyde=Hyde(keywords=3)))
    models = {"general": model, "fast": fast}
    async with Harness.open(
        bundle,
        store="memory:",
        model=models,
        clock=FakeClock(),
        properties={"react.memsearch": True},
    ) as harness:
        talk = harness.conversation("c")
        await talk.say("I bought charcoal.")
        result = await talk.say("How?")
        bodies = [block.body for block in await talk.blocks()]
    [found] = [body.text for body in bodies if isinstance(body, ToolResult)]
    [expanded] = [body for body in bodies if isinstance(body, SearchExpanded)]
    assert "I bought charcoal." in found
    assert (expanded.query, expanded.hypothesis) == ("How is that urn made hot?", IMAGINED)
    assert expanded.keywords == ("samovar", "charcoal", "heated")
    assert json.loads(found.splitlines()[0])["hits"][0]["source_query"].endswith(
        "samovar charcoal heated"
    )
    assert result.usage.input_tokens == expanded.usage.input_tokens == 7


class Searching(BaseWorkflow):
    """A loop whose knowledge search tells what it was asked."""

    queries: Sequence[str] = ()

    async def process(self, payload: TurnPayload) -> TurnResult:
        async def search(query: str, *, limit: int = 5) -> list[Passage]:
            del limit
            QUERIES.append(query)
            return []

        react = await self.build_react(knowledge_space_fn=search)
        return await react.run(payload)


QUERIES = list[str]()


async def searched(fast: Fast | Broken, query: str = "hot urn") -> list[str]:
    QUERIES.clear()
    model = ScriptedModel([Call("react.search_knowledge", query=query), "Ok."])
    bundle = Bundle(id="tea", workflow=Searching, quality=Quality(hyde=Hyde()))
    models = {"general": model, "fast": fast}
    async with Harness.open(bundle, store="memory:", model=models, clock=FakeClock()) as harness:
        assert (await harness.conversation("c").say("How?")).answer == "Ok."
    return list(QUERIES)


class Broken(ScriptedModel):
    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        raise ModelError("no network")
        yield Reply()


async def test_a_knowledge_search_keeps_its_own_words_first() -> None:
    [query] = await searched(Fast([], aux={"search": [IMAGINED]}), "Samovar")
    assert query == "Samovar charcoal heated burns pipe tea"


async def test_without_an_imagined_answer_the_search_is_as_it_was() -> None:
    assert await searched(Fast([], aux={"search": [""]})) == ["hot urn"]
    assert await searched(Broken([])) == ["hot urn"]
