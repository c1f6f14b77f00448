"""What `loopline import` keeps, and what it lists instead of doing it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.doors.command import Loopline
from tests.doors.conftest import Talked


def test_an_import_lists_what_would_act_and_does_it_only_when_it_is_confirmed(
    talked: Talked, tmp_path: Path
) -> None:
    document = json.loads(talked.loopline("export").out)
    cut = len(document["blocks"]) - 1
    assert document["blocks"][cut]["type"] == "react.exit"
    document["blocks"] = document["blocks"][:cut]
    (tmp_path / "cut.json").write_text(json.dumps(document), "utf-8")
    loopline = Loopline(tmp_path)
    ran = loopline("import", "cut.json", "--as", "one")
    assert (ran.code, f"conversation one: {cut} blocks imported" in ran.err) == (0, True)
    assert "inert: turn_2 (it is continued); --confirm turn_2 would allow it" in ran.err
    again = loopline("import", "cut.json", "--as", "two", "--confirm", "turn_2")
    assert (again.code, "inert: turn_2" in again.err) == (0, False)
    wrong = loopline("import", "cut.json", "--as", "three", "--confirm", "turn_1")
    assert (wrong.code, "'turn_1' cannot be confirmed" in wrong.err) == (1, True)
    child = loopline("import", "cut.json", "--as", "main~c1")
    assert (child.code, "is the name of a child run" in child.err) == (1, True)
