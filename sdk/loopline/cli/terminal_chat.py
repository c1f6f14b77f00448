"""`loopline chat` at a terminal: the running turn is shown above a prompt that always accepts input."""

from __future__ import annotations

import asyncio
import io
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from prompt_toolkit import Application, PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import Layout
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.renderer import Renderer
from prompt_toolkit.styles import default_pygments_style, default_ui_style, merge_styles
from rich.text import Text

from loopline import timeline as tl
from loopline.cli import run
from loopline.cli.chat_loop import GREETING, Chat, Command
from loopline.cli.options import BY_SIGNAL
from loopline.cli.terminal import Screen, escape
from loopline.cli.transcript import Transcript, markdown_rows
from loopline.cli.turn_display import DECLINE, QuestionForm
from loopline.conversations import Receipt
from loopline.errors import LooplineError
from loopline.events import Delta, Event

PROMPT = "> "
WRITE_SECONDS = 0.02
"""The seconds for which lines are buffered before they are written above the prompt."""
BUSY_HINT = f"{Command.STEER} TEXT changes its direction · {Command.STOP} stops waiting"
PAST_TURNS = 20
"""The turns of an earlier chat that are shown when it continues."""
QUESTION_SECONDS = 0.2
"""The time after which the question after one that was dropped is shown."""
OTHER_LINES = 5
"""The rows that a running turn leaves to the prompt, the toolbar and the lines above."""

_logger = logging.getLogger("loopline")


async def converse(conversation: run.ChatConversation) -> int:
    """Chat until the user leaves, and return the exit code."""
    keys = _input()
    output = create_output()
    lines = _Lines(output)
    with keys.raw_mode():
        try:
            return await TerminalChat(conversation, lines, keys, output).converse()
        finally:
            lines.write_out()


