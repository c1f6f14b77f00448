"""What every index of turns promises."""

from __future__ import annotations

import asyncio
import sqlite3
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from loopline.memory import (
    IndexedConversation,
    Owner,
    QueryVector,
    Target,
    TurnIndex,
    TurnIndexDamaged,
    TurnQuery,
    TurnText,
    TurnUpdate,
)
from loopline.memory.postgres_turn_index import PostgresTurnIndex
from loopline.memory.turn_file import MemoryFile, on_connect
from loopline.search import Vector, VectorState
from loopline.store.postgres_log import PostgresLog
from loopline.timeline import ConversationKey
from tests.support.postgres_server import running_postgres

ANN = Owner(user="ann", tenant="t", project="p")
STRANGERS = [
    Owner(user="bob", tenant="t", project="p"),
    Owner(user="ann", tenant="u", project="p"),
    Owner(user="ann", tenant="t", project="q"),
]
START = datetime(2026, 3, 1, tzinfo=UTC)


IN_POSTGRES = ["postgres", "pgvector"]
"""Databases without the extension pgvector and with it."""
FILES = ["file", *(pytest.param(name, marks=pytest.mark.service) for name in IN_POSTGRES)]
OpenIndex = Callable[[], TurnIndex]


@asynccontextmanager
async def opening(kind: str, folder: Path) -> AsyncGenerator[OpenIndex]:
    """A function that opens the same index each time; the indexes and their store are closed in the end."""
    async with AsyncExitStack() as stack:

        def close(index: TurnIndex) -> TurnIndex:
            stack.push_async_callback(index.close)
            return index

        if kind in IN_POSTGRES:
            server = running_postgres()
            database = server.create_vectors() if kind == "pgvector" else "postgres"
            log = await PostgresLog.open(server.store_url(database))
            await stack.enter_async_context(log)
            yield lambda: close(PostgresTurnIndex(log.database))
        elif kind == "memory":
            yield lambda: close(MemoryFile())
        else:
            yield lambda: close(MemoryFile(folder / "talk.db-memory"))


@pytest.fixture(params=["memory", *FILES])
async def index(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TurnIndex]:
    async with opening(request.param, tmp_path) as open_index:
        yield open_index()


@pytest.fixture(params=FILES)
async def open_index(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[[], TurnIndex]]:
    """Opens the same stored index each time."""
    async with opening(request.param, tmp_path) as open_with:
        yield open_with


def said(
    text: str,
    *,
    turn: int = 1,
    seq: int = 0,
    target: Target = "user",
    conversation: str = "tea",
    days: float = 0,
) -> TurnText:
    number = seq or turn
    return TurnText(
        conversation=conversation,
        turn=turn,
        seq=number,
        start=0,
        input_seq=number,
        target=target,
        ts=START + timedelta(days=days or turn),
        ref=f"ar:turn_{turn}.user.prompt",
        text=text,
    )


def at(head: int, uid: str = "u1") -> IndexedConversation:
    return IndexedConversation(uid=uid, head=head)


async def extend(
    index: TurnIndex,
    conversation: ConversationKey,
    before: IndexedConversation | None,
    after: IndexedConversation,
    texts: Sequence[TurnText],
    recalled: Sequence[int] = (),
) -> bool:
    """Extend one conversation; return whether it was."""
    update = TurnUpdate(
        conversation=conversation.name, before=before, after=after, texts=texts, recalled=recalled
    )
    return bool(await index.extend(Owner.of(conversation), [update]))


async def fill(index: TurnIndex, *texts: TurnText, owner: Owner = ANN) -> None:
    """Index these texts, all of the same conversation."""
    name = texts[0].conversation
    assert await extend(index, owner.key(name), None, at(texts[-1].seq), texts)


def vector(*coordinates: float) -> Vector:
    return array("f", coordinates).tobytes()


async def found(index: TurnIndex, query: TurnQuery) -> Sequence[TurnText]:
    texts = (await index.candidates(query)).texts
    return sorted(texts, key=lambda text: (text.conversation, text.seq))


