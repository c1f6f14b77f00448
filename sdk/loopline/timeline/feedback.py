"""Feedback: the reactions of people and machines to the turns, and which of them are in force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from msgspec import Struct

from loopline.timeline.blocks import (
    Block,
)
from loopline.timeline.bodies import (
    Feedback,
    Reaction,
)

MIN_CONFIDENCE = 0.7
"""Feedback of a machine with less confidence is ignored."""
TEXT_LIMIT = 300
"""Characters of the text in a line; a longer text is cut and the line names its block."""


@dataclass(frozen=True, slots=True)
class FeedbackEntry:
    """A feedback with the block that records it."""

    block: Block
    feedback: Feedback

    def line(self) -> str:
        """Return the feedback in one line."""
        origin = self.feedback.origin
        confidence = self.feedback.confidence
        text = " ".join(self.feedback.text.split())
        shown = text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}… ({self.block.ref})"
        verdict = self.feedback.reaction or ("taken back" if origin == "user" else "no reaction")
        by = origin if confidence is None else f"{origin}, {confidence:.2f} sure"
        return f"{self.block.turn_id} {verdict} ({by}){': ' if shown else ''}{shown}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Satisfaction:
    """How many turns of a conversation the user judged, and how; withdrawn reactions do not count."""

    ok: int
    not_ok: int
    neutral: int

    @property
    def judged(self) -> int:
        """Return the number of judged turns."""
        return self.ok + self.not_ok + self.neutral

    @property
    def rate(self) -> float | None:
        """Return the share of "ok", None if no turn was judged."""
        return self.ok / self.judged if self.judged else None


class Reactions(Struct):
    """The reactions to each turn, by its number.

    Of the user's feedback the newest of a turn is in force, and None withdraws it. A machine's feedback adds to
    the others: it replaces nothing, and nothing replaces it. `newest_seq` is the seq of the last feedback.
    """

    _entries: dict[int, FeedbackEntry] = {}
    _users: dict[int, list[FeedbackEntry]] = {}
    _machines: dict[int, list[FeedbackEntry]] = {}
    newest_seq: int = 0

    def take(self, block: Block) -> None:
        """Fold one more block; only feedback changes anything."""
        feedback = block.body
        if not isinstance(feedback, Feedback):
            return
        self.newest_seq = block.seq
        if feedback.origin == "user":
            self._add(self._users, FeedbackEntry(block, feedback))
        elif feedback.confidence is None or feedback.confidence >= MIN_CONFIDENCE:
            self._add(self._machines, FeedbackEntry(block, feedback))

    def _add(self, by_turn: dict[int, list[FeedbackEntry]], entry: FeedbackEntry) -> None:
        by_turn.setdefault(entry.block.turn, []).append(entry)
        self._entries[entry.block.seq] = entry

    @property
    def user_reactions(self) -> dict[int, FeedbackEntry]:
        """Return the user's reactions in force, by turn."""
        newest = [(turn, entries[-1]) for turn, entries in sorted(self._users.items())]
        return {turn: entry for turn, entry in newest if entry.feedback.reaction is not None}

    @property
    def machine_feedback(self) -> list[FeedbackEntry]:
        """Return the feedback of machines, in order."""
        return [entry for entry in self._entries.values() if entry.feedback.origin != "user"]

    def in_force_for(self, turn: int) -> list[FeedbackEntry]:
        """Return the feedback in force for one turn, in order."""
        entries = [*self._users.get(turn, ())[-1:], *self._machines.get(turn, ())]
        return sorted(filter(self._is_in_force, entries), key=lambda entry: entry.block.seq)

    def in_force_after(self, seq: int) -> list[FeedbackEntry]:
        """Return the feedback in force that was recorded after that seq, by turn and in order."""
        entries = filter(self._is_in_force, self._after(seq))
        return sorted(entries, key=lambda entry: (entry.block.turn, entry.block.seq))

    def _is_in_force(self, entry: FeedbackEntry) -> bool:
        if entry.feedback.origin != "user":
            return True
        return entry.feedback.reaction is not None and entry is self._users[entry.block.turn][-1]

    def _after(self, seq: int) -> list[FeedbackEntry]:
        newest_first = reversed(self._entries.values())
        return list(takewhile(lambda entry: entry.block.seq > seq, newest_first))

    @property
    def rate(self) -> float | None:
        """Return the share of "ok" in the user's reactions in force, None if there are none."""
        return self.satisfaction.rate

    @property
    def satisfaction(self) -> Satisfaction:
        """Return the counts of the user's reactions in force."""
        reactions = Counter(entry.feedback.reaction for entry in self.user_reactions.values())
        return Satisfaction(
            ok=reactions["ok"], not_ok=reactions["not_ok"], neutral=reactions["neutral"]
        )

    def new_lines_since(self, seq: int) -> list[str]:
        """Return a line for each change of feedback after that seq, in order.

        A withdrawn reaction is reported only if the reaction was recorded up to that seq.
        """
        recent = self._after(seq) if self._entries else []
        if not recent:
            return []
        turns = {entry.block.turn for entry in recent if entry.feedback.origin == "user"}
        changed = [entry for turn in turns for entry in _changes_after(self._users[turn], seq)]
        news = [*changed, *(entry for entry in recent if entry.feedback.origin != "user")]
        return [entry.line() for entry in sorted(news, key=lambda entry: entry.block.seq)]


def fold(blocks: Iterable[Block]) -> Reactions:
    """Return the reactions after these blocks."""
    reactions = Reactions()
    for block in blocks:
        reactions.take(block)
    return reactions


def _changes_after(entries: Sequence[FeedbackEntry], seq: int) -> Iterator[FeedbackEntry]:
    """Yield the newest entry about one turn, unless the same was in force at that seq."""
    before = next((entry for entry in reversed(entries) if entry.block.seq <= seq), None)
    newest = entries[-1]
    if newest.block.seq > seq and _reaction_in_force(newest) != _reaction_in_force(before):
        yield newest


def _reaction_in_force(entry: FeedbackEntry | None) -> tuple[Reaction, str] | None:
    if entry is None or entry.feedback.reaction is None:
        return None
    return entry.feedback.reaction, entry.feedback.text