class TerminalChat(Chat):
    """A chat at a terminal: what is typed while a turn runs is added to it."""

    def __init__(
        self, conversation: run.ChatConversation, lines: _Lines, keys: Input, output: Output
    ) -> None:
        screen = Screen(out=lines, err=lines)
        super().__init__(conversation, screen)
        self._lines = lines
        self._session: PromptSession[str] = PromptSession(
            input=keys,
            output=output,
            history=InMemoryHistory(),
            key_bindings=_newline_keys(),
            erase_when_done=True,
        )
        application = self._session.app
        application.renderer = _Renderer(self._session, self._last_rows)
        self._turn: asyncio.Task[None] | None = None
        self._transcript = Transcript(screen.width)
        self._questions: list[QuestionForm] = []
        self._shown_question: QuestionForm | None = None
        self._signal_code = 0

    async def converse(self) -> int:
        """Show the greeting and the earlier turns, and chat; stop the running turn at the end.

        Returns 143 after SIGTERM, otherwise 1 if the last turn failed, or 0.
        """
        self._screen.note(GREETING)
        self._show_past(tl.Timeline(await self._conversation.blocks()))
        with self._leave_on_sigterm():
            code = await super().converse()
            if self._running:
                is_stopped = await self._stop()
                code = 0 if self._ok and is_stopped else 1
        return self._signal_code or code

    def _show_past(self, timeline: tl.Timeline) -> None:
        """Show the messages and answers of the last PAST_TURNS turns, and load all messages into the history."""
        first = max(timeline.turns, default=0) - PAST_TURNS + 1
        if first > 1:
            name = escape(self._conversation.conversation.name)
            self._screen.note(f"the turns before turn_{first}: loopline timeline {name}")
        for block in timeline:
            body = block.body
            if isinstance(body, tl.UserPrompt | tl.UserFollowup | tl.UserSteer):
                self._session.history.append_string(body.text)
                if block.turn >= first:
                    self._echo(body.text)
            elif isinstance(body, tl.Completion) and block.turn >= first:
                self._show_answer(run.FinishedTurn(timeline, block.turn))

    def _echo(self, line: str) -> None:
        self._screen.note(Text.assemble((PROMPT, "bold"), escape(line)))

    def _show_answer(self, finished: run.FinishedTurn) -> None:
        text = run.number_citations(finished.timeline, finished.turn).text
        for row in markdown_rows(text, self._screen.width):
            self._screen.note(row)

    @contextmanager
    def _leave_on_sigterm(self) -> Generator[None]:
        """End the chat at SIGTERM as at Ctrl-D in this context, but with the exit code 143.

        On a platform without signal handlers SIGTERM is not handled.
        """
        loop = asyncio.get_running_loop()

        def leave() -> None:
            self._leaving = True
            self._signal_code = BY_SIGNAL + int(signal.SIGTERM)
            if self._session.app.is_running:
                self._session.app.exit(exception=EOFError)

        with suppress(NotImplementedError):  # if the platform has no signals
            loop.add_signal_handler(signal.SIGTERM, leave)
        try:
            yield
        finally:
            with suppress(NotImplementedError):
                loop.remove_signal_handler(signal.SIGTERM)

    async def _read_line(self) -> str | None:
        """Read the next line; None at Ctrl-D, or at Ctrl-C if no turn runs. Ctrl-C stops the running turn."""
        while not self._leaving:
            try:
                line = await self._session.prompt_async(
                    self._message, bottom_toolbar=self._toolbar, handle_sigint=False
                )
            except KeyboardInterrupt:
                if not self._running:
                    return None
                await self._stop()
            except EOFError:
                return None
            else:
                # The session's own echo would also leave the unfinished line of the answer on the screen.
                self._echo(line)
                return line
        return None

    @property
    def _running(self) -> bool:
        return self._turn is not None and not self._turn.done()

    def _message(self) -> StyleAndTextTuples:
        """Render the prompt, below the unfinished text of the running turn."""
        prompt: StyleAndTextTuples = [("bold", PROMPT)]
        if not self._running:
            return prompt
        return [*to_formatted_text(ANSI(self._screen.render(self._live_rows()))), *prompt]

    def _live_rows(self) -> list[Text]:
        """Return the rows of the unfinished text that fit above the prompt."""
        size = self._session.output.get_size()
        self._transcript.width = size.columns
        return self._transcript.live_rows(max(size.rows - OTHER_LINES, 1))

    def _last_rows(self) -> str:
        """Write the buffered lines; return the last rows above the unfinished text, rendered at the present width."""
        self._lines.write_out()
        height = self._session.output.get_size().rows - OTHER_LINES - len(self._live_rows())
        return self._screen.render(self._screen.last_rows(height))

    def _toolbar(self) -> str:
        """Render the conversation's name, a hint while a turn runs or a call waits, and the attached files."""
        parts = [f" {escape(self._conversation.conversation.name)}"]
        if self._running:
            hint = "your answer" if self._questions else "running: type to add"
            parts.append(f"{hint} · {Command.STEER} · {Command.STOP}")
        elif self._pending:
            parts.append(f"{self._pending[0].call_id} waits for your answer")
        if self._attached:
            parts.append(f"attached: {', '.join(escape(file.name) for file in self._attached)}")
        return " · ".join(parts)

    async def _resume(self, number: int) -> None:
        self._screen.note(f"turn_{number} has not ended: it continues")
        self._start(self._conversation.stream_resume(), number)

    async def _handle(self, command: Command | str, text: str) -> None:
        """Handle a command or message; while a turn runs, `/stop` and `/steer` act on it, and `/fork` is refused.

        A LooplineError is printed, and the chat goes on.
        """
        try:
            if not self._running:
                await super()._handle(command, text)
            elif command == Command.STOP:
                await self._stop()
            elif command == Command.STEER:
                await self._steer(text)
            elif command == Command.FORK:
                self._screen.error(f"a turn runs: {Command.STOP} it or let it end, then fork")
            else:
                await super()._handle(command, text)
        except LooplineError as error:
            self._show_error(error)

    async def _say(self, text: str) -> None:
        """Answer a question of the running turn, add to that turn, answer a pending call, or start a turn.

        The first possible action is chosen. An empty text is ignored, except as the answer to a question of the turn.
        """
        text = text.strip()
        if self._running and self._questions:
            await self._answer(text)
        elif not text:
            return
        elif self._running:
            self._note_added(await self._conversation.followup(text))
        elif self._pending:
            self._start(self._conversation.stream_resume(self._answers(text)))
        else:
            attached = self._take_attached()
            self._start(self._conversation.stream(text, attachments=attached))

    async def _answer(self, line: str) -> None:
        """Store the line as the answer to the next field of the first question; the line `-` declines the question.

        If the line is not a value of the field, the error is shown, and the field stays open. When all fields have an answer, or
        when the question is declined, the answer is sent to the call, and the next question is shown. An answer that could not be
        sent is dropped, and the question is shown again.
        """
        question = self._questions[0]
        if line != DECLINE:
            try:
                is_complete = question.take(line)
            except LooplineError as error:
                self._screen.error(str(error))
                return
            if not is_complete:
                self._screen.note(question.prompt)
                return
        answer = None if line == DECLINE else question.answer
        try:
            is_sent = await run.answer_question(self._conversation, question.call_id, answer)
        except LooplineError as error:
            self._show_error(error)
            question.clear()
            self._shown_question = None
        else:
            self._questions = [each for each in self._questions if each is not question]
            if not is_sent:
                self._screen.note(f"{question.call_id} no longer waits for an answer")
        self._show_question()

    def _show_question(self) -> None:
        """Show the first question, once."""
        first = self._questions[0] if self._questions else None
        if first is not None and first is not self._shown_question:
            self._shown_question = first
            self._screen.note(first.question)
            self._screen.note(first.prompt)

    def _add_question(self, event: Delta) -> None:
        """Queue the question of a running call, and show it if it is the first in the queue."""
        self._questions.append(QuestionForm(event.call_id, event.text, event.data))
        self._show_question()

    async def _steer(self, text: str) -> None:
        if not text:
            self._screen.error(f"{Command.STEER} needs a text: what the turn should do instead")
        else:
            self._note_added(await self._conversation.steer(text))

    async def _stop(self) -> bool:
        """Stop the running turn, and wait until it has ended; print an error and return False if it cannot be stopped."""
        if self._turn is not None:
            self._screen.note("stopping")
            try:
                await self._conversation.stop()
            except LooplineError as error:
                self._show_error(error)
                return False
            await asyncio.wait([self._turn])
        return True

    def _show_error(self, error: LooplineError) -> None:
        self._screen.error(str(error))
        _logger.debug("%s", type(error).__name__, exc_info=error)

    def _start(self, events: AsyncIterator[Event], number: int = 0) -> None:
        self._turn = asyncio.create_task(self._show(events, number))

    async def _show(self, events: AsyncIterator[Event], number: int) -> None:
        """Show a turn with `_show_turn`; an error of reading its blocks is printed as a failure."""
        try:
            await self._show_turn(events, number)
        except LooplineError as error:
            self._ok = False
            self._show_error(error)

    async def _show_turn(self, events: AsyncIterator[Event], number: int) -> None:
        """Show the events of a turn, then its result. `number` is the turn that is continued, 0 for a new message.

        An error before the first block of a turn that has not ended is printed as a failure; other errors are logged.
        """
        transcript = self._transcript = Transcript(self._screen.width, busy_hint=BUSY_HINT)
        has_begun = False
        try:
            async for event in events:
                if isinstance(event, tl.Block):
                    has_begun, number = True, event.turn
                    self._drop_questions(event)
                elif self._conversation.asks(event.call_id) and event.type == "pending":
                    self._add_question(event)
                transcript.width = self._screen.width
                for line in transcript.take(event):
                    self._screen.note(line)
                self._session.app.invalidate()
        except LooplineError as error:
            _logger.debug("%s", type(error).__name__, exc_info=error)
            self._ok = False
            if not has_begun and not await self._has_ended(number):  # the error is not in a block
                self._screen.error(str(error))
                return
        for line in transcript.end():
            self._screen.note(line)
        if has_begun or await self._has_ended(number):
            await self._show_finished(number, shown=transcript.is_answered)
        else:
            self._screen.note("the message was withdrawn before its turn began")

    def _drop_questions(self, block: tl.Block) -> None:
        """Remove the questions of a call at its result; the next question is shown after QUESTION_SECONDS."""
        if not isinstance(block.body, tl.ToolResult):
            return
        call_id = block.body.call_id
        self._questions = [each for each in self._questions if each.call_id != call_id]
        # A stop ends all calls one after the other: their questions are not shown on the way.
        asyncio.get_running_loop().call_later(QUESTION_SECONDS, self._show_question)

    async def _has_ended(self, number: int) -> bool:
        """Return whether the turn has ended, for example because another process ran it; false for 0."""
        if not number:
            return False
        return bool(await self._conversation.blocks(types="react.exit", turn=f"turn_{number}"))

    async def _show_finished(self, number: int, *, shown: bool) -> None:
        """Show the sources and the outcome of the turn, below its answer if that was not `shown` yet."""
        finished = run.FinishedTurn(tl.Timeline(await self._conversation.blocks()), number)
        if not shown:
            self._show_answer(finished)
        run.show_sources(finished, self._conversation.conversation.name, self._screen)
        self._take_result(finished)
        self._session.app.invalidate()

    def _note_added(self, receipt: Receipt) -> None:
        self._screen.note(f"added to {receipt.turn_id}, as block {receipt.seq}")


