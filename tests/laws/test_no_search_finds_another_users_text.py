"""No search in past turns returns a text of another user, project or tenant, whatever is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from loopline.memory import ConversationMemory, Owner, Scope, TurnHit, TurnIndex
from loopline.memory.postgres_turn_index import PostgresTurnIndex
from loopline.memory.turn_file import MemoryFile
from loopline.search import SharedEmbedder
from loopline.store.postgres_log import PostgresLog
from loopline.testing import FakeClock
from loopline.timeline import MemoryLog
from tests.support.past_turns import NOW, OWNERS, Planted, conversations
from tests.support.postgres_server import running_postgres
from tests.support.vectors_in_memory import WordEmbedder


async def filled_log(count: int) -> tuple[MemoryLog, list[Planted]]:
    log, planted = MemoryLog(), list[Planted]()
    for key, blocks, fact in conversations(count):
        await log.restore(key, blocks)
        planted.append(fact)
    return log, planted


@pytest.fixture(params=["memory", "file", pytest.param("postgres", marks=pytest.mark.service)])
async def open_index(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[[], TurnIndex]]:
    if request.param == "postgres":
        async with await PostgresLog.open(running_postgres().store_url()) as log:
            yield partial(PostgresTurnIndex, log.database)
    else:
        yield MemoryFile if request.param == "memory" else partial(MemoryFile, tmp_path / "m")


def shown(hits: list[TurnHit]) -> str:
    return "\n".join(excerpt.text for hit in hits for excerpt in hit.excerpts)


@pytest.mark.parametrize(
    ("count", "embedder"),
    [
        pytest.param(200, None, id="words"),
        pytest.param(60, SharedEmbedder(WordEmbedder), id="vectors"),
        pytest.param(1_000, None, id="many, words", marks=pytest.mark.campaign),
    ],
)
async def test_no_search_finds_another_users_text(
    open_index: Callable[[], TurnIndex], count: int, embedder: SharedEmbedder | None
) -> None:
    log, planted = await filled_log(count)
    memory = ConversationMemory(log, open_index, FakeClock(NOW), embedder)
    for owner in OWNERS if embedder else []:
        await memory.ready(user=owner.user, tenant=owner.tenant, project=owner.project)
    names: dict[Owner, set[str]] = {owner: set() for owner in OWNERS}
    for fact in planted:
        names[fact.owner].add(fact.name)

    async def search(owner: Owner, text: str, scope: Scope, ordinal: int | None) -> list[TurnHit]:
        hits = await memory.search(
            text,
            user=owner.user,
            tenant=owner.tenant,
            project=owner.project,
            scope=scope,
            conversation="talk7",
            ordinal=ordinal,
            limit=20,
        )
        return list(hits)

    for number, fact in enumerate(planted[:60]):
        searcher = OWNERS[(number + 1 + number // 10) % len(OWNERS)]
        foreign = {name for owner in OWNERS if owner != searcher for name in names[owner]}
        foreign -= names[searcher]
        searches: list[tuple[Scope, int | None]] = [
            ("user", None),
            ("conversation", None),
            ("user", fact.turn),
        ]
        for scope, ordinal in searches:
            text = f"the code {fact.name} of my {fact.thing}"
            texts = shown(await search(searcher, text, scope, ordinal))
            assert not any(name in texts for name in foreign)
        assert fact.name in shown(await search(fact.owner, fact.name, "user", None))
    await memory.close()


async def test_an_owner_with_a_stranger_s_user_name_in_another_project_finds_nothing(
    open_index: Callable[[], TurnIndex],
) -> None:
    log, planted = MemoryLog(), list[Planted]()
    for key, blocks, fact in conversations(20):
        await log.restore(key, blocks)
        planted.append(fact)
    memory = ConversationMemory(log, open_index, FakeClock(NOW), SharedEmbedder(WordEmbedder))
    for fact in planted:
        owner = fact.owner
        await memory.search(fact.name, user=owner.user, tenant=owner.tenant, project="p")
        for text in (fact.name, ""):
            hits = await memory.search(text, user=owner.user, tenant=owner.tenant, project="q")
            assert hits == []
    await memory.close()
