"""A server with a window, that refuses what does not fit as vLLM does, and counts what it is asked for.

Source: vllm-project/vllm issue 20409.

`python -m tests.support.peers.window_server STORE URL TEXT` says the text to it from a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from loopline import Harness, TurnResult
from loopline.models import JsonObject, dumps
from loopline.testing import FakeClock
from tests.support.peers.behaviors import Status, steps
from tests.support.peers.call_replies import Call
from tests.support.peers.http_server import Peer, Request, Step, serving
from tests.support.peers.openai_like import OpenAI
from tests.support.peers.openai_replies import Says, Usage
from tests.support.warm_programs import warm_program
from tests.support.workbench import workbench

BYTES_A_TOKEN = 4
MUCH = (Call("w__big", '{"size": 12000}', "call_1"),)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: the tokens of its prompt, those it wants at most, and whether it was served."""

    prompt: int
    output: int
    served: bool


@dataclass
class WindowServer:
    """A model with a window; it makes so many large calls in each turn before it answers.

    The refusals in `once` come first, one a request.
    """

    window: int = 8_192
    calls: int = 0
    once: list[Status] = field(default_factory=list[Status])
    asked: list[Asked] = field(default_factory=list[Asked])
    url: str = ""

    def respond(self, request: Request) -> Sequence[Step]:
        sent = dumps([request.body["messages"], request.body.get("tools", [])])
        prompt, output = len(sent) // BYTES_A_TOKEN, int(str(request.body["max_tokens"]))
        if self.once:
            self.asked.append(Asked(prompt, output, served=False))
            return steps(self.once.pop(0), request, OpenAI())
        fits = prompt + output <= self.window
        self.asked.append(Asked(prompt, output, served=fits))
        if not fits:
            return steps(self._refusal(prompt, output), request, OpenAI())
        usage = Usage(prompt=prompt, completion=2)
        if self.calls:
            self.calls -= 1
            return steps(Says(calls=MUCH, usage=usage), request, OpenAI())
        return steps(Says("Hello.", usage=usage), request, OpenAI())

    def _refusal(self, prompt: int, output: int) -> Status:
        message = (
            f"This model's maximum context length is {self.window} tokens. However, you requested"
            f" {prompt + output} tokens ({prompt} in the messages, {output} in the completion)."
            " Please reduce the length of the messages or completion."
        )
        error: JsonObject = {"message": message, "type": "BadRequestError", "code": 400}
        return Status(400, body={"object": "error", **error, "param": None})

    @property
    def refused(self) -> int:
        return sum(not asked.served for asked in self.asked)

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[WindowServer, None]:
        """Serve on a free port."""
        async with serving(Peer(), self.respond) as peer:
            self.url = f"{peer.url}/v1"
            yield self


async def say(store: str, url: str, text: str) -> TurnResult:
    """Say something in the conversation `c` of a store, to a model about which the catalogue knows nothing."""
    os.environ["OPENAI_BASE_URL"] = url
    os.environ["OPENAI_API_KEY"] = "k"
    bundle = workbench(tools=["w.big"])
    opened = Harness.open(bundle, store=store, model="openai:some-model", clock=FakeClock())
    async with opened as harness:
        return await harness.conversation("c").say(text)


async def say_elsewhere(store: str, url: str, text: str) -> str:
    """Say it in another process; return the answer."""
    process = await asyncio.create_subprocess_exec(
        *warm_program("-m", __name__, store, url, text), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode().strip()


if __name__ == "__main__":
    sys.stdout.write(asyncio.run(say(*sys.argv[1:4])).answer)
