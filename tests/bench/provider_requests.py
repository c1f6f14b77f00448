"""The cost of making a request to a provider: `python -m tests.bench.provider_requests`.

Beside it stand, in the same run, the vendor's own library, which makes and serializes the same request and
sends it to a transport that keeps it, and `json.dumps` of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from time import thread_time
from typing import cast

import httpx2
from anthropic import Anthropic
from anthropic.types import MessageParam
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputParam

from loopline import models
from tests.bench.program import print_table
from tests.providers.flat_request import WIRES, sent, wired

TIMES = 15
LENGTHS = (1_000, 10_000)


class Kept(httpx2.BaseTransport):
    """Keeps how long the last request was, and answers with a stream of nothing."""

    length = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.length = len(request.read())
        return httpx2.Response(200, headers={"Content-Type": "text/event-stream"})


def conversation(messages: int) -> tuple[models.Message, ...]:
    """So many messages: what was asked, then calls with results of 1,000 characters."""
    new_messages: list[models.Message] = [models.UserMessage(text="Is there tea?")]
    while len(new_messages) < messages:
        call = models.ToolCall(
            name="shop.find",
            arguments={"name": f"tea {len(new_messages)}"},
            call_id=f"c{len(new_messages)}",
        )
        new_messages.append(
            models.AssistantMessage(text="I look it up and say what I find.", calls=(call,))
        )
        new_messages.append(
            models.ToolMessage(call_id=call.call_id, name="shop.find", text="x" * 1_000)
        )
    return tuple(new_messages[:messages])


def milliseconds(work: Callable[[], object], runs: int = TIMES) -> float:
    """The median of some runs, in time of the processor: others may use it too."""
    times = list[float]()
    for _ in range(runs):
        start = thread_time()
        work()
        times.append((thread_time() - start) * 1_000)
    return median(times)


def main() -> None:
    costs = (("the next", grown), ("the first", fresh), ("the vendor's", vendors))
    rows = [
        (f"{wire}, {what}", *(f"{cost(wire, length):.2f}" for length in LENGTHS))
        for wire in WIRES
        for what, cost in costs
    ]
    rows.append(("json.dumps of the whole", *(f"{whole(length):.2f}" for length in LENGTHS)))
    rows.append(("target of the next", "3", "30"))
    print_table(("request for the wire", *(f"{length:,} messages, ms" for length in LENGTHS)), rows)


def grown(wire: str, messages: int) -> float:
    """A request that says two messages more than the one before, time after time."""
    model, said = wired(wire), conversation(messages + 2 * TIMES)
    prompts = [
        models.Prompt(
            system="You keep a shop.", messages=said[: messages + 2 * n], tail=f"ANNOUNCE {n}"
        )
        for n in range(TIMES, -1, -1)
    ]
    model.body(prompts.pop())
    return milliseconds(lambda: model.body(prompts.pop()))


def fresh(wire: str, messages: int) -> float:
    """A request none of whose parts has been made."""
    model = wired(wire)
    prompts = [models.Prompt(system="s", messages=conversation(messages)) for _ in range(TIMES)]
    return milliseconds(lambda: model.body(prompts.pop()))


def vendors(wire: str, messages: int) -> float:
    """The same by the vendor's library, as far as its transport."""
    body = sent(wire, models.Prompt(system="s", messages=conversation(messages)))
    kept = Kept()
    with httpx2.Client(transport=kept) as http:
        cost = milliseconds(asking(wire, body, http), runs=3)
    assert kept.length > 500 * messages
    return cost


def asking(wire: str, body: models.JsonObject, http: httpx2.Client) -> Callable[[], object]:
    """What asks by the library of that wire's vendor."""
    url = "http://localhost/v1"
    match wire:
        case "chat":
            chat = OpenAI(api_key="k", base_url=url, http_client=http).chat.completions
            messages = cast("list[ChatCompletionMessageParam]", body["messages"])
            return lambda: chat.create(model="m", messages=messages, stream=True)
        case "responses":
            responses = OpenAI(api_key="k", base_url=url, http_client=http).responses
            items = cast("ResponseInputParam", body["input"])
            return lambda: responses.create(model="m", input=items, stream=True)
        case _:
            client = Anthropic(api_key="k", http_client=http).messages
            turns = cast("list[MessageParam]", body["messages"])
            return lambda: client.create(model="m", max_tokens=99, messages=turns, stream=True)


def whole(messages: int) -> float:
    """The same, made anew in one go."""
    body = sent("chat", models.Prompt(system="s", messages=conversation(messages)))
    return milliseconds(lambda: json.dumps(body).encode())


if __name__ == "__main__":
    main()
