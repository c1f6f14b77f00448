"""Write a store with everything that a conversation may hold: `python -m tests.old_stores.golden COMMIT`.

Beside its rows it writes what is read of it: digests of the texts behind the refs of its blocks, the rounds whose prompts are rendered again, and
the head of each chain. What an earlier commit wrote stays as it is, and has to be opened for ever.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import sys
import zlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from loopline import (
    Agent,
    Attachment,
    BaseWorkflow,
    Bundle,
    Harness,
    Output,
    OutputFile,
    Source,
    Store,
    ToolContext,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline.clock import SystemClock
from loopline.conversations import Conversation
from loopline.crew import GraphOptions
from loopline.errors import ModelOverflow
from loopline.guards import ask_before
from loopline.models import JsonObject
from loopline.prompt import replayed_rounds
from loopline.react import PresetName
from loopline.testing import Call, Fail, FakeClock, Refuse, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import NEW_TURN, Body, Timeline, UserPrompt
from loopline.timeline import Entry as NewEntry
from tests.old_stores.every_body import bodies, stored_fields
from tests.support.child_runs import Line
from tests.support.crews import Scripts, analysis
from tests.support.sample_files import pdf, png

GOLDEN = Path(__file__).parent / "golden"
PRESETS: Sequence[PresetName] = get_args(PresetName)
WIRES = ("native", "text")
TEXT_PRESETS: Sequence[PresetName] = ("bare",)
"""With a model without calls; the presets that do not use those of a model that has them write text anyway."""
EVERY = "every body"
TOOLS = {
    **{f"{wire} {name}": ["golden.find", "golden.note"] for name in PRESETS for wire in WIRES},
    "long": ["golden.rows"],
    "chain": [],
    "overflow": [],
    "children": ["golden.share"],
    "approval": ["golden.spend"],
    "stopped": ["golden.spend"],
    "question": ["golden.choose"],
    "cut": ["golden.find", "golden.meanwhile"],
}
"""The tools of a conversation, if it does not have all of them: their schemas are stored with each."""
LONG = "long "
SUMMARY = "Goal: go on.\nNext steps: answer."
PLAN = '{"steps": [{"id": "1", "task": "do 1", "dependencies": []}]}'


@tool(effect="read")
def find(name: str) -> Output:
    """Find a page."""
    page = Source(title=name, url=f"https://example.org/{name}", text=f"{name} is 7.")
    return Output(f"{name} is on a page", sources=[page])


@tool(effect="read")
def rows(count: int) -> str:
    """Return so many rows."""
    return "\n".join(f"row {number} of the list" for number in range(count))


@tool(effect="write", key="note:{name}")
async def note(name: str, context: ToolContext) -> Output:
    """Write a file, and say so."""
    context.progress("writing")
    await context.emit("noted", {"name": name}, durable=True)
    return Output(f"noted {name}", files=[OutputFile(f"{name}.txt", f"{name}\n" * 5)])


@tool
def spend(amount: int) -> str:
    """Spend something."""
    return f"spent {amount}"


@tool(effect="read")
def choose(question: str, context: ToolContext) -> str:
    """Ask the user."""
    context.ask_user(question)


@tool(effect="read")
def fail(message: str) -> str:
    """Break."""
    raise ValueError(message)


@tool(effect="meta")
async def share(task: str, context: ToolContext) -> str:
    """Have a child run do something."""
    return (await context.spawn(task, limits={"max_iterations": 3})).answer


class Meanwhile:
    """What the user does while a tool runs."""

    talk: Conversation[Any] | None = None
    cut: asyncio.Event = asyncio.Event()


@tool(effect="write", key="user")
async def meanwhile(what: str) -> str:
    """Let the user do something."""
    talk = Meanwhile.talk
    assert talk is not None
    match what:
        case "followup":
            await talk.followup("And in German?", attachments=Attachment("more.txt", b"more"))
        case "steer":
            await talk.steer("No, in French.")
        case "recall":
            await talk.recall(await talk.followup("Never mind."))
        case "stop":
            stopping = asyncio.ensure_future(talk.stop())
            await asyncio.Event().wait()
            await stopping
        case _:
            Meanwhile.cut.set()
            await asyncio.Event().wait()
    return f"{what}, as it was"


class Golden(BaseWorkflow):
    """A loop with these tools, in the preset that the conversation is named after."""

    instructions = "Answer."
    tools = (find, rows, note, spend, choose, fail, share, meanwhile)
    guards = (ask_before(["golden.spend"]),)

    async def process(self, payload: TurnPayload) -> TurnResult:
        names: list[PresetName] = [name for name in PRESETS if payload.conversation.endswith(name)]
        preset: PresetName = names[0] if names else "bare"
        react = await self.build_react(preset=preset, tools=TOOLS.get(payload.conversation))
        result = await react.run(payload)
        if payload.conversation == "talk":
            await self.keep("list", ["tea", 7])
            await self.feedback("neutral", text="a machine was here", confidence=0.5)
        return result


bundle = Bundle(id="golden", workflow=Golden)
READER = Agent(name="reader", description="Reads pages.", leads=True, tools=["crews.*"])
WRITER = Agent(name="writer", description="Writes texts.", leads=True)
crews = Bundle(id="crews", tools=[find], agents=(READER, WRITER), graph=GraphOptions())


@dataclass(frozen=True)
class Weather:
    """The type of an answer."""

    degrees: int
    sky: str = "blue"


def look() -> list[Entry]:
    """A round with calls and the answer, and once more the answer for those that ask for it apart."""
    plan = Call("react.plan", mode="new", steps=["look", "answer"])
    return [
        Say(
            "… [1] I look.", plan, Call("golden.find", name="tea"), Call("golden.note", name="tea")
        ),
        "✓ [1]\nIt is 7 [[S:1]].",
        *(["It is 7, in full [[S:1]]."] * 8),
    ]


async def write_presets(store: str, clock: FakeClock) -> None:
    """A turn in each preset, with a model that calls tools, and in some with one that writes its calls."""
    for wire, native, presets in ((WIRES[0], True, PRESETS), (WIRES[1], False, TEXT_PRESETS)):
        for preset in presets:
            model = ScriptedModel(look(), tool_call=native, json_mode=True, strict=False)
            async with Harness.open(bundle, store=store, model=model, clock=clock) as harness:
                await harness.conversation(f"{wire} {preset}").say("How many?")


async def write_talk(store: str, clock: FakeClock) -> None:
    """A conversation in which its user does everything, its fork, and its copy that was imported."""
    script: list[Entry] = [
        Say("[D] tea it is", Call("react.plan", mode="new", steps=["a", "b"]), thinking="Hm."),
        Say("✓ [1] a", Call("golden.find", name="tea"), Call("golden.rows", count=2_000)),
        Say("", Call("golden.meanwhile", what="followup"), Call("golden.find", name="milk")),
        Say("", Call("golden.meanwhile", what="recall"), Call("golden.fail", message="no")),
        Call("react.read", paths=["tc:turn_1.c3.result", "so:sources_pool[1]"]),
        "Seven [[S:1,2]].",
        Call("golden.meanwhile", what="steer"),
        Call("react.hide", path="tc:turn_2.c9.result", replacement="steered"),
        Call("react.memory", mode="write", text="Ann drinks tea.", refs=["ar:turn_1.user.prompt"]),
        "Sept.",
        Call("golden.meanwhile", what="stop"),
        Call("golden.choose", question="Which one?"),
        Say("", Call("golden.spend", amount=3), Call("golden.spend", amount=4)),
        "Spent.",
        Refuse(),
        '{"degrees": 7}',
        *(["Not held."] * 8),
    ]
    files = [
        Attachment("long.txt", b"A line of a long file.\n" * 2_000),
        Attachment("a b.png", png(20)),
        Attachment("report.pdf", pdf("It is 7.")),
    ]
    options: JsonObject = {"react.memory": True}
    model = ScriptedModel(script, strict=False, vision=True, pdf=True)
    opened = Harness.open(bundle, store=store, model=model, clock=clock, properties=options)
    async with opened as harness:
        talk = Meanwhile.talk = harness.conversation("talk")
        await talk.say("How many?", attachments=files, max_iterations=9)
        await talk.feedback("turn_1", "ok", text="short")
        await talk.say("And now?", summary_hint="planner_input")
        await talk.feedback("turn_1", None)
        await talk.say("Stop it.")
        asked = await talk.say("Spend.")
        asked = await talk.resume({asked.pending[0].call_id: "the second"})
        await talk.resume({call.call_id: number > 0 for number, call in enumerate(asked.pending)})
        await talk.say("Refuse.")
        await talk.say("Weather?", output_type=Weather)
        await talk.followup("By the way.")
        await talk.say("Hold.", min_rounds=2)
        await talk.steer("It waits for the next turn.")
        await talk.fork(seq=len(await talk.blocks()) - 9, name="fork")
        document = await harness.conversation("text bare").export()
        await harness.load(document, name="imported")


async def write_long(store: str, clock: FakeClock) -> None:
    """A conversation that outgrows the window of its model, which says so once, and whose first model is refused."""
    script: list[Entry] = []
    for number in range(6):
        script += [Call("golden.rows", count=100), Call("golden.rows", count=90), f"Turn {number}."]
    script += ["So."] * 8
    small = ScriptedModel(
        script,
        aux={"summary": [SUMMARY] * 9},
        strict=False,
        window=5_000,
        output_limit=1_000,
        name="small",
    )
    async with Harness.open(bundle, store=store, model=small, clock=clock) as harness:
        for number in range(2):
            await harness.conversation("long").say(f"{LONG * 500}{number}")
    failing: list[Entry] = [Fail(ModelOverflow("too long: 9000 tokens, at most 6000")), "It is so."]
    model = ScriptedModel(failing, strict=False)
    async with Harness.open(bundle, store=store, model=model, clock=clock) as harness:
        await harness.conversation("overflow").say("Is it so?")
    shy, bold = ScriptedModel([Refuse()], name="shy"), ScriptedModel(["Yes."], name="bold")
    async with Harness.open(bundle, store=store, model=[shy, bold], clock=clock) as harness:
        await harness.conversation("chain").say("Is it so?")


async def write_crews(store: str, clock: FakeClock) -> None:
    """A child run of a tool, agents that work and are handed over to, and a graph."""
    lines: dict[str, list[Line]] = {
        "Share it": [Call("golden.share", task="Count them."), "Shared."],
        "Count them": ["Seven."],
    }
    kin = Harness.open(bundle, store=store, model=Scripts(lines), clock=clock)
    async with kin as harness:
        await harness.conversation("children").say("Share it")
    scripts = Scripts(
        {
            "Ask them": [
                Call("crew.delegate", agent="reader", task="Read it"),
                Call("crew.hand_over", agent="writer", note="Write it up."),
                "Written.",
            ],
            "Read it": [Call("crews.find", name="tea"), "Seven [[S:1]]."],
            "Begin": [Call("crew.graph", goal="count"), "Done."],
            "Plan how": [PLAN],
            "Say whether": [analysis("All six are done.")],
            "Your step: do 1": ["did 1"],
        }
    )
    async with Harness.open(crews, store=store, model=scripts, clock=clock) as harness:
        await harness.conversation("crew").say("Ask them")
        await harness.conversation("graph").say("Begin")


async def write_every_body(store: str, clock: FakeClock) -> None:
    """A conversation with each type of body, as short and as full as it can be."""
    async with Harness.open(bundle, store=store, model=ScriptedModel([]), clock=clock) as harness:
        key = harness.conversation(EVERY).conversation
        async with harness.log.lease(key) as term:
            first: Body = UserPrompt(text="Every body.")
            entries = [NewEntry(body=first, turn=NEW_TURN)]
            entries += [NewEntry(body=body, turn=1, round=1) for body in bodies()]
            await harness.log.append(key, entries, seen=0, term=term)


async def write_waiting(store: str, dump: Path) -> str:
    """Conversations that wait, and the dump of the store while another one is in the middle of a call."""
    script: list[Entry] = [
        Call("golden.spend", amount=5),
        Call("golden.choose", question="Which?"),
        Call("golden.spend", amount=6),
        Say("", Call("golden.find", name="tea"), Call("golden.meanwhile", what="cut")),
    ]
    model = ScriptedModel(script, strict=False)
    async with Harness.open(bundle, store=store, model=model, clock=SystemClock()) as harness:
        await harness.conversation("approval").say("Spend it.")
        await harness.conversation("question").say("Choose.")
        await harness.conversation("question").followup("Or both.")
        await harness.conversation("stopped").say("Spend more.")
        async with Harness.open(bundle, store=store, model=model) as other:
            await other.conversation("stopped").stop()
        queued = harness.conversation("queued").interrupts
        await queued.append(UserPrompt(text="Is it so?", limits={"max_iterations": 3}), NEW_TURN)
        await queued.append(UserPrompt(text="And so?"), NEW_TURN)
        talk = Meanwhile.talk = harness.conversation("cut")
        running = asyncio.ensure_future(talk.say("Do it."))
        await Meanwhile.cut.wait()
        await talk.followup("Soon.")
        with closing(sqlite3.connect(dump)) as database:
            text = "\n".join(database.iterdump())
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return f"{text}\n"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:10]


async def read_all(store: Store) -> JsonObject:
    """Return what is read of a store: for each conversation its head, refs and prompts."""
    heads = {item.conversation: item.head for item in await store.audit()}
    found: JsonObject = {}
    for key, head in sorted(heads.items(), key=lambda item: item[0].name):
        talk = store.conversation(key.name)
        blocks = await talk.blocks()
        rounds = [] if key.name == EVERY else [*replayed_rounds(Timeline(blocks))]
        same = [item.request.block.ref for item in rounds if item.divergence is None]
        reading = await talk.read([block.ref for block in blocks])
        texts = [f"{item.status} {_digest(item.text)}" for item in reading]
        found[key.name] = {"head": f"{head}", "read": [*texts], "replayed": [*same]}
    return found


async def write(folder: Path, commit: str) -> None:
    """Write the store as text, its blobs, and what is read of it."""
    path, clock = folder / "talk.db", FakeClock()
    store = f"sqlite:///{path}"
    for part in (write_presets, write_talk, write_long, write_crews, write_every_body):
        await part(store, clock)
    text = await write_waiting(store, path)
    (GOLDEN / f"{commit}.sql").write_text(text, "utf-8")
    blobs: JsonObject = {
        f"{blob.relative_to(folder)}": base64.b64encode(zlib.compress(blob.read_bytes())).decode()
        for blob in sorted((folder / "talk.db-blobs").rglob("*"))
        if blob.is_file() and blob.name != "lock"
    }
    again = folder / "again"
    again.mkdir()
    lay_out(text, blobs, again)
    async with Store.open(f"sqlite:///{again}/talk.db", read_only=True) as opened:
        document: JsonObject = {"blobs": blobs, "conversations": await read_all(opened)}
    written = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    (GOLDEN / f"{commit}.json").write_text(f"{written}\n", "utf-8")
    lines = [f"{name}: {' '.join(parts)}" for name, parts in sorted(stored_fields().items())]
    (GOLDEN / f"{commit}.fields.txt").write_text("\n".join([*lines, ""]), "utf-8")


def lay_out(text: str, blobs: JsonObject, folder: Path) -> None:
    """Make the store of its rows and blobs in a folder."""
    with closing(sqlite3.connect(folder / "talk.db")) as database:
        database.executescript(text)
    for name, data in blobs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zlib.decompress(base64.b64decode(f"{data}")))


def main() -> None:
    """Write what is to be kept under that name."""
    GOLDEN.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        asyncio.run(write(Path(folder), sys.argv[1]))


if __name__ == "__main__":
    main()
