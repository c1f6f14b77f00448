"""What became of an attack: the figure it had once, the figure now, and whether that holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row of the table; `before` is what an audit measured before the cause was mended, if anything."""

    attack: str
    before: str
    now: str
    holds: bool


@dataclass(slots=True)
class Tally:
    """What a campaign did and what broke, by name; it holds while nothing broke."""

    done: Counter[str] = field(default_factory=Counter[str])
    broken: Counter[str] = field(default_factory=Counter[str])

    def expect(self, holds: bool, problem: str, count: int = 1) -> None:
        if not holds:
            self.broken[problem] += count

    def add(self, other: Tally) -> None:
        """Add what another part of the campaign did."""
        self.done.update(other.done)
        self.broken.update(other.broken)

    def outcome(self, attack: str, before: str) -> Outcome:
        done = ", ".join(f"{count:,} {what}" for what, count in self.done.items())
        broken = ", ".join(f"{count:,} × {what}" for what, count in self.broken.most_common(8))
        now = f"{done}; {broken or 'nothing broke'}"
        return Outcome(attack, before, now, not self.broken)
