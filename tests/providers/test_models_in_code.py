"""A model that code points at a server: its URL, its key, what is known of it and how long it may take."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import loopline
from loopline import Harness
from loopline.errors import ModelAccessError, ModelError
from loopline.models import Model, ModelFacts, Price, Timeouts, find_model_facts
from loopline.timeline import TurnResult
from tests.providers.flat_request import KEY
from tests.support.peers import openai_replies as oai
from tests.support.peers.behaviors import Silence, Status
from tests.support.peers.openai_like import openai_like
from tests.support.workbench import workbench


async def said_by(model: Model) -> TurnResult:
    """What comes of a turn with the model."""
    async with Harness.open(workbench(), store="memory:", model=model) as harness:
        return await harness.conversation("c").say("Tea?", model_retries=0)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("openai:llama-3", "/v1/chat/completions"),
        ("openai:gpt-5.5", "/v1/responses"),
        ("openai-chat:gpt-5.5", "/v1/chat/completions"),
        ("deepseek:deepseek-flash", "/v1/chat/completions"),
    ],
)
async def test_a_model_is_asked_where_code_says_with_no_key_but_what_code_says(
    name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_API_KEY", "DEEPSEEK_API_KEY"):
        monkeypatch.setenv(variable, "sk-for-another-place")
    async with openai_like(oai.Says("Tea.")) as peer:
        bare = loopline.model(name, base_url=f"{peer.url}/v1/")
        keyed = loopline.model(name, base_url=f"{peer.url}/v1", api_key=KEY)
        for model in (bare, keyed):
            assert (await said_by(model)).answer == "Tea."
    assert [request.path for request in peer.requests] == [path, path]
    sent = [request.headers.get("authorization") for request in peer.requests]
    assert sent == [None, f"Bearer {KEY}"]


async def test_what_code_says_of_a_model_stands_for_all_that_is_known_of_it() -> None:
    price = Price(input=1_000.0, output=0.0, cache_read=0.0, cache_write=0.0)
    mine = replace(
        find_model_facts("ollama:qwen3:8b"), window=64_000, output_limit=8_000, price=price
    )
    async with openai_like(oai.Says("Tea.", usage=oai.Usage(prompt=1_000))) as peer:
        model = loopline.model("ollama:qwen3:8b", base_url=f"{peer.url}/v1", facts=mine)
        result = await said_by(model)
    assert (model.capabilities.window, model.capabilities.output_limit) == (64_000, 8_000)
    assert (model.capabilities.thinking, result.cost) == (True, 1.0)


def test_of_an_unknown_model_the_least_is_promised() -> None:
    capabilities = loopline.model(
        "openai:llama-3", base_url="http://localhost:8000/v1"
    ).capabilities
    facts = ModelFacts()
    assert (capabilities.window, capabilities.output_limit) == (facts.window, facts.output_limit)
    able = (capabilities.tool_choice, capabilities.json_mode, capabilities.thinking)
    assert (able, capabilities.price) == ((False,) * 3, None)


async def test_code_says_how_long_a_model_is_waited_for() -> None:
    async with openai_like(Silence(oai.Says("Tea."))) as peer:
        quick = Timeouts(read=0.1)
        model = loopline.model("openai:m", base_url=f"{peer.url}/v1", timeouts=quick)
        assert "nothing came for too long" in (await said_by(model)).error


async def test_a_refused_key_is_named_as_code_gave_it() -> None:
    async with openai_like(Status(401)) as peer:
        model = loopline.model("openai:m", base_url=f"{peer.url}/v1", api_key=KEY)
        assert (await said_by(model)).error.endswith("(401): check api_key")


async def test_a_query_of_a_base_url_stays_behind_the_path_and_is_not_shown() -> None:
    async with openai_like(oai.Says("Tea.")) as peer:
        text = f"{peer.url.replace('//', '//me:pass@')}/v1?api-version=preview"
        model = loopline.model("openai:m", base_url=text)
        await said_by(model)
    assert peer.requests[0].path == "/v1/chat/completions?api-version=preview"
    assert repr(model) == f"<openai:m at {peer.url}/v1/chat/completions>"


async def test_what_a_query_of_a_base_url_says_is_in_no_error_and_no_repr() -> None:
    async with openai_like(oai.Says("Tea.")) as peer:
        model = loopline.model("openai:m", base_url=f"{peer.url}/nowhere?code={KEY}")
        error = (await said_by(model)).error
    assert KEY in peer.requests[0].path
    assert (KEY in error, "code=…" in error, KEY in repr(model)) == (False, True, False)


@pytest.mark.parametrize(
    "url",
    ["localhost:8000/v1", "/v1", "ftp://localhost", "http://[oops", "http://", "http://a:b:c"],
)
def test_a_base_url_that_is_none_is_told_before_anything_is_asked(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="base_url of openai:m is not a URL"):
        loopline.model("openai:m", base_url=url)
    monkeypatch.setenv("OLLAMA_BASE_URL", url)
    with pytest.raises(ModelError, match="OLLAMA_BASE_URL of ollama:m is not a URL"):
        loopline.model("ollama:m")


def test_a_key_from_code_is_checked_as_one_from_the_environment() -> None:
    with pytest.raises(ModelAccessError, match="api_key is not a key"):
        loopline.model("openai:m", api_key="sk-\n1")


async def test_a_model_of_two_harnesses_finishes_for_one_when_the_other_closes() -> None:
    slow = Silence(oai.Says("Tea, and more of it.", pieces=9), 0.7, after_chunks=4)
    async with openai_like(slow, oai.Says("Tea.")) as peer:
        model = loopline.model("openai:m", base_url=f"{peer.url}/v1")
        async with Harness.open(workbench(), store="memory:", model=model) as harness:
            saying = asyncio.ensure_future(harness.conversation("c").say("Tea?", model_retries=0))
            await peer.until(lambda it: len(it.requests) == 1)
            async with Harness.open(workbench(), store="memory:", model=model) as other_harness:
                assert (await other_harness.conversation("c").say("Tea?")).ok
            assert (await saying).answer == "Tea, and more of it."
        await peer.until(lambda it: it.connections.open == 0)


@pytest.mark.parametrize(
    ("name", "message"), [("anthropic:new", ModelFacts()), ("openai:m", ModelFacts(api="messages"))]
)
def test_facts_cannot_put_a_model_on_the_wire_of_another_vendor(
    name: str, message: ModelFacts
) -> None:
    with pytest.raises(ModelError, match="change api in its facts"):
        loopline.model(name, api_key=KEY, facts=message)
