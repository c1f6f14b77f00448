"""Heard is stored: what a listener has of a channel when it closes is the text of its blocks, in every protocol.

Models ramble in marks, channels, citations and near misses of calls; replies break off, are cut off, are stopped
by the user, and come in pieces that end anywhere.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import Harness, models
from loopline import timeline as tl
from loopline.errors import ModelUnavailable
from loopline.events import Delta, Event
from loopline.prompt import protocol
from loopline.react import Limits
from loopline.testing import FakeClock
from tests.support.examples import examples
from tests.support.playground import bundle

NAMES: list[models.ProtocolName] = ["native", "json", "tagged", "thought_action"]

COMMON = ["@ ", "@\n", "\n\n", " ", "✓ [1] @\n", "- ✗ 2. @\n", "✓ 12 @ tests\n", "✓ [1] ", "[[S:1]]",
          "[[S:2,1]]", "[[S:9]]", "[[S:", "`", "```\n", "é@ "]  # fmt: skip
OWN: dict[models.ProtocolName, list[str]] = {
    "native": [],
    "json": [
        '{"action": "final_answer", "notes": "@", "answer": "@ [[S:1]]"}',
        '{"action": "final_answer", "notes": "", "answer": "✓ [1] @\\n@\\u00e9\\ud83d\\ude00\\q"}',
        '{"action": "call_tool", "notes": "✓ [2] @", "tool": "play.look", "arguments": {"text": "@"}}',
        '{"action": "final_answer", "why": {"notes": "@"}, "answer": " @ "}',
        '{"answer": "@', '"}', '{"x": "@"}', "```json\n", '{"answer": "@"}', '"@": 1, ',
    ],
    "tagged": [
        "<channel:answer>", "</channel:answer>", "<channel:answer>@ [[S:2]]</channel:answer>",
        "<channel:thinking>@</channel:thinking>", "<channel:canvas>@ [[S:2]]</channel:canvas>",
        '<tool_call name="play.look">{"text": "@"}</tool_call>', "<channel:thinking> @",
        '<tool name="@play.look" args=\'{"text": "@"}\'/>', "<agent_call agent='a' task='@'/>",
        '{"tool_call": "play.look", "args": {"text": "@"}}', "[tool_call: @]", "<\\tool_call> @", "<chan",
        '<channel:decision>{"action": "final_answer", "notes": "@", "answer": "@"}</channel:decision>',
    ],
    "thought_action": [
        "Thought: @\n", "\nThought: @", "\nFinal Answer: @ [[S:1]]", "\nAction: play.look\n",
        'Action Input: {"text": "@"}\n', '\nInput: {"text": "@"}\n', "\nObservation: @\n",
        "\\Thought: @\n", "**Final Answer:** ✓ [1] @\n@", "\n  \\\\Action: @",
    ],
}  # fmt: skip
"""Pieces of what models write, by protocol; `@` stands for a word that nothing else has."""


NEVER = -1


@dataclass(frozen=True)
class Drawn:
    """A reply: its pieces, how it ends, what it calls, and whether an attempt breaks off before it.

    The user stops the turn before the piece number `stopped`, where there is one.
    """

    text: str
    ends: Sequence[int]
    stop: models.StopReason
    thinking: str
    calls: bool
    breaks: bool
    stopped: int

    @property
    def pieces(self) -> list[str]:
        ends = sorted({0, len(self.text), *(end % (len(self.text) + 1) for end in self.ends)})
        return [self.text[start:end] for start, end in pairwise(ends)]


@st.composite
def drawn(draw: st.DrawFn, name: models.ProtocolName) -> Drawn:
    atoms = draw(st.lists(st.sampled_from([*COMMON, *OWN[name], *OWN[name]]), max_size=7))
    text = "".join(atoms)
    if draw(st.booleans()):
        text = protocol(name).render_answer(text or "@").text
    words = iter(range(1_000))
    salt = draw(st.integers(0, 10**9))
    text = re.sub("@(?!play)", lambda _: f"w{salt}x{next(words)}", text)
    return Drawn(
        text=text,
        ends=draw(st.lists(st.integers(0, 200), max_size=12)),
        stop=draw(st.sampled_from(["stop", "stop", "stop", "length", "refusal"])),
        thinking=draw(st.sampled_from(["", "", f"hm t{salt}"])),
        calls=name == "native" and draw(st.booleans()),
        breaks=draw(st.sampled_from([False, False, True])),
        stopped=draw(st.sampled_from([NEVER, NEVER, NEVER, 0, 1, 2, 5])),
    )


@dataclass
class Rambling:
    """A model that finds two sources, begins a plan if it is to, rambles, and comes to an end."""

    name_of_protocol: models.ProtocolName
    replies: list[Drawn]
    plans: bool
    name: str = "rambling"
    capabilities: models.Capabilities = field(
        default_factory=lambda: models.Capabilities(window=200_000)
    )
    said: list[str] = field(default_factory=list[str])
    requests: int = 0
    stop: Callable[[], Awaitable[object]] = asyncio.Event().wait

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        self.requests += 1
        spoken = protocol(prompt.options.protocol)
        if self.requests == 1:
            calls = [
                models.ToolCall(name="play.find", arguments={"url": f"https://x.example/{n}"})
                for n in "ab"
            ]
            if self.plans:
                steps = ["look", "tell"]
                calls.append(
                    models.ToolCall(name="react.plan", arguments={"mode": "new", "steps": [*steps]})
                )
            message = spoken.render_calls("", calls)
            yield models.Reply(text=message.text, calls=message.calls)
        elif not self.replies or not prompt.options.allow_calls:
            text = spoken.render_answer("The end.").text
            yield models.TextDelta(text=text)
            yield models.Reply(text=text)
        else:
            async for event in self._ramble():
                yield event

    async def _ramble(self) -> AsyncIterator[models.TextDelta | models.Reply]:
        reply = self.replies[0]
        if reply.breaks:
            self.replies[0] = replace(reply, breaks=False)
            for piece in reply.pieces[:3]:
                yield models.TextDelta(text=piece)
            raise ModelUnavailable("it broke off")
        self.replies.pop(0)
        if reply.thinking:
            yield models.TextDelta(text=reply.thinking, channel="thinking")
        for place, piece in enumerate(reply.pieces):
            if place == reply.stopped:
                await self.stop()
            yield models.TextDelta(text=piece)
        self.said += [reply.text, reply.thinking]
        call = models.ToolCall(name="play.look", arguments={"text": "it"})
        calls = (call,) if reply.calls and reply.stop == "stop" else ()
        yield models.Reply(
            text=reply.text, calls=calls, thinking=reply.thinking, stop_reason=reply.stop
        )


@dataclass(frozen=True)
class Advice:
    answer: str
    minutes: int


OUTPUTS: Sequence[type | None] = [None, None, str, int, Advice]
"""What the answer is to be, of which a rambling model knows nothing."""


async def streamed(model: Rambling, limits: Limits, output: type | None) -> list[Event]:
    async with Harness.open(bundle, store="memory:", model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        stops = set[asyncio.Future[bool]]()

        async def stop() -> None:
            """Stop the turn, and wait to be cut off."""
            stops.add(asyncio.ensure_future(talk.stop()))
            await asyncio.Event().wait()

        model.stop = stop
        events = [event async for event in talk.stream("go", output_type=output, **limits)]
        assert all(await asyncio.gather(*stops))
        return events


@dataclass
class Screen:
    """What a listener has of each channel, checked when blocks say what it was."""

    timeline: tl.Timeline
    texts: dict[str, str] = field(default_factory=dict[str, str])
    blocks: list[tl.Block] = field(default_factory=list[tl.Block])

    def take(self, event: Event) -> None:
        match event:
            case Delta(type="delta", channel=channel, text=text):
                self.texts[channel] = self.texts.get(channel, "") + text
            case Delta(type="reset", channel=channel):
                self.texts.pop(channel, None)
            case tl.Block(
                body=tl.Decision() | tl.Thinking() | tl.Notes() | tl.Completion() | tl.Draft()
            ):
                self.blocks.append(event)
            case tl.Block(body=tl.RoundStart() | tl.ToolCalled() | tl.Exit()):
                self.close()
            case _:
                pass

    def close(self) -> None:
        blocks, self.blocks = self.blocks, []
        stored: dict[str, str] = dict.fromkeys(("thinking", "notes", "answer", "draft"), "")
        for block in blocks:
            for channel, text in self.text(block):
                stored[channel] += text
        if any(goes_on(block) for block in blocks) and not stored["answer"]:
            if stored["thinking"]:
                assert self.texts.pop("thinking") == stored["thinking"]
        elif blocks:
            draft = stored.pop("draft")
            assert self.texts.pop("draft", draft) == draft
            for channel, text in stored.items():
                assert self.texts.pop(channel, "") == text, channel
            assert not self.texts

    def text(self, block: tl.Block) -> Iterator[tuple[str, str]]:
        match block.body:
            case tl.Thinking(text=text):
                yield "thinking", text
            case tl.Notes(text=text):
                yield "notes", text
            case tl.Draft(text=text):
                yield "draft", text.strip()
            case tl.Completion(text=text):
                pool = self.timeline.pool
                marks = tl.citations.Marks(pool.sources)
                yield "answer", tl.citations.resolve(text, marks, newest=pool.newest)
            case _:
                pass


def goes_on(block: tl.Block) -> bool:
    match block.body:
        case tl.Decision(raw=raw, stop_reason="length"):
            return bool(raw)
        case _:
            return False


def check(
    name: models.ProtocolName,
    replies: list[Drawn],
    plans: bool,
    synthesizes: bool,
    output: type | None = None,
) -> None:
    limits: Limits = {"protocol": name, "max_iterations": 7}
    if synthesizes:
        limits["answer_mode"] = "synthesize"
    model = Rambling(name, list(replies), plans)
    events = asyncio.run(streamed(model, limits, output))
    blocks = [event for event in events if isinstance(event, tl.Block)]
    screen = Screen(tl.Timeline(blocks))
    for event in events:
        screen.take(event)
    screen.close()
    text = "".join(tl.encode(block.body)[2] for block in blocks)
    for word in re.findall(r"\bw[0-9]+x[0-9]+|\bt[0-9]+", " ".join(model.said)):
        assert word in text


@pytest.mark.parametrize("name", NAMES)
@examples(100)
@given(data=st.data())
def test_what_a_listener_has_of_a_channel_when_it_closes_is_the_text_of_its_blocks(
    name: models.ProtocolName, data: st.DataObject
) -> None:
    replies = data.draw(st.lists(drawn(name), max_size=4))
    plans, synthesizes = data.draw(st.booleans()), data.draw(st.sampled_from([False, False, True]))
    check(name, replies, plans, synthesizes, data.draw(st.sampled_from(OUTPUTS)))
