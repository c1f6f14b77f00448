"""Files that are attached at the command line: what is shown of them, and what is refused."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import pytest

from tests.doors.bundles import QUESTION
from tests.doors.command import Loopline
from tests.support.sample_files import pdf, png

RUN = ("run", "guide", QUESTION)
ODD = "menu [1] 50% #2@é.png"


def test_attached_files_are_kept_and_listed_and_never_shown_as_base64(tea: Loopline) -> None:
    (tea.folder / "menu.pdf").write_bytes(pdf("Sencha is 4711."))
    (tea.folder / ODD).write_bytes(png(30))
    ran = tea(*RUN, "--attach", "menu.pdf", "--attach", ODD, "-c", "c1")
    assert ran.code == 0, ran.err
    listed = tea("timeline", "c1", "--types", "user.attachment").out
    output = tea("prompt", "-c", "c1").out
    for shown in (listed, output):
        assert "application/pdf, 1 page" in shown
        assert "image/png, 30×48 pixels" in shown
        assert "JVBERi0" not in shown
    assert "Sencha is 4711." in output
    ref = "fi:turn_1.user.attachments/menu.pdf"
    read = tea("read", ref, "-c", "c1", "--json").value["items"][0]
    assert b64decode(read["data"]) == (tea.folder / "menu.pdf").read_bytes()
    assert tea("read", ref, "-c", "c1").out == "[page 1]\nSencha is 4711.\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.pdf", "none.pdf cannot be attached: no such file"),
        ("docs", "docs cannot be attached: it is a folder"),
        ("empty.md", "empty.md is empty"),
        ("big.png", "big.png has 5,242,881 bytes: an image may have 5,242,880"),
    ],
)
def test_what_cannot_be_attached_is_told_and_nothing_is_kept(
    tea: Loopline, name: str, message: str
) -> None:
    (tea.folder / "empty.md").touch()
    image = png(2)
    (tea.folder / "big.png").write_bytes(image + bytes(5 * 1024 * 1024 + 1 - len(image)))
    ran = tea(*RUN, "--attach", name, "-c", "c1")
    assert (ran.code, ran.out) == (1, "")
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert "no conversation 'c1'" in tea("timeline", "c1").err


def test_a_file_without_words_is_a_wrong_use(tea: Loopline, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("x")
    ran = tea("run", "guide", "--attach", str(tmp_path / "a.md"))
    assert ran.code == 2
    assert "give a text with it" in ran.err


def test_a_chat_sends_a_file_with_what_is_said_next(tea: Loopline) -> None:
    (tea.folder / "a.md").write_text("Sencha.")
    text = f"/attach none.md\n{QUESTION}\n/attach a.md\n{QUESTION}\n"
    ran = tea("chat", "guide", "-c", "c1", stdin=text)
    assert "none.md cannot be attached: no such file" in ran.err
    listed = tea("timeline", "c1", "--types", "user").out.splitlines()
    assert [line.split("\t")[3] for line in listed] == [
        "user.prompt",
        "user.prompt",
        "user.attachment",
    ]
