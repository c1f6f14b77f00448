"""A chat shows a patch in colour once it is applied, and at the end of a turn what it produced."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.doors.command import Loopline, at_openai, write
from tests.doors.terminal import Terminal
from tests.support.peers import openai_replies as oai
from tests.support.peers.call_replies import Call
from tests.support.peers.openai_like import openai_like

BUNDLE = """from loopline import Bundle

bundle = Bundle(id="writer", configuration={"react": {"workspace": "latest"}})
"""
PATCH = "--- a/files/tea.md\\n+++ b/files/tea.md\\n@@ -1 +1 @@\\n-Water of 90 degrees.\\n+Water of 80 degrees.\\n"
SCRIPT = [
    ("react__write", '{"path": "files/tea.md", "content": "Water of 90 degrees.\\n"}'),
    ("react__patch", f'{{"patch": "{PATCH}"}}'),
    ("react__write", '{"path": "outputs/note.md", "content": "Cooler.\\n"}'),
    ("react__write", '{"path": "outputs/own.md", "content": "x", "visibility": "internal"}'),
]


def replies() -> list[oai.Says]:
    calls = [
        oai.Says(calls=(Call(id=f"call_{number}", name=name, arguments=arguments),))
        for number, (name, arguments) in enumerate(SCRIPT)
    ]
    return [*calls, oai.Says("It is cooler now.")]


def chat(loopline: Loopline) -> tuple[str, str]:
    """Return the screen of a chat after its turn, and everything that was written."""
    arguments = ["chat", "writer", "--model", "openai-chat:gpt-4o"]
    with Terminal(loopline, *arguments, columns=100, lines=40) as terminal:
        terminal.see("\n>")
        terminal.type("Cool it.\r")
        terminal.see("1 file of the project changed")
        return terminal.screen, terminal.shown


async def test_a_chat_shows_the_patch_and_the_files(tmp_path: Path) -> None:
    write(tmp_path, {"writer/__init__.py": BUNDLE})
    async with openai_like(*replies()) as peer:
        loopline = at_openai(Loopline(tmp_path), peer)
        screen, shown = await asyncio.to_thread(chat, loopline)
    rows = [row.rstrip() for row in screen.splitlines()]
    assert "-Water of 90 degrees." in rows
    assert "+Water of 80 degrees." in rows
    assert "\x1b[31m-Water of 90 degrees." in shown
    assert "\x1b[32m+Water of 80 degrees." in shown
    file = "file outputs/note.md · text/markdown, 8 bytes · fi:turn_1.outputs/note.md@1"
    assert file in rows
    assert rows.index("+Water of 80 degrees.") < rows.index("It is cooler now.") < rows.index(file)
    assert "1 file of the project changed: files/tea.md" in rows
    assert not any("own.md ·" in row for row in rows)


async def test_a_run_names_the_files_beside_its_answer(tmp_path: Path) -> None:
    write(tmp_path, {"writer/__init__.py": BUNDLE})
    async with openai_like(*replies()) as peer:
        loopline = at_openai(Loopline(tmp_path), peer)
        arguments = ["run", "writer", "Cool it.", "--model", "openai-chat:gpt-4o"]
        ran = await asyncio.to_thread(loopline, *arguments)
    assert ran.out.strip() == "It is cooler now."
    assert "+Water of 80 degrees." in ran.err
    assert "file outputs/note.md · text/markdown, 8 bytes · fi:turn_1.outputs/note.md@1" in ran.err
