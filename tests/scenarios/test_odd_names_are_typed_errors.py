"""A name that cannot be is an error of the tree, or says that nothing has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, Harness
from loopline.errors import LooplineError, StoreError
from loopline.testing import ScriptedModel

BUNDLE = Bundle(id="any", workflow=BaseWorkflow)


@pytest.mark.parametrize(
    "url", ["sqlite:////", "sqlite:///\0", "sqlite:///\ud800", f"sqlite:///{'a' * 300}.db"]
)
async def test_a_store_that_cannot_be_is_said_to_be_none(url: str) -> None:
    with pytest.raises(StoreError, match="no store"):
        async with Harness.open(BUNDLE, store=url, model=ScriptedModel([])):
            pass


async def test_a_name_that_cannot_be_stored_is_refused_or_not_found(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(BUNDLE, store=store, model=ScriptedModel(["Done."])) as harness:
        with pytest.raises(LooplineError, match="cannot be the name of a conversation"):
            harness.conversation("a\udcff")
        conversation = harness.conversation("a\0b")
        await conversation.say("go")
        (item,) = await conversation.read("cv:\udcff/ar:turn_1.user.prompt")
    assert (item.readable, "no conversation" in item.message) == (False, True)
