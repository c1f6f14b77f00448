"""Rows in columns: where there is little room one column is cut, and the last ones go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

SHORTEST = 12
"""What the column that is cut keeps in any case."""

Cell = Text | Spinner


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Cells of one line each; column `cut` gives way, and those in `right` end together.

    No other column takes more than half of the terminal. Where `cut` would have less than the shortest, the last columns are left out.
    """

    rows: Sequence[Sequence[Cell]]
    cut: int
    right: frozenset[int] = field(default_factory=frozenset[int])
    gap: int = 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(map(_width, column)) for column in zip(*self.rows, strict=True)]
        half = options.max_width // 2
        widths = [width if n == self.cut else min(width, half) for n, width in enumerate(widths)]
        while len(widths) > self.cut + 1 and self._taken(widths) + SHORTEST > options.max_width:
            widths.pop()
        taken = self._taken(widths)
        table = Table.grid(padding=(0, self.gap, 0, 0))
        for n, width in enumerate(widths):
            room = max(options.max_width - taken, SHORTEST) if n == self.cut else width
            table.add_column(
                width=min(width, room),
                no_wrap=True,
                overflow="ellipsis",
                justify="right" if n in self.right else "left",
            )
        for row in self.rows:
            table.add_row(*row[: len(widths)])
        yield table

    def _taken(self, widths: Sequence[int]) -> int:
        """What the columns beside the one that is cut take."""
        return sum(width + self.gap for n, width in enumerate(widths) if n != self.cut)


def _width(cell: Cell) -> int:
    return cell.cell_len if isinstance(cell, Text) else 1


WIDE = 120
