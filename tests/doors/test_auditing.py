"""What `loopline audit` says of a store, of a document, and by heads that were kept elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from loopline.reader import read_heads
from tests.doors.command import Loopline
from tests.doors.conftest import Talked
from tests.support.tampered_rows import unguarded


@pytest.fixture
def kept(talked: Talked, tmp_path: Path) -> Loopline:
    """The same store, to be tampered with."""
    shutil.copytree(talked.loopline.folder / ".loopline", tmp_path / ".loopline")
    (tmp_path / "key").write_text("secret", "utf-8")
    return Loopline(tmp_path)


def tamper(loopline: Loopline, statement: str) -> None:
    database = unguarded(loopline.folder / ".loopline" / "loopline.db")
    database.execute(statement)
    database.close()


def test_what_was_changed_is_named_and_the_code_says_so(kept: Loopline) -> None:
    whole = kept("audit")
    assert (whole.code, "as written; head " in whole.out) == (0, True)
    tamper(kept, "UPDATE blocks SET body = replace(body, 'a', 'b') WHERE seq = 3")
    ran = kept("audit")
    assert (ran.code, "changed: block 3 was changed or inserted" in ran.out) == (1, True)
    faults = kept("audit", "--json").value["conversations"][0]["faults"]
    assert [(fault["seq"], fault["kind"]) for fault in faults] == [(3, "changed")]


def test_heads_tell_what_was_cut_off_and_are_signed(kept: Loopline) -> None:
    assert kept("audit", "--save", "heads", "--key", "key").code == 0
    tamper(kept, "DELETE FROM blocks WHERE seq > 4")
    assert kept("audit").code == 0
    ran = kept("audit", "--head", "heads", "--key", "key")
    assert (ran.code, "cut: blocks 5 to " in ran.out) == (1, True)
    text = (kept.folder / "heads").read_text("utf-8")
    (kept.folder / "heads").write_text(text.replace('"seq": ', '"seq": 1'), "utf-8")
    forged = kept("audit", "--head", "heads", "--key", "key")
    assert (forged.code, "were not signed with this key" in forged.err) == (1, True)


def test_a_document_is_audited_by_itself(kept: Loopline) -> None:
    document = json.loads(kept("export").out)
    del document["blocks"][4]
    (kept.folder / "cut.json").write_text(json.dumps(document), "utf-8")
    ran = kept("audit", "--document", "cut.json")
    assert (ran.code, "removed: block 5 is missing" in ran.out) == (1, True)


def test_a_name_that_the_store_lacks_is_an_error_and_no_intact_conversation(kept: Loopline) -> None:
    ran = kept("audit", "nobody")
    assert (ran.code, ran.out) == (1, "")
    assert "no conversation 'nobody'" in ran.err


def test_heads_that_were_not_compared_now_are_kept_when_heads_are_saved(kept: Loopline) -> None:
    (kept.folder / "talk.json").write_text(kept("export").out, "utf-8")
    assert kept("import", "talk.json", "--as", "other").code == 0
    assert kept("audit", "--save", "heads").code == 0
    (kept.folder / "heads").chmod(0o600)
    saved = read_heads((kept.folder / "heads").read_text("utf-8"))
    assert sorted(key.name for key in saved) == ["other", "tea_guide-1"]
    assert kept("audit", "other", "--head", "heads", "--save", "heads").code == 0
    own = "SELECT id FROM conversations WHERE name = 'tea_guide-1'"
    tamper(kept, f"DELETE FROM blocks WHERE seq > 4 AND conversation IN ({own})")
    for _ in range(2):
        ran = kept("audit", "--head", "heads", "--save", "heads")
        assert (ran.code, "cut: blocks 5 to " in ran.out) == (1, True)
    assert read_heads((kept.folder / "heads").read_text("utf-8")) == saved
    assert (kept.folder / "heads").stat().st_mode & 0o777 == 0o600
    assert [*kept.folder.glob("*.unfinished")] == []
