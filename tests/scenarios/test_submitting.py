"""A submitted message is stored once, whoever sends it again, and its turn runs without its sender."""

from __future__ import annotations

import asyncio

import pytest

from loopline import Bundle, Harness, LooplineError
from loopline.errors import ConflictError
from loopline.models import ToolCall
from loopline.testing import Say, ScriptedModel

GUIDE = Bundle(id="guide", instructions="You guide.")


def harness(*script: Say | ToolCall) -> Harness[None]:
    return Harness.open(GUIDE, store="memory:", model=ScriptedModel(list(script)))


async def test_a_submitted_message_is_stored_before_its_turn_ends() -> None:
    async with harness(Say("Hello.")) as opened:
        talk = opened.conversation("c1")
        submission = await talk.submit("Hello?")
        assert (submission.receipt.seq, submission.receipt.turn_id) == (1, "turn_1")
        assert (await submission.result()).answer == "Hello."
        assert submission.has_ended


async def test_a_key_that_was_used_gives_the_first_receipt_and_result() -> None:
    async with harness(Say("Hello.")) as opened:
        talk = opened.conversation("c1")
        first = await talk.submit("Hello?", key="k")
        second = await talk.submit("Hello?", key="k")
        assert first.receipt == second.receipt
        assert [(await item.result()).answer for item in (first, second)] == ["Hello.", "Hello."]
        third = await talk.submit("Hello?", key="k", when_busy="reject")
        assert (await third.result()).turn_id == "turn_1"
        assert [block.type for block in await talk.blocks(types="user")] == ["user.prompt"]


async def test_a_key_that_another_message_used_is_a_conflict() -> None:
    async with harness(Say("Hello.")) as opened:
        talk = opened.conversation("c1")
        await (await talk.submit("Hello?", key="k")).result()
        with pytest.raises(ConflictError, match="was used for another message"):
            await talk.submit("Goodbye?", key="k")


async def test_a_message_with_files_has_the_receipt_of_its_text() -> None:
    from loopline import Attachment

    async with harness(Say("Read.")) as opened:
        talk = opened.conversation("c1")
        files = [Attachment("a.txt", b"a"), Attachment("b.txt", b"b")]
        first = await talk.submit("Look!", attachments=files, key="k")
        again = await talk.submit("Look!", attachments=files, key="k")
        assert first.receipt == again.receipt
        assert again.receipt.seq == 1
        await again.result()


async def test_what_refuses_a_message_is_raised_at_once() -> None:
    async with harness() as opened:
        with pytest.raises(LooplineError, match="the message is empty"):
            await opened.conversation("c1").submit("  ")


async def test_leaving_the_wait_for_a_result_leaves_the_turn_running() -> None:
    async with harness(Say("Hello.")) as opened:
        submission = await opened.conversation("c1").submit("Hello?")
        waiting = asyncio.create_task(submission.result())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await submission.result()).answer == "Hello."
