"""Conversations in a small window, as one process lives them or as many that come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from msgspec import structs

from loopline import Bundle, Harness, Output, Passage, Source, ToolError, tool
from loopline import timeline as tl
from loopline.errors import ModelError
from loopline.models import Capabilities, Prompt, Reply, TextDelta, ToolCall, Usage
from loopline.testing import Call, FakeClock

HERE = tl.ConversationKey(name="c")
SMALL = Capabilities(window=8_000, output_limit=1_500)
LONG = "seven words that say nothing at all " * 90

COMMIT = "0123456789" * 4


@tool(effect="read")
async def look(text: str) -> str:
    """Say the text back."""
    return f"seen {text}"


@tool(effect="read")
async def page(url: str) -> Output:
    """Find a page; one that has no address is known by its text."""
    source = Source(url=url, title="A page") if url else Source(url="", title="A note", text=LONG)
    return Output(f"one page: {url}", sources=[source])


@tool(effect="write", key="{name}")
async def write(name: str) -> Output:
    """Write something down."""
    if name == "nothing":
        raise ToolError("there is nothing to write")
    return Output(f"written {name}", artifact={"name": name})


async def passage(ref: str) -> Passage:
    path, _, lines = ref.removeprefix("ks:").partition("#")
    path = path.partition("@")[0]
    span = f"#{lines}" if lines else ""
    text = "".join(f"line {number} of {path}\n" for number in range(1, 3 if lines else 30))
    name = f"ks:{path}@{COMMIT}{span}"
    return Passage(ref=name, title=path, text=text, path=path, commit=COMMIT, lines=(0, 0))


bundle = Bundle(id="desk", tools=[look, page, write], knowledge_read_fn=passage)
"""Its tools need no threads, so that the order of results is always the same."""

calls = st.sampled_from(
    [
        Call("desk.look", text=LONG),
        Call("desk.look", text=f"{LONG} of launch_code 4711 in docs/launch.md"),
        Call("desk.page", url="https://example.com/a"),
        Call("desk.page", url="https://example.com/b"),
        Call("desk.page", url=""),
        Call("desk.write", name="y"),
        Call("desk.write", name="nothing"),
        Call("react.read", paths=["ks:docs/a.md", "ks:docs/b.md@0123456#L1-L2"]),
        Call("react.read", paths=[f"ks:docs/a.md@{COMMIT}#L3-L4", "tc:turn_2.c3.call"]),
        Call("react.plan", mode="new", steps=["one", "two"]),
        Call("react.plan", mode="close", plan_id="unknown"),
        Call("react.read", paths=["tc:turn_1.c1.result", "so:sources_pool[1]", "ar:turn_2.x"]),
        Call("react.read", paths=["ar:turn_1.user.prompt", "artifact:conv:sources_pool"]),
        Call("react.hide", path="tc:turn_1.c1.result", replacement="hidden"),
        Call("react.hide", path="tc:turn_1.c2.result", replacement="hidden"),
    ]
)
notes = st.sampled_from(["", "… [1] going", "✓ [1] done\n✗ [2] not", "[D] it was decided"])
meanwhile = st.sampled_from(
    ["", "", "", "", "followup", "steer", "prompt", "recalled", "ok", "not_ok"]
)


@dataclass(frozen=True)
class Step:
    """What the model says in a round, and what is said beside it from elsewhere."""

    notes: str
    calls: list[ToolCall]
    meanwhile: str
    counted: float


acting = st.builds(
    Step,
    notes,
    st.lists(calls, min_size=1, max_size=3),
    meanwhile,
    st.sampled_from([0.0, 1.0, 1.6, 2.1]),
)
Script = Sequence[Sequence[Step]]
scripts: st.SearchStrategy[Script] = st.lists(st.lists(acting, max_size=4), min_size=4, max_size=12)
"""For each turn its rounds before the answer."""


@dataclass
class ScriptedSteps:
    """A model that takes the steps of each turn, whoever asks it, and then answers."""

    log: tl.TimelineLog
    steps: list[Step] = field(default_factory=list[Step])
    requests: list[Prompt] = field(default_factory=list[Prompt])
    conversation: tl.ConversationKey = HERE
    name: str = "acting"
    capabilities: Capabilities = SMALL

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        self.requests.append(prompt)
        if prompt.purpose == "summary":
            if len(self.requests) % 2:
                raise ModelError("it is not to be had")
            yield Reply(text="In short: much was looked at.")
            return
        step = self.steps.pop(0) if self.steps and prompt.options.allow_calls else None
        if step is None:
            yield Reply(text="It is so [[S:1]].")
            return
        await self._say(step.meanwhile)
        usage = Usage(input_tokens=int(len(str(prompt)) / 4 * step.counted))
        yield Reply(text=step.notes, calls=tuple(step.calls), usage=usage)

    async def _say(self, what: str) -> None:
        summary = await self.log.find(self.conversation)
        turn, head = (summary.turns, summary.head) if summary else (1, 0)
        record: dict[str, list[tl.Entry]] = {
            "followup": [tl.Entry(body=tl.UserFollowup(text="also this"), turn=turn)],
            "steer": [tl.Entry(body=tl.UserSteer(text="rather this"), turn=turn)],
            "prompt": [tl.Entry(body=tl.UserPrompt(text="another matter"), turn=tl.NEW_TURN)],
            "recalled": [
                tl.Entry(body=tl.UserPrompt(text="never mind"), turn=tl.NEW_TURN),
                tl.Entry(body=tl.UserRecalled(said=head + 1), turn=turn + 1),
            ],
            "ok": [
                tl.Entry(body=tl.Feedback(reaction="ok", text="well done"), turn=max(turn - 1, 1))
            ],
            "not_ok": [tl.Entry(body=tl.Feedback(reaction="not_ok"), turn=turn)],
        }
        if what:
            await self.log.append(self.conversation, record[what], seen=head)


async def run_script(
    script: Script, *, afresh: bool, log: tl.TimelineLog | None = None
) -> tuple[tl.TimelineLog, ScriptedSteps]:
    """The turns of a script; `afresh` each in a process of its own, which knows only the log."""
    clock = FakeClock()
    log = log or tl.MemoryLog(clock)
    model = ScriptedSteps(log)
    harness = Harness.open(bundle, store=log, model=model, clock=clock)
    async with harness:
        for number, steps in enumerate(script, start=1):
            model.steps = list(steps)
            text = f"question {number} about docs/part{number}.md"
            if afresh:
                async with Harness.open(
                    bundle, store=log, model=model, clock=clock
                ) as other_harness:
                    await other_harness.conversation(HERE.name).say(text)
            else:
                await harness.conversation(HERE.name).say(text)
    return log, model


def timeless(blocks: Sequence[tl.Block]) -> list[tuple[int, int, int, int, int, tl.Body]]:
    """The blocks without the time they took, and without the number of the harness that sent a message."""
    return [
        (block.seq, block.turn, block.round, block.n, block.term, _untimed(block.body))
        for block in blocks
    ]


def _untimed(body: tl.Body) -> tl.Body:
    match body:
        case tl.ToolResult() | tl.Exit():
            return structs.replace(body, elapsed_ms=0.0)
        case tl.UserPrompt():
            return structs.replace(body, sender=None)
        case _:
            return body
