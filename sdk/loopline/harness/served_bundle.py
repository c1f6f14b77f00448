"""A bundle as others call it from outside: its tools, a question, and what can be read of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from importlib.util import find_spec
from secrets import token_hex
from typing import Literal

import loopline
from loopline.conversations import Conversation
from loopline.errors import LooplineError
from loopline.events import Delta
from loopline.harness.harness import Harness
from loopline.harness.model_choice import ModelChoice, ModelMaker, Models
from loopline.mcp.served import (
    HttpAddress,
    ServedCaller,
    ServedFile,
    ServedQuestion,
    ServedResource,
    ServedResult,
)
from loopline.models import (
    OFFLINE,
    Capabilities,
    Json,
    JsonObject,
    Prompt,
    Reply,
    TextDelta,
    ToolCall,
    dumps,
    is_loopback,
)
from loopline.react import Limits
from loopline.refs import ConversationRef, KnowledgeRef, parse
from loopline.skills import Skill
from loopline.tasks import finish
from loopline.timeline import (
    DEFAULT_USER,
    Block,
    Exit,
    FileAdded,
    ToolCalled,
    ToolPending,
    ToolQuestion,
    ToolResult,
    TurnResult,
    workspace,
)
from loopline.tools import Tool

DRAIN_SECONDS = 1.0
"""How long the events of a turn that has ended are waited for; they are there already."""


class ServedTurn:
    """A running turn and its caller, who may leave with a question and come back with the answer."""

    def __init__(
        self,
        talk: Conversation[object],
        run: Callable[[], Awaitable[TurnResult[object]]],
        caller: ServedCaller,
    ) -> None:
        self._talk = talk
        self._caller = caller
        self._questions: dict[str, ServedQuestion] = {}
        self._kinds: dict[str, Literal["question", "approval"]] = {}
        self._asks = asyncio.Event()
        self._hearing = asyncio.create_task(self._hear())
        self._running = asyncio.ensure_future(run())
        self._running.add_done_callback(self._leave)

    @property
    def questions(self) -> tuple[ServedQuestion, ...]:
        """Return what its calls ask and stay open for."""
        return tuple(self._questions.values())

    @property
    def is_over(self) -> bool:
        """Return whether it has ended."""
        return self._running.done()

    def answer(self, answers: Mapping[str, Json]) -> None:
        """Give the answers to the calls that still ask; None declines."""
        for call_id, value in answers.items():
            self._questions.pop(call_id, None)
            self._talk.answer(call_id, value)

    async def go_on(self, caller: ServedCaller) -> TurnResult[object] | None:
        """Wait for its result, or until one of its calls asks: then there is None. Cancelling this stops the turn."""
        self._caller = caller
        self._asks.clear()
        asking = asyncio.ensure_future(self._asks.wait())
        try:
            if not self._questions:
                await asyncio.wait([self._running, asking], return_when=asyncio.FIRST_COMPLETED)
            if self._questions and not self._running.done():
                return None
            result = await asyncio.shield(self._running)
            await asyncio.wait([self._hearing], timeout=DRAIN_SECONDS)
            return result
        except asyncio.CancelledError:
            await finish(asyncio.ensure_future(self._talk.stop()))
            await asyncio.wait([self._running])
            raise
        finally:
            asking.cancel()
            if self._running.done():
                self._hearing.cancel()
                await asyncio.gather(self._hearing, return_exceptions=True)

    async def _hear(self) -> None:
        async for event in self._talk.listen():
            if isinstance(event, Delta):
                if event.type == "progress":
                    self._caller.on_progress(event.text)
                elif event.type == "pending":
                    self._ask(event)
            elif isinstance(event.body, ToolCalled):
                self._caller.on_progress(event.body.tool)
            elif isinstance(event.body, ToolQuestion):
                self._kinds[event.body.call_id] = event.body.kind
            elif isinstance(event.body, Exit):
                return

    def _ask(self, event: Delta) -> None:
        """Keep a question for the caller; decline it where the caller cannot ask, or would approve of its own call."""
        if not self._talk.asks(event.call_id):
            return  # the turn pauses for it
        if not self._caller.can_ask or self._kinds.get(event.call_id) == "approval":
            self._talk.answer(event.call_id, None)
            return
        self._questions[event.call_id] = ServedQuestion(
            call_id=event.call_id, text=event.text, form=event.data, is_open=True
        )
        self._asks.set()

    def _leave(self, running: asyncio.Future[TurnResult[object]]) -> None:
        """Stop listening; an error that nobody waits for has been recorded."""
        if not running.cancelled():
            running.exception()
        self._questions.clear()
        self._asks.set()


CONVERSATIONS = 100
"""Conversations that are listed, the last active ones."""
KEY_VARIABLE = "LOOPLINE_MCP_KEY"
KEY_CHARACTERS = 16
"""The fewest characters of a key."""
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


class _RequestedCall:
    """What stands in for the model of a turn that makes one call: it asks for the call, and then says so."""

    name = "requested-call"
    capabilities = Capabilities(window=1_000_000)

    def __init__(self, call: ToolCall | None) -> None:
        self._call: ToolCall | None = call

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Reply with the call, and to the next prompt that it was made."""
        del prompt
        call, self._call = self._call, None
        if call is None:
            yield Reply(text="The call was made.")
        else:
            yield Reply(calls=(call,), stop_reason="tool_use")


