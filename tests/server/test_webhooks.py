"""Webhooks: a turn in the background tells its end, signed, once more if it was not accepted, and to no address inside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from loopline.clock import SystemClock
from loopline.errors import StoreError
from loopline.server import ServerSettings, app
from loopline.server.webhooks import Webhooks, signature
from loopline.timeline import Block, ConversationKey, Entry, Exit, MemoryLog
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, in_process
from tests.support.webhook_receiver import Receiver, receiving

SECRET = b"a secret of the server"
HERE = "/conversations/default/default"


@pytest.fixture
async def receiver() -> AsyncGenerator[Receiver]:
    async with receiving(refusals=1) as opened:
        yield opened


async def test_the_end_of_a_turn_is_told_signed_and_again_until_it_is_accepted(
    receiver: Receiver,
) -> None:
    settings = ServerSettings(webhook_secret=SECRET, webhook_networks=["127.0.0.0/8"])
    served = app(SHOP, store="memory:", model=EchoModel(), settings=settings)
    async with in_process(served) as client:
        body = {"text": "tea", "background": True, "webhook": receiver.url}
        sent = await client.post(f"{HERE}/c1/messages", json=body)
        assert sent.status_code == 202
        await receiver.accepted.wait()
    assert len(receiver.received) == 2
    for headers, content in receiver.received:
        message, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
        assert headers["webhook-signature"] == signature(SECRET, message, timestamp, content)
        told = json.loads(content)
        assert told["type"] == "turn.ended"
        assert (told["data"]["turn_id"], told["data"]["answer"]) == ("turn_1", "You said: tea")
    assert len({headers["webhook-id"] for headers, _ in receiver.received}) == 1


class UnreadableAtTheEnd(MemoryLog):
    """A log that cannot be read any more once a turn has ended."""

    has_ended: bool = False

    async def append(
        self, conversation: ConversationKey, entries: Sequence[Entry], **options: Any
    ) -> Sequence[Block]:
        blocks = await super().append(conversation, entries, **options)
        self.has_ended |= any(isinstance(block.body, Exit) for block in blocks)
        return blocks

    async def read(self, conversation: ConversationKey, **options: Any) -> Sequence[Block]:
        if self.has_ended:
            raise StoreError("the disk has failed")
        return await super().read(conversation, **options)


async def test_a_webhook_whose_turn_cannot_be_read_is_an_error_in_the_log(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServerSettings(webhook_secret=SECRET, webhook_networks=["127.0.0.0/8"])
    served = app(SHOP, store=UnreadableAtTheEnd(), model=EchoModel(), settings=settings)
    async with in_process(served) as client:
        body = {"text": "tea", "background": True, "webhook": receiver.url}
        assert (await client.post(f"{HERE}/c1/messages", json=body)).status_code == 202
    errors = [record for record in caplog.records if record.name == "loopline"]
    assert [record.getMessage() for record in errors] == ["the webhook of turn 1 was not sent"]
    assert "the disk has failed" in caplog.text


async def test_an_address_that_is_not_public_is_not_reached(receiver: Receiver) -> None:
    receiver.refusals = 0
    hooks = Webhooks(ServerSettings(webhook_secret=SECRET), SystemClock())
    key = ConversationKey(name="c1", user="ann", project="p", tenant="t")
    hooks.send(receiver.url, key, "turn_1", {})
    await asyncio.gather(*hooks.deliveries)
    await hooks.close()
    assert receiver.received == []


@pytest.mark.parametrize(
    ("secret", "url"),
    [
        (b"", "https://example.org/hook"),
        (SECRET, "http://example.org/hook"),
        (SECRET, "file:///etc/passwd"),
        (SECRET, "https://user@example.org/"),
        (SECRET, "https://[broken"),
    ],
)
async def test_a_webhook_that_cannot_be_sent_is_refused_before_the_message_is_stored(
    secret: bytes, url: str
) -> None:
    served = app(
        SHOP, store="memory:", model=EchoModel(), settings=ServerSettings(webhook_secret=secret)
    )
    async with in_process(served) as client:
        body = {"text": "tea", "background": True, "webhook": url}
        assert (await client.post(f"{HERE}/c1/messages", json=body)).status_code == 422
        assert (await client.get(f"{HERE}/c1/status")).status_code == 404
