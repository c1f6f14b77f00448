"""A client that listens at one server has every block of the turns that other servers of the store run."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from loopline.server import ServerSettings, app
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, serving, sse_records
from tests.support.warm_programs import warm_program

ROOT = Path(__file__).resolve().parents[2]
HERE = "/conversations/default/default/c1"
SLOW = "call shop.wait name=0.2"
SECONDS = 60.0


@contextmanager
def server(store: str, recovery_seconds: float = SECONDS) -> Generator[str]:
    """Serve the shop in this process, and yield the URL of the conversation."""
    settings = ServerSettings(recovery_seconds=recovery_seconds)
    with serving(app(SHOP, store=store, model=EchoModel(), settings=settings)) as url:
        yield url + HERE


def send(url: str, text: str) -> None:
    """Send a message, and return once it is stored."""
    message = {"text": text, "background": True}
    assert httpx2.post(f"{url}/messages", json=message, timeout=SECONDS).status_code == 202


@contextmanager
def listening(url: str) -> Generator[Generator[tuple[str, str]]]:
    """Listen from the first block on, and yield the id and the name of each block."""
    with httpx2.stream("GET", f"{url}/events?after=0", timeout=SECONDS) as response:
        yield ((record_id, name) for record_id, name, _ in sse_records(response) if record_id)


def heard(blocks: Generator[tuple[str, str]], ends: int) -> list[str]:
    """Return the ids of the blocks until so many turns have ended."""
    ids = list[str]()
    for record_id, name in blocks:
        ids.append(record_id)
        ends -= name == "react.exit"
        if not ends:
            break
    return ids


def stored(url: str) -> list[str]:
    """Return the ids of the blocks in the store."""
    blocks = httpx2.get(f"{url}/blocks", timeout=SECONDS).json()["blocks"]
    return [f"{block['seq']}.1" for block in blocks]


@pytest.mark.parametrize(
    ("before", "meanwhile"),
    [
        (["hello"], ["hello"]),
        ([], ["hello"]),
        ([SLOW], []),
        (["hello"], [SLOW, "hello"]),
        ([SLOW, "hello"], ["hello"]),
    ],
    ids=["before and after", "after", "while it runs", "queued", "queued before"],
)
def test_a_listener_at_another_server_has_every_block_once(
    store: str, before: Sequence[str], meanwhile: Sequence[str]
) -> None:
    with server(store) as runner, server(store) as other:
        for text in before:
            send(runner, text)
        with listening(other) as blocks:
            for text in meanwhile:
                send(runner, text)
            assert heard(blocks, len(before) + len(meanwhile)) == stored(other)


def test_a_listener_hears_turns_of_both_servers(store: str) -> None:
    with server(store) as first, server(store) as second, listening(second) as blocks:
        for url in (first, second, first, second):
            send(url, "hello")
        assert heard(blocks, 4) == stored(second)


def test_a_listener_hears_how_another_server_ends_the_turn_of_one_that_was_killed(
    store: str,
) -> None:
    with server(store) as other, listening(other) as blocks:
        killed = subprocess.Popen(
            warm_program("-m", "tests.support.killed_server", store),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        with killed:
            try:
                assert killed.stdout is not None
                send(f"http://127.0.0.1:{killed.stdout.readline().strip()}{HERE}", SLOW)
                ids = [next(record_id for record_id, name in blocks if name == "react.tool.call")]
            finally:
                killed.kill()
        with server(store, 0.05):
            ids += heard(blocks, 1)
            assert ids == stored(other)[-len(ids) :]
