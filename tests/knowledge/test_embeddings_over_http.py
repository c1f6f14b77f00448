"""Embeddings of a server: unit vectors in order, asked again while it is busy, and refused in plain words."""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loopline.adapters.embedding.http_embeddings import HttpEmbedder
from loopline.knowledge import KnowledgeSpace, MemoryIndexes, MemoryRepository
from loopline.search import EmbeddingError


class EmbeddingServer:
    """Answers each text with its length, backwards; before that with the statuses that it is told."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.lost = 0
        self.authorizations: list[str] = []
        owner = self

        class Answering(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                owner.authorizations.append(self.headers["authorization"] or "")
                status = owner.statuses.pop(0) if owner.statuses else 200
                answer = owner.answer(body["input"]) if status == 200 else "busy"
                self.send_response(status)
                self.send_header("retry-after", "0")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer.encode())

            def log_request(self, code: object = "-", size: object = "-") -> None:
                """Log nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Answering)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    def answer(self, texts: list[str]) -> str:
        rows = [
            {"index": n, "embedding": [3.0 * len(text), 4.0 * len(text)]}
            for n, text in enumerate(texts)
        ]
        return json.dumps({"data": rows[: len(rows) - self.lost][::-1]})


@contextmanager
def serving() -> Generator[EmbeddingServer]:
    server = EmbeddingServer()
    thread = threading.Thread(target=server.http.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        thread.join()
        server.http.server_close()


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with serving() as started:
        yield started


def embedder(server: EmbeddingServer) -> HttpEmbedder:
    return HttpEmbedder("m", {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"})


def test_vectors_have_length_1_and_the_order_of_the_texts(server: EmbeddingServer) -> None:
    new_embedder = embedder(server)
    vectors = new_embedder.embed_passages(["a", "bb", ""] * 50)
    assert new_embedder.dimensions == 2
    assert len(vectors) == 150
    assert [round(x, 3) for x in array("f", vectors[1])] == [0.6, 0.8]
    assert set(server.authorizations) == {"Bearer k"}


async def test_a_space_that_is_closed_closes_the_connection_and_opens_another_when_it_is_used_again(
    server: EmbeddingServer,
) -> None:
    repository = MemoryRepository()
    repository.commit({"tea.md": "# Tea\n\nGreen.\n"})
    made: list[HttpEmbedder] = []

    def load() -> HttpEmbedder:
        made.append(embedder(server))
        return made[-1]

    space = KnowledgeSpace(repository, MemoryIndexes(), embedder=load)
    await space.ready()
    await space.close()
    with pytest.raises(RuntimeError, match="closed"):
        made[0].embed_query("tea")
    await space.ready()
    assert len(made) == 2
    await space.close()


def test_a_busy_server_is_asked_again(server: EmbeddingServer) -> None:
    new_embedder = embedder(server)
    server.statuses = [429, 503]
    assert len(new_embedder.embed_passages(["a"])) == 1


def test_a_refusal_names_the_status_and_the_model(server: EmbeddingServer) -> None:
    server.statuses = [401]
    with pytest.raises(EmbeddingError, match="answered 401 for m"):
        embedder(server)


def test_an_answer_that_lacks_a_text_is_refused(server: EmbeddingServer) -> None:
    new_embedder = embedder(server)
    server.lost = 1
    with pytest.raises(EmbeddingError, match="1 of 2 texts"):
        new_embedder.embed_passages(["a", "b"])


def test_a_server_that_is_away_is_reported_by_its_host() -> None:
    with pytest.raises(EmbeddingError, match=r"127\.0\.0\.1 cannot be reached"):
        HttpEmbedder("m", {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, attempts=1)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(EmbeddingError, match="OPENAI_API_KEY"):
        HttpEmbedder("text-embedding-3-small", {})
