"""Conversations for the web page: a bundle with a tool of each kind, and a scripted model that uses all of them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from loopline import Bundle, Harness, Output, OutputFile, Source, ToolContext, ToolError, tool
from loopline.models import Price, Usage
from loopline.react import Allow, Ask, GuardedCall, Verdict
from loopline.testing import Call, Say, ScriptedModel
from tests.support.hostile_conversation import in_thread

NOTES = """# Green tea

Sencha is steeped at 70 to 80 degrees for one to two minutes.
Gyokuro is steeped at 50 to 60 degrees for two minutes.
Water that boils makes green tea bitter.
"""


LEAF = bytes(range(256)) * 40


@tool(effect="read")
async def find(words: str) -> Output:
    """Search the notes about tea."""
    await asyncio.sleep(0.02)
    text = "Sencha is steeped at 70 to 80 degrees for one to two minutes."
    return Output(
        f"1 passage about {words}\n{text}",
        sources=[
            Source(
                url="https://tea.example/notes/green",
                title="Green tea",
                path="notes/green.md",
                lines=(3, 5),
                text=NOTES.partition("\n\n")[2],
            )
        ],
    )


@tool(effect="read")
async def price(of: str) -> dict[str, object]:
    """Look up a price."""
    await asyncio.sleep(0.03)
    if of == "oolong":
        raise ToolError("oolong is not in the list of prices: ask for sencha, gyokuro or matcha")
    return {"tea": of, "grams": 100, "euros": 12.5, "in_stock": True}


@tool(effect="write", key="shop")
async def order(tea: str, grams: int) -> Output:
    """Order tea."""
    receipt = f"{grams} g of {tea}\n".encode()
    return Output(
        f"ordered {grams} g of {tea}",
        files=[OutputFile("receipt.txt", receipt), OutputFile("leaf.bin", LEAF)],
    )


@tool(effect="read")
async def large(characters: int) -> str:
    """Return a long text."""
    line = "The leaves are picked in April and steamed within a day.\n"
    return (line * (characters // len(line) + 1))[:characters]


@tool(effect="meta")
async def ask(task: str, context: ToolContext) -> str:
    """Have a child run do something."""
    result = await context.spawn(task)
    return result.answer


class AsksBeforeOrders:
    async def before(self, call: GuardedCall) -> Verdict:
        if call.tool == "tea.order":
            return Ask(f"Order {call.arguments.get('grams')} g of {call.arguments.get('tea')}?")
        return Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        del call
        return text


TEA = Bundle(
    id="tea",
    instructions="You know everything about tea. Cite the notes, and ask before you order.",
    tools=[find, price, order, large, ask],
    guards=[AsksBeforeOrders()],
    limits={"plans": True},
)
PRICE = Price(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75)
ANSWER = """Sencha wants **water of 70 to 80 degrees** and one to two minutes [[S:1]]. Boiling water makes it bitter [[S:1]].

| tea | degrees | minutes |
| --- | --- | --- |
| sencha | 70–80 | 1–2 |
| gyokuro | 50–60 | 2 |

```python
def steep(minutes: int) -> str:
    return f"wait {minutes} minutes"
```

1. Let the water cool.
2. Pour it over the leaves.
"""


def usage(prompt: int, output: int, cached: int = 0) -> Usage:
    return Usage(input_tokens=prompt, output_tokens=output, cache_read_tokens=cached)


SCRIPT: Sequence[Say | str] = [
    Say(
        "",
        Call("react.plan", mode="new", steps=["look into the notes", "compare prices", "answer"]),
        thinking="The user asks how to steep sencha. The notes should say it; prices may help.",
        usage=usage(2_300, 120),
    ),
    Say(
        "I look into the notes and at three prices.\n✓ [1] looked into the notes",
        Call("tea.find", words="sencha temperature"),
        Call("tea.price", of="sencha"),
        Call("tea.price", of="gyokuro"),
        Call("tea.price", of="oolong"),
        usage=usage(2_650, 180, 2_300),
    ),
    Say(
        "✓ [2] compared prices", Call("tea.large", characters=9_000), usage=usage(3_400, 60, 2_600)
    ),
    Say(ANSWER, thinking="Now I can answer with the notes.", usage=usage(6_100, 220, 3_400)),
    Say(
        "I order it, and have somebody check the harvest.",
        Call("tea.ask", task="Which harvest is best?"),
        Call("tea.order", tea="sencha", grams=100),
        usage=usage(6_500, 90, 6_100),
    ),
    Say("The first harvest.", usage=usage(800, 20)),
    Say("I have ordered 100 g of sencha of the first harvest.", usage=usage(6_900, 40, 6_500)),
]


def tea_model(script: Sequence[Say | str] = SCRIPT, *, strict: bool = False) -> ScriptedModel:
    return ScriptedModel(
        list(script), strict=strict, thinking=True, price=PRICE, name="scripted:tea"
    )


async def write_tea_store(file: Path) -> None:
    """Write a store with a conversation of two turns, the second of which has waited for an approval."""
    store = f"sqlite:///{file}"
    async with Harness.open(TEA, store=store, model=tea_model()) as harness:
        talk = harness.conversation("brewing")
        await talk.say("How do I steep sencha, and what does it cost?")
        paused = await talk.say("Order 100 g of it, and tell me which harvest is best.")
        call_ids = [call.call_id for call in paused.pending]
        await talk.resume(dict.fromkeys(call_ids, True))
        await talk.feedback(paused.turn_id, "ok")


LONG = 5 * 1024 * 1024


async def tell(store: str, text: str = "How long?") -> None:
    """Have a text answered with "Three." in the conversation c1 of a store."""
    guide = Bundle(id="guide", instructions="Answer.")
    async with Harness.open(guide, store=store, model=ScriptedModel(["Three."])) as harness:
        await harness.conversation("c1").say(text)


def write_damaged_store(file: Path) -> str:
    """Write a store with a conversation whose first block does not match its digest, and return its URL."""
    store = f"sqlite:///{file}"
    in_thread(tell(store))
    with sqlite3.connect(file) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in names:
            database.execute(f'DROP TRIGGER "{name}"')
        database.execute("UPDATE blocks SET body = replace(body, 'How', 'Why') WHERE seq = 1")
    database.close()
    return store


def write_long_session(folder: Path) -> Path:
    """Write the file of a session with one message of `LONG` characters."""
    file = folder / "session.jsonl"
    message = {"role": "user", "content": "x" * LONG}
    file.write_text(json.dumps({"type": "user", "message": message}), encoding="utf-8")
    return file
