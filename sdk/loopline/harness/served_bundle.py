"""A bundle as others call it from outside: its tools, a question, and what can be read of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from importlib.util import find_spec
from secrets import token_hex

import loopline
from loopline.bundle import ServedResource, ServedResult
from loopline.errors import LooplineError
from loopline.harness.harness import Harness
from loopline.harness.model_choice import ModelChoice, ModelMaker, Models
from loopline.models import (
    OFFLINE,
    Capabilities,
    JsonObject,
    Prompt,
    Reply,
    TextDelta,
    ToolCall,
    dumps,
)
from loopline.react import Limits
from loopline.refs import KnowledgeRef, parse
from loopline.skills import Skill
from loopline.timeline import DEFAULT_USER, Block, ToolCalled, ToolResult, TurnResult
from loopline.timeline.tasks import finish
from loopline.tools import Tool

CONVERSATIONS = 100
"""Conversations that are listed, the last active ones."""
TIMELINE = "timeline:"
CALLS = "calls-"
"""The beginning of the conversations in which tools are called without a model."""

_ONE_CALL: Limits = {
    "protocol": "native",
    "select_tools": False,
    "answer_mode": "direct",
    "early_stop": True,
    "min_rounds": 1,
    "completion_check": False,
}

_requested: ContextVar[ToolCall | None] = ContextVar("_requested", default=None)


class _RequestedCall:
    """What stands in for the model of a turn that makes one call: it asks for the call, and then says so."""

    name = "requested-call"
    capabilities = Capabilities(window=1_000_000)

    def __init__(self, call: ToolCall) -> None:
        self._call: ToolCall | None = call

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Reply with the call, and to the next prompt that it was made."""
        del prompt
        call, self._call = self._call, None
        if call is None:
            yield Reply(text="The call was made.")
        else:
            yield Reply(calls=(call,), stop_reason="tool_use")


def model_or_call(model: ModelChoice) -> ModelMaker:
    """Return a choice of models: the requested call where there is one, else the given choice."""
    usual = model if model is not None else os.environ.get("LOOPLINE_MODEL") or OFFLINE

    def choose() -> Models:
        call = _requested.get()
        if call is not None:
            return _RequestedCall(call)
        return usual() if callable(usual) else usual

    return choose


class ServedBundle:
    """An open harness as a server offers it; it was opened with a choice that `model_or_call` made."""

    def __init__(self, harness: Harness, user: str = DEFAULT_USER) -> None:
        self._harness = harness
        self._user = user

    @property
    def name(self) -> str:
        """The id of the bundle."""
        return self._harness.bundle.id

    async def tools(self) -> Sequence[Tool]:
        """Return the bundle's own tools."""
        return await self._harness.bundle_tools()

    async def skills(self) -> Sequence[Skill]:
        """Return the skills that the bundle's loop sees."""
        return await self._harness.bundle_skills()

    async def call(
        self, name: str, arguments: JsonObject, on_progress: Callable[[str], None]
    ) -> ServedResult:
        """Call a tool in a turn of its own, behind the guards of the bundle, and recorded like any other call."""
        conversation = f"{CALLS}{token_hex(6)}"
        token = _requested.set(ToolCall(name=name, arguments=arguments))
        try:
            text = f"Call {name} {dumps(arguments)}"
            result = await self._turn(conversation, text, on_progress, _ONE_CALL)
        finally:
            _requested.reset(token)
        blocks = await self._harness.conversation(conversation, user=self._user).blocks()
        results = [block.body for block in blocks if isinstance(block.body, ToolResult)]
        if result.pending:
            question = result.pending[0].question
            hint = f"answer it with loopline run -c {conversation} --answer"
            return ServedResult(text=f"It waits for its user: {question} ({hint})", ok=False)
        if not results:
            return ServedResult(text=result.error or "the bundle made no such call", ok=False)
        return ServedResult(text=results[-1].text, ok=results[-1].status == "ok")

    async def ask(
        self, text: str, conversation: str, on_progress: Callable[[str], None]
    ) -> ServedResult:
        """Run a turn with the bundle's model; without the name of a conversation in a new one."""
        name = conversation or f"ask-{token_hex(6)}"
        result = await self._turn(name, text, on_progress, {})
        answer = result.answer or result.error
        if result.pending:
            answer = "\n".join([answer, *(pending.question for pending in result.pending)]).strip()
        return ServedResult(text=answer, ok=result.ok, conversation=name)

    async def resources(self) -> Sequence[ServedResource]:
        """Return the timelines of the user's last conversations."""
        summaries = await self._harness.log.conversations(user=self._user, limit=CONVERSATIONS)
        return [
            ServedResource(
                uri=f"{TIMELINE}{summary.conversation.name}",
                name=f"the timeline of {summary.conversation.name}",
                mime="application/json",
            )
            for summary in summaries
        ]

    @property
    def has_knowledge(self) -> bool:
        """Return whether refs of a knowledge space can be read."""
        return self._harness.knowledge is not None

    async def read(self, uri: str) -> ServedResult:
        """Return the text of a timeline, or of a ref of the knowledge space.

        Raises:
            LooplineError: there is nothing of that address.
        """
        if uri.startswith(TIMELINE):
            name = uri.removeprefix(TIMELINE)
            talk = self._harness.conversation(name, user=self._user)
            if not await talk.blocks():
                raise LooplineError(f"there is no conversation {name!r}")
            return ServedResult(text=dumps(await talk.export()))
        space = self._harness.knowledge
        if space is None or not isinstance(parse(uri), KnowledgeRef):
            raise LooplineError(f"nothing can be read at {uri!r}")
        return ServedResult(text=(await space.read(uri)).text)

    async def _turn(
        self, name: str, text: str, on_progress: Callable[[str], None], limits: Limits
    ) -> TurnResult:
        """Run a turn and tell how far it comes; if this is cancelled, the turn is stopped."""
        talk = self._harness.conversation(name, user=self._user)

        async def hear() -> None:
            async for event in talk.listen():
                if isinstance(event, Block):
                    if isinstance(event.body, ToolCalled):
                        on_progress(event.body.tool)
                elif event.type == "progress":
                    on_progress(event.text)

        hearing = asyncio.create_task(hear())
        try:
            return await talk.say(text, **limits)
        except asyncio.CancelledError:
            await finish(asyncio.ensure_future(talk.stop()))
            raise
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)


async def serve_mcp(served: ServedBundle, host: str, port: int | None) -> None:
    """Serve MCP clients: one over the standard input and output or, with a port, any number over HTTP.

    Raises:
        LooplineError: the extra is not installed.
    """
    if find_spec("mcp") is None:
        raise LooplineError("an MCP server needs the extra: pip install 'loopline[mcp]'")
    from loopline.adapters.mcp.server import BundleServer

    server = BundleServer(served, loopline.__version__)
    await (server.serve_stdio() if port is None else server.serve_http(host, port))
