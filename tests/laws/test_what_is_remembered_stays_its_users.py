"""Facts are recalled by their own user alone, and no search finds what was only remembered or recalled."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from loopline import timeline as tl
from loopline.memory import ConversationMemory, Owner, UserFacts
from loopline.memory.turn_file import MemoryFile
from loopline.search import SharedEmbedder
from loopline.testing import FakeClock
from tests.support.examples import examples
from tests.support.past_turns import NOW, OWNERS
from tests.support.vectors_in_memory import WordEmbedder

SCOPES: list[tl.FactScope] = ["user", "conversation"]
Told = tuple[Owner, str, tl.FactScope]
TOLD = st.lists(
    st.tuples(st.sampled_from(OWNERS), st.sampled_from(["tea", "garden"]), st.sampled_from(SCOPES)),
    max_size=12,
)


async def remember(log: tl.MemoryLog, number: int, told: Told) -> str:
    """Record a fact with a word of its own, and a result that recalled it; the word."""
    owner, name, scope = told
    key, word = owner.key(name), f"zq{number}x"
    blocks = await log.append(
        key, [tl.Entry(body=tl.UserPrompt(text="Hello there"), turn=tl.NEW_TURN)], seen=0
    )
    turn, call = blocks[-1].turn, f"c{number}"
    fact = tl.MemoryFact(fact_id=f"f{number}", text=f"They like {word}", scope=scope, call_id=call)
    recalled = tl.ToolResult(call_id=call, tool="react.memory", text=f"- f1: They like {word}")
    async with log.lease(key) as term:
        entries: list[tl.Body] = [tl.ToolCalled(call_id=call, tool="react.memory"), fact, recalled]
        await log.append(
            key,
            [tl.Entry(body=body, turn=turn) for body in entries],
            seen=blocks[-1].seq,
            term=term,
        )
    return word


async def check(told: list[Told]) -> None:
    log = tl.MemoryLog(FakeClock(NOW))
    words = [await remember(log, number, each) for number, each in enumerate(told)]
    embedder = SharedEmbedder(WordEmbedder)
    memory = ConversationMemory(log, MemoryFile, FakeClock(NOW), embedder)
    facts = UserFacts(log)
    for owner in OWNERS:
        for here in ("tea", "garden"):
            recalled = [fact.text for fact in await facts.facts(owner, here)]
            assert sorted(recalled) == sorted(
                f"They like {word}"
                for word, (whose, name, scope) in zip(words, told, strict=True)
                if whose == owner and (scope == "user" or name == here)
            )
        for word in words:
            hits = await memory.search(
                f"They like {word}", user=owner.user, tenant=owner.tenant, project=owner.project
            )
            assert not any(word in excerpt.text for hit in hits for excerpt in hit.excerpts)
    await memory.close()


@examples(25)
@given(TOLD)
def test_facts_are_their_users_and_are_never_searched(told: list[Told]) -> None:
    asyncio.run(check(told))
