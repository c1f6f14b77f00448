"""A key is told to its server and to nobody else, however it comes back."""

from __future__ import annotations

import logging
from urllib.parse import quote

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from loopline.errors import ModelError
from loopline.models import dumps
from loopline.models.safe_text import remove_secrets, secrets_in
from loopline.providers.failures import Credentials, parse_chunk, response_error, stream_error
from tests.providers.flat_request import KEY
from tests.providers.local_model import asked, model_at
from tests.support.peers import openai_replies as oai
from tests.support.peers.behaviors import BrokenOff, Fault, Status
from tests.support.peers.openai_like import openai_like

ODD_KEY = "sk+a/b=c-secret-of-mine"
ACCOUNT = Credentials("openai:m", "THE_KEY", ODD_KEY, "openai")
SHOWN = 5
"""So many characters of a key in a row would be too many."""


def leaks(text: str, key: str) -> list[str]:
    """The pieces of the key that the text has."""
    return [
        key[at : at + SHOWN] for at in range(len(key) - SHOWN + 1) if key[at : at + SHOWN] in text
    ]


@given(st.integers(0, 700), st.sampled_from(["Bearer {}", '{{"key": "{}"}}', "{}{}"]))
def test_no_part_of_a_key_stands_before_the_place_where_words_are_cut(at: int, form: str) -> None:
    echo = "x" * at + form.format(ODD_KEY, ODD_KEY)
    body = dumps({"error": {"message": echo}})
    errors = [response_error(400, {}, body, ACCOUNT), response_error(502, {}, echo, ACCOUNT)]
    errors.append(stream_error({"error": {"message": echo}}, ACCOUNT))
    with pytest.raises(ModelError) as raised:
        parse_chunk(dumps(echo[-120:]), ACCOUNT)
    assert [leaks(str(error), ODD_KEY) for error in (*errors, raised.value)] == [[]] * 4


@pytest.mark.parametrize("echo", ["sk%2Ba%2Fb%3Dc-secret-of-mine", "SK%2ba%2fb%3dc-SECRET-OF-MINE"])
def test_a_key_is_known_as_a_url_writes_it(echo: str) -> None:
    error = response_error(404, {}, f"no such page: /v1?key={echo}", ACCOUNT)
    assert str(error) == "openai:m: no such page: /v1?key=… (404)"


@pytest.mark.parametrize("end", ["sk+a/b=c-secret-of-min", "sk%2Ba%2Fb", "SK+A/"])
def test_a_key_that_breaks_off_with_what_was_said_is_not_told_in_part(end: str) -> None:
    assert ACCOUNT.excerpt(f"no access for {end}") == "no access for …"


def test_the_name_of_a_model_is_told_whatever_the_key() -> None:
    error = response_error(400, {}, "no", Credentials("ollama:m", "", "ollama", "openai"))
    assert str(error) == "ollama:m: no (400)"


ECHOES = [
    Status(401, fault=Fault(message=f"Incorrect API key provided: {KEY}.")),
    Status(502, f"<html>authorization: Bearer {KEY}</html>".encode()),
    BrokenOff(oai.Says("Tea."), 1, Fault(message=f"no quota left for {KEY}")),
]


@pytest.mark.parametrize("echo", ECHOES)
async def test_a_key_that_a_server_sends_back_is_in_no_error(
    echo: Status | BrokenOff[oai.Says],
) -> None:
    async with openai_like(echo) as peer, model_at(peer, "chat") as model:
        with pytest.raises(ModelError) as raised:
            await asked(model)
    assert "…" in str(raised.value)
    assert leaks(repr(raised.value), KEY) == []


QUERIES = [
    ("code=sk%2Ba%2Fb%3Dc-secret-of-mine", ODD_KEY),
    (f"api-version=2&code={ODD_KEY}", ODD_KEY),
    (f"v=1&{KEY}", KEY),
]


@pytest.mark.parametrize(("query", "secret"), QUERIES)
def test_a_query_of_a_base_url_that_a_server_repeats_is_in_no_error(
    query: str, secret: str
) -> None:
    account = Credentials("x:m", "", "", "openai", secrets_in(f"https://a.b/v1?{query}"))
    for said in (query, f"{secret} is no key", f"is this one: {secret[:-2]}"):
        text = str(response_error(404, {}, said, account))
        assert ("…" in text, leaks(text, secret)) == (True, [])
        assert leaks(text, quote(secret, safe="")) == []
    assert leaks(repr(account), secret) == []


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("http://me:pass@a.b:8/v1", "http://a.b:8/v1"),
        ("http://a.b/v1?api-version=2&key=x=y", "http://a.b/v1?api-version=2&key="),
        ("http://a.b/v1?secret-of-mine", "http://a.b/v1"),
        ("http://me:p@ss@a.b/v1@2", "http://a.b/v1@2"),
        ("http://[a.b/v1", "http://[a.b/v1"),
    ],
)
def test_a_url_is_kept_without_who_asks_and_what_its_query_says(url: str, bare: str) -> None:
    assert remove_secrets(url) == bare
    assert remove_secrets(remove_secrets(url)) == remove_secrets(url)


async def test_a_key_is_in_no_log_however_much_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with openai_like(oai.Says("Tea.")) as peer, model_at(peer, "chat") as model:
        await asked(model)
    Encoder().encode([(b"x-api-key", KEY.encode())])  # as HTTP/2 sends it
    assert "chat/completions" in caplog.text
    assert leaks(caplog.text, KEY) == []