async def test_a_text_comes_back_as_it_was_indexed(index: TurnIndex) -> None:
    text = said("Steep the green tea\nfor two minutes", turn=3)
    await fill(index, text)
    assert await found(index, TurnQuery(owner=ANN, text="steep")) == [text]


async def test_a_text_is_found_by_any_of_its_words(index: TurnIndex) -> None:
    await fill(index, said("green tea"), said("black coffee", turn=2))
    assert [text.turn for text in await found(index, TurnQuery(owner=ANN, text="coffee?"))] == [2]
    assert len(await found(index, TurnQuery(owner=ANN, text="coffee or tea"))) == 2


@pytest.mark.parametrize(
    "query", ['"', "'", "*", "tea AND", "body: tea", "NEAR(", "-", "tea" * 5_000, "\x00", "\ud800"]
)
async def test_any_text_is_a_query(index: TurnIndex, query: str) -> None:
    await fill(index, said("green tea"))
    await index.candidates(TurnQuery(owner=ANN, text=query))


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize(
    "query",
    [
        TurnQuery(owner=ANN, text="secret"),
        TurnQuery(owner=ANN),
        TurnQuery(owner=ANN, ordinal=1),
        TurnQuery(owner=ANN, ordinal=-1),
        TurnQuery(owner=ANN, conversation="tea"),
    ],
    ids=["words", "newest", "first", "last", "conversation"],
)
async def test_nobody_finds_the_texts_of_another_owner(
    index: TurnIndex, stranger: Owner, query: TurnQuery
) -> None:
    await fill(index, said("the secret"))
    assert (await index.candidates(replace(query, owner=stranger))).texts == ()
    assert (await index.candidates(query)).texts != ()


async def test_a_conversation_of_the_same_name_is_each_owners_own(index: TurnIndex) -> None:
    for owner in (ANN, *STRANGERS):
        await fill(index, said(f"secret of {owner}"), owner=owner)
    for owner in (ANN, *STRANGERS):
        texts = await found(index, TurnQuery(owner=owner, text="secret"))
        assert [text.text for text in texts] == [f"secret of {owner}"]


async def test_shares_count_the_owners_texts_alone(index: TurnIndex) -> None:
    await fill(index, said("tea"), said("coffee", turn=2))
    await fill(index, said("tea"), said("tea", turn=2), owner=STRANGERS[0])
    terms = (await index.candidates(TurnQuery(owner=ANN, text="tea water"))).terms
    assert [(term.text, term.share) for term in terms] == [("tea", 0.5), ("water", 0.0)]


async def test_a_query_is_limited_to_targets(index: TurnIndex) -> None:
    await fill(index, said("tea"), said("tea!", seq=2, target="assistant"))
    texts = await found(index, TurnQuery(owner=ANN, text="tea", targets=("assistant",)))
    assert [text.target for text in texts] == ["assistant"]


async def test_a_query_is_limited_to_a_conversation(index: TurnIndex) -> None:
    await fill(index, said("tea"))
    await fill(index, said("tea", conversation="other"))
    texts = await found(index, TurnQuery(owner=ANN, text="tea", conversation="other"))
    assert [text.conversation for text in texts] == ["other"]


async def test_a_query_is_limited_to_a_time_with_both_ends(index: TurnIndex) -> None:
    await fill(index, *(said("tea", turn=turn) for turn in (1, 2, 3, 4)))
    since, until = START + timedelta(days=2), START + timedelta(days=3)
    texts = await found(index, TurnQuery(owner=ANN, text="tea", since=since, until=until))
    assert [text.turn for text in texts] == [2, 3]


async def test_the_turn_that_asks_is_left_out(index: TurnIndex) -> None:
    await fill(index, said("tea"), said("tea", turn=2))
    await fill(index, said("tea", turn=2, conversation="other"))
    texts = await found(index, TurnQuery(owner=ANN, text="tea", current="tea", before_turn=2))
    assert [(text.conversation, text.turn) for text in texts] == [("other", 2), ("tea", 1)]