_requested: ContextVar[_RequestedCall | None] = ContextVar("_requested", default=None)


def model_or_call(model: ModelChoice) -> ModelMaker:
    """Return a choice of models: the requested call where there is one, else the given choice."""
    usual = model if model is not None else os.environ.get("LOOPLINE_MODEL") or OFFLINE

    def choose() -> Models:
        requested = _requested.get()
        if requested is not None:
            return requested
        return usual() if callable(usual) else usual

    return choose


class ServedBundle:
    """An open harness as a server offers it; it was opened with a choice that `model_or_call` made."""

    def __init__(self, harness: Harness, user: str = DEFAULT_USER) -> None:
        self._harness = harness
        self._user = user
        self._asking: dict[str, ServedTurn] = {}

    @property
    def name(self) -> str:
        """The id of the bundle."""
        return self._harness.bundle.id

    async def tools(self) -> Sequence[Tool]:
        """Return the bundle's tools, those of its MCP servers among them."""
        return await self._harness.bundle_tools()

    async def skills(self) -> Sequence[Skill]:
        """Return the skills that the bundle's loop sees."""
        return await self._harness.bundle_skills()

    async def call(self, name: str, arguments: JsonObject, caller: ServedCaller) -> ServedResult:
        """Call a tool in a turn of its own, behind the guards of the bundle, and recorded like any other call.

        A name without its first part is that of the only tool which ends so.
        """
        talk = self._conversation(f"{CALLS}{token_hex(6)}")
        names = [tool.spec.name for tool in await self.tools()]
        ending = [full for full in names if full.endswith(f".{name}")]
        full = ending[0] if name not in names and len(ending) == 1 else name
        text = f"Call {full} {dumps(arguments)}"
        with _requesting(ToolCall(name=full, arguments=arguments)):
            turn = ServedTurn(talk, lambda: talk.say(text, **_ONE_CALL), caller)
        return await self._result(turn, talk, caller)

    async def ask(self, text: str, conversation: str, caller: ServedCaller) -> ServedResult:
        """Run a turn with the bundle's model; without the name of a conversation in a new one."""
        talk = self._conversation(conversation or f"ask-{token_hex(6)}")
        return await self._result(ServedTurn(talk, lambda: talk.say(text), caller), talk, caller)

    async def answer(
        self, conversation: str, answers: Mapping[str, Json], caller: ServedCaller
    ) -> ServedResult:
        """Go on with a turn whose calls wait for their user.

        Raises:
            LooplineError: none of its calls waits for such an answer.
        """
        talk, turn = self._conversation(conversation), self._asking.pop(conversation, None)
        if turn is not None:
            turn.answer(answers)
        elif conversation.startswith(CALLS):
            with _requesting(None):
                turn = ServedTurn(talk, lambda: talk.resume(answers, **_ONE_CALL), caller)
        else:
            turn = ServedTurn(talk, lambda: talk.resume(answers), caller)
        return await self._result(turn, talk, caller)

    async def _result(
        self, turn: ServedTurn, talk: Conversation[object], caller: ServedCaller
    ) -> ServedResult:
        """Return the result of a turn; of one that asks the questions, and keep it until they are answered."""
        result, name = await turn.go_on(caller), talk.conversation.name
        if result is None:
            self._asking = {key: kept for key, kept in self._asking.items() if not kept.is_over}
            self._asking[name] = turn
            text = "\n".join(["It asks:", *(question.text for question in turn.questions)])
            return ServedResult(text=text, ok=False, conversation=name, questions=turn.questions)
        is_call = name.startswith(CALLS)
        return await (_call_result(talk, result) if is_call else _answer_result(talk, result))

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

    async def read(self, uri: str) -> ServedFile:
        """Return a timeline, what a ref in one names, or a ref of the knowledge space.

        Raises:
            LooplineError: there is nothing of that address.
        """
        if uri.startswith(TIMELINE):
            name = uri.removeprefix(TIMELINE)
            talk = self._conversation(name)
            if not await talk.blocks():
                raise LooplineError(f"there is no conversation {name!r}")
            document = dumps(await talk.export())
            return ServedFile(uri=uri, mime="application/json", data=document.encode())
        match parse(uri):
            case ConversationRef(conversation=name, ref=ref):
                [item] = await self._conversation(name).read([str(ref)])
                if not item.readable:
                    raise LooplineError(item.message)
                return ServedFile(uri=uri, mime=item.mime, data=item.data or item.text.encode())
            case KnowledgeRef() if self._harness.knowledge is not None:
                text = (await self._harness.knowledge.read(uri)).text
                return ServedFile(uri=uri, mime="text/plain", data=text.encode())
            case _:
                raise LooplineError(f"nothing can be read at {uri!r}")

    async def complete(self, variable: str, beginning: str) -> Sequence[str]:
        """Return the names of conversations that begin so, the last active ones first; of other variables none."""
        if variable != "conversation":
            return ()
        summaries = await self._harness.log.conversations(user=self._user, limit=CONVERSATIONS)
        names = (summary.conversation.name for summary in summaries)
        return [name for name in names if name.startswith(beginning)]

    def _conversation(self, name: str) -> Conversation[object]:
        return self._harness.conversation(name, user=self._user)


