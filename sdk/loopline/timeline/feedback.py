"""Feedback: the reactions of people and machines to turns, and the fold that finds those that count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from msgspec import Struct

from loopline.timeline.blocks import Block
from loopline.timeline.bodies import Feedback, Reaction

MIN_CONFIDENCE = 0.7
"""Feedback of a machine with a lower confidence is ignored."""
TEXT_LIMIT = 300
"""The characters of the text in a line; a longer text is truncated, and the line has the ref of its block."""


@dataclass(frozen=True, slots=True)
class FeedbackEntry:
    """A feedback and the block that records it."""

    block: Block
    feedback: Feedback

    def line(self) -> str:
        """Render the feedback in one line, such as `turn_3 not_ok (user): too long`, with its confidence if known.

        A withdrawal is shown as `taken back`. A text of more than `TEXT_LIMIT` characters is truncated and followed by
        the ref of the block.
        """
        origin = self.feedback.origin
        confidence = self.feedback.confidence
        text = " ".join(self.feedback.text.split())
        shown = text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}… ({self.block.ref})"
        verdict = self.feedback.reaction or ("taken back" if origin == "user" else "no reaction")
        by = origin if confidence is None else f"{origin}, {confidence:.2f} sure"
        return f"{self.block.turn_id} {verdict} ({by}){': ' if shown else ''}{shown}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Satisfaction:
    """The number of turns with each reaction of the user; withdrawn reactions are not counted."""

    ok: int
    not_ok: int
    neutral: int

    @property
    def judged(self) -> int:
        """The number of turns with a reaction."""
        return self.ok + self.not_ok + self.neutral

    @property
    def rate(self) -> float | None:
        """The share of "ok" from 0 to 1, None without reactions."""
        return self.ok / self.judged if self.judged else None


class Reactions(Struct):
    """The reactions to each turn, by its number.

    The newest feedback of the user about a turn counts; None withdraws it. All feedback of machines counts that has
    at least `MIN_CONFIDENCE` or no confidence. `newest_seq` is the seq of the last feedback, also if it does not count.
    """

    _entries: dict[int, FeedbackEntry] = {}
    _users: dict[int, list[FeedbackEntry]] = {}
    _machines: dict[int, list[FeedbackEntry]] = {}
    newest_seq: int = 0

    def take(self, block: Block) -> None:
        """Fold one more block; blocks of other types change nothing."""
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
        """The user's reaction to each turn, by turn, without withdrawn ones."""
        newest = [(turn, entries[-1]) for turn, entries in sorted(self._users.items())]
        return {turn: entry for turn, entry in newest if entry.feedback.reaction is not None}

    @property
    def machine_feedback(self) -> list[FeedbackEntry]:
        """The feedback of machines that counts, in order."""
        return [entry for entry in self._entries.values() if entry.feedback.origin != "user"]

    def in_force_for(self, turn: int) -> list[FeedbackEntry]:
        """Return the feedback that counts for one turn, in order."""
        entries = [*self._users.get(turn, ())[-1:], *self._machines.get(turn, ())]
        return sorted(filter(self._is_in_force, entries), key=lambda entry: entry.block.seq)

    def in_force_after(self, seq: int) -> list[FeedbackEntry]:
        """Return the feedback that counts and was recorded after that seq, sorted by turn and seq."""
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
    def satisfaction(self) -> Satisfaction:
        """The counts of the user's reactions."""
        reactions = Counter(entry.feedback.reaction for entry in self.user_reactions.values())
        return Satisfaction(
            ok=reactions["ok"], not_ok=reactions["not_ok"], neutral=reactions["neutral"]
        )

    def new_lines_since(self, seq: int) -> list[str]:
        """Return a line for each machine feedback after that seq, if it counts, and for each new reaction of the user.

        The lines are in order of seq. Only the user's newest reaction to a turn is reported, if it or its text differs
        from the reaction that counted at that seq; so is a withdrawal.
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
    """Yield the user's newest entry about one turn if it was recorded after that seq and changed the reaction."""
    before = next((entry for entry in reversed(entries) if entry.block.seq <= seq), None)
    newest = entries[-1]
    if newest.block.seq > seq and _reaction_in_force(newest) != _reaction_in_force(before):
        yield newest


def _reaction_in_force(entry: FeedbackEntry | None) -> tuple[Reaction, str] | None:
    if entry is None or entry.feedback.reaction is None:
        return None
    return entry.feedback.reaction, entry.feedback.text