async def test_without_words_the_newest_turns_are_found(index: TurnIndex) -> None:
    await fill(index, *(said("tea", turn=turn) for turn in (1, 2, 3)))
    assert [text.turn for text in await found(index, TurnQuery(owner=ANN, limit=2))] == [2, 3]


async def test_stop_words_are_no_words_to_search_for(index: TurnIndex) -> None:
    await fill(index, said("tea"), said("coffee", turn=2))
    texts = await found(index, TurnQuery(owner=ANN, text="what was that about?"))
    assert [text.turn for text in texts] == [1, 2]


@pytest.mark.parametrize(("ordinal", "turns"), [(1, [1]), (2, [2]), (-1, [3]), (-3, [1]), (4, [])])
async def test_an_ordinal_names_a_turn_from_the_beginning_or_the_end(
    index: TurnIndex, ordinal: int, turns: list[int]
) -> None:
    await fill(index, *(said("tea", turn=turn) for turn in (1, 2, 3)))
    texts = await found(index, TurnQuery(owner=ANN, ordinal=ordinal))
    assert [text.turn for text in texts] == turns


async def test_an_ordinal_names_a_turn_whatever_the_other_words(index: TurnIndex) -> None:
    await fill(index, said("tea"), said("coffee", turn=2))
    texts = await found(index, TurnQuery(owner=ANN, text="hot drinks", ordinal=2))
    assert [text.text for text in texts] == ["coffee"]


async def test_the_last_turn_is_the_last_before_the_one_that_asks(index: TurnIndex) -> None:
    await fill(index, *(said("tea", turn=turn) for turn in (1, 2, 3)))
    texts = await found(index, TurnQuery(owner=ANN, ordinal=-1, current="tea", before_turn=3))
    assert [text.turn for text in texts] == [2]


async def test_how_far_a_conversation_is_indexed_is_known(index: TurnIndex) -> None:
    await fill(index, said("tea"))
    assert await index.read_progress(ANN) == {"tea": at(1)}
    assert await extend(index, ANN.key("tea"), at(1), at(7), [])
    assert await index.read_progress(ANN) == {"tea": at(7)}
    assert [await index.read_progress(stranger) for stranger in STRANGERS] == [{}, {}, {}]


async def test_what_another_process_indexed_is_not_indexed_twice(index: TurnIndex) -> None:
    await fill(index, said("tea"))
    for before in (None, at(0), at(2), at(1, "u0")):
        assert not await extend(index, ANN.key("tea"), before, at(9), [said("coffee", turn=9)])
    assert await found(index, TurnQuery(owner=ANN, text="coffee")) == []


async def test_several_conversations_are_extended_at_once_and_one_that_another_process_has_is_left(
    index: TurnIndex,
) -> None:
    await fill(index, said("tea"))
    updates = [
        TurnUpdate(conversation="tea", before=None, after=at(9), texts=[said("milk", turn=9)]),
        *(
            TurnUpdate(
                conversation=name, before=None, after=at(1), texts=[said(name, conversation=name)]
            )
            for name in ("coffee", "cocoa")
        ),
    ]
    assert set(await index.extend(ANN, updates)) == {"coffee", "cocoa"}
    assert await index.read_progress(ANN) == {"tea": at(1), "coffee": at(1), "cocoa": at(1)}
    query = TurnQuery(owner=ANN, text="milk coffee cocoa")
    assert {text.conversation for text in await found(index, query)} == {"coffee", "cocoa"}


async def test_another_conversation_under_the_name_replaces_the_texts(index: TurnIndex) -> None:
    await fill(index, said("tea"))
    assert await extend(index, ANN.key("tea"), at(1), at(1, "u2"), [said("coffee")])
    assert await index.read_progress(ANN) == {"tea": at(1, "u2")}
    assert await found(index, TurnQuery(owner=ANN, text="tea")) == []
    assert len(await found(index, TurnQuery(owner=ANN, text="coffee"))) == 1