@contextmanager
def _requesting(call: ToolCall | None) -> Generator[None]:
    """Have the turns within ask for this call instead of asking a model; None goes on with one that is made."""
    token = _requested.set(_RequestedCall(call))
    try:
        yield
    finally:
        _requested.reset(token)


async def _call_result(talk: Conversation[object], turn: TurnResult[object]) -> ServedResult:
    """Return the result of the turn's only call, with the files that it made."""
    name, blocks = talk.conversation.name, await talk.blocks()
    results = [block.body for block in blocks if isinstance(block.body, ToolResult)]
    if turn.pending:
        return _waiting(name, turn, blocks, "It waits for its user:")
    if not results:
        text = turn.error or "the bundle made no such call"
        return ServedResult(text=text, ok=False)
    files = tuple(
        ServedFile(
            uri=f"cv:{name}/{block.ref}",
            mime=block.body.mime,
            data=workspace.file_bytes(block.body),
        )
        for block in blocks
        if isinstance(block.body, FileAdded)
    )
    return ServedResult(text=results[-1].text, ok=results[-1].status == "ok", files=files)


async def _answer_result(talk: Conversation[object], turn: TurnResult[object]) -> ServedResult:
    """Return the answer of a turn, and the questions that it waits for."""
    name, answer = talk.conversation.name, turn.answer or turn.error
    if turn.pending:
        return _waiting(name, turn, await talk.blocks(), answer)
    return ServedResult(text=answer, ok=turn.ok, conversation=name)


def _waiting(
    name: str, turn: TurnResult[object], blocks: Sequence[Block], lead: str
) -> ServedResult:
    """Return the questions of a paused turn; with a call that awaits approval none can be answered from outside."""
    questions = tuple(
        ServedQuestion(call_id=call.call_id, text=call.question) for call in turn.pending
    )
    hint = f"(answer it with loopline run -c {name} --answer)"
    text = "\n".join([lead, *(question.text for question in questions), hint]).strip()
    pending = [block.body for block in blocks if isinstance(block.body, ToolPending)]
    if any(body.kind == "approval" for body in pending):
        questions = ()
    return ServedResult(text=text, ok=False, conversation=name, questions=questions)


def http_address(
    host: str, port: int, names: Sequence[str], environment: Mapping[str, str]
) -> HttpAddress:
    """Return where to serve over HTTP; the variable LOOPLINE_MCP_KEY has the key that callers must send.

    Raises:
        LooplineError: other machines could call, and there is no key, or it is too short.
    """
    key = environment.get(KEY_VARIABLE, "")
    if not key and not is_loopback(host):
        raise LooplineError(
            f"{host} is reached by other machines: set {KEY_VARIABLE} to a key that callers must send"
        )
    if key and len(key) < KEY_CHARACTERS:
        raise LooplineError(f"{KEY_VARIABLE} must have {KEY_CHARACTERS} characters or more")
    digest = sha256(key.encode()).digest() if key else b""
    return HttpAddress(host=host, port=port, names=tuple(names), key_sha256=digest)


async def serve_mcp(served: ServedBundle, address: HttpAddress | None = None) -> None:
    """Serve MCP clients: one over the standard input and output or, at an address, any number over HTTP.

    Raises:
        LooplineError: the extra is not installed.
    """
    if find_spec("mcp") is None:
        raise LooplineError("an MCP server needs the extra: pip install 'loopline[mcp]'")
    from loopline.mcp.server import BundleServer

    server = BundleServer(served, loopline.__version__)
    await (server.serve_stdio() if address is None else server.serve_http(address))
