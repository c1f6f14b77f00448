"""No way to write an address, to resolve a name or to redirect reaches what is not public."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address, ip_network

import pytest

from loopline import ToolError
from loopline.web.guarded_client import (
    BoundedClient,
    GuardedTransport,
    Network,
    WebhookClient,
    is_public,
    resolve,
)
from tests.web.loopback_site import PRIVATE, PUBLIC, Answer, Site, site

WRITTEN = [
    *("127.0.0.1", "127.1", "127.0.1", "2130706433", "017700000001", "0177.0.0.1", "0x7f000001"),
    *("0x7f.0.0.1", "0x7f.1", "0177.0.0.01", "127.0.0.1.", "localhost", "LOCALHOST", "localhost."),
    *("0.0.0.0", "0", "00000000000", "user@127.0.0.1", "public.example@127.0.0.1"),
    *("[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
    *("[0:0:0:0:0:ffff:127.0.0.1]", "[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]"),
    *("[2002:7f00:1::]", "[2002:c0a8:101::1]", "[2001:0:7f00:1::80ff:fffe]", "[fe80::1]"),
    *("[fc00::1]", "[fd12:3456::1]", "[fec0::1]", "[ff02::1]", "[::ffff:169.254.169.254]"),
    *("169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376"),
    *("10.0.0.1", "10.1", "172.16.0.1", "192.168.1.1", "3232235777", "100.64.0.1", "192.0.0.8"),
    *("198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "127.127.127.127"),
    *("①②⑦.⓪.⓪.①", "127。0。0。1", "\uff11\uff12\uff17.0.0.1"),
]
"""Hosts, as a model or a page may write them."""
RESOLVED: list[Sequence[str]] = [
    ["127.0.0.1"],
    [PUBLIC, "127.0.0.1"],
    ["127.0.0.1", PUBLIC],
    ["::1"],
    ["::ffff:10.0.0.1"],
    ["169.254.169.254"],
    ["fd00:ec2::254"],
    [PUBLIC, "::1"],
]
"""What a name in the hands of an attacker may resolve to."""
REDIRECTS = [
    "http://127.0.0.1:{port}/",
    "http://2130706433:{port}/",
    "//127.0.0.1:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://localhost:{port}/",
    "http://127.0.0.9@127.0.0.1:{port}/",
    "file:///etc/hostname",
    "gopher://127.0.0.1:{port}/",
    "ftp://127.0.0.1:{port}/",
]
ALLOWED: list[Network] = [ip_network(f"{PUBLIC}/32")]


@pytest.fixture
def inside() -> Generator[Site]:
    """Serve what must not be reached, on every address of the machine."""
    with site({"/": Answer("secret")}, host="0.0.0.0") as running:
        yield running


@asynccontextmanager
async def guarded(*answers: Sequence[str]) -> AsyncGenerator[BoundedClient]:
    """Yield a client whose names resolve to these answers in turn, or as the system says."""
    remaining = list(answers)

    async def scripted(host: str, port: int) -> Sequence[str]:
        return remaining.pop(0) if remaining else await resolve(host, port)

    client = BoundedClient(GuardedTransport(allowed=ALLOWED, resolve=scripted), seconds=5.0)
    try:
        yield client
    finally:
        await client.close()


def test_the_corpus_has_at_least_forty_addresses() -> None:
    assert len({*WRITTEN}) + len(RESOLVED) + len(REDIRECTS) >= 60


@pytest.mark.parametrize("host", WRITTEN)
async def test_no_way_to_write_an_address_reaches_inside(host: str, inside: Site) -> None:
    async with guarded() as client:
        with pytest.raises(ToolError):
            await client.request("GET", f"http://{host}:{inside.port}/")
    assert inside.asked == []


@pytest.mark.parametrize("addresses", RESOLVED, ids=",".join)
async def test_no_name_that_resolves_inside_is_reached(
    addresses: Sequence[str], inside: Site
) -> None:
    async with guarded(addresses) as client:
        with pytest.raises(ToolError, match="which is not an address of the public web"):
            await client.request("GET", f"http://public.example:{inside.port}/")
    assert inside.asked == []


@pytest.mark.parametrize("target", REDIRECTS)
async def test_no_redirect_leads_inside(target: str, inside: Site) -> None:
    location = target.format(port=inside.port)
    with site({"/": Answer(status=302, headers={"Location": location})}) as outside:
        async with guarded() as client:
            with pytest.raises(ToolError):
                await client.request("GET", outside.url)
        assert outside.paths == ["/"]
    assert inside.asked == []


async def test_a_name_that_resolves_elsewhere_the_second_time_reaches_only_what_was_checked() -> (
    None
):
    with (
        site({"/": Answer("public")}) as outside,
        site({"/": Answer("secret")}, host=PRIVATE, port=outside.port) as within,
    ):
        async with guarded([PUBLIC], ["127.0.0.1"]) as client:
            response = await client.request("GET", f"http://rebound.example:{outside.port}/")
            with pytest.raises(ToolError, match="is not an address of the public web"):
                await client.request("GET", f"http://rebound.example:{outside.port}/")
        assert (response.body, within.asked) == (b"public", [])
        [(_, headers, _)] = outside.asked
        assert headers["Host"] == f"rebound.example:{outside.port}"


async def test_a_connection_to_one_host_is_not_used_for_another_at_its_address() -> None:
    with site({"/": Answer("public")}) as outside:
        async with guarded([PUBLIC], [PUBLIC]) as client:
            for host in ("one.example", "two.example"):
                await client.request("GET", f"http://{host}:{outside.port}/")
    assert [headers["Host"].partition(".")[0] for _, headers, _ in outside.asked] == ["one", "two"]
    assert outside.connections == 2


async def test_a_cookie_of_one_fetch_is_not_sent_with_the_next() -> None:
    with site({"/": Answer("tea", headers={"Set-Cookie": "user=one; Path=/"})}) as outside:
        async with guarded() as client:
            for _ in range(2):
                await client.request("GET", outside.url)
        webhooks = WebhookClient(ALLOWED)
        for _ in range(2):
            await webhooks.post(f"{outside.url}/", b"{}", {})
        await webhooks.close()
    assert len(outside.asked) == 4
    assert not [headers for _, headers, _ in outside.asked if "Cookie" in headers]


@pytest.mark.parametrize(
    "address",
    ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "::ffff:8.8.8.8", "2002:808:808::"],
)
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))