async def test_recalled_input_is_dropped_with_its_files(index: TurnIndex) -> None:
    file = replace(said("tea list", seq=2, target="attachment"), input_seq=1)
    await fill(index, said("tea", seq=1), file)
    later = [said("tea too", turn=2, seq=3), said("tea again", turn=3, seq=4)]
    assert await extend(index, ANN.key("tea"), at(2), at(6), later, recalled=[1, 3])
    assert [text.seq for text in await found(index, TurnQuery(owner=ANN, text="tea"))] == [4]


async def test_what_is_removed_is_not_found(index: TurnIndex) -> None:
    await fill(index, said("tea"))
    await fill(index, said("tea", conversation="other"))
    await index.remove(ANN.key("tea"))
    await index.remove(ANN.key("never indexed"))
    texts = await found(index, TurnQuery(owner=ANN, text="tea"))
    assert [text.conversation for text in texts] == ["other"]
    assert set(await index.read_progress(ANN)) == {"other"}


# Vectors.

MODEL = "a model"
EAST, NORTH = vector(1, 0), vector(0, 1)
NEAR_EAST = vector(0.8, 0.6)


def digest(text: str, owner: Owner = ANN) -> bytes:
    return owner.text_digest(text)


async def fill_with_vectors(index: TurnIndex, texts: Mapping[str, Vector]) -> None:
    await fill(index, *(said(text, turn=turn) for turn, text in enumerate(texts, 1)))
    await index.add_vectors(ANN, MODEL, {digest(text): texts[text] for text in texts})


async def near(index: TurnIndex, query: TurnQuery, to: Vector = EAST) -> dict[str, float | None]:
    """The texts that a query with a vector finds, with their cosines."""
    candidates = await index.candidates(query, QueryVector(MODEL, to))
    texts = [text.text for text in candidates.texts]
    cosines = [None if cosine is None else round(cosine, 4) for cosine in candidates.cosines]
    return dict(zip(texts, cosines, strict=True))


async def test_a_text_is_found_by_its_vector_without_a_common_word(index: TurnIndex) -> None:
    await fill_with_vectors(index, {"oolong": NEAR_EAST})
    assert await near(index, TurnQuery(owner=ANN, text="beverage")) == {"oolong": 0.8}


async def test_a_text_without_a_vector_is_found_by_words_alone(index: TurnIndex) -> None:
    await fill(index, said("green tea"), said("black coffee", turn=2))
    assert await near(index, TurnQuery(owner=ANN, text="coffee")) == {"black coffee": None}


async def test_vectors_of_another_embedder_are_not_compared(index: TurnIndex) -> None:
    await fill_with_vectors(index, {"oolong": EAST})
    candidates = await index.candidates(
        TurnQuery(owner=ANN, text="beverage"), QueryVector("another", EAST)
    )
    assert candidates.texts == ()


async def test_a_vector_is_found_only_within_the_limits_of_the_query(index: TurnIndex) -> None:
    await fill_with_vectors(index, {"oolong": EAST, "assam": NEAR_EAST})
    query = TurnQuery(owner=ANN, text="beverage")
    assert set(await near(index, query)) == {"oolong", "assam"}
    assert await near(index, replace(query, ordinal=2)) == {"assam": 0.8}
    assert set(await near(index, replace(query, current="tea", before_turn=2))) == {"oolong"}
    assert await near(index, replace(query, targets=("notes",))) == {}
    assert await near(index, replace(query, since=START + timedelta(days=2))) == {"assam": 0.8}


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_nobody_finds_a_text_of_another_owner_by_its_vector(
    index: TurnIndex, stranger: Owner
) -> None:
    await fill_with_vectors(index, {"oolong": EAST})
    await fill(index, said("oolong"), owner=stranger)
    await index.add_vectors(stranger, MODEL, {digest("oolong"): EAST})
    assert await near(index, TurnQuery(owner=stranger, text="beverage")) == {}
    assert await index.list_unembedded(stranger, MODEL, 5) == {digest("oolong", stranger): "oolong"}
    assert (await index.vector_state(stranger, MODEL)).done == 0


