"""A call goes out with its result under one id, whichever family of models wrote it and whichever reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.deepseek import DeepSeekProvider

from loopline.bridge.bridged_model import BridgedModel
from loopline.models import Capabilities, Model, Prompt, Reply, TextDelta, find_model_facts
from loopline.providers.http import HttpModel
from loopline.timeline import Decision, Exit
from tests.bridge.bridged_model import bridged_at
from tests.providers.flat_request import KEY, wired
from tests.support.examples import examples
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.behaviors import Behaviour, Status
from tests.support.peers.call_replies import Call
from tests.support.peers.http_server import Peer
from tests.support.peers.pairing_server import paired, pairing
from tests.support.peers.signing_server import signing
from tests.support.workbench import at_work, bodies

FAMILIES = ("deepseek", "anthropic", "responses", "bridged anthropic", "bridged deepseek")
KEPT = Capabilities(tail="kept", window=100_000)


@dataclass(frozen=True, slots=True)
class Round:
    """Who decides in a round, under which ids it calls, and whether it thinks before."""

    family: str
    ids: tuple[str, ...]
    thinks: bool = True

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(
            Call("w__count", f'{{"number": {n}}}', item) for n, item in enumerate(self.ids)
        )

    def said_by_openai(self) -> oai.Says:
        return oai.Says("I look.", self.calls, "Hm." if self.thinks else "")

    def said_by_anthropic(self) -> ant.Says:
        return ant.Says("I look.", self.calls, (ant.Thinking("Hm."),) if self.thinks else ())


class Alternating:
    """A model that is another one in each round."""

    name = "alternating"
    capabilities = KEPT

    def __init__(self, models: Mapping[str, Model], order: Sequence[str]) -> None:
        self._models, self._order = models, list(order)

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        async for piece in self._models[self._order.pop(0)].stream(prompt):
            yield piece


@asynccontextmanager
async def families(
    rounds: Sequence[Round],
) -> AsyncGenerator[tuple[dict[str, Model], dict[str, Peer]], None]:
    """A strict server for each family, which says what the rounds have for it, and a model at each."""
    models, peers = dict[str, Model](), dict[str, Peer]()
    async with AsyncExitStack() as stack:
        for family in FAMILIES:
            mine = [item for item in rounds if item.family == family]
            if family.endswith("anthropic"):
                messages = [*(item.said_by_anthropic() for item in mine), ant.Says("Done.")]
                peer = await stack.enter_async_context(signing(*messages))
            else:
                replies = [*(item.said_by_openai() for item in mine), oai.Says("Done.")]
                peer = await stack.enter_async_context(pairing(*replies))
            peers[family] = peer
            models[family] = model = await _model(family, peer, stack)
            stack.push_async_callback(model.close, failed=False)
        yield models, peers


async def _model(family: str, peer: Peer, stack: AsyncExitStack) -> HttpModel | BridgedModel:
    match family:
        case "deepseek":
            facts = find_model_facts("deepseek:deepseek-v4-pro")
            return wired("chat", f"{peer.url}/v1", KEPT, facts, "deepseek-v4-pro")
        case "anthropic":
            facts = find_model_facts("anthropic:claude-sonnet-5")
            return wired("messages", peer.url, KEPT, facts, "claude-sonnet-5")
        case "responses":
            return wired(
                "responses", f"{peer.url}/v1", KEPT, find_model_facts("openai:gpt-5.5"), "gpt-5.5"
            )
        case "bridged anthropic":
            return await stack.enter_async_context(bridged_at(peer, "messages", "claude-opus-5"))
        case _:
            client = AsyncOpenAI(base_url=f"{peer.url}/v1", api_key=KEY)
            await stack.enter_async_context(client)
            provider = DeepSeekProvider(openai_client=client)
            return BridgedModel("b", OpenAIChatModel("deepseek-v4-pro", provider=provider))


async def decided(rounds: Sequence[Round], last: str) -> list[str]:
    """How the turn of these rounds ends, whose answer `last` writes."""
    order = [*(item.family for item in rounds), last]
    async with families(rounds) as (models, _), at_work(Alternating(models, order)) as talk:
        await talk.say("go", max_iterations=len(order) + 1)
        return [end.reason for end in await bodies(talk, Exit)]


@pytest.mark.parametrize("first", FAMILIES)
async def test_whoever_called_first_every_family_can_go_on(first: str) -> None:
    rounds = [Round(item, (f"call_{n}",)) for n, item in enumerate([first, *FAMILIES])]
    assert await decided(rounds, first) == ["complete"]


async def test_a_chain_falls_back_to_another_family_after_a_call() -> None:
    facts = find_model_facts("deepseek:deepseek-v4-pro")
    call = Call("w__count", '{"number": 7}', "call_00_x")
    asked: list[Behaviour[oai.Says]] = [oai.Says("", (call,), "Hm."), Status(503)]
    async with pairing(*asked) as chat, signing(ant.Says("It is 7.")) as messages:
        chain = (
            wired("chat", f"{chat.url}/v1", KEPT, facts),
            wired("messages", messages.url, KEPT, find_model_facts("anthropic:claude-haiku-4-5")),
        )
        async with at_work(chain) as talk:
            result = await talk.say("go")
            first, second = await bodies(talk, Decision)
    assert (result.answer, first.model != second.model) == ("It is 7.", True)


async def test_a_provider_gets_its_own_ids_back_and_no_other_one_does() -> None:
    rounds = [Round("responses", ("call_a",)), Round("deepseek", ("call_b",))]
    order = ["responses", "deepseek", "responses"]
    async with (
        families(rounds) as (models, peers),
        at_work(Alternating(models, order)) as talk,
    ):
        await talk.say("go")
    assert paired(peers["responses"].requests[-1]).calls == ("call_a", "c2")
    assert paired(peers["deepseek"].requests[-1]).calls == ("c1",)


ids = st.sampled_from(["c1", "c2", "call_1", "call_2", "call_3", "toolu_4", "call_5"])
odd_ids = st.sampled_from(["", "functions.count:0", "call 1"]) | ids


@st.composite
def drawn_rounds(draw: st.DrawFn) -> Round:
    family = draw(st.sampled_from(FAMILIES))
    one = ids if family.endswith("anthropic") else odd_ids
    return Round(family, tuple(draw(st.lists(one, min_size=1, max_size=3))), draw(st.booleans()))


@given(rounds=st.lists(drawn_rounds(), min_size=1, max_size=5), last=st.sampled_from(FAMILIES))
@examples(20)
def test_no_order_of_families_and_no_ids_break_a_pair(rounds: list[Round], last: str) -> None:
    assert asyncio.run(decided(rounds, last)) == ["complete"]
