"""The bundle `support`: it asks the customer's app, refunds after an approval, and a webhook tells the end of the turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from loopline import Harness
from loopline.models import JsonObject, Prompt, ToolCall
from loopline.server import ServerSettings, app
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import MemoryLog
from tests.docs.pages import ROOT
from tests.support.crashing_log import Crashed, CrashingLog

SUPPORT = ROOT / "bundles/support"
ORDER: JsonObject = {"customer": "ann", "item": "sencha", "price": 60.0, "refunds": {}}
REFUND = Call("support.refund", number="A-17", euros=30.0)


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the orders, in the folder of the process."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "orders.json"
    mine = {**ORDER, "customer": "local"}
    file.write_text(json.dumps({"A-17": ORDER, "B-2": mine}), encoding="utf-8")
    return file


def refunded(orders: Path, number: str) -> float:
    refunds: dict[str, float] = json.loads(orders.read_text("utf-8"))[number]["refunds"]
    return sum(refunds.values())


async def test_the_app_says_which_order_is_open_and_a_person_approves_the_refund(
    orders: Path,
) -> None:
    script = [Call("support.current_page"), Call("support.find_order", number="A-17"), REFUND]
    store = f"sqlite:///{orders.parent}/support.db"
    model = ScriptedModel(script)
    async with Harness.open(SUPPORT, store=store, model=model) as harness:
        talk = harness.conversation("c1", user="ann")
        asked = await talk.say("I want half of my money back.")
        assert [(call.tool, call.kind) for call in asked.pending] == [
            ("support.current_page", "client")
        ]
        paused = await talk.resume({"c1": "orders/A-17"})
        assert [call.question for call in paused.pending] == ["Refund 30.00 euros to ann?"]
    assert refunded(orders, "A-17") == 0.0
    model = ScriptedModel(["You get 30 euros back."])
    async with Harness.open(SUPPORT, store=store, model=model) as harness:
        result = await harness.conversation("c1", user="ann").resume({"c3": True})
    assert result.answer == "You get 30 euros back."
    assert refunded(orders, "A-17") == 30.0


@pytest.mark.parametrize(
    ("call", "user", "error"),
    [
        (Call("support.find_order", number="A-17"), "ben", "you have no order 'A-17'"),
        (Call("support.find_order", number="Z-1"), "ann", "you have no order 'Z-1'"),
        (Call("support.refund", number="A-17", euros=-5.0), "ann", "at most 60.00 euros"),
        (Call("support.refund", number="A-17", euros=5.0), "ben", "you have no order 'A-17'"),
    ],
)
async def test_an_order_of_another_and_a_wrong_amount_are_refused(
    call: Say, user: str, error: str, orders: Path
) -> None:
    model = ScriptedModel([call, "No."])
    async with Harness.open(SUPPORT, store="memory:", model=model) as harness:
        await harness.conversation("c1", user=user).say("Please.")
    assert error in str(model.requests[-1])
    assert refunded(orders, "A-17") == 0.0


async def test_refunds_at_once_are_all_made(orders: Path) -> None:
    both = Say(
        "",
        *[Call("support.refund", number="B-2", euros=1.0) for _ in range(4)],
        *[Call("support.refund", number="C-3", euros=1.0) for _ in range(4)],
    )
    mine: JsonObject = {**ORDER, "customer": "local"}
    await asyncio.to_thread(orders.write_text, json.dumps({"B-2": mine, "C-3": mine}), "utf-8")
    async with Harness.open(
        SUPPORT, store="memory:", model=ScriptedModel([both, "Done."])
    ) as harness:
        assert (await harness.conversation("c1").say("8 euros back.")).answer == "Done."
    assert (refunded(orders, "B-2"), refunded(orders, "C-3")) == (4.0, 4.0)


@pytest.mark.parametrize("was_made", [True, False])
async def test_a_refund_that_a_crash_cut_off_is_told_from_an_earlier_one(
    orders: Path, was_made: bool
) -> None:
    earlier: JsonObject = {**ORDER, "customer": "local", "refunds": {"earlier": 10.0}}
    before = json.dumps({"B-2": earlier})
    await asyncio.to_thread(orders.write_text, before, "utf-8")
    crashing = CrashingLog(log := MemoryLog())

    def refund(prompt: Prompt) -> ToolCall:
        del prompt
        crashing.left = 2  # the call and its start are stored, and its result is not
        return Call("support.refund", number="B-2", euros=10.0)

    async with Harness.open(
        SUPPORT, store=crashing, model=ScriptedModel([refund], strict=False)
    ) as harness:
        with pytest.raises(Crashed):
            await harness.conversation("c1").say("10 euros back.")
    assert refunded(orders, "B-2") == 20.0
    if not was_made:
        await asyncio.to_thread(orders.write_text, before, "utf-8")
    model = ScriptedModel(["Done."])
    async with Harness.open(SUPPORT, store=log, model=model) as harness:
        await harness.conversation("c1").resume()
    assert ("refunded 10.00 euros" in str(model.requests[-1].messages)) is was_made


@dataclass(slots=True)
class Receiver:
    """A server that stores the body of a webhook."""

    url: str = ""
    body: asyncio.Future[bytes] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].split("\r\n")[0])
        self.body.set_result(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


@pytest.fixture
async def receiver() -> AsyncGenerator[Receiver]:
    opened = Receiver()
    server = await asyncio.start_server(opened.answer, "127.0.0.1", 0)
    async with server:
        opened.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        yield opened


async def test_a_webhook_tells_that_a_small_refund_was_made(
    orders: Path, receiver: Receiver
) -> None:
    model = ScriptedModel([Call("support.refund", number="B-2", euros=10.0), "Done."])
    settings = ServerSettings(
        webhook_secret=b"a secret of the desk", webhook_networks=["127.0.0.0/8"]
    )
    served = app(SUPPORT, store="memory:", model=model, settings=settings)
    async with (
        served.router.lifespan_context(served),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=served), base_url="http://localhost"
        ) as client,
    ):
        sent = await client.post(
            "/conversations/default/default/c1/messages",
            json={"text": "10 euros back.", "background": True, "webhook": receiver.url},
        )
        assert sent.status_code == 202
        told = json.loads(await receiver.body)
    assert (told["type"], told["data"]["answer"]) == ("turn.ended", "Done.")
    assert refunded(orders, "B-2") == 10.0
