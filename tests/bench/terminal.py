"""How soon what a model streams stands on the terminal: `python -m tests.bench.terminal`.

A server of this process sends a word every so often to `loopline chat` in a pseudo-terminal, which is read by an
emulator. An approval, a followup and a steer come in the middle, each typed. The table says how long the words took
from the moment before each was sent until it stood on the screen. `--recording FILE` keeps every screen with its time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, sleep

from rich.console import Console
from rich.table import Table

from loopline.models import ToolCall
from tests.doors.command import Loopline, write
from tests.doors.terminal import Terminal
from tests.support.paced_server import PacedServer

COLUMNS, LINES = 80, 24
WORDS = 60
TARGET_MS = 100
LINE_WORDS = 9
"""A line of the model ends after so many words, sooner than the terminal's."""
BUNDLE = """from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult, tool
from loopline.react import Allow, Ask, GuardedCall, Verdict

TOOLS_SPECS = [{"module": __name__, "alias": "shop"}]


@tool(effect="write", key="shop")
async def buy(what: str) -> str:
    \"\"\"Buy something.\"\"\"
    return f"bought {what}"


class Careful:
    async def before(self, call: GuardedCall) -> Verdict:
        return Ask("Buy milk?")

    async def after(self, call: GuardedCall, text: str) -> str:
        return text


class Shopper(BaseWorkflow):
    guards = (Careful(),)

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(tools_module=__name__)
        return await react.run(payload)


bundle = Bundle(id="shopper", workflow=Shopper)
"""


@dataclass(slots=True)
class Watched:
    """When each word was sent, when it stood on the screen, and every screen there was."""

    began: float = field(default_factory=perf_counter)
    sent: dict[str, float] = field(default_factory=dict[str, float])
    seen: dict[str, float] = field(default_factory=dict[str, float])
    frames: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])

    def draw(self, screen: str) -> None:
        """Take what stands on the screen now."""
        now = perf_counter()
        if self.frames and self.frames[-1][1] == screen:
            return
        self.frames.append((now - self.began, screen))
        for word in self.sent.keys() - self.seen.keys():
            if word in screen:
                self.seen[word] = now

    def late(self, reply: int) -> list[float]:
        """The milliseconds that each word of a reply took which came to the screen, in order."""
        own = [word for word in self.sent if word.startswith(f"{reply}w")]
        return [(self.seen[word] - self.sent[word]) * 1_000 for word in own if word in self.seen]


def reply(
    watched: Watched, number: int, pause: float, then: Callable[[int], None] | None = None
) -> Callable[[], Iterator[str | ToolCall]]:
    """The n-th reply: words in lines, `then` is called after each; the first one ends with a call."""

    def pieces() -> Iterator[str | ToolCall]:
        for count in range(1, WORDS + 1):
            text = f"{number}w{count:02}"
            end = "\n" if count % LINE_WORDS == 0 else " "
            watched.sent[text] = perf_counter()
            yield f"{text}{end}"
            sleep(pause)
            if then is not None:
                then(count)
        if number == 1:
            yield ToolCall(name="shop.buy", arguments={"what": "milk"})

    return pieces


def record(pause: float) -> Watched:
    """Chat once, with an approval, a followup and a steer, and keep what was seen."""
    watched, terminals = Watched(), list[Terminal]()

    def typing(at: int, keys: str) -> Callable[[int], None]:
        return lambda count: terminals[0].type(keys) if count == at else None

    replies = [
        reply(watched, 1, pause),
        reply(watched, 2, pause, typing(WORDS // 3, "and oat milk\r")),
        reply(watched, 3, pause, typing(WORDS // 2, "/steer be brief\r")),
        reply(watched, 4, pause),
    ]
    with tempfile.TemporaryDirectory() as folder, PacedServer(replies) as server:
        write(Path(folder), {"shopper/__init__.py": BUNDLE})
        loopline = Loopline(Path(folder), {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "none"})
        model = ("--model", "openai-chat:gpt-4o")
        with Terminal(
            loopline, "chat", "shopper", *model, columns=COLUMNS, lines=LINES, drawn=watched.draw
        ) as terminal:
            terminals.append(terminal)
            terminal.see("\n>")
            terminal.type("go\r")
            terminal.see("waits for your answer")
            terminal.type("yes\r")
            terminal.see(" rounds · ")
            terminal.type("/quit\r")
            terminal.end()
    return watched


def main() -> None:
    """Chat at some paces, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between words")
    parser.add_argument("--recording", type=Path, help="the file that keeps every screen")
    parse_args = parser.parse_args()
    watched = record(parse_args.pause)
    table = Table("reply", "words", "not shown", "median, ms", "p95, ms", "most, ms", "target")
    names = ("before the approval", "with a followup", "until the steer", "after the steer")
    for number, name in enumerate(names, start=1):
        late = watched.late(number)
        sent = sum(word.startswith(f"{number}w") for word in watched.sent)
        p95 = quantiles(late, n=20)[-1]
        figures = [f"{median(late):.1f}", f"{p95:.1f}", f"{max(late):.1f}"]
        table.add_row(name, f"{sent}", f"{sent - len(late)}", *figures, f"{TARGET_MS}")
    Console().print(table)
    if parse_args.recording is not None:
        frames = (f"── {at:.3f} s\n{screen}\n" for at, screen in watched.frames)
        parse_args.recording.write_text("".join(frames), "utf-8")


if __name__ == "__main__":
    main()
