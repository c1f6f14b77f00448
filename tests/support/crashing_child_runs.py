"""A turn with a child run that writes a line twice."""

from __future__ import annotations

from pathlib import Path

from loopline import Bundle
from loopline.testing import Call
from tests.support.child_runs import Cast, bundle


def make_turn(folder: Path) -> tuple[Bundle, Cast]:
    note = Call("play.note", name="n", ledger=str(folder / "ledger"))
    return bundle, Cast(
        {
            "Begin": [Call("kin.ask", task="write"), "Done."],
            "write": [(note, note), "Written."],
        }
    )
