"""`loopline chat`: a conversation at the keyboard, or line by line from a pipe."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.conversing import fresh
from loopline.cli.door import leave, stopping
from loopline.cli.keyboard import Keyboard, restored
from loopline.cli.opening import opened
from loopline.cli.running import Over, introduce, stop, tell, watched
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, visible
from loopline.conversations import Receipt, Talk
from loopline.errors import AttachmentError, LooplineError
from loopline.files import AttachmentCaps, entered

PROMPT = "> "
_COMMAND = re.compile(r"/[a-z]+")


class Command(StrEnum):
    """What a line of a chat may begin with, instead of being a message."""

    STEER = "/steer"
    STOP = "/stop"
    ATTACH = "/attach"
    QUIT = "/quit"


HELP = (
    "what you type while a turn runs is added to it · "
    f"{Command.STEER} TEXT turns it another way · {Command.STOP} ends it · {Command.QUIT} leaves · "
    f"{Command.ATTACH} FILE sends a file with your next message"
)

_logger = logging.getLogger("loopline")


async def chat(bundle: str, choices: Choices, screen: Screen) -> int:
    """Talk until the input ends or somebody leaves."""
    keyboard = Keyboard()
    async with opened(bundle, choices, screen) as harness:
        name = choices.conversation or await fresh(harness.log, harness.bundle.id, choices.whose)
        introduce(harness, screen)
        screen.note(Text(f"conversation {visible(name)}", style=QUIET))
        if keyboard.is_person:
            screen.note(Text(HELP, style=QUIET))
        talk = harness.conversation(name, user=choices.whose)
        with restored():
            code = await _Chat(talk, keyboard, choices, screen).converse()
    leave(code)  # the keyboard may be waiting, and nobody waits for it


@dataclass(slots=True)
class _Chat:
    talk: Talk
    keyboard: Keyboard
    choices: Choices
    screen: Screen
    leaving: bool = False
    waiting: tuple[str, ...] = ()
    attached: tuple[Path, ...] = ()

    async def converse(self) -> int:
        """One line after the other; 0 unless the last turn failed."""
        ok = True
        while not self.leaving:
            line = await self._line()
            if line is None:
                self.screen.gap(needed=True)
                break
            command, rest = _command(line)
            match command:
                case "":
                    ok = await self._turn(line) if line.strip() else ok
                case Command.QUIT:
                    break
                case Command.STOP | Command.STEER:
                    self.screen.note(Text("nothing is running", style=QUIET))
                case Command.ATTACH:
                    await self._attach(rest)
                case _:
                    self._refuse(command)
        return 0 if ok else 1

    async def _attach(self, name: str) -> None:
        """Check a file, and keep it for the next message."""
        try:
            file = await asyncio.to_thread(_checked_file, name)
        except AttachmentError as error:
            self.screen.error(str(error))
            return
        self.attached = (*self.attached, file)
        self.screen.note(Text(f"{visible(name)} goes with your next message", style=QUIET))

    def _refuse(self, command: str) -> None:
        self.screen.error(
            f"there is no command {command}: {', '.join(Command)}; "
            "begin the line with a space to send it as a message"
        )

    async def _line(self) -> str | None:
        """The next line; None when there is none, or Ctrl-C was pressed instead."""
        interrupted = asyncio.Event()

        async def interrupt() -> None:
            interrupted.set()

        with stopping(self.screen, interrupt):
            line, wish = self.keyboard.ask(PROMPT), asyncio.ensure_future(interrupted.wait())
            await _first(line, wish)
            wish.cancel()
        return self.keyboard.take() if line.done() else None

    async def _turn(self, text: str) -> bool:
        with stopping(self.screen, partial(stop, self.talk, self.screen)):
            answers = dict.fromkeys(self.waiting[:1], text)
            said = None if answers else text
            attached = self.attached if said else ()
            self.attached = self.attached[len(attached) :]
            turn = asyncio.ensure_future(
                watched(
                    self.talk,
                    said,
                    {},
                    self.screen,
                    moves=False,
                    answers=answers,
                    attached=attached,
                )
            )
            if self.keyboard.is_person:
                await self._listen(turn)
            try:
                over = await turn
            except LooplineError as error:
                self.screen.error(str(error))
                _logger.debug("%s", type(error).__name__, exc_info=error)
                return False
        tell(over, self.talk.conversation.name, self.screen, as_json=self.choices.as_json)
        self.waiting = tuple(call.call_id for call in over.result.pending)
        if over.result.late_input:
            self.screen.note(Text("what came too late waits for the next turn", style=QUIET))
        return over.result.ok

    async def _listen(self, turn: asyncio.Future[Over]) -> None:
        """What is typed while the turn runs is added to it."""
        while not turn.done() and not self.leaving:
            typed = self.keyboard.ask()
            await _first(turn, typed)
            if typed.done() and not turn.done():
                await self._typed(self.keyboard.take())

    async def _typed(self, line: str | None) -> None:
        """Do what was typed while a turn runs."""
        if line is None:
            self.leaving = True
            return
        command, rest = _command(line)
        match command:
            case Command.STOP:
                await self.talk.stop()
            case Command.QUIT:
                self.leaving = True
                await self.talk.stop()
            case Command.ATTACH:
                await self._attach(rest)
            case Command.STEER:
                self._added(await self.talk.steer(rest))
            case "":
                if line.strip():
                    self._added(await self.talk.followup(line.strip()))
            case _:
                self._refuse(command)

    def _added(self, receipt: Receipt) -> None:
        text = f"added to {receipt.turn_id}, as block {receipt.seq}"
        self.screen.note(Text(text, style=QUIET))


def _checked_file(name: str) -> Path:
    """Return the file's path.

    Raises:
        AttachmentError: it cannot be attached.
    """
    file = Path(name).expanduser()
    entered(file, AttachmentCaps())
    return file


def _command(line: str) -> tuple[Command | str, str]:
    """Return the command that a line begins with, or nothing, and the rest of the line."""
    word, _, rest = line.partition(" ")
    word = word.rstrip()
    if not _COMMAND.fullmatch(word):
        return "", line
    return (Command(word) if word in list(Command) else word), rest.strip()


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of them is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
