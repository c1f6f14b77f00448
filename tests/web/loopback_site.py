"""A site on one address of the loopback, whose pages are given by path, and which counts what it is asked."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer

from tests.support.local_http import Answering, at_work

PUBLIC, PRIVATE = "127.0.0.9", "127.0.0.1"
"""The address that the tests allow, as if it were public, and one that must not be reached."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the site answers to a path."""

    body: bytes | str = b""
    kind: str = "text/html; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class Site:
    """A running site: its address, its connections, and the requests it got, each with its headers and body."""

    url: str
    port: int
    connections: int = 0
    asked: list[tuple[str, dict[str, str], bytes]] = field(
        default_factory=list[tuple[str, dict[str, str], bytes]]
    )

    @property
    def paths(self) -> list[str]:
        """What was asked for, without robots.txt."""
        return [path for path, _, _ in self.asked if path != "/robots.txt"]


@contextmanager
def site(
    answers: Mapping[str, Answer], host: str = PUBLIC, port: int = 0
) -> Generator[Site, None, None]:
    """Serve the answers; any other path is not found."""

    class Handler(Answering):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each body waits 40 ms for an acknowledgement

        def setup(self) -> None:
            super().setup()
            running.connections += 1

        def get(self) -> None:
            running.asked.append((self.path, dict(self.headers), self.body()))
            answer = answers.get(self.path.partition("?")[0], Answer("none", status=404))
            body = answer.body.encode() if isinstance(answer.body, str) else answer.body
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def post(self) -> None:
            self.get()

    server = ThreadingHTTPServer((host, port), Handler)
    running = Site(f"http://{host}:{server.server_port}", server.server_port)
    with at_work(server):
        yield running


def as_json(value: object) -> Answer:
    """Return an answer of JSON."""
    return Answer(json.dumps(value), kind="application/json")
