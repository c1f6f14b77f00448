"""`loopline chat`: a conversation at a terminal, or line by line from a pipe."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.text import Text

from loopline.cli.access import fresh, opened
from loopline.cli.chat_commands import HELP, Command, checked_file, fork, judge, parse, refusal
from loopline.cli.options import Choices
from loopline.cli.process import leave, stopping
from loopline.cli.run import introduce, stop, tell, watched
from loopline.cli.terminal import QUIET, Keyboard, Screen, visible
from loopline.conversations import Conversation
from loopline.errors import AttachmentError, LooplineError
from loopline.react import result
from loopline.timeline import Timeline

_logger = logging.getLogger("loopline")


async def chat(bundle: str, choices: Choices, screen: Screen) -> int:
    """Talk until the input ends or somebody leaves."""
    async with opened(bundle, choices, screen) as harness:
        name = choices.conversation or await fresh(harness.log, harness.bundle.id, choices.whose)
        introduce(harness, screen)
        screen.note(Text(f"conversation {visible(name)}", style=QUIET))
        talk = harness.conversation(name, user=choices.whose)
        if sys.stdin.isatty() and sys.stdout.isatty() and not choices.as_json:
            from loopline.cli import terminal_chat

            code = await terminal_chat.converse(talk)
        else:
            code = await _LineChat(talk, Keyboard(), choices, screen).converse()
    leave(code)  # a thread may still be reading a line, and nobody waits for it


@dataclass(slots=True)
class _LineChat:
    """A conversation whose lines come one after the other, each a turn."""

    talk: Conversation
    keyboard: Keyboard
    choices: Choices
    screen: Screen
    pending: tuple[str, ...] = ()
    attached: tuple[Path, ...] = ()

    async def converse(self) -> int:
        """Run a turn for each line; 0 unless the last one failed."""
        ok = await self._take_up()
        while (line := await self._line()) is not None:
            command, rest = parse(line)
            match command:
                case "":
                    ok = await self._turn(line) if line.strip() else ok
                case Command.QUIT:
                    break
                case Command.ATTACH:
                    await self._attach(rest)
                case Command.FORK | Command.FEEDBACK:
                    await self._change(command, rest)
                case Command.HELP:
                    self.screen.note(Text(HELP, style=QUIET))
                case Command.STOP | Command.STEER:
                    self.screen.note(Text("nothing is running", style=QUIET))
                case _:
                    self.screen.error(refusal(command))
        return 0 if ok else 1

    async def _take_up(self) -> bool:
        """Carry on the turn that was cut off, or find what the paused one waits for."""
        timeline = Timeline(await self.talk.blocks())
        if not timeline.resumable:
            return True
        paused = result(timeline, timeline.resumable[0].number, "paused").pending
        self.pending = tuple(call.call_id for call in paused)
        return True if paused else await self._turn(None)

    async def _attach(self, name: str) -> None:
        """Check a file, and keep it for the next message."""
        try:
            file = await asyncio.to_thread(checked_file, name)
        except AttachmentError as error:
            self.screen.error(str(error))
            return
        self.attached = (*self.attached, file)
        self.screen.note(Text(f"{visible(name)} goes with your next message", style=QUIET))

    async def _change(self, command: str, rest: str) -> None:
        """Go on in a copy, or judge the last turn."""
        try:
            if command == Command.FORK:
                self.talk = await fork(self.talk, rest)
                self.pending = ()  # a call that is open in a copy is not run
                said = f"conversation {self.talk.conversation.name}"
            else:
                said = await judge(self.talk, rest)
        except LooplineError as error:
            self.screen.error(str(error))
        else:
            self.screen.note(Text(visible(said), style=QUIET))

    async def _line(self) -> str | None:
        """Read the next line; None when there is none, or Ctrl-C was pressed instead."""
        interrupted = asyncio.Event()

        async def interrupt() -> None:
            interrupted.set()

        with stopping(self.screen, interrupt):
            line, wish = self.keyboard.ask(), asyncio.ensure_future(interrupted.wait())
            await asyncio.wait((line, wish), return_when=asyncio.FIRST_COMPLETED)
            wish.cancel()
        return self.keyboard.take() if line.done() else None

    async def _turn(self, text: str | None) -> bool:
        """Run a turn of what was typed, an answer to what waits for one, or the cut turn."""
        answers = dict.fromkeys(self.pending[:1], text or "")
        said = None if answers else text
        attached = self.attached if said else ()
        self.attached = self.attached[len(attached) :]
        with stopping(self.screen, partial(stop, self.talk, self.screen)):
            try:
                over = await watched(
                    self.talk,
                    said,
                    {},
                    self.screen,
                    moves=False,
                    answers=answers,
                    attached=attached,
                )
            except LooplineError as error:
                self.screen.error(str(error))
                _logger.debug("%s", type(error).__name__, exc_info=error)
                return False
        tell(over, self.talk.conversation.name, self.screen, as_json=self.choices.as_json)
        self.pending = tuple(call.call_id for call in over.result.pending)
        if over.result.late_input:
            self.screen.note(Text("what came too late waits for the next turn", style=QUIET))
        return over.result.ok
