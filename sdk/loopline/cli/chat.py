"""`loopline chat`: open a bundle or a server, and chat at a terminal or through a pipe."""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial
from pathlib import Path

import click
from rich.text import Text

from loopline.cli import parameters, run
from loopline.cli.bundle_access import open_bundle
from loopline.cli.chat_loop import Chat
from loopline.cli.options import Choices, UsageError, command, exit_now, stop_on_signal
from loopline.cli.reader import new_name
from loopline.cli.terminal import Screen, escape, read_line
from loopline.errors import LooplineError

_logger = logging.getLogger("loopline")


@command
@click.argument(
    "bundle",
    required=False,
    metavar="[BUNDLE]",
    help="A bundle's file, folder or name; with --server its id there.",
)
@click.option("--server", default="", metavar="URL", help="Talk with a bundle of this server.")
@parameters.file_option("--key-file", help="The file of your key there; else LOOPLINE_KEY has it.")
@parameters.conversation_option
@parameters.answer_options
@parameters.cassette_options
@parameters.json_option
async def chat(
    choices: Choices, screen: Screen, bundle: str | None, server: str, key_file: Path | None
) -> int:
    """Talk with a bundle, here or on a server."""
    if server:
        async with run.open_server(server, key_file) as remote:
            remote_chat = await run.remote_conversation(remote, choices.conversation, bundle or "")
            screen.note(Text.assemble((escape(server), "bold"), f" · user {escape(remote.user)}"))
            code = await _converse(remote_chat, choices, screen)
    elif bundle is None:
        raise UsageError("name a bundle, or a server with --server URL")
    else:
        async with open_bundle(bundle, choices, screen) as harness:
            name = choices.conversation or await new_name(
                harness.log, harness.bundle.id, choices.user_name
            )
            run.introduce(harness, screen)
            local_chat = harness.conversation(name, user=choices.user_name)
            code = await _converse(local_chat, choices, screen)
    exit_now(code)  # without waiting for a thread that may still read a line


async def _converse(conversation: run.ChatConversation, choices: Choices, screen: Screen) -> int:
    """Print the name of the conversation, chat until the user leaves, and return the exit code.

    The chat is interactive if stdin and stdout are terminals and `--json` is not given; otherwise each turn ends
    before the next line is read.
    """
    screen.note(f"conversation {escape(conversation.conversation.name)}")
    if sys.stdin.isatty() and sys.stdout.isatty() and not choices.as_json:
        from loopline.cli.terminal_chat import converse

        return await converse(conversation)
    return await _PipeChat(conversation, choices, screen).converse()


class _PipeChat(Chat):
    """A chat whose lines come from a pipe: each turn ends before the next line is read."""

    def __init__(
        self, conversation: run.ChatConversation, choices: Choices, screen: Screen
    ) -> None:
        super().__init__(conversation, screen)
        self._choices = choices

    async def _read_line(self) -> str | None:
        """Read the next line; None at the end of the input, at Ctrl-C and at SIGTERM."""
        interrupted = asyncio.Event()

        async def interrupt() -> None:
            interrupted.set()

        with stop_on_signal(self._screen, interrupt):
            line = read_line()
            interruption = asyncio.ensure_future(interrupted.wait())
            await asyncio.wait((line, interruption), return_when=asyncio.FIRST_COMPLETED)
            interruption.cancel()
        return line.result() if line.done() else None

    async def _say(self, text: str) -> None:
        """Run a turn with the text and the attached files, or answer the first pending call; ignore an empty text."""
        if not text.strip():
            return
        if self._pending:
            await self._run_turn(run.TurnInput(text=None, answers=self._answers(text)))
        else:
            await self._run_turn(run.TurnInput(text=text, files=self._take_attached()))

    async def _resume(self, number: int) -> None:
        del number  # the conversation continues its last turn
        await self._run_turn(run.TurnInput(text=None))

    async def _run_turn(self, begin: run.TurnInput) -> None:
        """Run a turn, print its result and store its pending calls; Ctrl-C stops the turn.

        A LooplineError is printed; the exit code of the chat is then 1 if this was the last turn.
        """
        with stop_on_signal(self._screen, partial(run.stop, self._conversation, self._screen)):
            try:
                finished = await run.watch(
                    self._conversation, begin, self._choices, self._screen, animated=False
                )
            except LooplineError as error:
                self._screen.error(str(error))
                _logger.debug("%s", type(error).__name__, exc_info=error)
                self._ok = False
                return
        name = self._conversation.conversation.name
        run.show_result(finished, name, self._screen, as_json=self._choices.as_json)
        self._take_result(finished)
