"""Control characters in texts of strangers, shown at a real terminal by every command that shows such a text."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from loopline import (
    Attachment,
    Bundle,
    Harness,
    Output,
    OutputFile,
    Source,
    ToolContext,
    ToolError,
    tool,
)
from loopline.errors import LooplineError
from loopline.models import Json
from loopline.testing import Call, Say, ScriptedModel
from tests.bench.attacks.programs.trial import Draw, Trial
from tests.doors.command import Loopline, write
from tests.doors.terminal import Terminal
from tests.support.git_repositories import commit

MUST_HOLD = "no control character of a stranger's text reaches the terminal as it is"
CODES = [
    *(code for code in range(0x20) if chr(code) not in "\t\n"),
    *range(0x7F, 0xA0),
    *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
]
"""Controls of ASCII and Latin-1, separators, and characters that change the direction of a line."""


def marked(codes: list[int]) -> str:
    """Return a text that has each of the characters behind its code."""
    return "".join(f"<{code:x}:{chr(code)}>" for code in codes)


TEXT = marked(CODES)
EVIL = '''
from pathlib import Path
from loopline import BaseWorkflow, Bundle, ToolError, TurnPayload, TurnResult, tool

TEXT = Path(__file__).with_name("text").read_bytes().decode()


@tool(effect="read")
async def show() -> str:
    """Show."""
    return TEXT


@tool(effect="read")
async def refuse() -> str:
    """Refuse."""
    raise ToolError(TEXT)


class Evil(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        await self.store.put_attachment("a.txt", TEXT.encode())
        return await self.answer(TEXT)


bundle = Bundle(id="evil", workflow=Evil, tools=[show, refuse], configuration={"knowledge": {"repo": "", "docs_root": "docs"}})
'''
SERVER = "import sys; sys.stderr.write(open('text', newline='').read()); sys.exit(3)"
NOISY = """
import json, sys
TEXT = open("text", newline="").read()

def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()

for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message.get("method")
    sys.stdout.write("<9b:\\x9b>\\n{<7:\\x07>\\n")
    send({"method": "notifications/message", "params": {"level": "error", "logger": TEXT, "data": TEXT}})
    send({"method": TEXT, "params": {TEXT: TEXT}})
    send({"id": TEXT, "result": TEXT})
    if method == "initialize":
        info = {"name": TEXT, "title": TEXT, "version": TEXT}
        about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        send({"id": number, "result": {**about, "instructions": TEXT}})
    elif method == "tools/list":
        schema = {"type": "object"}
        odd = {"name": TEXT, "description": TEXT, "inputSchema": schema}
        work = {"name": "work", "title": TEXT, "description": TEXT, "inputSchema": schema}
        send({"id": number, "result": {"tools": [odd, work]}})
    elif number is not None:
        send({"id": number, "error": {"code": 1, "message": TEXT, "data": TEXT}})
