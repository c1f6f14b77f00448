"""Law 19: no failure is remembered without something that clears it. The failures of the store's disk are in `tests/crashes`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import pytest

from loopline import LooplineError
from loopline.errors import AttachmentError, StoreBusy
from loopline.files.clamd import ClamdScanner
from loopline.knowledge import KnowledgeSpace
from loopline.knowledge.fts import FtsIndexes
from loopline.knowledge.space import RETRY_SECONDS
from loopline.memory import ConversationMemory
from loopline.memory.turn_file import MemoryFile
from loopline.sandbox.docker_daemon import DaemonError, DockerDaemon
from loopline.search import Embedder, EmbeddingError, SharedEmbedder, Vector
from loopline.server import ServerSettings, app
from loopline.tasks import ThreadCache
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.timeline import ConversationKey, ConversationSummary, MemoryLog, Notice
from tests.crashes.processes import finish, prompt, start
from tests.crashes.without_files import PARTS, TASKS
from tests.mcp.served import Served, plain
from tests.support.echo_model import EchoModel
from tests.support.local_http import Answering, at_work
from tests.support.memory_repository import MemoryRepository
from tests.support.playground import bundle
from tests.support.vectors_in_memory import MemoryVectors, WordEmbedder

HERE = ConversationKey(name="here", user="ann")


def test_what_fails_for_want_of_a_descriptor_works_once_there_is_one(tmp_path: Path) -> None:
    outcomes = dict(line.split(maxsplit=1) for line in finish(start(f"{tmp_path}", tasks=TASKS)))
    assert outcomes == {
        "key_file": "Unauthenticated ann",
        "sign_in": "OSError True",
        "boot": "OSError True",
        "store": "StoreBusy 1",
        "blob": "StoreError 2",
        "repository": "OSError 40",
        "index": "StoreError 0",
    }
    assert list(outcomes) == [part.__name__ for part in PARTS]


async def test_a_value_that_could_not_be_computed_is_computed_again() -> None:
    attempts = list[str]()

    def compute(name: str) -> int:
        attempts.append(name)
        if len(attempts) == 1:
            raise LooplineError("not now")
        return len(attempts)

    cache = ThreadCache(compute)
    with pytest.raises(LooplineError):
        await cache("a")
    assert [await cache("a"), await cache("a")] == [2, 2]


class AwayEmbedder(WordEmbedder):
    """Cannot be asked while its server is away."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = True

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        self._check()
        return super().embed_passages(texts)

    def embed_query(self, text: str) -> Vector:
        self._check()
        return super().embed_query(text)

    def _check(self) -> None:
        if self.is_away:
            raise EmbeddingError("its server is away")


class Loading:
    """Loads an embedder, which fails the first time."""

    def __init__(self) -> None:
        self.has_failed = False

    def __call__(self) -> Embedder:
        if not self.has_failed:
            self.has_failed = True
            raise EmbeddingError("the model cannot be loaded")
        return WordEmbedder()


@pytest.mark.parametrize("what", ["loading", "asking"])
async def test_vectors_of_a_space_that_could_not_be_made_are_made_later(what: str) -> None:
    repository, clock, away = MemoryRepository("project"), FakeClock(), AwayEmbedder()
    repository.commit({"a.md": "# Tea\n\nGreen tea is steeped for two minutes."})
    shared = SharedEmbedder(Loading() if what == "loading" else lambda: away)
    space = KnowledgeSpace(
        repository, FtsIndexes(), embedder=shared, vectors=MemoryVectors(), clock=clock
    )
    await space.ensure()
    for _ in range(1_000):
        if space.vectors is not None and space.vectors.problem:
            break
        await asyncio.sleep(0.01)
    away.is_away = False
    (passage, *_) = await space.search("tea")  # too early to try again
    assert (passage.why and passage.why.cosine) is None
    clock.advance(RETRY_SECONDS)
    for _ in range(1_000):
        (passage, *_) = await space.search("tea")
        if passage.why is not None and passage.why.cosine is not None:
            break
        await asyncio.sleep(0.01)
    assert space.vectors is not None
    assert (space.vectors.is_ready, space.vectors.problem) == (True, "")
    await space.close()


async def test_waiting_for_the_vectors_of_a_space_tries_again_at_once() -> None:
    repository, away = MemoryRepository("project"), AwayEmbedder()
    repository.commit({"a.md": "# Tea"})
    shared = SharedEmbedder(lambda: away)
    space = KnowledgeSpace(
        repository, FtsIndexes(), embedder=shared, vectors=MemoryVectors(), clock=FakeClock()
    )
    await space.ensure()
    with pytest.raises(EmbeddingError):
        await space.ready()
    away.is_away = False
    await space.ready()
    assert space.vectors is not None
    assert space.vectors.is_ready
    await space.close()


