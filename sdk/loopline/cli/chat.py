"""`loopline chat`: the loop that reads lines from a terminal or a pipe, and runs turns."""

from __future__ import annotations

import asyncio
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click
from rich.text import Text

from loopline.cli.bundle_access import open_bundle
from loopline.cli.options import Choices, UsageError, command, exit_now, stop_on_signal
from loopline.cli.parameters import (
    PATH,
    answer_options,
    cassette_options,
    conversation_option,
    json_option,
)
from loopline.cli.reader import new_name
from loopline.cli.run import (
    HELP,
    LATE_INPUT,
    ChatConversation,
    Command,
    FinishedTurn,
    check_file,
    fork,
    introduce,
    open_server,
    parse,
    pending_line,
    rate,
    refusal,
    remote_conversation,
    show_result,
    stop,
    watch,
)
from loopline.cli.terminal import Keyboard, Screen, escape
from loopline.errors import AttachmentError, LooplineError
from loopline.react import result
from loopline.timeline import PendingCall, Timeline

_logger = logging.getLogger("loopline")


@command
@click.argument(
    "bundle",
    required=False,
    metavar="[BUNDLE]",
    help="A bundle's folder or name; with --server its id there.",
)
@click.option("--server", default="", metavar="URL", help="Talk with a bundle of this server.")
@click.option(
    "--key-file",
    type=PATH,
    metavar="FILE",
    help="The file of your key there; else LOOPLINE_KEY has it.",
)
@conversation_option
@answer_options
@cassette_options
@json_option
async def chat(
    choices: Choices, screen: Screen, bundle: str | None, server: str, key_file: Path | None
) -> int:
    """Talk with a bundle, here or on a server."""
    if server:
        async with open_server(server, key_file) as remote:
            remote_chat = await remote_conversation(remote, choices.conversation, bundle or "")
            screen.note(Text.assemble((escape(server), "bold"), f" · user {escape(remote.user)}"))
            code = await _converse(remote_chat, choices, screen)
    elif bundle is None:
        raise UsageError("name a bundle, or a server with --server URL")
    else:
        async with open_bundle(bundle, choices, screen) as harness:
            name = choices.conversation or await new_name(
                harness.log, harness.bundle.id, choices.user_name
            )
            introduce(harness, screen)
            local_chat = harness.conversation(name, user=choices.user_name)
            code = await _converse(local_chat, choices, screen)
    exit_now(
        code
    )  # a thread may still wait for a line, and the process must not wait for the thread


async def _converse(conversation: ChatConversation, choices: Choices, screen: Screen) -> int:
    screen.note(f"conversation {escape(conversation.conversation.name)}")
    if sys.stdin.isatty() and sys.stdout.isatty() and not choices.as_json:
        from loopline.cli.terminal_chat import converse

        return await converse(conversation)
    return await _PipeChat(conversation, choices, screen).converse()


