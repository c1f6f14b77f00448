"""Prints the first line with certain words inside the README's fences: `fences.py "loopline run "`.

It needs nothing but Python, for it runs before anything is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def fenced_lines(text: str) -> list[str]:
    """What stands between lines of backticks."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif inside:
            lines.append(line.strip())
    return lines


def main() -> None:
    """Print the line; exit with 1 if there is none."""
    words = sys.argv[1]
    found = [line for line in fenced_lines(README.read_text("utf-8")) if words in line]
    if not found:
        sys.exit(f"no fence of the README has a line with {words!r}")
    sys.stdout.write(found[0] + "\n")


if __name__ == "__main__":
    main()
