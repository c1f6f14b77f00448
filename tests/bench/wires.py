"""What a request costs to make for the wire: `python -m tests.bench.wires`.

Beside it stands the vendor's own way, `json.dumps` of the whole request, and its SDK where that is installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from time import perf_counter

from rich.console import Console
from rich.table import Table

from loopline.models import AssistantMessage, Message, Prompt, ToolCall, ToolMessage, UserMessage
from tests.wires.flat import WIRES, wired

TIMES = 15


def conversation(messages: int) -> tuple[Message, ...]:
    """So many messages: what was asked, then calls with results of 1,000 characters."""
    made: list[Message] = [UserMessage(text="Is there tea?")]
    while len(made) < messages:
        call = ToolCall(
            name="shop.find", arguments={"name": f"tea {len(made)}"}, call_id=f"c{len(made)}"
        )
        made.append(AssistantMessage(text="I look it up and say what I find.", calls=(call,)))
        made.append(ToolMessage(call_id=call.call_id, name="shop.find", text="x" * 1_000))
    return tuple(made[:messages])


def milliseconds(work: Callable[[], object]) -> float:
    """The median of some runs."""
    times = list[float]()
    for _ in range(TIMES):
        start = perf_counter()
        work()
        times.append((perf_counter() - start) * 1_000)
    return median(times)


def main() -> None:
    """Measure, and print a table."""
    table = Table("request for the wire", "1,000 messages, ms", "10,000 messages, ms")
    for wire in WIRES:
        table.add_row(
            f"{wire}, the next request", *(f"{grown(wire, n):.2f}" for n in (1_000, 10_000))
        )
        table.add_row(
            f"{wire}, the first request", *(f"{fresh(wire, n):.2f}" for n in (1_000, 10_000))
        )
    table.add_row("json.dumps of the whole", *(f"{whole(n):.2f}" for n in (1_000, 10_000)))
    Console().print(table)


def grown(wire: str, messages: int) -> float:
    """A request that says two messages more than the one before."""
    model, said = wired(wire), conversation(messages)
    model.body(Prompt(system="You keep a shop.", messages=said[:-2], tail="ANNOUNCE"))
    more = [Prompt(system="You keep a shop.", messages=said, tail=f"{n}") for n in range(TIMES)]
    return milliseconds(lambda: model.body(more.pop()))


def fresh(wire: str, messages: int) -> float:
    """A request none of whose parts has been made."""
    model = wired(wire)
    made = [Prompt(system="s", messages=conversation(messages)) for _ in range(TIMES)]
    return milliseconds(lambda: model.body(made.pop()))


def whole(messages: int) -> float:
    """The same, made anew in one go."""
    body = json.loads(wired("chat").body(Prompt(system="s", messages=conversation(messages))))
    return milliseconds(lambda: json.dumps(body).encode())


if __name__ == "__main__":
    main()