"""
HERE = ("--store", "sqlite:///talk.db")
OF_C1 = ("-c", "c1", *HERE)
COMMANDS: dict[str, tuple[str, ...]] = {
    "timeline": ("timeline", *OF_C1, "--no-pager"),
    "timeline as JSON": ("timeline", *OF_C1, "--json"),
    "timeline of a dialect": ("timeline", *OF_C1, "--no-pager", "--dialect", "kdcube"),
    "list": ("timeline", "--list", *HERE, "--no-pager"),
    "list as JSON": ("timeline", "--list", *HERE, "--json"),
    "read": ("read", "ar:turn_1.user.prompt", "tc:turn_1.c1.result", "so:sources_pool[1]", *OF_C1),
    "read as JSON": ("read", "ar:turn_1.user.prompt", "tc:turn_1.c1.result", *OF_C1, "--json"),
    "read a ref that is not there": ("read", f"fi:turn_1.outputs/{marked([0x9B, 0x202E, 7])}", *OF_C1),
    "prompt": ("prompt", *OF_C1, "--no-pager"),
    "prompt as JSON": ("prompt", *OF_C1, "--json"),
    "export": ("export", *OF_C1),
    "files": ("files", "list", *OF_C1),
    "a file": ("files", "show", "page.md", *OF_C1),
    "search": ("search", "evil", "tea", *HERE),
    "search as JSON": ("search", "evil", "tea", *HERE, "--json"),
    "links": ("knowledge", "check", "evil", *HERE),
    "links as JSON": ("knowledge", "check", "evil", *HERE, "--json"),
    "check": ("check", "evil", *HERE),
    "check of servers": ("check", "served.py", *HERE),
    "check as JSON": ("check", "evil", *HERE, "--json"),
    "check of servers as JSON": ("check", "served.py", *HERE, "--json"),
    "check with a log": ("check", "served.py", *HERE, "-v"),
    "run beside servers": ("run", "served.py", "Go!", "-c", "c6", *HERE, "-v"),
    "a tool of a server": ("tool", "served.py", "mcp.noisy.work", *HERE, "-v"),
    "tool": ("tool", "evil", "evil.show", *HERE),
    "tool as JSON": ("tool", "evil", "evil.show", *HERE, "--json"),
    "tool that fails": ("tool", "evil", "evil.refuse", *HERE),
    "run": ("run", "evil", "Go!", "-c", "c2", *HERE),
    "run as JSON": ("run", "evil", "Go!", "-c", "c3", *HERE, "--json"),
    "run with a log": ("run", "evil", "Go!", "-c", "c4", *HERE, "-v"),
    "run with a text": ("run", "evil", marked([0x9B, 0x202E, 7]), "-c", "c5", *HERE),
    "audit": ("audit", *HERE),
    "a conversation that is not there": ("timeline", marked([0x9B, 0x202E, 7]), *HERE),
    "an unknown command": (marked([0x9B, 0x202E, 7]),),
    "a bundle that is not there": ("run", marked([0x9B, 0x202E, 7]), "x", *HERE),
    "a file that is not there": ("run", "evil", "x", "--attach", marked([0x9B, 0x202E, 7]), *HERE),
}  # fmt: skip


@tool(effect="read")
async def show(context: ToolContext) -> Output:
    """Show what a page says."""
    del context
    sources = [Source(url=f"https://a.example/{TEXT}", title=TEXT, text=TEXT)]
    files = [OutputFile("page.md", TEXT.encode())]
    return Output(TEXT, sources=sources, files=files)


@tool(effect="read")
async def refuse() -> str:
    """Refuse."""
    raise ToolError(TEXT)


async def fill(folder: Path) -> None:
    """Write the bundle, and a store with the text in every place."""
    document = TEXT.replace("\0", "")
    commit(
        folder,
        {
            f"docs/tea{chr(0x9B)}.md": f"# tea {document}\n\ntea {document} [a](b{chr(0x9B)}{chr(7)}.md)\n"
        },
    )
    served = f"from loopline import Bundle\nbundle = Bundle(id='served', configuration={{'mcp': {{'file': {str(folder / 'mcp.json')!r}}}}})\n"
    write(folder, {"evil/__init__.py": EVIL, "served.py": served})
    for place in (folder / "text", folder / "evil/text"):
        place.write_bytes(TEXT.encode())
    server: Json = {"command": sys.executable, "args": ["-c", SERVER]}
    noisy: Json = {"command": sys.executable, "args": ["-c", NOISY]}
    servers: Json = {"mcpServers": {"dead": server, "noisy": noisy}}
    (folder / "mcp.json").write_text(json.dumps(servers), "utf-8")
    model = ScriptedModel(
        [
            Call("page.show"),
            Call("page.refuse"),
            Call("react.plan", mode="new", steps=[TEXT]),
            Say(TEXT, thinking=TEXT),
            Say("Hello."),
        ],
        strict=False,
    )
    store = f"sqlite:///{folder}/talk.db"
    async with Harness.open(
        Bundle(id="page", tools=[show, refuse]), store=store, model=model
    ) as harness:
        talk = harness.conversation("c1")
        files = [Attachment(f"a{marked([0x9B, 0x202E, 7])}.txt", b"tea")]
        await talk.say(TEXT, attachments=files)
        await talk.feedback("turn_1", "ok", text=TEXT)
        named = harness.conversation(marked([0x9B, 0x202E, 7]))
        await asyncio.gather(named.say("Hello."), return_exceptions=True)


def run(folder: Path, arguments: tuple[str, ...]) -> str:
    with Terminal(Loopline(folder), *arguments, columns=200, lines=50) as terminal:
        terminal.end()
        return terminal.shown


async def attack(draw: Draw) -> AsyncIterator[Trial]:
    """Run each command, and look for each character in what it wrote."""
    folder = draw.subfolder("terminal")
    try:
        await fill(folder)
    except LooplineError as error:
        yield Trial("filling the store", MUST_HOLD, str(error))
        return
    for name, arguments in draw.programs(COMMANDS):
        arguments = tuple(argument.replace("\0", "") for argument in arguments)
        shown = await asyncio.to_thread(run, folder, arguments)
        for code in CODES:
            found = f"<{code:x}:{chr(code)}" in shown
            yield Trial(f"U+{code:04X} by {name}", MUST_HOLD, name if found else "")
