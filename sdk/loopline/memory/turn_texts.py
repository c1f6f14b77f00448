"""The searchable texts of turns, which are computed from blocks, and the queries for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2b
from typing import Literal, get_args

from loopline import timeline as tl
from loopline.models import well_formed
from loopline.refs import Characters, ConversationRef, HostedRef, PlanRef, parse, replace_span
from loopline.search import query_terms
from loopline.search.ranking import STOP_WORDS
from loopline.timeline.prompt_blocks import RangeSummary

Target = Literal["user", "assistant", "attachment", "notes", "summary", "lesson"]
"""The kind of a text: of the user, an answer, an attached file, notes of the model, a summary, or a lesson."""
TARGETS: tuple[Target, ...] = get_args(Target)
PASSAGE_CHARACTERS = 1_000
"""The length of a passage in which a longer text is searched. Embedders read about this number of characters."""
DIGEST_BYTES = 16

SearchedBody = (
    tl.UserPrompt
    | tl.UserFollowup
    | tl.UserSteer
    | tl.UserAnswer
    | tl.UserAttachment
    | tl.Completion
    | tl.Notes
    | RangeSummary
    | tl.Lesson
)
_SEARCHED = tl.BodyUnion[SearchedBody](SearchedBody)
SEARCHED_TYPES: tuple[str, ...] = tuple(body.type for body in get_args(SearchedBody))
"""The stored types of the bodies with searchable text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A user in a project of a tenant. The conversations of one owner are searched together."""

    user: str
    tenant: str
    project: str

    @classmethod
    def of(cls, conversation: tl.ConversationKey) -> Owner:
        """Return the owner of a conversation."""
        return cls(user=conversation.user, tenant=conversation.tenant, project=conversation.project)

    @property
    def digest(self) -> bytes:
        """The digest of the three names, different for each owner."""
        names = repr((self.tenant, self.project, self.user))
        return blake2b(names.encode("utf-8", "surrogatepass"), digest_size=12).digest()

    def text_digest(self, text: str) -> bytes:
        """Return the digest of a text of this owner. The same text of another owner has a different digest."""
        data = text.encode("utf-8", "surrogatepass")
        return blake2b(data, digest_size=DIGEST_BYTES, key=self.digest).digest()

    def key(self, name: str) -> tl.ConversationKey:
        """Return the key of the owner's conversation with this name."""
        return tl.ConversationKey(
            name=name, user=self.user, tenant=self.tenant, project=self.project
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnText:
    """A text of a turn, or a passage of a long text.

    `seq` and `ts` are those of the block. `ref` names the block, or the passage in it, and `start` is the offset of the
    passage in the text of the block. `input_seq` is the seq of the user input: for an attachment that of the message to
    which it belongs, for other texts the same as `seq`.
    """

    conversation: str
    turn: int
    seq: int
    start: int
    input_seq: int
    target: Target
    ts: datetime
    ref: str
    text: str

    def ref_from(self, conversation: str | None) -> str:
        """Return the ref of the text as seen from a conversation: short in its own, with its name in any other or for None."""
        if conversation == self.conversation:
            return self.ref
        return str(ConversationRef(conversation=self.conversation, ref=parse(self.ref)))


def turn_texts(conversation: str, blocks: Iterable[tl.Block]) -> list[TurnText]:
    """Return the searchable texts of the blocks in order. Long texts are split into passages, empty texts are left out."""
    return [
        text
        for block, body in _SEARCHED.among(blocks)
        for text in _texts(conversation, block, *_target_and_text(body))
    ]


def _target_and_text(body: SearchedBody) -> tuple[Target, str]:
    """Return the kind and the text of a body.

    An answer that is not a string has the text "", and an attached file without text its name.
    """
    match body:
        case tl.UserPrompt(text=text) | tl.UserFollowup(text=text) | tl.UserSteer(text=text):
            return "user", text
        case tl.UserAnswer(value=value):
            return "user", value if isinstance(value, str) else ""
        case tl.UserAttachment(name=name, text=text):
            return "attachment", text or name
        case tl.Completion(text=text):
            return "assistant", text
        case tl.Notes(text=text):
            return "notes", text
        case RangeSummary():
            return "summary", tl.summary_text(body)
        case tl.Lesson(text=text):
            return "lesson", text


def _texts(conversation: str, block: tl.Block, target: Target, text: str) -> Iterator[TurnText]:
    """Yield the text of a block, a text over `PASSAGE_CHARACTERS` in passages; a shorter blank text is left out."""
    turn_text = TurnText(
        conversation=conversation,
        turn=block.turn,
        seq=block.seq,
        start=0,
        input_seq=tl.input_seq_of(block) or block.seq,
        target=target,
        ts=block.ts,
        ref=block.ref,
        text=text,
    )
    if len(text) <= PASSAGE_CHARACTERS:
        if text.strip():
            yield turn_text
        return
    for start, end in _passages(text):
        yield replace(
            turn_text, start=start, text=text[start:end], ref=_passage_ref(block, start, end)
        )


def _passage_ref(block: tl.Block, start: int, end: int) -> str:
    """Return the ref of the block with the span of the passage; without it for refs that cannot have a span."""
    ref = block.name
    if isinstance(ref, PlanRef | ConversationRef | HostedRef):
        return str(ref)
    return str(replace_span(ref, Characters(start + 1, end)))


def _passages(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each passage. A passage ends after a line, after a word, or at `PASSAGE_CHARACTERS`."""
    start = 0
    while start < len(text):
        end = min(start + PASSAGE_CHARACTERS, len(text))
        if end < len(text):
            earliest = start + PASSAGE_CHARACTERS // 2
            breaks = (text.rfind(mark, earliest, end) + 1 for mark in ("\n", " "))
            end = next((position for position in breaks if position), end)
        yield start, end
        start = end


DEFAULT_HITS = 5
HALF_LIFE_DAYS = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQuery:
    """A search in the turns of one owner.

    Without `text` the newest turns are found. `conversation` limits the search to one conversation. `ordinal` selects a
    turn of each conversation by position: 3 is the third turn, -1 the last one. `since` and `until` limit the time of
    texts, both included. In the conversation `current`, turns from `before_turn` on are left out: the turn that searches
    and later turns.
    """

    owner: Owner
    text: str = ""
    targets: tuple[Target, ...] = TARGETS
    conversation: str | None = None
    ordinal: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    current: str = ""
    before_turn: int = 0
    limit: int = DEFAULT_HITS
    half_life_days: float = HALF_LIFE_DAYS

    @property
    def terms(self) -> tuple[str, ...]:
        """The words to search for; empty if the text has only stop words."""
        terms = query_terms(well_formed(self.text))
        return () if STOP_WORDS.issuperset(terms) else terms


_WORDS = """
first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth
sixteenth seventeenth eighteenth nineteenth twentieth
"""
ORDINALS = {word: number for number, word in enumerate(_WORDS.split(), 1)} | {
    "last": -1,
    "latest": -1,
    "previous": -1,
    "penultimate": -2,
}
_ORDINAL = rf"(?P<word>{'|'.join(ORDINALS)})|(?P<number>[1-9]\d{{0,6}})(?:st|nd|rd|th)"
_TURN = r"(?:turns?|messages?|prompts?|questions?|requests?)"
_PHRASE = re.compile(
    rf"\b(?:the\s+|my\s+)?(?:(?:{_ORDINAL})\s+{_TURN}|turn[\s_#]+(?P<turn>[1-9]\d{{0,6}}))\b",
    re.IGNORECASE,
)
_ALONE = re.compile(
    rf"(?:the\s+)?(?:(?:{_ORDINAL})(?:\s+{_TURN})?|(?:turn[\s_#]*)?(?P<turn>-?[1-9]\d{{0,6}}))",
    re.IGNORECASE,
)


def ordinal_of(text: str) -> int | None:
    """Parse a position such as `second`, `the 3rd turn`, `last`, `turn 4` or `-1`; return None for other texts."""
    match = _ALONE.fullmatch(text.strip())
    return None if match is None else _number(match)


def split_ordinal(text: str) -> tuple[str, int | None]:
    """Remove the first phrase such as `the second turn` from the text; return the rest and the position, or None."""
    match = _PHRASE.search(text)
    if match is None:
        return text, None
    return f"{text[: match.start()]} {text[match.end() :]}".strip(), _number(match)


def _number(match: re.Match[str]) -> int:
    if match["word"]:
        return ORDINALS[match["word"].lower()]
    return int(match["number"] or match["turn"])