async def test_the_newest_texts_get_their_vectors_first(index: TurnIndex) -> None:
    await fill(index, *(said(f"tea {turn}", turn=turn) for turn in (1, 2, 3)))
    assert list((await index.list_unembedded(ANN, MODEL, 2)).values()) == ["tea 3", "tea 2"]
    await index.add_vectors(ANN, MODEL, {digest("tea 3"): EAST})
    assert list((await index.list_unembedded(ANN, MODEL, 2)).values()) == ["tea 2", "tea 1"]
    assert await index.vector_state(ANN, MODEL) == VectorState(done=1, total=3)


async def test_a_text_that_was_said_twice_gets_one_vector(index: TurnIndex) -> None:
    await fill(index, said("tea"), said("tea", turn=2))
    assert await index.list_unembedded(ANN, MODEL, 5) == {digest("tea"): "tea"}
    await index.add_vectors(ANN, MODEL, {digest("tea"): EAST})
    assert await index.vector_state(ANN, MODEL) == VectorState(done=1, total=1, is_ready=True)


async def test_a_vector_leaves_with_the_last_conversation_that_has_its_text(
    index: TurnIndex,
) -> None:
    await fill_with_vectors(index, {"oolong": EAST})
    await fill(index, said("oolong", conversation="other"))
    await index.remove(ANN.key("tea"))
    assert await near(index, TurnQuery(owner=ANN, text="beverage")) == {"oolong": 1.0}
    await index.remove(ANN.key("other"))
    await fill(index, said("oolong"))
    assert list((await index.list_unembedded(ANN, MODEL, 5)).values()) == ["oolong"]


async def test_a_vector_that_comes_after_its_text_was_removed_is_not_kept(
    index: TurnIndex,
) -> None:
    await fill(index, said("oolong"), said("assam", turn=2))
    await index.remove(ANN.key("tea"))
    await index.add_vectors(ANN, MODEL, {digest("oolong"): EAST})
    await fill(index, said("oolong"))
    assert list((await index.list_unembedded(ANN, MODEL, 5)).values()) == ["oolong"]


# What is stored.


async def test_an_index_has_what_another_opening_of_it_wrote(
    open_index: Callable[[], TurnIndex],
) -> None:
    first, second = open_index(), open_index()
    await fill(first, said("tea"))
    assert len(await found(second, TurnQuery(owner=ANN, text="tea"))) == 1


async def test_vectors_in_memory_follow_what_another_opening_adds_and_removes(
    open_index: Callable[[], TurnIndex],
) -> None:
    first, second = open_index(), open_index()
    query = TurnQuery(owner=ANN, text="beverage")
    await fill_with_vectors(first, {"oolong": EAST})
    assert await near(second, query) == {"oolong": 1.0}
    await fill(first, said("assam", conversation="other"))
    assert await near(second, query) == {"oolong": 1.0}
    await first.add_vectors(ANN, MODEL, {digest("assam"): NEAR_EAST})
    assert await near(second, query) == {"oolong": 1.0, "assam": 0.8}
    assert await near(second, query, NORTH) == {"oolong": 0.0, "assam": 0.6}
    await first.remove(ANN.key("tea"))
    assert await near(second, query) == {"assam": 0.8}


async def test_two_openings_that_add_the_same_conversation_at_once_add_it_once(
    open_index: Callable[[], TurnIndex],
) -> None:
    openings = [open_index() for _ in range(4)]
    key, texts = ANN.key("tea"), [said("tea", turn=turn) for turn in range(1, 100)]
    added = [extend(index, key, None, at(99), texts) for index in openings]
    assert sorted(await asyncio.gather(*added)) == [False, False, False, True]
    assert len(await found(openings[0], TurnQuery(owner=ANN, ordinal=1))) == 1


