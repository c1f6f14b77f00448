"""Settings of the model in requests: of Loopline's own routes, of its client, and of OpenAI's."""

from __future__ import annotations

from collections.abc import Generator

import httpx2
import pytest

from loopline import Bundle, ModelSettings
from loopline.client import ServerProblem, connect
from loopline.models import SettingSupport
from loopline.server import app
from loopline.testing import Say, ScriptedModel
from tests.support.live_server import serving

BUNDLE = Bundle(id="tea", settings=ModelSettings(top_p=0.5))


@pytest.fixture
def model() -> ScriptedModel:
    support = SettingSupport(sampling="always", stops=4)
    return ScriptedModel([Say("Tea.")], strict=False, accepts=support)


@pytest.fixture
def url(model: ScriptedModel) -> Generator[str]:
    with serving(app(BUNDLE, store="memory:", model=model)) as address:
        yield address


async def test_the_client_sends_the_settings_of_a_message(url: str, model: ScriptedModel) -> None:
    async with connect(url) as server:
        settings = ModelSettings(temperature=0.25, stop=["END"])
        assert (await server.conversation("c").say("Tea?", settings=settings)).answer == "Tea."
    [request] = model.requests
    assert request.options.settings == ModelSettings(temperature=0.25, stop=["END"], top_p=0.5)


@pytest.mark.parametrize(
    "settings",
    [
        ModelSettings(service_tier="priority"),
        ModelSettings(extra_body={"top_k": 3}),
        ModelSettings(extra_headers={"X-Trace": "1"}),
        ModelSettings(timeout=900),
    ],
)
async def test_the_settings_of_the_operator_are_refused(url: str, settings: ModelSettings) -> None:
    async with connect(url) as server:
        with pytest.raises(ServerProblem, match="settings"):
            await server.conversation("c").say("Tea?", settings=settings)


def test_a_setting_that_the_model_does_not_support_is_an_error_of_its_sender(url: str) -> None:
    message = {"text": "Tea?", "settings": {"seed": 7}}
    answer = httpx2.post(f"{url}/conversations/default/default/c/messages", json=message)
    assert answer.status_code == 422
    assert "does not support seed=7" in answer.json()["detail"]


def test_chat_completions_use_the_settings_that_the_model_supports(
    url: str, model: ScriptedModel
) -> None:
    asked = {
        "model": "tea",
        "messages": [{"role": "user", "content": "Tea?"}],
        "temperature": 0.25,
        "seed": 7,
        "stop": "END",
        "max_completion_tokens": 99,
    }
    answer = httpx2.post(f"{url}/v1/chat/completions", json=asked)
    assert answer.json()["choices"][0]["message"]["content"] == "Tea."
    [request] = model.requests
    assert request.options.settings == ModelSettings(
        temperature=0.25, top_p=0.5, stop="END", max_tokens=99, unsupported="drop"
    )


def test_responses_use_them_too(url: str, model: ScriptedModel) -> None:
    asked = {"model": "tea", "input": "Tea?", "temperature": 0.25, "max_output_tokens": 99}
    assert httpx2.post(f"{url}/v1/responses", json=asked).status_code == 200
    [request] = model.requests
    assert request.options.settings == ModelSettings(
        temperature=0.25, top_p=0.5, max_tokens=99, unsupported="drop"
    )
