"""Short facts about a user, computed from the blocks of all conversations of the user."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from loopline import timeline as tl
from loopline.errors import LooplineError
from loopline.memory.turn_texts import Owner
from loopline.models import well_formed
from loopline.refs import ConversationRef, parse

FACT_CHARACTERS = 300
MOST_FACTS: dict[tl.FactScope, int] = {"user": 100, "conversation": 30}
"""The largest number of facts of each scope."""
_FACTS = tl.BodyUnion[tl.MemoryFact](tl.MemoryFact)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFact:
    """The newest version of a fact, with the conversation, the turn and the ref of the block that recorded it.

    `refs` are the sources of the fact. `by_user` is True if the user edited it.
    """

    fact_id: str
    text: str
    scope: tl.FactScope
    refs: tuple[str, ...]
    by_user: bool
    conversation: str
    turn: int
    ref: str
    ts: datetime


def fact_text(text: str) -> str:
    """Return a text on one line, with single spaces between its words, and check its length.

    Raises:
        LooplineError: the text is empty or longer than `FACT_CHARACTERS`.
    """
    line = " ".join(well_formed(text).split())
    if not line:
        raise LooplineError("the fact is empty: write a short sentence")
    if len(line) > FACT_CHARACTERS:
        raise LooplineError(
            f"the fact has {len(line)} characters: it may have {FACT_CHARACTERS}, so write it shorter"
        )
    return line


class UserFacts:
    """The facts about users in a log. A removed fact is not returned, but its text stays in the log of its conversation."""

    def __init__(self, log: tl.TimelineLog) -> None:
        self._log = log
        self._blocks = tl.UserBlocks(log, [tl.MemoryFact.type])

    async def facts(self, owner: Owner, conversation: str | None = None) -> list[UserFact]:
        """Return the newest version of each fact about a user, oldest first; removed facts are left out.

        With `conversation`, facts with the scope of another conversation are left out. Facts in imported blocks are
        ignored.
        """
        newest: dict[str, tuple[tl.Block, tl.MemoryFact, str]] = {}
        for name, block, fact in await self._versions(owner):
            before = newest.get(fact.fact_id)
            if before is None or (before[0].ts, before[2], before[0].seq) <= (
                block.ts,
                name,
                block.seq,
            ):
                newest[fact.fact_id] = (block, fact, name)
        facts = [
            _fact_of(block, fact, name)
            for block, fact, name in newest.values()
            if fact.text and (fact.scope == "user" or conversation is None or name == conversation)
        ]
        return sorted(facts, key=lambda fact: (fact.ts, fact.fact_id))

    async def edit(self, owner: Owner, fact_id: str, text: str) -> UserFact:
        """Record a new text of a fact as edited by the user, and return the new version.

        Raises:
            LooplineError: the fact does not exist or was removed, or the text is empty or too long.
        """
        fact = await self._find(owner, fact_id)
        checked = fact_text(text)
        version = tl.MemoryFact(
            fact_id=fact_id, text=checked, scope=fact.scope, refs=fact.refs, origin="user"
        )
        await self._append(owner.key(fact.conversation), fact.turn, version)
        return await self._find(owner, fact_id)

    async def remove(self, owner: Owner, fact_id: str) -> None:
        """Record the removal of a fact by the user, in every conversation that recorded a version of it.

        Raises:
            LooplineError: the fact does not exist or was removed.
        """
        await self._find(owner, fact_id)
        homes = {
            name: block.turn
            for name, block, fact in await self._versions(owner)
            if fact.fact_id == fact_id
        }
        for name, turn in homes.items():
            removed = tl.MemoryFact(fact_id=fact_id, text="", origin="user")
            await self._append(owner.key(name), turn, removed)

    async def _find(self, owner: Owner, fact_id: str) -> UserFact:
        """Return the newest version of a fact; raise a LooplineError with the ids of all facts if it is unknown."""
        facts = await self.facts(owner)
        for fact in facts:
            if fact.fact_id == fact_id:
                return fact
        fact_ids = ", ".join(fact.fact_id for fact in facts) or "none"
        raise LooplineError(f"no fact {fact_id!r} about {owner.user}: there are {fact_ids}")

    async def _append(self, key: tl.ConversationKey, turn: int, fact: tl.MemoryFact) -> None:
        summary = await self._log.find(key)
        head = 0 if summary is None else summary.head
        await self._log.append(key, [tl.Entry(body=fact, turn=turn)], seen=head)

    async def _versions(self, owner: Owner) -> list[tuple[str, tl.Block, tl.MemoryFact]]:
        """Return all versions of all facts of the owner: the name of the conversation, the block and its body."""
        blocks = await self._blocks.of_user(
            user=owner.user, project=owner.project, tenant=owner.tenant
        )
        return [(key.name, block, block.body) for key, block in blocks if _FACTS.has(block.body)]


def _fact_of(block: tl.Block, fact: tl.MemoryFact, conversation: str) -> UserFact:
    """Combine a recorded fact with its conversation, turn and time, and a ref that names the conversation."""
    return UserFact(
        fact_id=fact.fact_id,
        text=fact.text,
        scope=fact.scope,
        refs=fact.refs,
        by_user=fact.origin == "user",
        conversation=conversation,
        turn=block.turn,
        ref=str(ConversationRef(conversation=conversation, ref=parse(block.ref))),
        ts=block.ts,
    )


@dataclass(frozen=True, slots=True)
class FactsOfTurn:
    """The facts that a running turn may recall: those about its user, without those of other conversations' scope."""

    facts: UserFacts
    conversation: tl.ConversationKey

    async def read(self) -> list[UserFact]:
        """Return the facts, oldest first."""
        return await self.facts.facts(Owner.of(self.conversation), self.conversation.name)
