"""`loopline stale` lists stored answers whose cited lines have changed, with the difference."""

from __future__ import annotations

import json

from tests.doors.command import Loopline
from tests.support.git_repositories import commit, git

QUESTION = "How long do I steep green tea?"


def test_an_answer_is_stale_when_its_lines_have_changed(tea: Loopline) -> None:
    asked = tea("run", "guide", QUESTION)
    assert asked.code == 0, asked.err
    fresh = tea("stale")
    assert (fresh.code, fresh.out, fresh.err) == (0, "", "0 stale answers\n")
    old = git(tea.folder, "rev-parse", "HEAD")
    steeping = tea.folder / "docs/steeping.md"
    text = steeping.read_text("utf-8")
    commit(tea.folder, {"docs/steeping.md": f"# A new beginning\n\nOf the page.\n\n{text}"})
    assert tea("stale").code == 0
    changed = commit(tea.folder, {"docs/steeping.md": text.replace("three minutes", "one minute")})
    ran = tea("stale")
    assert ran.code == 1
    head, *diff = ran.out.splitlines()
    assert head.endswith(f"ar:turn_1.assistant.completion.1  {QUESTION}")
    assert "  --- ks:docs/steeping.md as cited" in diff
    removed = [line for line in diff if line.startswith("  -") and "three minutes" in line]
    added = [line for line in diff if line.startswith("  +") and "one minute" in line]
    assert (len(removed), len(added)) == (1, 1)
    assert "1 stale answer" in ran.err
    assert tea("stale", "--since", old).code == 1
    assert tea("stale", "--since", changed).code == 0
    [answer] = json.loads(tea("stale", "--json").out)
    assert answer["question"] == QUESTION
    assert answer["sources"][0]["diff"]
    assert tea("stale", "--user", "somebody").code == 0


def test_an_answer_is_stale_when_its_file_is_gone(tea: Loopline) -> None:
    assert tea("run", "guide", QUESTION).code == 0
    git(tea.folder, "rm", "-q", "docs/steeping.md")
    git(tea.folder, "commit", "-q", "-m", "gone")
    ran = tea("stale")
    assert ran.code == 1
    assert not any(
        line.startswith("  +") and not line.startswith("  +++") for line in ran.out.splitlines()
    )
