"""Embeddings of a server: unit vectors in order, asked again while it is busy, and refused in plain words."""

from __future__ import annotations

import json
from array import array
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, Harness
from loopline.harness.spaces import Embedders
from loopline.search import EmbeddingError
from loopline.search.http_embedder import RESPONSE_BYTES, HttpEmbedder
from loopline.testing import ScriptedModel
from tests.support.local_http import Answering, at_work

from .conftest import GitFolder

PIECE = 2**20


class EmbeddingServer:
    """Answers each text with its length, backwards; before that with the statuses that it is told."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.lost = 0
        self.spaces = 0
        self.written = 0
        self.waits = {"retry-after": "0"}
        self.authorizations: list[str] = []
        self.inputs: list[list[str]] = []
        owner = self

        class Handler(Answering):
            def post(self) -> None:
                body = json.loads(self.body())
                owner.authorizations.append(self.headers["authorization"] or "")
                owner.inputs.append(body["input"])
                status = owner.statuses.pop(0) if owner.statuses else 200
                answer = owner.answer(body["input"]) if status == 200 else "busy"
                self.send_response(status)
                for name, value in owner.waits.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                with suppress(ConnectionError):
                    for start in range(0, len(answer), PIECE):
                        owner.written += self.wfile.write(answer[start : start + PIECE].encode())

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    def answer(self, texts: list[str]) -> str:
        rows = [
            {"index": n, "embedding": [3.0 * len(text), 4.0 * len(text)]}
            for n, text in enumerate(texts)
        ]
        return json.dumps({"data": rows[: len(rows) - self.lost][::-1]}) + " " * self.spaces


@contextmanager
def serving() -> Generator[EmbeddingServer]:
    server = EmbeddingServer()
    with at_work(server.http):
        yield server


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


async def test_whoever_names_an_embedder_shares_it_until_all_are_closed(
    server: EmbeddingServer,
) -> None:
    embedders = Embedders(None, {"OPENAI_BASE_URL": server.url})
    shared = embedders.named("openai:m", setting="knowledge.embedder")
    assert embedders.named("openai:m", setting="memory.embedder") is shared
    loaded = shared.get()
    await embedders.close()
    with pytest.raises(RuntimeError, match="closed"):
        loaded.embed_query("tea")
    assert shared.get() is not loaded
    await embedders.close()


async def test_knowledge_and_memory_load_the_embedder_that_both_name_once(
    server: EmbeddingServer, folder: GitFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    folder.commit({"tea.md": "# Tea\n\nGreen.\n"})
    bundle = Bundle(
        id="guide",
        workflow=BaseWorkflow,
        configuration={
            "knowledge": {"repo": str(folder.path), "embedder": "openai:m"},
            "memory": {"embedder": "openai:m"},
        },
    )
    store = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(bundle, store=store, model=ScriptedModel(["Yes."])) as harness:
        await harness.conversation("c1", user="ann").say("Is tea green?")
        assert harness.knowledge is not None
        await harness.knowledge.ready()
        await harness.memory.ready(user="ann")
        assert await harness.memory.search("tea", user="ann")
    assert server.inputs.count(["dimensions"]) == 1


def test_a_busy_server_is_asked_again(server: EmbeddingServer) -> None:
    new_embedder = embedder(server)
    server.statuses = [429, 503]
    assert len(new_embedder.embed_passages(["a"])) == 1


def test_a_wait_that_is_not_a_number_is_ignored(server: EmbeddingServer) -> None:
    new_embedder = embedder(server)
    server.statuses = [429]
    server.waits = {
        "retry-after": "nan",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1ms",
    }
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


def test_a_response_is_not_read_beyond_its_limit(server: EmbeddingServer) -> None:
    server.spaces = 2 * RESPONSE_BYTES
    with pytest.raises(EmbeddingError, match="answered more than 67,108,864 bytes"):
        embedder(server)
    assert server.written < server.spaces


def test_a_server_that_is_away_is_reported_by_its_host() -> None:
    with pytest.raises(EmbeddingError, match=r"127\.0\.0\.1 cannot be reached"):
        HttpEmbedder("m", {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, attempts=1)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(EmbeddingError, match="OPENAI_API_KEY"):
        HttpEmbedder("text-embedding-3-small", {})
