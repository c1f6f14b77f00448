"""A server has a descriptor left for everything else, however many connect."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from loopline.server import ServerSettings
from loopline.server.connections import most_connections
from tests.doors.command import wait_for
from tests.server.test_a_server_that_is_told_to_end import HANG_SECONDS, running, send

DESCRIPTORS = 256
UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("descriptors", "listeners", "turns", "connections"),
    [
        (1_024, 2_000, 200, 512),
        (4_096, 2_000, 200, 3_568),
        (65_536, 2_000, 200, 4_400),
        (UNLIMITED, 2_000, 200, 4_400),
        (256, 2_000, 10, 128),
        (1_024, 0, 2, 64),
    ],
)
def test_connections_leave_descriptors_for_the_store_and_the_turns(
    descriptors: int, listeners: int, turns: int, connections: int
) -> None:
    settings = ServerSettings(listeners=listeners, turns=turns)
    assert most_connections(settings, descriptors) == connections


def test_idle_connections_take_no_descriptor_that_a_turn_needs(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    with running(store, descriptors=DESCRIPTORS) as server, ExitStack() as stack:
        place = server.client.base_url
        address = (place.host, place.port or 0)
        assert send(server.client, "tea", "first").status_code == 200
        for _ in range(2 * DESCRIPTORS):
            stack.enter_context(socket.create_connection(address, timeout=HANG_SECONDS))
        with httpx2.Client(base_url=place, timeout=HANG_SECONDS) as late:
            refused = late.get("/health")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
        wait_for(lambda: is_served(f"{place}"))  # those that ask for nothing are closed
        assert send(server.client, "milk", "second").json()["answer"].endswith("milk")
        server.tell_to_end()
        errors = server.errors()
    assert errors.count("connections are refused") == 1
    assert "Too many open files" not in errors


def is_served(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health", timeout=HANG_SECONDS, verify=False).status_code == 200
    except httpx2.HTTPError:
        return False
