"""`loopline chat`: a conversation at the keyboard, or line by line from a pipe."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
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
from loopline.conversations import Talk
from loopline.errors import LooplineError

PROMPT = "> "
STOP, QUIT, STEER, ATTACH = "/stop", "/quit", "/steer", "/attach"
HELP = (
    "what you type while a turn runs is added to it · "
    f"{STEER} TEXT turns it another way · {STOP} ends it · {QUIT} leaves · "
    f"{ATTACH} FILE sends a file with what you say next"
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
            if line.strip() == QUIT:
                break
            if line.strip() == STOP:
                self.screen.note(Text("nothing is running", style=QUIET))
            elif line.startswith(f"{ATTACH} "):
                self._attach(line.removeprefix(ATTACH).strip())
            elif line.strip():
                ok = await self._turn(line)
        return 0 if ok else 1

    def _attach(self, name: str) -> None:
        """Keep a file for what is said next."""
        self.attached = (*self.attached, Path(name).expanduser())
        self.screen.note(Text(f"{visible(name)} goes with what you say next", style=QUIET))

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
        said = "" if line is None else line.strip()
        if line is None or said == QUIT:
            self.leaving = True
        if line is not None and said in (STOP, QUIT):
            await self.talk.stop()
        elif said.startswith(f"{ATTACH} "):
            self._attach(said.removeprefix(ATTACH).strip())
        elif said:
            words = said.removeprefix(f"{STEER} ").strip()
            say = self.talk.followup if words == said else self.talk.steer
            receipt = await say(words)
            self.screen.note(
                Text(f"added to {receipt.turn_id}, as block {receipt.seq}", style=QUIET)
            )


async def _first(*futures: asyncio.Future[Any]) -> None:
    """Wait until one of them is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
