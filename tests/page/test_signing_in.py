"""People sign in on the page at an OpenID provider, or with a key; every other login is refused."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Page, expect

from loopline import Bundle
from loopline.server import (
    ApiKeys,
    FirstOf,
    PageLogin,
    Principal,
    ServerSettings,
    TokenUsers,
    add_key,
    app,
)
from tests.support.echo_model import EchoModel
from tests.support.live_server import serving
from tests.support.openid_provider import CLIENT, Provider, openid_provider

GUIDE = Bundle(id="guide", instructions="Answer.")


@pytest.fixture
def provider() -> Generator[Provider]:
    with openid_provider() as made:
        yield made


@pytest.fixture
def served(provider: Provider, tmp_path: Path) -> Generator[tuple[str, str]]:
    """Return the URL of a server that accepts keys and tokens of the provider, and a key of bob."""
    file = tmp_path / "keys.json"
    key = add_key(file, Principal(user="bob"))
    auth = FirstOf([ApiKeys.read(file), TokenUsers(provider.url, "loopline")])
    settings = ServerSettings(login=PageLogin(issuer=provider.url, client_id=CLIENT))
    with serving(
        app(GUIDE, store="memory:", model=EchoModel(), auth=auth, settings=settings)
    ) as url:
        yield url, key


def exchange(url: str, code: str, verifier: str = "v", address: str = "") -> httpx2.Response:
    return httpx2.post(
        f"{url}/login/token",
        headers={
            "Loopline-Login-Code": code,
            "Loopline-Login-Verifier": verifier,
            "Loopline-Login-Address": address or f"{url}/page/",
        },
    )


@pytest.mark.service
def test_a_person_signs_in_at_the_provider_and_chats(
    page: Page, served: tuple[str, str], provider: Provider
) -> None:
    url, _ = served
    page.goto(f"{url}/page/#/c/default/default/ann/first/chat")
    page.get_by_role("button", name=f"Sign in at {provider.url.removeprefix('http://')}").click()
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    assert "code=" not in page.url
    assert page.url.endswith("/first/chat")
    page.get_by_label("Message", exact=True).fill("hello")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_be_visible()
    page.get_by_role("button", name="Sign out ann").click()
    expect(page.get_by_label("Key", exact=True)).to_be_visible()


@pytest.mark.service
def test_a_person_signs_in_with_a_key_and_a_wrong_key_is_refused(
    page: Page, served: tuple[str, str]
) -> None:
    url, key = served
    page.goto(f"{url}/page/")
    page.get_by_label("Key", exact=True).fill("wrong")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_text("does not accept this key")).to_be_visible()
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("link", name="New")).to_be_visible()


@pytest.mark.service
def test_a_login_that_this_tab_did_not_begin_is_refused(
    page: Page, served: tuple[str, str], provider: Provider
) -> None:
    url, _ = served
    code = "stolen"
    provider.codes[code] = ("x", f"{url}/page/")
    page.goto(f"{url}/page/?code={code}&state=made-up")
    expect(page.get_by_role("alert")).to_contain_text("was not begun in this tab")
    assert code in provider.codes
    provider.refuses = "ann may not enter"
    page.get_by_role("button", name="Sign in at").click()
    expect(page.get_by_role("alert")).to_contain_text("ann may not enter")


def challenge(verifier: str) -> str:
    return urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")


def test_a_code_counts_once_and_only_with_its_verifier_and_address(
    served: tuple[str, str], provider: Provider
) -> None:
    url, _ = served
    address = f"{url}/page/"
    for number in range(4):
        provider.codes[f"code{number}"] = (challenge("v"), address)
    assert exchange(url, "code0", "other").status_code == 401
    assert exchange(url, "code1", address="https://elsewhere.example/").status_code == 401
    token = exchange(url, "code2").json()["token"]
    me = httpx2.get(f"{url}/me", headers={"Authorization": f"Bearer {token}"}).json()
    assert me["user"] == "ann"
    assert exchange(url, "code2").status_code == 401
    assert exchange(url, "none").status_code == 401


def test_a_token_for_another_audience_signs_nobody_in(
    served: tuple[str, str], provider: Provider
) -> None:
    url, _ = served
    provider.audience = "elsewhere"
    provider.codes["code"] = (challenge("v"), f"{url}/page/")
    answer = exchange(url, "code")
    assert answer.status_code == 401
    assert "token" not in answer.json()


def test_without_a_provider_there_are_only_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    add_key(file, Principal(user="bob"))
    served = app(GUIDE, store="memory:", model=EchoModel(), auth=ApiKeys.read(file))
    with serving(served) as url:
        assert httpx2.get(f"{url}/login").json()["authorization_url"] == ""
        assert exchange(url, "code").status_code == 404


def test_strangers_do_not_make_the_server_ask_the_provider_again_and_again(
    served: tuple[str, str], provider: Provider
) -> None:
    url, _ = served
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(httpx2.get, [f"{url}/login"] * 8))
    assert {answer.json()["authorization_url"] for answer in answers} == {
        f"{provider.url}/authorize"
    }
    assert provider.asked == 1


def test_a_provider_that_cannot_be_used_is_not_asked_again_at_once(
    served: tuple[str, str], provider: Provider
) -> None:
    url, _ = served
    own, provider.url = provider.url, "http://another.example"
    for _ in range(3):
        assert httpx2.get(f"{url}/login").json()["authorization_url"] == ""
    provider.url = own
    assert provider.asked == 1
