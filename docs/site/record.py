"""Records commands in a terminal as pictures for the gallery: `python docs/site/record.py` writes `docs/gallery/*.svg`.

The pictures name no font of another host. Times and ids differ from run to run, so record only when a command prints something else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
GALLERY = ROOT / "docs" / "gallery"
COLUMNS = 100
SCENES: Mapping[str, Sequence[str]] = {
    "hello": (
        "loopline check bundles/hello",
        """loopline tool bundles/hello hello.greet '{"name": "Ann", "language": "French"}'""",
    ),
    "analyst": ("loopline check bundles/analyst",),
    "coder": ("loopline check bundles/coder",),
    "research": (
        "loopline check bundles/research",
        "loopline timeline q1 --types react.tool.call,file",
    ),
    "support": (
        "loopline check bundles/support",
        "loopline timeline q1 --types react.tool.call,react.tool.result",
    ),
}
"""The commands of each picture. Where the store has a conversation `q1`, `PLAYS` wrote it."""
PLAYS: Mapping[str, str] = {
    "research": """
from loopline import Harness
from loopline.testing import Call, ScriptedModel
script = [
    Call("react.write", path="outputs/report.md", content="# How hot is green tea brewed?"),
    "At seventy degrees. The report is in outputs/report.md.",
]
play = [("How hot is green tea brewed?", {})]
""",
    "support": """
from loopline import Harness
from loopline.testing import Call, ScriptedModel
script = [
    Call("support.current_page"),
    Call("support.find_order", number="A-17"),
    Call("support.refund", number="A-17", euros=30.0),
    "You get 30 euros back.",
]
play = [("I want half of my money back.", {"c1": "orders/A-17"}), ("", {"c3": True})]
""",
}
_RUN = """
import asyncio, json, pathlib, sys
pathlib.Path("orders.json").write_text(json.dumps(
    {"A-17": {"customer": "local", "item": "sencha", "price": 60.0, "refunds": {}}}))
async def main():
    async with Harness.open(sys.argv[1], store=None, model=ScriptedModel(script)) as harness:
        talk = harness.conversation("q1")
        for text, answers in play:
            if text:
                await talk.say(text)
            if answers:
                await talk.resume(answers)
asyncio.run(main())
"""


def record(name: str, folder: Path) -> None:
    """Run the commands of a picture in `folder`, and write what a terminal shows of them."""
    shutil.copytree(ROOT / "bundles", folder / "bundles")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": str(COLUMNS),
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
    }
    if name in PLAYS:
        program = PLAYS[name] + _RUN
        subprocess.run(
            [sys.executable, "-c", program, f"bundles/{name}"],
            cwd=folder,
            env=environment,
            check=True,
        )
    console = Console(
        record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    for command in SCENES[name]:
        console.print(Text(f"$ {command}", style="bold"))
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        console.print(Text.from_ansi(done.stdout.rstrip()))
    picture = console.export_svg(title=name, theme=DIMMED_MONOKAI, unique_id=name)
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    (GALLERY / f"{name}.svg").write_text(picture.replace("Fira Code", "ui-monospace"), "utf-8")


def main() -> None:
    """Record every picture, or those that are named on the command line."""
    for name in sys.argv[1:] or SCENES:
        with tempfile.TemporaryDirectory() as folder:
            record(name, Path(folder))


if __name__ == "__main__":
    main()
