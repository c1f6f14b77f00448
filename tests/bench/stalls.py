"""The longest time that a text keeps the event loop from its next task, for each text of an attack.

`python -m tests.bench.stalls` sends each text in 4 MB as a tool's result, as a prompt, as a model's answer, as the
argument of a call and as an attachment, and says for how many milliseconds of the processor's time the loop did nothing
else. `--mb 1` sends less, `--only result` one way alone, `--text letters` one text. `--only schema` calls sixty tools of an MCP
server, whose schemas have patterns that take `re` exponential time, and prints the longest stall of each argument.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from loopline import Attachment, Bundle, Harness, tool
from loopline.errors import AttachmentError
from loopline.models import Json
from loopline.testing import Call, Say, ScriptedModel
from tests.bench.program import say
from tests.mcp.served import Served, plain
from tests.support.event_loop_stalls import TEXTS, watched
from tests.support.hostile_schemas import PATTERNS, arguments
from tests.support.hostile_schemas import TEXTS as TEXTS_OF_PATTERNS

MB = 1_000_000
_given = {"text": ""}


@tool(effect="read")
def fetch(query: str = "") -> str:
    """Give the text."""
    del query
    return _given["text"]


ATTACKED = Bundle(id="attack", tools=[fetch], limits={"plans": True})


def _as_result(text: str) -> list[tuple[str, Sequence[Say]]]:
    _given["text"] = text
    called = [Say("Look.", Call("attack.fetch")), Say("Seen.")]
    return [("go", called), ("more", called), ("again", [Say("Done.")])]


def _as_prompt(text: str) -> list[tuple[str, Sequence[Say]]]:
    return [(text, [Say("Seen.")]), ("more", [Say("Seen.")]), ("again", [Say("Done.")])]


def _as_answer(text: str) -> list[tuple[str, Sequence[Say]]]:
    return [("go", [Say(text)]), ("more", [Say("Seen.")]), ("again", [Say("Done.")])]


def _as_argument(text: str) -> list[tuple[str, Sequence[Say]]]:
    _given["text"] = "small"
    called = [Say("Look.", Call("attack.fetch", query=text)), Say("Seen.")]
    return [("go", called), ("more", [Say("Seen.")]), ("again", [Say("Done.")])]


ATTACHED = "Look at the file."


def _as_attachment(text: str) -> list[tuple[str, Sequence[Say]]]:
    del text
    return [(said, [Say("Seen.")]) for said in (ATTACHED, "more", "again")]


WAYS: dict[str, Callable[[str], list[tuple[str, Sequence[Say]]]]] = {
    "result": _as_result,
    "prompt": _as_prompt,
    "answer": _as_answer,
    "argument": _as_argument,
    "attachment": _as_attachment,
}


async def stall_ms(way: str, text: str, store: str = "memory:") -> float:
    """Milliseconds of the longest stall of three turns that a text takes part in."""
    turns = WAYS[way](text)
    script = [entry for _, entries in turns for entry in entries] + [Say("Done.")] * 30
    model = ScriptedModel(script, strict=False, window=200_000, aux={"summary": ["Short."] * 9})
    async with Harness.open(ATTACKED, store=store, model=model) as harness, watched() as stalls:
        conversation = harness.conversation("c")
        for said, _ in turns:
            files = [Attachment("a.txt", text.encode())] if said == ATTACHED else []
            with suppress(AttachmentError):
                await conversation.say(said, attachments=files)
    return stalls.longest_seconds * 1000


async def schema_stall_ms(argument: str) -> float:
    """Milliseconds of the longest stall while tools with exponential patterns are listed, called and answer."""
    with TemporaryDirectory() as folder:
        tools: list[Json] = [
            {
                "name": f"t{number}",
                "inputSchema": {
                    **arguments(a={"pattern": pattern}),
                    "patternProperties": {pattern: {}},
                },
                "outputSchema": arguments(a={"pattern": pattern}),
                "annotations": {"readOnlyHint": True},
            }
            for number, pattern in enumerate(PATTERNS)
        ]
        (Path(folder) / "tools.json").write_text(json.dumps(tools), "utf-8")
        served, structured = Served(Path(folder)), json.dumps({"a": argument})
        served.declare({"one": plain("works", TOOLS=f"{folder}/tools.json", STRUCTURED=structured)})
        calls = [
            Call(f"mcp.one.t{number}", **arguments_of_call)
            for number in range(len(PATTERNS))
            for arguments_of_call in ({"a": argument}, {argument: 1}, {})
        ]
        async with served.open(ScriptedModel([Say("", *calls), Say("Done.")])) as harness:
            await harness.server_tools()
            async with watched() as stalls:
                await harness.conversation("c").say("Go!", select_tools=False)
    return stalls.longest_seconds * 1000


async def print_schema_stalls() -> None:
    for length, text in product((28, 50_000), TEXTS_OF_PATTERNS):
        argument = text(length)
        milliseconds = await schema_stall_ms(argument)
        tell([f"{len(argument):,} of {argument[:3]}…{argument[-1]}", f"{milliseconds:.0f} ms"])


async def main(length: int, ways: Sequence[str], texts: Sequence[str]) -> None:
    """Print a table: a row for each text, a column for each way in."""
    await stall_ms("result", "small")
    tell([f"text of {length:,}", *ways])
    tell(["---"] * (len(ways) + 1))
    longest = 0.0
    for name in texts:
        times = [await stall_ms(way, TEXTS[name](length)) for way in ways]
        longest = max(longest, *times)
        tell([name, *(f"{time:.0f}" for time in times)])
    say(f"\nlongest: {longest:.0f} ms")


def tell(cells: Sequence[str]) -> None:
    say(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=4)
    parser.add_argument("--only", choices=[*WAYS, "schema"])
    parser.add_argument("--text", choices=[*TEXTS])
    given = parser.parse_args()
    if given.only in (None, "schema"):
        asyncio.run(print_schema_stalls())
    if given.only != "schema":
        ways = [given.only] if given.only else [*WAYS]
        texts = [given.text] if given.text else [*TEXTS]
        asyncio.run(main(int(given.mb * MB), ways, texts))
