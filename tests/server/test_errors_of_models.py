"""What the users of a server read of a failed model or bundle: a plain text with an id, under which the log has the error."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx2
import pytest

from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult
from loopline.errors import ModelAccessError, ModelError, ModelRateLimited, ModelRequestError
from loopline.models import Capabilities, Prompt, Reply, TextDelta
from loopline.server import ApiKeys, Authenticator, Principal, app
from loopline.server.principals import LocalUser, new_key
from tests.support.live_server import SHOP, serving

SECRET = "openai:gpt-5: no project org-4711 (401): check api_key"
HERE = "/conversations/acme/tea/c"


@dataclass
class FailingModel:
    """Fails each request with this error."""

    error: Exception
    name: str = "failing"
    capabilities: Capabilities = field(default_factory=Capabilities)

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        del prompt
        yield TextDelta(text="I think")
        raise self.error


class OwnModel(BaseWorkflow):
    """A loop with a model of the bundle's own code."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(
            scratchpad=self.scratchpad, model=FailingModel(ModelAccessError(SECRET))
        )
        return await react.run(payload)


OWN = Bundle(id="shop", workflow=OwnModel)
REDACTED = Bundle(id="shop", workflow=OwnModel, configuration={"privacy": {"redact": ["email"]}})


class FailingBundle(BaseWorkflow):
    """Fails before its loop, or after it if the message asks for that."""

    async def pre_run_hook(self, payload: TurnPayload) -> None:
        if payload.text == "tea":
            raise RuntimeError(SECRET)

    async def post_run_hook(self, payload: TurnPayload, result: TurnResult) -> None:
        raise RuntimeError(SECRET)


FAILING = Bundle(id="shop", workflow=FailingBundle)


def told(error: Exception, auth: Authenticator, key: str, bundle: Bundle = SHOP) -> tuple[str, str]:
    """Return the error of a turn that fails with this error, and all that its sender can read of the turn."""
    server = app(bundle, store="memory:", auth=auth, model=FailingModel(error))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    here = HERE if key else "/conversations/default/default/c"
    with serving(server) as url, httpx2.Client(base_url=url, headers=headers, timeout=30) as client:
        sent = client.post(f"{here}/messages", json={"text": "tea"})
        assert sent.status_code == 200
        streamed = client.post(
            f"{here}/messages", json={"text": "again"}, headers={"Accept": "text/event-stream"}
        )
        read = [client.get(f"{here}/{path}").text for path in ("blocks", "export", "status")]
        stored = client.get(f"{here}/turns/{sent.json()['turn_id']}").json()
        assert stored["error"] == sent.json()["error"]
        asked = {"model": "shop", "messages": [{"role": "user", "content": "tea"}]}
        completed = client.post("/v1/chat/completions", json=asked).text
    return sent.json()["error"], "\n".join([sent.text, streamed.text, completed, *read])


@pytest.mark.parametrize(
    "bundle", [SHOP, OWN, REDACTED], ids=["the harness's", "the bundle's own", "redacted"]
)
def test_no_model_tells_its_details(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    key, stored = new_key(Principal(tenant="acme", project="tea", user="ann"))
    shown, everything = told(ModelAccessError(SECRET), ApiKeys([stored]), key, bundle)
    assert re.fullmatch(r"the model may not be used \(error [0-9a-f]{8}\)", shown)
    assert "api_key" not in everything
    assert SECRET in caplog.text


@pytest.mark.parametrize(
    ("error", "plain"),
    [
        (ModelRequestError(SECRET), "the model refused the request"),
        (ModelRateLimited(SECRET, retry_after=90.0), "the model gets too many requests"),
        (ModelError(SECRET), "the model failed"),
        (ValueError(SECRET), "the model failed"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_users_read_a_plain_error_with_the_id_of_its_details(
    error: Exception, plain: str, caplog: pytest.LogCaptureFixture
) -> None:
    key, stored = new_key(Principal(tenant="acme", project="tea", user="ann"))
    with caplog.at_level(logging.ERROR, "loopline"):
        shown, everything = told(error, ApiKeys([stored]), key)
    number = re.fullmatch(rf"{plain}.* \(error ([0-9a-f]{{8}})\)", shown)
    assert number is not None, shown
    assert "org-4711" not in everything
    assert "api_key" not in everything
    [logged] = [text for text in caplog.messages if number[1] in text]
    assert SECRET in logged


def test_an_author_reads_the_error_itself_of_a_server_without_authentication() -> None:
    shown, _ = told(ModelAccessError(SECRET), LocalUser(), "")
    assert shown == SECRET


def test_no_failing_bundle_tells_its_text_file_or_line(caplog: pytest.LogCaptureFixture) -> None:
    key, stored = new_key(Principal(tenant="acme", project="tea", user="ann"))
    shown, everything = told(ModelError(SECRET), ApiKeys([stored]), key, FAILING)
    number = re.fullmatch(r"the bundle failed \(error ([0-9a-f]{8})\)", shown)
    assert number is not None, shown
    assert "api_key" not in everything
    assert ".py" not in everything
    [logged] = [text for text in caplog.messages if number[1] in text]
    assert f"test_errors_of_models.py:{inspect.getsourcelines(FailingBundle)[1] + 5}" in logged
    assert SECRET in logged


def test_an_author_reads_where_the_bundle_failed_of_a_server_without_authentication() -> None:
    shown, _ = told(ModelError(SECRET), LocalUser(), "", FAILING)
    assert shown.endswith(f"RuntimeError: {SECRET}")
    assert "test_errors_of_models.py:" in shown