class Chat(ABC):
    """The loop of a chat: each line is a message, an answer to a pending call, or a command."""

    def __init__(self, conversation: ChatConversation, screen: Screen) -> None:
        self._conversation = conversation
        self._screen = screen
        self._pending: Sequence[PendingCall] = ()
        self._attached: tuple[Path, ...] = ()
        self._leaving = False
        self._ok = True

    async def converse(self) -> int:
        """Continue the last turn if it has not ended, then handle each line; return 1 if the last turn failed, else 0."""
        await self._continue_last_turn()
        while not self._leaving and (line := await self._read_line()) is not None:
            command, text = parse(line)
            await self._handle(command, text)
        return 0 if self._ok else 1

    async def _handle(self, command: Command | str, text: str) -> None:
        match command:
            case "":
                await self._say(text)
            case Command.QUIT:
                self._leaving = True
            case Command.ATTACH:
                await self._attach(text)
            case Command.FORK | Command.FEEDBACK:
                await self._fork_or_rate(command, text)
            case Command.HELP:
                self._screen.note(HELP)
            case Command.STOP | Command.STEER:
                self._screen.note("nothing is running")
            case _:
                self._screen.error(refusal(command))

    async def _continue_last_turn(self) -> None:
        """Continue the last turn if it was cut off; if it is paused, show its pending calls."""
        timeline = Timeline(await self._conversation.blocks())
        if not timeline.resumable:
            return
        number = timeline.resumable[0].number
        self._pending = result(timeline, number, "paused").pending
        for call in self._pending:
            self._screen.note(pending_line(call))
        if not self._pending:
            await self._resume(number)

    @abstractmethod
    async def _read_line(self) -> str | None:
        """Read the next line; None at the end of the input."""

    @abstractmethod
    async def _say(self, text: str) -> None:
        """Send a message, or the answer to the first pending call; an empty text is ignored."""

    @abstractmethod
    async def _resume(self, number: int) -> None:
        """Continue the turn of that number."""

    async def _attach(self, name: str) -> None:
        """Check a file, and send it with the next message."""
        try:
            file = await asyncio.to_thread(check_file, name)
        except AttachmentError as error:
            self._screen.error(str(error))
        else:
            self._attached = (*self._attached, file)
            self._screen.note(f"{escape(name)} goes with your next message")

    def _take_attached(self) -> tuple[Path, ...]:
        attached = self._attached
        self._attached = ()
        return attached

    async def _fork_or_rate(self, command: str, text: str) -> None:
        """Continue in a copy of the conversation, or rate its last turn."""
        try:
            if command == Command.FEEDBACK:
                self._screen.note(await rate(self._conversation, text))
                return
            source = self._conversation
            self._conversation = await fork(source, text)
        except LooplineError as error:
            self._screen.error(str(error))
            return
        self._pending = ()  # a pending call is not run in a copy
        copy_name = escape(self._conversation.conversation.name)
        source_name = escape(source.conversation.name)
        self._screen.note(f"you are in {copy_name} now; {source_name} stays as it is")

    def _take_result(self, finished: FinishedTurn) -> None:
        """Remember whether a turn succeeded and the calls that it waits for."""
        self._ok = finished.result.ok
        self._pending = finished.result.pending
        if finished.result.late_input:
            self._screen.note(LATE_INPUT)


class _PipeChat(Chat):
    """A chat whose lines come from a pipe: each turn ends before the next line is read."""

    def __init__(self, conversation: ChatConversation, choices: Choices, screen: Screen) -> None:
        super().__init__(conversation, screen)
        self._choices = choices
        self._keyboard = Keyboard()

    async def _read_line(self) -> str | None:
        """Read the next line; None at the end of the input, or if the user presses Ctrl-C."""
        interrupted = asyncio.Event()

        async def interrupt() -> None:
            interrupted.set()

        with stop_on_signal(self._screen, interrupt):
            line = self._keyboard.ask()
            interruption = asyncio.ensure_future(interrupted.wait())
            await asyncio.wait((line, interruption), return_when=asyncio.FIRST_COMPLETED)
            interruption.cancel()
        return self._keyboard.take() if line.done() else None

    async def _say(self, text: str) -> None:
        if not text.strip():
            return
        if self._pending:
            await self._run_turn(None, {self._pending[0].call_id: text})
        else:
            await self._run_turn(text, {})

    async def _resume(self, number: int) -> None:
        del number  # the conversation continues its last turn
        await self._run_turn(None, {})

    async def _run_turn(self, message: str | None, answers: Mapping[str, str]) -> None:
        """Run a turn and print its result."""
        with stop_on_signal(self._screen, partial(stop, self._conversation, self._screen)):
            try:
                finished = await watch(
                    self._conversation,
                    message,
                    self._choices,
                    self._screen,
                    limits={},
                    answers=answers,
                    files=self._take_attached() if message else (),
                    animated=False,
                )
            except LooplineError as error:
                self._screen.error(str(error))
                _logger.debug("%s", type(error).__name__, exc_info=error)
                self._ok = False
                return
        name = self._conversation.conversation.name
        show_result(finished, name, self._screen, as_json=self._choices.as_json)
        self._take_result(finished)