async def test_a_text_comes_back_with_every_character(
    open_index: Callable[[], TurnIndex],
) -> None:
    text = 'tea \0 \u2028 \U0001f375 "quoted" {braces} \\ back\nline % :name'
    await fill(open_index(), said(text))
    assert [each.text for each in await found(open_index(), TurnQuery(owner=ANN, text="tea"))] == [
        text
    ]


# In memory.


async def test_cancelled_searches_and_updates_do_not_empty_an_index_in_memory() -> None:
    index = MemoryFile()
    await fill(index, said("tea"))
    for moments in range(20):
        tasks = [
            asyncio.create_task(found(index, TurnQuery(owner=ANN, text="tea"))),
            asyncio.create_task(fill(index, said("coffee", conversation="other"))),
            asyncio.create_task(found(index, TurnQuery(owner=ANN, text="tea"))),
        ]
        for _ in range(moments):
            await asyncio.sleep(0.0002)
        for task in tasks[:2]:
            task.cancel()
        await asyncio.wait(tasks)
        assert tasks[2].result() == [said("tea")]
        coffee = await found(index, TurnQuery(owner=ANN, text="coffee"))
        assert len(coffee) == len(await index.read_progress(ANN)) - 1
        await index.remove(ANN.key("other"))
    await index.close()


# The file.


def readable_by_others(folder: Path) -> list[int]:
    return [file.stat().st_mode & 0o077 for file in folder.iterdir()]


def contents(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def test_the_vectors_of_an_owner_are_read_once(tmp_path: Path) -> None:
    statements: list[str] = []

    async def trace(connection: Any) -> None:  # aiosqlite has no type for its method
        await connection.set_trace_callback(statements.append)

    index = MemoryFile(tmp_path / "m")
    await fill_with_vectors(index, {"oolong": EAST, "assam": NORTH})
    await index.close()
    on_connect.append(trace)
    try:
        for _ in range(3):
            assert len(await near(index, TurnQuery(owner=ANN, text="beverage"))) == 2
    finally:
        on_connect.remove(trace)
    assert sum("SELECT digest, data FROM vector" in statement for statement in statements) == 1
    await index.close()


async def test_a_file_is_its_users_alone(tmp_path: Path) -> None:
    index = MemoryFile(tmp_path / "m")
    await fill(index, said("tea"))
    await index.close()
    assert set(readable_by_others(tmp_path)) == {0}


async def test_what_is_removed_is_in_no_page_of_the_file(tmp_path: Path) -> None:
    index = MemoryFile(tmp_path / "m")
    await fill(index, said("the word is Zanzibar"))
    await fill(index, said("tea", conversation="other"))
    await index.remove(ANN.key("tea"))
    assert contents(tmp_path)
    assert b"anzibar" not in contents(tmp_path)
    await index.close()


async def test_a_vector_that_is_removed_is_in_no_page_of_the_file(tmp_path: Path) -> None:
    index, odd = MemoryFile(tmp_path / "m"), vector(0.123, 0.456, 0.789)
    await fill_with_vectors(index, {"oolong": odd})
    await fill(index, said("tea", conversation="other"))
    assert odd in contents(tmp_path)
    await index.remove(ANN.key("tea"))
    assert odd not in contents(tmp_path)
    await index.close()


@pytest.mark.parametrize(
    "content", [b"no database at all" * 100, b"SQLite format 3\0" + b"x" * 9_000]
)
async def test_a_damaged_file_is_emptied_and_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m").write_bytes(content)
    index = MemoryFile(tmp_path / "m")
    with pytest.raises(TurnIndexDamaged, match="was damaged and is emptied"):
        await index.read_progress(ANN)
    await fill(index, said("tea"))
    await index.close()


async def test_a_file_of_another_version_is_built_anew(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "m") as database:
        database.execute("CREATE TABLE turn_text(id)")
    database.close()
    index = MemoryFile(tmp_path / "m")
    assert await index.read_progress(ANN) == {}
    await fill(index, said("tea"))
    await index.close()
