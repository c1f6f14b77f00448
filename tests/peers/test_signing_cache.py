"""A signing peer counts what its cache reads and writes by the documented rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from anthropic import AsyncAnthropic
from anthropic.types import Message, MessageParam, TextBlockParam

from loopline.clock import SystemClock
from tests.peers.clients import CLAUDE, anthropic_at
from tests.support.peers.anthropic_replies import Says
from tests.support.peers.signing_server import signing

WORDS = "word " * 400


@dataclass
class Later(SystemClock):
    """The machine's clock, set forward by hand."""

    start: datetime = field(default_factory=lambda: datetime(2026, 11, 20, tzinfo=UTC))

    def now(self) -> datetime:
        return self.start


def block(words: str, *, ttl: str = "", marked: bool = False) -> TextBlockParam:
    record: TextBlockParam = {"type": "text", "text": words}
    if ttl == "1h":
        record["cache_control"] = {"type": "ephemeral", "ttl": "1h"}
    elif marked:
        record["cache_control"] = {"type": "ephemeral"}
    return record


async def ask(
    client: AsyncAnthropic,
    *blocks: TextBlockParam,
    system: TextBlockParam | None = None,
    model: str = CLAUDE,
) -> Message:
    messages: list[MessageParam] = [{"role": "user", "content": blocks}]
    heading = [system] if system else []
    return await client.messages.create(
        model=model, max_tokens=10, system=heading, messages=messages
    )


def counts(message: Message) -> tuple[int, int, int]:
    """The tokens read, written, and neither."""
    usage = message.usage
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    return read or 0, written or 0, usage.input_tokens


async def test_what_was_written_is_read_by_the_next_request() -> None:
    async with signing(Says("Yes.")) as peer, anthropic_at(peer) as client:
        system = block(WORDS * 2, marked=True)
        first = counts(await ask(client, block("One?"), system=system))
        again = counts(await ask(client, block("Two?"), system=system))
    assert first[0] == 0
    assert first[1] > 512
    assert again == (first[1], 0, first[2])


async def test_a_marker_that_moves_on_reads_what_the_last_one_wrote() -> None:
    async with signing(Says("Yes.")) as peer, anthropic_at(peer) as client:
        first = counts(await ask(client, block(WORDS * 2, marked=True)))
        again = counts(await ask(client, block(WORDS * 2), block(WORDS, marked=True)))
    assert again[0] == first[1]
    assert again[1] > 0
    assert again[2] == 0


async def test_another_beginning_leaves_nothing_to_read() -> None:
    async with signing(Says("Yes.")) as peer, anthropic_at(peer) as client:
        await ask(client, block(WORDS * 2, marked=True), system=block("You read."))
        read, written, _ = counts(
            await ask(client, block(WORDS * 2, marked=True), system=block("You write."))
        )
    assert read == 0
    assert written > 0


async def test_less_than_the_model_asks_for_is_not_written() -> None:
    async with signing(Says("Yes.")) as peer, anthropic_at(peer) as client:
        read, written, rest = counts(await ask(client, block("Short.", marked=True)))
    assert (read, written) == (0, 0)
    assert rest > 0


async def test_the_least_can_be_set_for_a_test_of_few_words() -> None:
    async with signing(Says("Yes."), minimum=1) as peer, anthropic_at(peer) as client:
        _, written, rest = counts(await ask(client, block("Short.", marked=True)))
    assert written > 0
    assert rest == 0


async def test_one_model_does_not_read_what_another_wrote() -> None:
    async with signing(Says("Yes."), minimum=1) as peer, anthropic_at(peer) as client:
        await ask(client, block(WORDS, marked=True))
        read, _, _ = counts(await ask(client, block(WORDS, marked=True), model="claude-opus-5"))
    assert read == 0


async def test_an_entry_is_gone_when_its_time_is_over() -> None:
    clock = Later()
    async with signing(Says("Yes."), clock=clock) as peer, anthropic_at(peer) as client:
        written = counts(await ask(client, block(WORDS * 2, marked=True)))[1]
        clock.start += timedelta(minutes=5)
        assert counts(await ask(client, block(WORDS * 2, marked=True)))[0] == written
        clock.start += timedelta(minutes=5, seconds=1)
        assert counts(await ask(client, block(WORDS * 2, marked=True)))[0] == 0


async def test_what_is_kept_for_an_hour_is_told_as_such() -> None:
    async with signing(Says("Yes."), ttl="1h") as peer, anthropic_at(peer) as client:
        usage = (await ask(client, block(WORDS * 2, ttl="1h"))).usage
    assert usage.cache_creation is not None
    assert usage.cache_creation.ephemeral_5m_input_tokens == 0
    assert usage.cache_creation.ephemeral_1h_input_tokens == usage.cache_creation_input_tokens


async def test_a_marker_of_the_request_stands_for_one_on_its_last_block() -> None:
    async with signing(Says("Yes.")) as peer, anthropic_at(peer) as client:
        message = await client.messages.create(
            model=CLAUDE,
            max_tokens=10,
            cache_control={"type": "ephemeral"},
            messages=[{"role": "user", "content": WORDS * 2}],
        )
    assert counts(message)[1] > 0
    assert counts(message)[2] == 0
