"""Fails if a test of a run was skipped: `skipped.py REPORT`, where REPORT is pytest's JUnit file."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def main() -> None:
    """Say which tests were skipped and why; say nothing if none was."""
    report = ElementTree.fromstring(Path(sys.argv[1]).read_text("utf-8"))
    skipped = [
        f"skipped: {case.get('classname')}.{case.get('name')}: {skip.get('message')}"
        for case in report.iter("testcase")
        for skip in case.iter("skipped")
    ]
    if not list(report.iter("testcase")):
        sys.exit("no test ran")
    if skipped:
        sys.exit("\n".join(skipped))


if __name__ == "__main__":
    main()
