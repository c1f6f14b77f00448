"""A bundle for external callers such as MCP clients: call its tools, ask it, and read its conversations and files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from importlib.util import find_spec
from secrets import token_hex
from typing import Literal

import loopline
from loopline import models, timeline
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
from loopline.models import Json, JsonObject
from loopline.react import Limits
from loopline.refs import ConversationRef, KnowledgeRef, parse
from loopline.skills import Skill
from loopline.tasks import cancel_all, finish
from loopline.tools import Tool

DRAIN_SECONDS = 1.0
"""The maximum seconds to wait for the last events of a turn that has ended."""


class ServedTurn:
    """A running turn and its caller, which may receive a question and continue with the answer."""

    def __init__(
        self,
        talk: Conversation[object],
        run: Callable[[], Awaitable[timeline.TurnResult[object]]],
        caller: ServedCaller,
    ) -> None:
        self._talk = talk
        self._caller = caller
        self._questions: dict[str, ServedQuestion] = {}
        self._kinds: dict[str, Literal["question", "approval"]] = {}
        self._asks = asyncio.Event()
        self._listening = asyncio.create_task(self._listen())
        self._running = asyncio.ensure_future(run())
        self._running.add_done_callback(self._end)

    @property
    def questions(self) -> tuple[ServedQuestion, ...]:
        """The questions of running calls that wait for an answer."""
        return tuple(self._questions.values())

    @property
    def is_over(self) -> bool:
        """Whether the turn has ended."""
        return self._running.done()

    def answer(self, answers: Mapping[str, Json]) -> None:
        """Answer calls by id; None declines the question."""
        for call_id, value in answers.items():
            self._questions.pop(call_id, None)
            self._talk.answer(call_id, value)

    async def wait(self, caller: ServedCaller) -> timeline.TurnResult[object] | None:
        """Wait for the result; return None if a question waits for the caller. Cancellation stops the turn."""
        self._caller = caller
        self._asks.clear()
        asking = asyncio.ensure_future(self._asks.wait())
        try:
            if not self._questions:
                await asyncio.wait([self._running, asking], return_when=asyncio.FIRST_COMPLETED)
            if self._questions and not self._running.done():
                return None
            result = await asyncio.shield(self._running)
            await asyncio.wait([self._listening], timeout=DRAIN_SECONDS)
            return result
        except asyncio.CancelledError:
            await finish(asyncio.ensure_future(self._talk.stop()))
            await asyncio.wait([self._running])
            raise
        finally:
            asking.cancel()
            if self._running.done():
                await cancel_all(self._listening)

    async def _listen(self) -> None:
        """Report progress and the names of called tools to the caller, and store questions, until the turn ends."""
        async for event in self._talk.listen():
            if isinstance(event, Delta):
                if event.type == "progress":
                    self._caller.on_progress(event.text)
                elif event.type == "pending":
                    self._ask(event)
            elif isinstance(event.body, timeline.ToolCalled):
                self._caller.on_progress(event.body.tool)
            elif isinstance(event.body, timeline.ToolQuestion):
                self._kinds[event.body.call_id] = event.body.kind
            elif isinstance(event.body, timeline.Exit):
                return

    def _ask(self, event: Delta) -> None:
        """Store a question for the caller; answer it with None if the caller cannot ask, or if it is an approval.

        A question of a call that does not run here is ignored.
        """
        if not self._talk.asks(event.call_id):
            return  # the turn pauses until the question is answered
        if not self._caller.can_ask or self._kinds.get(event.call_id) == "approval":
            self._talk.answer(event.call_id, None)
            return
        self._questions[event.call_id] = ServedQuestion(
            call_id=event.call_id, text=event.text, form=event.data, is_open=True
        )
        self._asks.set()

    def _end(self, running: asyncio.Future[timeline.TurnResult[object]]) -> None:
        """Clear the questions when the turn has ended; its error is in the log, so it is only marked as retrieved."""
        if not running.cancelled():
            running.exception()
        self._questions.clear()
        self._asks.set()


CONVERSATIONS = 100
"""The maximum number of listed conversations; the last active are listed."""
KEY_VARIABLE = "LOOPLINE_MCP_KEY"
KEY_CHARACTERS = 16
"""The minimum number of characters of a key."""
TIMELINE = "timeline:"
CALLS = "calls-"
"""The name prefix of conversations for calls of tools without a model."""

_ONE_CALL: Limits = {
    "protocol": "native",
    "select_tools": False,
    "answer_mode": "direct",
    "early_stop": True,
    "min_rounds": 1,
    "completion_check": False,
}


class _RequestedCall:
    """A model for a turn with one call: its first reply is the call, and its second reply ends the turn."""

    name = "requested-call"
    capabilities = models.Capabilities(window=1_000_000, accepts=models.EVERY_SETTING)

    def __init__(self, call: models.ToolCall | None) -> None:
        self._call: models.ToolCall | None = call

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        """Reply with the call; reply to the next prompt with a text that ends the turn."""
        del prompt
        call, self._call = self._call, None
        if call is None:
            yield models.Reply(text="The call was made.")
        else:
            yield models.Reply(calls=(call,), stop_reason="tool_use")


_requested: ContextVar[_RequestedCall | None] = ContextVar("_requested", default=None)


def model_or_call(model: ModelChoice) -> ModelMaker:
    """Wrap a choice of models to use the requested call instead, if one is set in the context."""

    def choose() -> Models | None:
        requested = _requested.get()
        if requested is not None:
            return requested
        return model() if callable(model) else model

    return choose


class ServedBundle:
    """An open harness for a server; the harness must be opened with a model choice of `model_or_call`."""

    def __init__(
        self,
        harness: Harness,
        user: str = timeline.DEFAULT_USER,
        command: Callable[[str, Sequence[str]], str] | None = None,
    ) -> None:
        """Serve for a user; `command` returns the command that answers calls of a conversation, for the result of a paused call."""
        self._harness = harness
        self._command = command
        self._user = user
        self._asking: dict[str, ServedTurn] = {}

    @property
    def name(self) -> str:
        """The id of the bundle."""
        return self._harness.bundle.id

    async def tools(self) -> Sequence[Tool]:
        """Return the tools of the bundle, with the tools of its MCP servers."""
        return await self._harness.bundle_tools()

    async def skills(self) -> Sequence[Skill]:
        """Return the skills that the loop of the bundle can use."""
        return await self._harness.bundle_skills()

    async def call(self, name: str, arguments: JsonObject, caller: ServedCaller) -> ServedResult:
        """Call a tool in a new turn, which applies the guards of the bundle and records the call.

        The first part of the name can be omitted if only one tool has the remaining name.
        """
        talk = self._conversation(f"{CALLS}{token_hex(6)}")
        names = [tool.spec.name for tool in await self.tools()]
        ending = [full for full in names if full.endswith(f".{name}")]
        full = ending[0] if name not in names and len(ending) == 1 else name
        text = f"Call {full} {models.dumps(arguments)}"
        with _requesting(models.ToolCall(name=full, arguments=arguments)):
            turn = ServedTurn(talk, lambda: talk.say(text, **_ONE_CALL), caller)
        return await self._result(turn, talk, caller)

    async def ask(self, text: str, conversation: str, caller: ServedCaller) -> ServedResult:
        """Run a turn with the model of the bundle, in a new conversation if the name is empty."""
        talk = self._conversation(conversation or f"ask-{token_hex(6)}")
        return await self._result(ServedTurn(talk, lambda: talk.say(text), caller), talk, caller)

    async def answer(
        self, conversation: str, answers: Mapping[str, Json], caller: ServedCaller
    ) -> ServedResult:
        """Answer questions of a turn by the ids of their calls, and return its result, or its further questions.

        Raises:
            LooplineError: no call of the turn waits for this answer.
        """
        talk = self._conversation(conversation)
        turn = self._asking.get(conversation)
        if turn is not None:
            unknown = answers.keys() - {question.call_id for question in turn.questions}
            if unknown and not turn.is_over:
                raise LooplineError(f"no call waits for the answer {sorted(unknown)[0]!r}")
            del self._asking[conversation]
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
        """Return the result of a turn, or its questions; a turn with questions is stored until they are answered."""
        result = await turn.wait(caller)
        name = talk.conversation.name
        if result is None:
            self._asking = {key: kept for key, kept in self._asking.items() if not kept.is_over}
            self._asking[name] = turn
            text = "\n".join(["It asks:", *(question.text for question in turn.questions)])
            return ServedResult(text=text, ok=False, conversation=name, questions=turn.questions)
        if result.pending:
            is_call = name.startswith(CALLS)
            lead = "It waits for its user:" if is_call else result.answer or result.error
            call_ids = [call.call_id for call in result.pending]
            command = self._command(name, call_ids) if self._command else ""
            return _waiting(name, result, await talk.blocks(), lead, command)
        if name.startswith(CALLS):
            return await _call_result(talk, result)
        return ServedResult(text=result.answer or result.error, ok=result.ok, conversation=name)

    async def resources(self) -> Sequence[ServedResource]:
        """Return the timelines of the 100 last active conversations of the user."""
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
        """Whether the bundle has a knowledge space."""
        return self._harness.knowledge is not None

    async def read(self, uri: str) -> ServedFile:
        """Read a timeline (`timeline:NAME`), a ref of a conversation (`cv:NAME/REF`) or a ref of the knowledge space.

        Raises:
            LooplineError: the URI cannot be read.
        """
        if uri.startswith(TIMELINE):
            name = uri.removeprefix(TIMELINE)
            talk = self._conversation(name)
            if not await talk.blocks():
                raise LooplineError(f"there is no conversation {name!r}")
            document = models.dumps(await talk.export())
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
                raise LooplineError(f"{uri!r} cannot be read")

    async def complete(self, variable: str, beginning: str) -> Sequence[str]:
        """Return the names of conversations with the prefix `beginning`, the last active first; empty for other variables."""
        if variable != "conversation":
            return ()
        summaries = await self._harness.log.conversations(user=self._user, limit=CONVERSATIONS)
        names = (summary.conversation.name for summary in summaries)
        return [name for name in names if name.startswith(beginning)]

    def _conversation(self, name: str) -> Conversation[object]:
        return self._harness.conversation(name, user=self._user)


@contextmanager
def _requesting(call: models.ToolCall | None) -> Generator[None]:
    """Inside the context, turns use a model that replies with this call, and then, or if it is None, with a text."""
    token = _requested.set(_RequestedCall(call))
    try:
        yield
    finally:
        _requested.reset(token)


async def _call_result(
    talk: Conversation[object], turn: timeline.TurnResult[object]
) -> ServedResult:
    """Return the last tool result and all files of a conversation; an error text if no call was made."""
    name = talk.conversation.name
    blocks = await talk.blocks()
    results = [block.body for block in blocks if isinstance(block.body, timeline.ToolResult)]
    if not results:
        text = turn.error or "the bundle did not make the call"
        return ServedResult(text=text, ok=False)
    files = tuple(
        ServedFile(
            uri=f"cv:{name}/{block.ref}",
            mime=block.body.mime,
            data=timeline.workspace.file_bytes(block.body),
        )
        for block in blocks
        if isinstance(block.body, timeline.FileAdded)
    )
    return ServedResult(text=results[-1].text, ok=results[-1].status == "ok", files=files)


def _waiting(
    name: str,
    turn: timeline.TurnResult[object],
    blocks: Sequence[timeline.Block],
    lead: str,
    command: str,
) -> ServedResult:
    """Return the questions of a paused turn, also in a text after `lead`; only the text if a call waits for approval.

    `command` is the command that answers them, or "".
    """
    questions = tuple(
        ServedQuestion(call_id=call.call_id, text=call.question) for call in turn.pending
    )
    hint = f"A person answers it with: {command}" if command else ""
    text = "\n".join([lead, *(question.text for question in questions), hint]).strip()
    pending = [block.body for block in blocks if isinstance(block.body, timeline.ToolPending)]
    if any(body.kind == "approval" for body in pending):
        questions = ()
    return ServedResult(text=text, ok=False, conversation=name, questions=questions)


def http_address(
    host: str, port: int, names: Sequence[str], environment: Mapping[str, str]
) -> HttpAddress:
    """Return the address for serving over HTTP, with the digest of the key in LOOPLINE_MCP_KEY that callers must send.

    Raises:
        LooplineError: the key is missing and the host is not local, or the key is too short.
    """
    key = environment.get(KEY_VARIABLE, "")
    if not key and not models.is_loopback(host):
        raise LooplineError(
            f"other machines can reach {host}: set {KEY_VARIABLE} to a key that callers must send"
        )
    if key and len(key) < KEY_CHARACTERS:
        raise LooplineError(f"{KEY_VARIABLE} must have {KEY_CHARACTERS} characters or more")
    digest = sha256(key.encode()).digest() if key else b""
    return HttpAddress(host=host, port=port, names=tuple(names), key_sha256=digest)


async def serve_mcp(served: ServedBundle, address: HttpAddress | None = None) -> None:
    """Serve one MCP client over stdin and stdout, or any number of clients over HTTP at an address.

    Raises:
        LooplineError: the extra `mcp` is not installed.
    """
    if find_spec("mcp") is None:
        raise LooplineError("an MCP server needs the extra: pip install 'loopline[mcp]'")
    from loopline.mcp.server import BundleServer

    server = BundleServer(served, loopline.__version__)
    await (server.serve_stdio() if address is None else server.serve_http(address))
