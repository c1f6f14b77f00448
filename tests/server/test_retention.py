"""A server forgets what nobody uses, after the days that its operator or a tenant has chosen."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loopline import Harness, LooplineError
from loopline.server import Retention, ServerSettings, app
from loopline.server.settings import SECONDS_BETWEEN
from loopline.testing import FakeClock
from loopline.timeline import ConversationKey, MemoryLog, TimelineLog
from tests.support.echo_model import EchoModel
from tests.support.playground import bundle

DAY = 86_400.0


def test_a_retention_is_written_in_days_for_all_or_for_a_tenant() -> None:
    assert Retention.parse(["90", "acme=30", "a=b=0"]) == Retention(90, {"acme": 30, "a=b": 0})
    assert Retention.parse([]) == Retention()
    for wrong in (["a month"], ["acme="], ["-1"], ["1", "2"], ["1.5"], ["9" * 400]):
        with pytest.raises(LooplineError):
            Retention.parse(wrong)


async def _tenants_without(log: TimelineLog, left: set[str]) -> set[str]:
    """Return the tenants that have conversations, once only those that are left have some, or after ten seconds."""
    tenants = set[str]()
    for _ in range(1_000):
        tenants = {each.conversation.tenant for each in await log.conversations()}
        if tenants == left:
            break
        await asyncio.sleep(0.01)
    return tenants


async def test_a_server_forgets_what_is_older_than_its_tenant_says(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path}/store.db", FakeClock()
    async with Harness.open(bundle, store=url, model=EchoModel(), clock=clock) as harness:
        for tenant in ("short", "long", "ever"):
            await harness.conversation("c", tenant=tenant).say("hello")
    clock.advance(31 * DAY)
    settings = ServerSettings(retention=Retention(60, {"short": 30, "ever": 0}))
    for days, left in ((0, {"long", "ever"}), (30, {"ever"})):
        clock.advance(days * DAY)
        served = app(bundle, store=url, model=EchoModel(), settings=settings, clock=clock)
        async with served.router.lifespan_context(served):
            log = served.state.host.log
            assert await _tenants_without(log, left) == left
            forgotten = ConversationKey(name="c", tenant="short")
            assert await log.forgotten(forgotten) is not None


class FailingLog(MemoryLog):
    """A log that cannot forget the first time, for a reason that nobody foresaw."""

    has_failed = False

    async def forget(self, conversation: ConversationKey, *, cascade: bool = False) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise OSError("the disk is gone")
        await super().forget(conversation, cascade=cascade)


async def test_a_server_that_could_not_forget_says_so_and_looks_again_in_an_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    log = FailingLog(clock)
    async with Harness.open(bundle, store=log, model=EchoModel(), clock=clock) as harness:
        await harness.conversation("c").say("hello")
    clock.advance(31 * DAY)
    settings = ServerSettings(retention=Retention(30))
    served = app(bundle, store=log, model=EchoModel(), settings=settings, clock=clock)
    async with served.router.lifespan_context(served):
        for _ in range(1_000):
            if await log.forgotten(ConversationKey(name="c")):
                break
            await asyncio.sleep(0.01)
            clock.advance(SECONDS_BETWEEN)
    assert "were not forgotten" in caplog.text
    assert "the disk is gone" in caplog.text
    assert await log.forgotten(ConversationKey(name="c")) is not None
