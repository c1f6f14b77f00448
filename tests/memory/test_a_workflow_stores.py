"""A workflow stores files and reads what its conversation has; its feedback finds the turn that it is about."""

from __future__ import annotations

from typing import Any

import pytest

from loopline import (
    Attachment,
    BaseWorkflow,
    Bundle,
    Harness,
    LooplineError,
    ToolError,
    TurnPayload,
    TurnResult,
)
from loopline.models import Json
from loopline.testing import ScriptedModel
from loopline.timeline import feedback

REPORT = "fi:turn_1.outputs/report.pdf@1"


class Archiving(BaseWorkflow):
    """Stores a report, and answers with what is stored."""

    async def process(self, payload: TurnPayload) -> TurnResult[Any]:
        ref = await self.store.put_attachment("report.pdf", b"%PDF-1.7 sales")
        again = await self.store.put_attachment("report.pdf", b"%PDF-1.7 sales")
        await self.keep("summary", "good sales")
        escaped = [await self.store.put_attachment("a%20b.txt", "tea") for _ in range(2)]
        assert escaped == ["fi:turn_1.outputs/a%2520b.txt@1"] * 2
        names = [artifact.name for artifact in await self.store.artifacts()]
        assert ref == again
        return await self.answer(f"{ref} {names}")


async def test_a_workflow_stores_a_file_and_lists_what_is_stored() -> None:
    bundle = Bundle(id="archive", workflow=Archiving)
    async with Harness.open(bundle, store="memory:", model=ScriptedModel([])) as harness:
        talk = harness.conversation("sales", user="ann")
        table = Attachment("sales.csv", b"tea,7", "text/csv")
        result = await talk.say("Report the sales.", attachments=[table])
        [item] = await talk.read([REPORT])
    stored = "['sales.csv', 'outputs/report.pdf', 'summary', 'outputs/a%20b.txt']"
    assert result.answer == f"{REPORT} {stored}"
    assert item.data == b"%PDF-1.7 sales"


async def test_what_a_workflow_stores_is_held_to_the_limits_of_the_workspace() -> None:
    bundle = Bundle(id="archive", workflow=Archiving)
    limits: dict[str, Json] = {"workspace.file_bytes": 5}
    async with Harness.open(
        bundle, store="memory:", model=ScriptedModel([]), properties=limits
    ) as harness:
        with pytest.raises(LooplineError, match="has 14 bytes, and a file may have 5"):
            await harness.conversation("sales", user="ann").say("Report the sales.")


class Reading(BaseWorkflow):
    """Checks in its second turn what the store says of both."""

    async def process(self, payload: TurnPayload) -> TurnResult[Any]:
        store = self.store
        if payload.turn_id == "turn_1":
            await store.put_attachment("report.txt", "good sales")
            return await self.answer("Stored.")
        first, second = await store.list_conversation()
        assert (first.text, second) == ("Report the sales.", payload)
        assert [file.data for file in (await store.turn_payload("turn_1")).attachments] == [
            b"tea,7"
        ]
        assert await store.get_blob_bytes("fi:turn_1.user.attachments/sales.csv") == b"tea,7"
        assert await store.get_blob_bytes("fi:turn_1.outputs/report.txt") == b"good sales"
        assert await store.get_blob_bytes("ar:turn_1.user.prompt") == b"Report the sales."
        assert [artifact.size for artifact in await store.artifacts("turn_1")] == [5, 10]
        assert await store.artifacts("no turn") == []
        document = await store.timeline()
        assert document["turn_ids"] == ["turn_1", "turn_2"]
        with pytest.raises(LooplineError, match="no turn 'turn_3'"):
            await store.turn_payload("turn_3")
        with pytest.raises(LooplineError, match="cannot be read"):
            await store.get_blob_bytes("fi:turn_1.outputs/other.txt")
        with pytest.raises(ToolError):
            await store.put_attachment("../escaped", b"")
        return await self.answer("Read.")


async def test_a_workflow_reads_payloads_files_and_the_timeline_of_past_turns() -> None:
    bundle = Bundle(id="archive", workflow=Reading)
    async with Harness.open(bundle, store="memory:", model=ScriptedModel([])) as harness:
        talk = harness.conversation("sales", user="ann")
        table = Attachment("sales.csv", b"tea,7", "text/csv")
        await talk.say("Report the sales.", attachments=[table])
        assert (await talk.say("And?")).answer == "Read."


class Rating(BaseWorkflow):
    """Answers with the turn that the prompt is about, which it rates."""

    confidence = 0.9

    async def process(self, payload: TurnPayload) -> TurnResult[Any]:
        if not payload.text.startswith("bad:"):
            return await self.answer("Noted.")
        turn = await self.feedback(
            "not_ok", text="wrong", confidence=self.confidence, about=payload.text
        )
        return await self.answer(str(turn))


class Doubting(Rating):
    confidence = 0.5


@pytest.mark.parametrize(
    ("workflow", "text", "turn"),
    [
        (Rating, "bad: what you said of the samovar", "turn_1"),
        (Rating, "bad: your advice on oolong", "turn_2"),
        (Rating, "bad: zebras", "None"),
        (Doubting, "bad: what you said of the samovar", "None"),
    ],
)
async def test_machine_feedback_finds_the_turn_that_it_is_about(
    workflow: type[Rating], text: str, turn: str
) -> None:
    bundle = Bundle(id="rating", workflow=workflow)
    async with Harness.open(bundle, store="memory:", model=ScriptedModel([])) as harness:
        other = harness.conversation("other", user="ann")
        await other.say("The samovar of my aunt leaks; zebras like it.")
        talk = harness.conversation("tea", user="ann")
        await talk.say("How do I clean a samovar?")
        await talk.say("How hot is oolong?")
        assert (await talk.say(text)).answer == turn
        reactions = feedback.fold(await talk.blocks()).machine_feedback
    rated = [] if turn == "None" else [turn]
    assert [entry.block.turn_id for entry in reactions] == rated
