"""The query of a search in past turns, and the ordinals by which it may name a turn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from loopline.memory.turn_texts import TARGETS, Owner, Target, TurnText
from loopline.models import well_formed
from loopline.search import query_terms
from loopline.search.ranking import STOP_WORDS

DEFAULT_HITS = 5
HALF_LIFE_DAYS = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQuery:
    """A search in the turns of one owner.

    Without `text` the newest turns come first. `conversation` limits the search to one conversation. `ordinal` 3 names
    the third turn of each conversation, -1 the last one. `since` and `until` bound the time of the text. The turns from
    `before_turn` on of the conversation `current` are left out: they are the one that asks, and later ones.
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
        """Return the words to search for, none if the text has only stop words."""
        terms = query_terms(well_formed(self.text))
        return () if STOP_WORDS.issuperset(terms) else terms

    def may_find(self, text: TurnText) -> bool:
        """Return whether the text is within the limits of the query, its owner and ordinal aside."""
        return (
            text.target in self.targets
            and self.conversation in (None, text.conversation)
            and not (text.conversation == self.current and text.turn >= self.before_turn)
            and (self.since is None or text.ts >= self.since)
            and (self.until is None or text.ts <= self.until)
        )


_WORDS = [
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
    "sixteenth",
    "seventeenth",
    "eighteenth",
    "nineteenth",
    "twentieth",
]
ORDINALS = {word: number for number, word in enumerate(_WORDS, 1)} | {
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
    """Return the number in such texts as `second`, `the 3rd turn`, `last`, `turn 4` or `-1`, None for any other."""
    match = _ALONE.fullmatch(text.strip())
    return None if match is None else _number(match)


def split_ordinal(text: str) -> tuple[str, int | None]:
    """Return the text without the first phrase such as `the second turn`, and its number."""
    match = _PHRASE.search(text)
    if match is None:
        return text, None
    return f"{text[: match.start()]} {text[match.end() :]}".strip(), _number(match)


def _number(match: re.Match[str]) -> int:
    if match["word"]:
        return ORDINALS[match["word"].lower()]
    return int(match["number"] or match["turn"])