class _Lines(io.StringIO):
    """Lines for the rows above the prompt. They wait here until all that came in WRITE_SECONDS are written at once."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output
        self._timer: asyncio.TimerHandle | None = None

    def isatty(self) -> bool:
        """Return true."""
        return True

    def flush(self) -> None:
        """Schedule `write_out` in WRITE_SECONDS if text is buffered and no call is scheduled."""
        if self._timer is None and self.tell():
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(WRITE_SECONDS, run_in_terminal, self.write_out)

    def write_out(self) -> None:
        """Write the buffered text to the terminal at the cursor, empty the buffer, and cancel the scheduled call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._output.enable_autowrap()
        self._output.write_raw(self.getvalue())
        self._output.flush()
        self.seek(0)
        self.truncate()


class _Renderer(Renderer):
    """Draws the prompt. If the terminal became narrower, it also prints the last rows above the prompt again.

    A narrower terminal wraps the rows of the prompt that are wider, so that their number is unknown and some of them
    would remain on the screen.
    """

    def __init__(self, session: PromptSession[str], last_rows: Callable[[], str]) -> None:
        application = session.app
        super().__init__(
            merge_styles([default_ui_style(), default_pygments_style()]),
            application.output,
            cpr_not_supported_callback=application.cpr_not_supported_callback,
        )
        self._last_rows = last_rows
        self._columns = 0

    def render(self, app: Application[str], layout: Layout, is_done: bool = False) -> None:
        """Draw the prompt; if the terminal became narrower, first remove the old drawing."""
        if self.output.get_size().columns < self._columns:
            # A key or a line has come before the signal of the new width, at which the prompt toolkit does the same.
            self.erase()
            self.request_absolute_cursor_position()
        self._columns = self.output.get_size().columns
        super().render(app, layout, is_done)

    def erase(self, leave_alternate_screen: bool = True) -> None:
        """Remove the prompt from the screen; if the terminal became narrower, print the last rows again."""
        columns = self.output.get_size().columns
        is_narrower = columns < self._columns
        super().erase(leave_alternate_screen)
        if is_narrower:
            self._columns = columns
            last_rows = self._last_rows()
            # Deleted rows do not go to the scrollback, where erased ones would stand twice.
            self.output.cursor_goto(0, 0)
            self.output.write_raw(f"\x1b[{self.output.get_size().rows}M")
            self.output.write_raw(last_rows.replace("\n", "\r\n"))
            self.output.flush()


def _newline_keys() -> KeyBindings:
    """Return the key binding that inserts a line break in a message: Escape, then Enter."""
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def insert_newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    del insert_newline
    return keys


if sys.platform == "win32":
    _input = create_input
else:
    from prompt_toolkit.input.vt100 import Vt100Input

    class _RawInput(Vt100Input):
        """A keyboard that stays in raw mode while lines are written above the prompt.

        Prompt Toolkit leaves raw mode for each written line. The kernel would edit a key that is pressed at that
        moment: it would drop Ctrl-D, and Backspace would not change the prompt.
        """

        def cooked_mode(self) -> AbstractContextManager[None]:
            return nullcontext()

    def _input() -> Input:
        return _RawInput(sys.stdin)
