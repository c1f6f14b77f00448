"""Files of lines, in which tools and processes write down what they did."""

from __future__ import annotations

from pathlib import Path


def lines_of(ledger: Path) -> list[str]:
    """Return the lines of a ledger; one that was not begun has none."""
    return ledger.read_text("utf-8").splitlines() if ledger.exists() else []


def add_line(ledger: Path, line: str) -> str:
    with ledger.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    return line
