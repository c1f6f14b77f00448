"""A turn searches past turns: the loop by `react.memsearch`, a workflow by its context client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loopline import BaseWorkflow, Bundle, Harness, Store, TurnPayload, TurnResult
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import ToolResult

SEARCHING = {"react.memsearch": True}


def tea() -> Bundle:
    return Bundle(id="tea", instructions="You advise on tea.")


async def result_of(arguments: dict[str, Any]) -> ToolResult:
    """The result of one search, after a turn in another conversation and one in the same."""
    model = ScriptedModel(
        [
            Say("Noted."),
            Say("The second is noted."),
            Say("", Call("react.memsearch", **arguments)),
            Say("Done."),
        ]
    )
    async with Harness.open(tea(), store="memory:", model=model, properties=SEARCHING) as harness:
        await harness.conversation("other", user="ann").say("My oolong steeps at 90 degrees.")
        talk = harness.conversation("here", user="ann")
        await talk.say("The samovar is from Tula.")
        await talk.say("What did I say of oolong and the samovar?")
        results = [block.body for block in await talk.blocks()]
    (result,) = [body for body in results if isinstance(body, ToolResult)]
    return result


async def test_the_result_names_turns_snippets_and_tokens() -> None:
    result = await result_of({"query": "oolong"})
    summary = json.loads(result.text.partition("\n")[0])
    (hit,) = summary["hits"]
    assert (hit["conversation"], hit["turn_id"], hit["matched_via_role"]) == (
        "other",
        "turn_1",
        "user",
    )
    assert [snippet["path"] for snippet in hit["snippets"]] == ["cv:other/ar:turn_1.user.prompt"]
    assert summary["tokens"] > 0
    assert result.found == 1
    assert "user — cv:other/ar:turn_1.user.prompt\nMy oolong steeps at 90 degrees." in result.text


async def test_the_turn_that_asks_is_not_found() -> None:
    result = await result_of({"query": "samovar"})
    summary = json.loads(result.text.partition("\n")[0])
    assert [(hit["conversation"], hit["turn_id"]) for hit in summary["hits"]] == [
        ("here", "turn_1")
    ]
    assert "ar:turn_1.user.prompt\nThe samovar is from Tula." in result.text


@pytest.mark.parametrize("ordinal", [1, "first", "the first turn", -1, "last"])
async def test_a_turn_is_found_by_its_order_without_a_query(ordinal: int | str) -> None:
    result = await result_of({"ordinal": ordinal, "scope": "conversation"})
    assert "The samovar is from Tula." in result.text
    assert "oolong" not in result.text


async def test_nothing_found_is_a_result() -> None:
    result = await result_of({"query": "coffee", "from": "2020-01-01", "to": "2020-12-31"})
    assert (json.loads(result.text), result.found) == ({"hits": [], "tokens": 0}, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": 3}, "query must be a string"),
        ({"scope": "world"}, "scope must be one of conversation, user"),
        ({"targets": ["diary"]}, "targets: there is no 'diary'"),
        ({"ordinal": "umpteenth"}, "ordinal must be a number"),
        ({"ordinal": True}, "ordinal must be a number"),
        ({"from": "yesterday"}, "from must be a date or time"),
        ({"to": "2026-13-01"}, "to must be a date or time"),
        ({"top_k": 0}, "top_k must be an integer"),
        ({"user": "bob"}, "react.memsearch has no field 'user'"),
    ],
)
async def test_a_wrong_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    result = await result_of(arguments)
    assert result.status == "error"
    assert message in result.text


async def test_the_search_is_offered_where_a_property_says_so() -> None:
    model = ScriptedModel([Say("a")])
    async with Harness.open(tea(), store="memory:", model=model) as harness:
        await harness.conversation("c", user="ann").say("hello")
    assert "react.memsearch" not in [tool.name for tool in model.requests[0].tools]
    model = ScriptedModel([Say("a")])
    async with Harness.open(tea(), store="memory:", model=model, properties=SEARCHING) as harness:
        await harness.conversation("c", user="ann").say("hello")
    assert "react.memsearch" in [tool.name for tool in model.requests[0].tools]


class Recalling(BaseWorkflow):
    """Keeps each prompt under a name, and answers with what past turns say of it."""

    async def process(self, payload: TurnPayload) -> TurnResult[Any]:
        await self.keep("summary", f"They said: {payload.text}")
        hits = await self.ctx_client.search(query=payload.text, kind="user", limit=5)
        recent = await self.ctx_client.recent(limit=1)
        refs = ["ar:turn_1.artifacts.summary", "ar:turn_9.artifacts.summary"]
        artifact, missing = await self.ctx_client.fetch_ctx(refs)
        text = "; ".join(hit.text for hit in hits)
        newest = "".join(hit.turn_id for hit in recent)
        return await self.answer(f"{text} | {newest} | {artifact.text} | {missing.status}")


async def test_a_workflow_searches_past_turns_and_reads_what_they_kept() -> None:
    bundle = Bundle(id="recalling", workflow=Recalling)
    async with Harness.open(bundle, store="memory:", model=ScriptedModel([])) as harness:
        talk = harness.conversation("sales", user="ann")
        await talk.say("an analysis of sales data")
        result = await talk.say("previous analysis of sales data")
        stranger = await harness.conversation("sales", user="bob").say("sales data")
    assert result.answer == (
        "an analysis of sales data | turn_1 | They said: an analysis of sales data | missing"
    )
    assert stranger.answer == "|  | They said: sales data | missing"


async def test_what_is_forgotten_is_in_no_file_of_the_index(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(tea(), store=url, model=ScriptedModel([Say("Noted.")])) as harness:
        await harness.conversation("c", user="ann").say("The word is Zanzibar")
        assert len(await harness.memory.search("zanzibar", user="ann")) == 1
    async with Store.open(url) as store:
        await store.forget("c", user="ann")
    assert indexed_bytes(tmp_path)
    assert b"anzibar" not in indexed_bytes(tmp_path)


def indexed_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.glob("talk.db-memory*"))
