"""`loopline chat` at a terminal: the turn is shown as it comes, above a line that can always be typed on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TextIO, cast

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import StdoutProxy
from rich.text import Text

from loopline.cli.chat_commands import (
    GREETING,
    HELP,
    Command,
    checked_file,
    fork,
    judge,
    parse,
    refusal,
)
from loopline.cli.run import Over, conclude, tell, waits
from loopline.cli.terminal import QUIET, Screen, visible
from loopline.cli.turn_display import Transcript
from loopline.conversations import Conversation, Receipt
from loopline.errors import AttachmentError, LooplineError
from loopline.events import Event
from loopline.react import PendingCall, result
from loopline.timeline import Block, Timeline, UserPrompt

PROMPT = "> "
WRITE_SECONDS = 0.02
"""How long lines may be collected before they are written above the prompt."""
BUSY_HINT = f"{Command.STEER} TEXT turns it another way · {Command.STOP} gives up waiting"
_STYLES = {"": "", QUIET: "ansibrightblack", f"{QUIET} italic": "ansibrightblack italic"}

_logger = logging.getLogger("loopline")


async def converse(talk: Conversation) -> int:
    """Talk until somebody leaves; 0 unless the last turn failed."""
    with StdoutProxy(sleep_between_writes=WRITE_SECONDS, raw=True) as proxy:
        stream = cast("TextIO", proxy)  # it is one in all that a console asks of it
        screen = Screen(out=stream, err=stream)
        return await TerminalChat(talk, screen).converse()


class TerminalChat:
    """One conversation at a terminal."""

    def __init__(self, talk: Conversation, screen: Screen) -> None:
        self._talk = talk
        self._screen = screen
        self._session: PromptSession[str] = PromptSession(
            history=InMemoryHistory(), key_bindings=_newline_keys(), erase_when_done=True
        )
        self._turn: asyncio.Task[None] | None = None
        self._transcript = Transcript(screen.width)
        self._pending: Sequence[PendingCall] = ()
        self._attached: tuple[Path, ...] = ()
        self._leaving = False
        self._ok = True

    async def converse(self) -> int:
        """Show what is left of the last turn, then do what is typed."""
        self._note(GREETING)
        await self._take_up()
        while not self._leaving:
            try:
                line = await self._session.prompt_async(
                    self._message, bottom_toolbar=self._toolbar, handle_sigint=False
                )
            except KeyboardInterrupt:
                await self._interrupt()
            except EOFError:
                break
            else:
                # The session's own echo would leave the line that is still being written there too.
                self._screen.note(Text.assemble((PROMPT, "bold"), visible(line)))
                await self._enter(line)
        if self._running:
            await self._stop()
        return 0 if self._ok else 1

    @property
    def _running(self) -> bool:
        return self._turn is not None and not self._turn.done()

    def _message(self) -> StyleAndTextTuples:
        """The line that is being written, above the one that is typed on."""
        partial = self._transcript.partial
        prompt: StyleAndTextTuples = [("bold", PROMPT)]
        if not partial.plain or not self._running:
            return prompt
        return [(_STYLES[str(partial.style)], f"{partial.plain}\n"), *prompt]

    def _toolbar(self) -> str:
        parts = [f" {visible(self._talk.conversation.name)}"]
        if self._running:
            parts.append(f"running: type to add · {Command.STEER} · {Command.STOP}")
        elif self._pending:
            parts.append(f"{self._pending[0].call_id} waits for your answer")
        if self._attached:
            parts.append(f"attached: {', '.join(visible(file.name) for file in self._attached)}")
        return " · ".join(parts)

    async def _take_up(self) -> None:
        """Recall what was typed before, ask again what the last turn asks, or carry it on."""
        blocks = await self._talk.blocks()
        for block in blocks:
            if isinstance(block.body, UserPrompt):
                self._session.history.append_string(block.body.text)
        timeline = Timeline(blocks)
        if not timeline.resumable:
            return
        turn = timeline.resumable[0]
        pending = result(timeline, turn.number, "paused").pending
        if pending:
            self._ask(pending)
        else:
            self._note(f"turn_{turn.number} has not ended: it is carried on")
            self._begin(self._talk.stream_resume(), turn.number)

    def _ask(self, pending: Sequence[PendingCall]) -> None:
        self._pending = pending
        for call in pending:
            self._screen.note(waits(call))

    async def _enter(self, line: str) -> None:
        """Do what was typed."""
        command, rest = parse(line)
        match command:
            case "":
                await self._say(line.strip())
            case Command.QUIT:
                self._leaving = True
            case Command.STOP:
                await self._stop()
            case Command.STEER:
                await self._steer(rest)
            case Command.ATTACH:
                await self._attach(rest)
            case Command.FORK | Command.FEEDBACK:
                await self._change(command, rest)
            case Command.HELP:
                self._note(HELP)
            case _:
                self._screen.error(refusal(command))

    async def _say(self, text: str) -> None:
        if not text:
            return
        if self._running:
            self._added(await self._talk.followup(text))
        elif self._pending:
            self._begin(self._talk.stream_resume({self._pending[0].call_id: text}))
        else:
            attached, self._attached = self._attached, ()
            self._begin(self._talk.stream(text, attachments=attached))

    async def _steer(self, text: str) -> None:
        if not self._running:
            self._note("nothing is running")
        elif not text:
            self._screen.error(f"{Command.STEER} needs a text: where the turn should go instead")
        else:
            self._added(await self._talk.steer(text))

    async def _attach(self, name: str) -> None:
        try:
            file = await asyncio.to_thread(checked_file, name)
        except AttachmentError as error:
            self._screen.error(str(error))
        else:
            self._attached = (*self._attached, file)

    async def _change(self, command: str, rest: str) -> None:
        """Go on in a copy, or judge the last turn."""
        try:
            if command == Command.FEEDBACK:
                self._note(await judge(self._talk, rest))
            elif self._running:
                self._screen.error(f"a turn runs: {Command.STOP} it, or let it end, then fork")
            else:
                before, self._talk = self._talk, await fork(self._talk, rest)
                names = [visible(talk.conversation.name) for talk in (self._talk, before)]
                self._pending = ()  # a call that is open in a copy is not run
                self._note("you are in {} now; {} stays as it is".format(*names))
        except LooplineError as error:
            self._screen.error(str(error))

    async def _stop(self) -> None:
        if not self._running:
            self._note("nothing is running")
        elif self._turn is not None:
            self._note("stopping")
            await self._talk.stop()
            await asyncio.wait([self._turn])

    async def _interrupt(self) -> None:
        """Stop the turn that runs; without one, leave."""
        if self._running:
            await self._stop()
        else:
            self._leaving = True

    def _begin(self, events: AsyncIterator[Event], number: int = 0) -> None:
        self._turn = asyncio.create_task(self._show(events, number))

    async def _show(self, events: AsyncIterator[Event], number: int) -> None:
        """Show a turn as it comes, and what came of it; its `number` is known if it is carried on."""
        transcript = self._transcript = Transcript(self._screen.width, busy_hint=BUSY_HINT)
        heard = False
        try:
            async for event in events:
                if isinstance(event, Block):
                    heard, number = True, event.turn
                for line in transcript.take(event):
                    self._screen.note(line)
                self._session.app.invalidate()
        except LooplineError as error:
            _logger.debug("%s", type(error).__name__, exc_info=error)
            self._ok = False
            if not heard and not await self._has_ended(number):  # no turn tells of it
                self._screen.error(str(error))
                return
        for line in transcript.end():
            self._screen.note(line)
        if heard or await self._has_ended(number):
            await self._conclude(number, shown=transcript.is_answered)
        else:
            self._note("given up before it began: nothing was run")

    async def _has_ended(self, number: int) -> bool:
        """Whether that turn is over, as when another process ran it to its end meanwhile."""
        if not number:
            return False
        return bool(await self._talk.blocks(types="react.exit", turn=f"turn_{number}"))

    async def _conclude(self, number: int, *, shown: bool) -> None:
        """Show what came of the turn; its answer only where it was not `shown` as it came."""
        over = Over(Timeline(await self._talk.blocks()), number)
        name = self._talk.conversation.name
        if shown:
            conclude(over, name, self._screen)
        else:
            tell(over, name, self._screen, as_json=False)
        self._pending = over.result.pending
        self._ok = over.result.ok
        if over.result.late_input:
            self._note("what came too late waits for the next turn")
        self._session.app.invalidate()

    def _added(self, receipt: Receipt) -> None:
        self._note(f"added to {receipt.turn_id}, as block {receipt.seq}")

    def _note(self, text: str) -> None:
        self._screen.note(Text(text, style=QUIET))


def _newline_keys() -> KeyBindings:
    """Return the key binding by which a message gets another line: Escape, then Enter."""
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def insert_newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    del insert_newline
    return keys
