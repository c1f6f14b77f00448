"""`web_search` and `web_fetch` over servers on the loopback: results with dates, robots, limits, keys."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_network

import pytest

from loopline import Bundle, Harness, LooplineError, ToolError
from loopline.bundle import merged
from loopline.clock import SystemClock
from loopline.harness.web_ports import open_web
from loopline.testing import Call, Say, ScriptedModel
from loopline.tools import WebHit
from loopline.web.guarded_client import BoundedClient, GuardedTransport
from loopline.web.page_fetch import MAX_SITES, ROBOTS_BYTES, PageFetch
from tests.web.loopback_site import PRIVATE, PUBLIC, Answer, as_json, site

ARTICLE = """<!doctype html><html><head><title>Green tea</title>
<meta property="article:published_time" content="2026-03-04"></head><body>
<nav><a href="/">Home</a> <a href="/shop">Shop</a></nav>
<article><h1>Green tea</h1><p>Green tea is brewed at seventy degrees, because hotter water makes it bitter,
and it is left for two minutes in a warm pot.</p><p>Old leaves are steeped for longer than new ones.</p></article>
<footer>Imprint</footer><script>alert(1)</script></body></html>"""
HITS = {
    "searxng": {
        "results": [
            {
                "url": "https://t.example/",
                "title": "Tea",
                "content": "Hot.",
                "publishedDate": "2026-01-02",
            }
        ]
    },
    "brave": {
        "web": {
            "results": [
                {
                    "url": "https://t.example/",
                    "title": "Tea",
                    "description": "Hot.",
                    "page_age": "2026-01-02",
                }
            ]
        }
    },
    "tavily": {
        "results": [
            {
                "url": "https://t.example/",
                "title": "Tea",
                "content": "Hot.",
                "published_date": "2026-01-02",
            }
        ]
    },
}
PATHS = {"searxng": "/search", "brave": "/res/v1/web/search", "tavily": "/search"}
KEYS = {"BRAVE_API_KEY": "key-of-brave-1", "TAVILY_API_KEY": "key-of-tavily-1"}


@asynccontextmanager
async def fetching(limit_bytes: int = 100_000, seconds: float = 5.0) -> AsyncGenerator[PageFetch]:
    transport = GuardedTransport(allowed=[ip_network(f"{PUBLIC}/32")])
    client = BoundedClient(transport, limit_bytes=limit_bytes, seconds=seconds)
    try:
        yield PageFetch(client, SystemClock())
    finally:
        await client.close()


async def test_a_page_is_its_readable_text_with_title_and_date() -> None:
    with site({"/tea": Answer(ARTICLE)}) as running:
        async with fetching() as web:
            page = await web.fetch(f"{running.url}/tea")
    assert "brewed at seventy degrees" in page.text
    assert "Imprint" not in page.text
    assert "alert" not in page.text
    assert (page.title, page.published_time_iso) == ("Green tea", "2026-03-04")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer("x" * 200_000), "has more than 100,000 bytes"),
        (Answer(b"\x89PNG", kind="image/png"), "is image/png, not a text"),
        (Answer("gone", status=410), "the server answered 410"),
        (Answer("<html></html>"), "has no text that can be read"),
        (Answer(status=302, headers={"Location": "/page"}), "redirects too often"),
    ],
)
async def test_what_is_no_page_is_an_error_that_says_why(answer: Answer, problem: str) -> None:
    with site({"/page": answer}) as running:
        async with fetching() as web:
            with pytest.raises(ToolError, match=problem):
                await web.fetch(f"{running.url}/page")


@pytest.mark.parametrize(
    ("robots", "answer"),
    [
        ("", Answer("x" * 200_000)),
        ("", Answer(b"\x89PNG", kind="image/png")),
        ("", Answer("gone", status=404)),
        ("", Answer("<html></html>")),
        ("User-agent: *\nDisallow: /\n", Answer(ARTICLE)),
    ],
)
async def test_an_error_shows_the_url_of_a_page_without_password_and_query_values(
    robots: str, answer: Answer
) -> None:
    rules = Answer(robots, kind="text/plain")
    with site({"/robots.txt": rules, "/page": answer}) as running:
        address = running.url.removeprefix("http://")
        async with fetching() as web:
            with pytest.raises(ToolError) as raised:
                await web.fetch(f"http://ann:sesame@{address}/page?tea=oolong")
    assert f"http://{address}/page?tea=" in str(raised.value)
    for secret in ("sesame", "oolong"):
        assert secret not in str(raised.value)


@pytest.mark.parametrize(
    ("robots", "allowed"),
    [
        (Answer("User-agent: *\nDisallow: /private*\n", kind="text/plain"), ["/tea"]),
        (Answer("User-agent: Loopline\nDisallow: /\n", kind="text/plain"), []),
        (Answer("none", status=404), ["/tea", "/private/tea"]),
        (Answer("broken", status=503), []),
    ],
)
async def test_robots_are_respected(robots: Answer, allowed: Sequence[str]) -> None:
    pages = {"/robots.txt": robots, "/tea": Answer(ARTICLE), "/private/tea": Answer(ARTICLE)}
    with site(pages) as running:
        async with fetching() as web:
            for path in ("/tea", "/private/tea"):
                if path in allowed:
                    await web.fetch(running.url + path)
                    continue
                with pytest.raises(ToolError, match=r"robots\.txt of the site does not allow it"):
                    await web.fetch(running.url + path)
        assert running.paths == list(allowed)


async def test_rules_after_500_kib_do_not_count() -> None:
    lines = ["User-agent: *", "Disallow: /private", "#" * ROBOTS_BYTES, "Disallow: /tea"]
    robots = Answer("\n".join(lines), kind="text/plain")
    with site({"/robots.txt": robots, "/tea": Answer(ARTICLE)}) as running:
        async with fetching(2 * ROBOTS_BYTES) as web:
            await web.fetch(f"{running.url}/tea")
            with pytest.raises(ToolError, match=r"robots\.txt of the site does not allow it"):
                await web.fetch(f"{running.url}/private")


async def test_rules_that_are_kept_take_the_memory_of_their_text() -> None:
    rules = "".join(f"Disallow: /{number}*\n" for number in range(2_000))
    robots = Answer(f"User-agent: *\n{rules}", kind="text/plain")
    with site({"/robots.txt": robots, "/tea": Answer("Tea.", kind="text/plain")}) as running:
        async with fetching() as web:
            await web.fetch(running.url.replace("//", "//ann@") + "/tea")  # it loads modules
            tracemalloc.start()
            await web.fetch(running.url.replace("//", "//bob@") + "/tea")
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    assert taken < 500_000


async def test_the_rules_of_the_oldest_sites_are_read_again() -> None:
    with site({"/tea": Answer("Tea.", kind="text/plain")}) as running:
        async with fetching() as web:
            for number in (*range(MAX_SITES + 1), MAX_SITES, 0):
                await web.fetch(running.url.replace("//", f"//user{number}@") + "/tea")
        paths = [path for path, _, _ in running.asked]
    assert paths[-5:] == ["/robots.txt", "/tea", "/tea", "/robots.txt", "/tea"]


@pytest.mark.parametrize("engine", HITS)
async def test_each_engine_gives_hits_with_dates(engine: str) -> None:
    with site({PATHS[engine]: as_json(HITS[engine])}, host=PRIVATE) as running:
        properties = merged({}, overrides={"web.search": f"{engine}:{running.url}"})
        async with AsyncExitStack() as stack:
            ports = await open_web(properties, KEYS, SystemClock(), stack)
            assert ports.search is not None
            hits = await ports.search.search("green tea", 5)
        [(path, headers, body)] = running.asked
    assert hits == [
        WebHit(
            url="https://t.example/", title="Tea", snippet="Hot.", published_time_iso="2026-01-02"
        )
    ]
    assert "green" in path + body.decode()
    keys = [key for key in KEYS.values() if key in json.dumps(headers)]
    assert keys == [key for key in KEYS.values() if engine in key]


async def test_an_engine_that_redirects_gets_no_key_sent_elsewhere() -> None:
    with site({}, host=PRIVATE) as other:
        moved = Answer(status=307, headers={"Location": f"{other.url}/search"})
        with site({"/search": moved}, host=PRIVATE) as running:
            properties = merged({}, overrides={"web.search": f"tavily:{running.url}"})
            async with AsyncExitStack() as stack:
                ports = await open_web(properties, KEYS, SystemClock(), stack)
                assert ports.search is not None
                with pytest.raises(ToolError, match="did not answer with results"):
                    await ports.search.search("tea", 5)
        assert other.asked == []


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"web.search": "gogle"}, "write one of searxng, brave, tavily"),
        ({"web.search": "searxng"}, "web.search needs the address of a server"),
        ({"web.search": "brave"}, "needs a key: set BRAVE_API_KEY"),
        ({"web.fetch": True, "web.allow": ["x"]}, "web.allow: .* write networks such as"),
    ],
)
async def test_a_web_that_cannot_be_opened_says_what_is_missing(
    properties: dict[str, str | bool], problem: str
) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(LooplineError, match=problem):
            await open_web(merged({}, overrides=properties), {}, SystemClock(), stack)


async def test_a_turn_searches_and_reads_and_cites_with_dates() -> None:
    with (
        site({"/search": as_json(HITS["searxng"])}, host=PRIVATE) as engine,
        site({"/tea": Answer(ARTICLE)}) as pages,
    ):
        model = ScriptedModel(
            [
                Call("web_search", query="green tea"),
                Call("web_fetch", url=f"{pages.url}/tea"),
                Call("web_fetch", url=f"{engine.url}/tea"),
                Say("At seventy degrees [[S:2]]."),
            ]
        )
        async with Harness.open(
            Bundle(id="guide"),
            store="memory:",
            model=model,
            properties={
                "web.search": f"searxng:{engine.url}",
                "web.fetch": True,
                "web.allow": [f"{PUBLIC}/32"],
            },
        ) as harness:
            result = await harness.conversation("c1").say("How hot?")
    [source] = result.sources
    assert (source.title, source.published_time_iso) == ("Green tea", "2026-03-04")
    assert "which is not an address of the public web" in str(model.requests[-1])