async def test_memory_that_has_its_vectors_names_no_problem_of_before() -> None:
    log, away = MemoryLog(FakeClock()), AwayEmbedder()
    away.is_away = False
    await log.append(HERE, [prompt("green tea")], seen=0)
    memory = ConversationMemory(log, MemoryFile, FakeClock(), SharedEmbedder(lambda: away))
    await memory.ready(user="ann")
    problems = list[str]()
    for away.is_away in (True, False):
        await memory.search("tea", user="ann")
        state = await memory.vectors(user="ann")
        problems.append("" if state is None else state.problem)
    assert problems == ["its server is away", ""]
    await memory.close()


async def test_a_virus_scanner_that_was_away_is_asked_for_the_next_file(tmp_path: Path) -> None:
    socket = tmp_path / "clamd"
    scanner = ClamdScanner(f"unix:{socket}", 5.0)
    with pytest.raises(AttachmentError, match="cannot be reached"):
        await scanner.scan("a.txt", b"tea")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"tea\0\0\0\0")
        writer.write(b"stream: OK\0")
        writer.close()

    async with await asyncio.start_unix_server(answer, socket):
        await scanner.scan("a.txt", b"tea")


class _Version(Answering):
    def get(self) -> None:
        self.answer(b'{"Version": "27.0", "ApiVersion": "1.47"}')


async def test_a_daemon_of_docker_that_was_away_is_asked_again(tmp_path: Path) -> None:
    socket = tmp_path / "docker.sock"
    daemon = DockerDaemon(f"unix://{socket}")
    with pytest.raises(DaemonError, match="no Docker daemon"):
        await daemon.version()
    with at_work(ThreadingUnixStreamServer(str(socket), _Version)):
        assert await daemon.version() == "27.0"
    socket.unlink()
    with at_work(ThreadingUnixStreamServer(str(socket), _Version)):
        assert await daemon.version() == "27.0"
    await daemon.close()


async def test_a_server_of_tools_that_did_not_start_is_started_after_a_pause(
    tmp_path: Path,
) -> None:
    script = tmp_path / "server.py"
    entry = plain("works")
    entry["args"] = [str(script), "works"]
    served = Served(tmp_path)
    served.declare({"one": entry})
    async with served.open(ScriptedModel([Say("Done.")] * 2)) as harness:
        await harness.conversation("c1").say("Go!")
        source = (Path(__file__).parents[1] / "mcp" / "servers" / "plain_server.py").read_text()
        script.write_text(source)
        await asyncio.sleep(1.1)  # the pause after a first failure
        await harness.conversation("c2").say("Go!")
        texts = [
            [block.body.text for block in await talk.blocks() if isinstance(block.body, Notice)]
            for talk in (harness.conversation("c1"), harness.conversation("c2"))
        ]
        names = [tool.spec.name for tool in (await harness.server_tools()).tools]
    assert "cannot be started" in texts[0][0]
    assert (texts[1], names) == ([], ["mcp.one.work"])


async def test_changed_tools_that_a_server_could_not_list_are_listed_again(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.declare({"one": plain("changes")})
    async with served.open(ScriptedModel([Call("mcp.one.work"), Say("Done.")])) as harness:
        await harness.conversation("c1").say("Go!")
        names = list[str]()
        for _ in range(1_000):
            names = [tool.spec.name for tool in (await harness.server_tools()).tools]
            if names == ["mcp.one.later"]:
                break
            await asyncio.sleep(0.01)
    assert names == ["mcp.one.later"]


class BusyAtFirst(MemoryLog):
    """A log that is busy when its unfinished turns are asked for the first time."""

    has_failed = False

    async def unfinished(self) -> Sequence[ConversationSummary]:
        if not self.has_failed:
            self.has_failed = True
            raise StoreBusy("the store is busy")
        return await super().unfinished()


async def test_a_server_whose_store_was_busy_when_it_began_resumes_cut_turns_later() -> None:
    clock = FakeClock()
    log = BusyAtFirst(clock)
    await log.append(HERE, [prompt("hello")], seen=0)
    served = app(bundle, store=log, model=EchoModel(), clock=clock)
    async with served.router.lifespan_context(served):
        for _ in range(1_000):
            if any(block.type == "react.exit" for block in await log.read(HERE)):
                break
            await asyncio.sleep(0.01)
            clock.advance(ServerSettings().recovery_seconds)
    assert log.has_failed
    assert [block.type for block in await log.read(HERE)][-1] == "react.exit"
