"""What an exported conversation must be to be kept elsewhere, and that it is then the same."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, cast

import pytest
from pydantic import Field

from loopline import (
    Agent,
    BaseWorkflow,
    Bundle,
    ClientTool,
    Harness,
    ModelSettings,
    Store,
    ToolContext,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline.models import Json, JsonObject, dumps
from loopline.reader import DocumentError, read_document
from loopline.store import SqlLog
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry as ScriptEntry
from loopline.timeline import (
    Block,
    ConversationKey,
    Entry,
    MemoryLog,
    RangeSummary,
    TimelineLog,
    Unknown,
    UserPrompt,
    encode_full,
)
from tests.support.scripted_conversation import talking

HERE = ConversationKey(name="c")


@pytest.fixture
async def document() -> JsonObject:
    """A conversation of two turns, with a plan, calls and a source."""
    plan = Call("react.plan", mode="new", steps=["one"])
    acts = Say("", Call("play.alone", text="x"), Call("play.find", url="https://example.com"))
    script: list[ScriptEntry] = [plan, acts, "Done [[S:1]].", "And again."]
    async with talking(script) as talk:
        await talk.say("first")
        await talk.say("second")
        return await talk.export()


Rows = list[JsonObject]


def rows(document: JsonObject) -> Rows:
    return cast("Rows", document["blocks"])


def place(found: Rows, kind: str) -> int:
    """Where the first block of the type is."""
    return next(n for n, row in enumerate(found) if row["type"] == kind)


def in_order(found: Rows) -> None:
    """Let the places be dense and the numbers count, so that only what they hold is wrong."""
    counts = dict[tuple[Json, Json], int]()
    for seq, row in enumerate(found, start=1):
        name = (str(row["turn_id"]), str(row["type"]))
        counts[name] = counts.get(name, 0) + 1
        row["seq"], row["n"] = seq, counts[name]


def without_its_call(found: Rows) -> None:
    del found[place(found, "react.tool.call")]
    in_order(found)


def before_its_call(found: Rows) -> None:
    found.insert(place(found, "react.tool.call"), found.pop(place(found, "react.tool.result")))
    in_order(found)


def twice(found: Rows) -> None:
    at = place(found, "react.tool.result")
    found.insert(at, deepcopy(found[at]))
    in_order(found)


def in_another_turn(found: Rows) -> None:
    result = found.pop(place(found, "react.tool.result"))
    result["turn_id"], result["term"] = "turn_2", 2
    found.append(result)
    in_order(found)


def started_twice(found: Rows) -> None:
    at = place(found, "react.tool.start")
    found.insert(at, deepcopy(found[at]))
    in_order(found)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_its_call, r"blocks\[\d+\]: react.tool.(start|result) of 'c1' is out of place"),
        (before_its_call, r"blocks\[\d+\]: react.tool.result of 'c1' is out of place"),
        (twice, r"blocks\[\d+\]: react.tool.result of 'c1' is out of place"),
        (in_another_turn, r"blocks\[\d+\]: react.tool.result of 'c1' is out of place"),
        (started_twice, r"blocks\[\d+\]: react.tool.start of 'c1' is out of place"),
    ],
)
def test_a_start_and_a_result_stand_behind_their_call_once(
    document: JsonObject, damage: Callable[[Rows], None], message: str
) -> None:
    damage(rows(document))
    with pytest.raises(DocumentError, match=message):
        read_document(document)


@pytest.mark.parametrize(
    "turns", [[], None, ["turn_1"], ["turn_1", "turn_2", "turn_3"], ["turn_2", "turn_1"], "turn_1"]
)
def test_the_turns_that_a_document_names_are_those_of_its_blocks(
    document: JsonObject, turns: Json
) -> None:
    assert document["turn_ids"] == ["turn_1", "turn_2"]
    document["turn_ids"] = turns
    with pytest.raises(
        DocumentError, match="turn_ids: the turns of the blocks are turn_1 to turn_2"
    ):
        read_document(document)


def test_a_place_that_is_there_twice_is_named(document: JsonObject) -> None:
    rows(document).insert(3, deepcopy(rows(document)[2]))
    with pytest.raises(DocumentError, match=r"blocks\[3\]: seq 3 is at position 4: .*repeated"):
        read_document(document)


def test_a_turn_begins_with_its_prompt_and_none_is_left_out(document: JsonObject) -> None:
    promptless = deepcopy(document)
    second = next(n for n, row in enumerate(rows(document)) if row["turn_id"] == "turn_2")
    del rows(promptless)[second]
    in_order(rows(promptless))
    with pytest.raises(DocumentError, match=rf"blocks\[{second}\]: turn_2 begins without a user"):
        read_document(promptless)
    for row in rows(document)[second:]:
        row["turn_id"] = "turn_3"
    with pytest.raises(DocumentError, match=rf"blocks\[{second}\]: turn_3 begins after turn_1"):
        read_document(document)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seq", True, "Expected `int`, got `bool` - at `$.seq`"),
        ("round", "0", "Expected `int`, got `str` - at `$.round`"),
        ("round", -1, "Expected `int` >= 0 - at `$.round`"),
        ("term", 2**64, "Expected `int` <= 9007199254740992 - at `$.term`"),
        ("round", {}, "Expected `int`, got `object` - at `$.round`"),
        ("ts", "2026-01-01T00:00:00.000", "not a time in UTC"),
        ("ts", "2026-01-01T00:00:00.000+02:00", "not a time in UTC"),
        ("ts", "2026-01-01T00:00:00.000001Z", "not a time in UTC"),
        ("turn_id", "turn_0", "is not a turn"),
        ("turn_id", f"turn_{'9' * 5000}", "is not a turn"),
        ("ref", "ar:turn_9.user.prompt", "should be 'ar:turn_1.user.prompt'"),
        ("ref", None, "should be 'ar:turn_1.user.prompt'"),
        ("body", [], "it is not a valid user.prompt"),
        ("body", {"text": "\ud800"}, "it is not a valid user.prompt"),
        ("type", "later.\ud800", "not valid Unicode"),
    ],
)
def test_a_damaged_field_is_refused_with_the_place(
    document: JsonObject, field: str, value: Json, message: str
) -> None:
    rows(document)[0][field] = value
    with pytest.raises(DocumentError, match=rf"blocks\[0\]: .*{re.escape(message)}"):
        read_document(document)


@pytest.mark.parametrize("field", ["seq", "n", "ref", "body", "ts"])
def test_a_number_too_long_to_be_told_is_refused_with_the_place(
    document: JsonObject, field: str
) -> None:
    rows(document)[0][field] = 10**5_000
    with pytest.raises(DocumentError, match=r"blocks\[0\]: "):
        read_document(document)


def without_digests(document: JsonObject) -> None:
    """As whoever changes a document would send it, or an older version wrote it."""
    for row in rows(document):
        del row["digest"]


def test_an_answer_that_uses_a_source_nobody_added_is_refused_by_the_import(
    document: JsonObject,
) -> None:
    """It was imported once, and the compaction of a later turn failed with `KeyError: 7`, which blamed the bundle."""
    without_digests(document)
    at = place(rows(document), "assistant.completion")
    cast("JsonObject", rows(document)[at]["body"])["sources_used"] = [7]
    text = rf"blocks\[{at}\]\.body\.sources_used: there is no source 7"
    with pytest.raises(DocumentError, match=text):
        read_document(document)


def test_a_summary_of_more_turns_than_there_are_is_refused_by_the_import(
    document: JsonObject,
) -> None:
    """It was imported once, and the process hung as it counted through 2**53 turns."""
    without_digests(document)
    found_rows = rows(document)
    body = RangeSummary(covers=1, first_turn=1, last_turn=2**53, text="all of it")
    summary = Block(
        seq=len(found_rows) + 1,
        turn=2,
        round=0,
        n=1,
        ts=datetime(2026, 1, 1, tzinfo=UTC),
        term=2,
        body=body,
    )
    row: JsonObject = {
        **found_rows[-1],
        "seq": summary.seq,
        "type": summary.type,
        "n": 1,
        "ref": summary.ref,
        "body": json.loads(encode_full(body)),
    }
    found_rows.append(row)
    text = rf"blocks\[{len(found_rows) - 1}\]\.body\.last_turn: {2**53} is not from 1 to 2"
    with pytest.raises(DocumentError, match=text):
        read_document(document)


def test_a_text_that_was_kept_under_no_ref_is_refused(document: JsonObject) -> None:
    row = rows(document)[1]
    row["type"], row["body"] = "text.kept", {"ref": "nowhere", "text": "x"}
    with pytest.raises(DocumentError, match=r"blocks\[1\]: it cannot have a ref: not a ref"):
        read_document(document)


STORED = [
    '{"of":["sheep"]}',
    '{"of": ["sheep"],\n "é": 1.0, "é": 2}',
    '{"number": 1e400, "a": 0.10}',
    "[]",
    "",
    "no JSON",
]


@pytest.mark.parametrize("to", ["memory", "sqlite"])
async def test_what_nobody_here_knows_is_carried_through_byte_for_byte(
    to: str, tmp_path: Path
) -> None:
    log: TimelineLog = MemoryLog()
    later = [
        Entry(body=Unknown(stored_type=kind, version=version, stored=stored), turn=1)
        for stored in STORED
        for kind, version in (("react.dream", 1), ("user.prompt", 7))
    ]
    async with await SqlLog.open(f"sqlite:///{tmp_path}/one.db") as one, one.lease(HERE) as term:
        prompt = Entry(body=UserPrompt(text="hello"), turn=0)
        blocks = await one.append(HERE, [prompt, *later], seen=0, term=term)
    async with Store.open(f"sqlite:///{tmp_path}/one.db", read_only=True) as store:
        written = dumps(await store.conversation("c").export())
    document = cast("JsonObject", json.loads(written))
    if to == "sqlite":
        log = await SqlLog.open(f"sqlite:///{tmp_path}/other.db")
    await log.restore(HERE, read_document(document))
    assert list(await log.read(HERE)) == list(blocks)
    await log.close()


async def test_an_import_that_is_cancelled_leaves_nothing(
    tmp_path: Path, document: JsonObject
) -> None:
    store = tmp_path / "talk.db"
    async with Store.open(f"sqlite:///{store}") as kept_store:
        await kept_store.conversation("other").blocks()
        with closing(sqlite3.connect(store, isolation_level=None)) as busy:
            busy.execute("BEGIN IMMEDIATE")
            loading = asyncio.create_task(kept_store.load(document))
            await asyncio.sleep(0.2)
            loading.cancel()
            await asyncio.sleep(0.05)
            busy.execute("ROLLBACK")
            with pytest.raises(asyncio.CancelledError):
                await loading
        assert [summary async for summary in kept_store.conversations()] == []
        await kept_store.load(document)
        again = await kept_store.conversation("c").export()
    assert rows(again)[:-1] == document["blocks"]


@pytest.mark.parametrize("steps", range(0, 12, 2))
async def test_an_import_that_is_cancelled_anywhere_keeps_all_or_nothing(
    tmp_path: Path, document: JsonObject, steps: int
) -> None:
    async with Store.open(f"sqlite:///{tmp_path}/talk.db") as store:
        loading = asyncio.create_task(store.load(document))
        for _ in range(steps):
            await asyncio.sleep(0.0005)
        loading.cancel()
        await asyncio.wait([loading])
        blocks = await store.conversation("c").blocks()
        assert len(blocks) in (0, len(rows(document)) + 1)
        assert len(blocks) > 0 or loading.cancelled()


class Office(BaseWorkflow):
    """Has two agents do a task."""

    agents = (Agent(name="clerk", description="Writes."),)

    async def process(self, payload: TurnPayload) -> TurnResult:
        answers = await self.map("clerk", [f"{payload.text} {number}" for number in (1, 2)])
        return await self.answer(", ".join(result.answer for result in answers))


async def test_a_conversation_whose_workflow_has_run_agents_is_imported() -> None:
    office = Bundle(id="office", workflow=Office)
    model = ScriptedModel(["One.", "Two."])
    async with Harness.open(office, store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("Write")
        copy = await harness.load(await talk.export(), name="copy")
        assert (await copy.blocks())[:-1] == await talk.blocks()


async def test_numbers_of_schemas_settings_and_events_may_be_below_zero() -> None:
    @tool(effect="read")
    async def measure(context: ToolContext) -> str:
        """Measure."""
        await context.emit("measured", {"celsius": -3}, durable=True)
        return "cold"

    latitude: JsonObject = {"type": "number", "minimum": -90}
    where = ClientTool(
        name="where",
        parameters={"type": "object", "properties": {"latitude": latitude}},
        result={"type": "integer", "minimum": -1},
    )
    script: list[ScriptEntry] = [Say("", Call("desk.measure"), Call("where")), "-4"]
    bundle = Bundle(id="desk", tools=[measure])
    async with Harness.open(bundle, store="memory:", model=ScriptedModel(script)) as harness:
        talk = harness.conversation("c")
        settings = ModelSettings(presence_penalty=-1)
        kind = Annotated[int, Field(ge=-5)]
        await talk.say("go", tools=[where], settings=settings, output_type=kind)
        assert (await talk.resume({"c2": -1}, output_type=kind)).output == -4
        copy = await harness.load(await talk.export(), name="copy")
        assert (await copy.blocks())[:-1] == await talk.blocks()
