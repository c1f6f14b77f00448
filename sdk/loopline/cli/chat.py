"""`loopline chat`: a conversation at a terminal, or line by line from a pipe."""

from __future__ import annotations

import asyncio
import logging
import sys
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
    checked_file,
    fork,
    introduce,
    open_server,
    parse,
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
from loopline.timeline import Timeline

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
    exit_now(code)  # a thread may still be reading a line, and nobody waits for it


async def _converse(conversation: ChatConversation, choices: Choices, screen: Screen) -> int:
    screen.note(f"conversation {escape(conversation.conversation.name)}")
    if sys.stdin.isatty() and sys.stdout.isatty() and not choices.as_json:
        from loopline.cli import terminal_chat

        return await terminal_chat.converse(conversation)
    return await _LineChat(conversation, choices, screen).converse()


class _LineChat:
    """A conversation in which each line is a turn and waits for the one before."""

    def __init__(self, conversation: ChatConversation, choices: Choices, screen: Screen) -> None:
        self._conversation = conversation
        self._choices = choices
        self._screen = screen
        self._keyboard = Keyboard()
        self._pending: tuple[str, ...] = ()
        self._attached: tuple[Path, ...] = ()

    async def converse(self) -> int:
        """Run a turn for each line; 0 unless the last one failed."""
        ok = await self._continue_last_turn()
        while (line := await self._line()) is not None:
            command, text = parse(line)
            match command:
                case "":
                    ok = await self._run_turn(line) if line.strip() else ok
                case Command.QUIT:
                    break
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
        return 0 if ok else 1

    async def _continue_last_turn(self) -> bool:
        """Continue the turn that was cut off, or find the pending calls of the paused one."""
        timeline = Timeline(await self._conversation.blocks())
        if not timeline.resumable:
            return True
        pending = result(timeline, timeline.resumable[0].number, "paused").pending
        self._pending = tuple(call.call_id for call in pending)
        return True if pending else await self._run_turn(None)

    async def _attach(self, name: str) -> None:
        """Check a file, and keep it for the next message."""
        try:
            file = await asyncio.to_thread(checked_file, name)
        except AttachmentError as error:
            self._screen.error(str(error))
            return
        self._attached = (*self._attached, file)
        self._screen.note(f"{escape(name)} goes with your next message")

    async def _fork_or_rate(self, command: str, text: str) -> None:
        try:
            if command == Command.FORK:
                self._conversation = await fork(self._conversation, text)
                self._pending = ()  # a pending call is not run in a copy
                message = f"conversation {self._conversation.conversation.name}"
            else:
                message = await rate(self._conversation, text)
        except LooplineError as error:
            self._screen.error(str(error))
        else:
            self._screen.note(message)

    async def _line(self) -> str | None:
        """Read the next line; None when there is none, or Ctrl-C was pressed instead."""
        interrupted = asyncio.Event()

        async def interrupt() -> None:
            interrupted.set()

        with stop_on_signal(self._screen, interrupt):
            line, interruption = self._keyboard.ask(), asyncio.ensure_future(interrupted.wait())
            await asyncio.wait((line, interruption), return_when=asyncio.FIRST_COMPLETED)
            interruption.cancel()
        return self._keyboard.take() if line.done() else None

    async def _run_turn(self, text: str | None) -> bool:
        """Run a turn with what was typed: a message, or the answer to the first pending call."""
        answers = dict.fromkeys(self._pending[:1], text or "")
        message = None if answers else text
        attachments = self._attached if message else ()
        self._attached = self._attached[len(attachments) :]
        with stop_on_signal(self._screen, partial(stop, self._conversation, self._screen)):
            try:
                finished = await watch(
                    self._conversation,
                    message,
                    self._choices,
                    self._screen,
                    limits={},
                    answers=answers,
                    files=attachments,
                    animated=False,
                )
            except LooplineError as error:
                self._screen.error(str(error))
                _logger.debug("%s", type(error).__name__, exc_info=error)
                return False
        name = self._conversation.conversation.name
        show_result(finished, name, self._screen, as_json=self._choices.as_json)
        self._pending = tuple(call.call_id for call in finished.result.pending)
        if finished.result.late_input:
            self._screen.note(LATE_INPUT)
        return finished.result.ok
