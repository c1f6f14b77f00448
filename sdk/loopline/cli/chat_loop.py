"""The loop of `loopline chat`: the commands of a line, and what they do in a conversation."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import cast

from loopline.cli.options import REACTIONS
from loopline.cli.run import ChatConversation, FinishedTurn, pending_line
from loopline.cli.terminal import Screen, escape
from loopline.errors import AttachmentError, LooplineError
from loopline.files import AttachmentCaps, read_attachments
from loopline.models import Json, dumps
from loopline.react import parse_approval, result
from loopline.timeline import ApprovalMode, GrantedRule, Timeline, ToolPending, turn_id

_COMMAND = re.compile(r"/[a-z]+")


class Command(StrEnum):
    """The commands of a chat: a line that starts with one is not a message."""

    STEER = "/steer"
    STOP = "/stop"
    ATTACH = "/attach"
    FEEDBACK = "/feedback"
    FORK = "/fork"
    MODE = "/mode"
    RULES = "/rules"
    HELP = "/help"
    QUIT = "/quit"


GREETING = (
    f"text that you type while a turn runs is added to it · {Command.HELP} lists the commands"
)
HELP = f"""\
{Command.STEER} TEXT               changes the direction of the running turn
{Command.STOP}, Ctrl-C             stops it
{Command.ATTACH} FILE              sends a file with your next message
{Command.FEEDBACK} REACTION [WHY]  rates the last turn: ok, not_ok, neutral, or none
{Command.FORK} [NAME]              continues in a copy of the conversation
{Command.MODE} [MODE]              about calls that need approval: ask, accept_reads, plan, deny
{Command.RULES} [revoke ID]        lists or revokes the rules by which calls run without a question
{Command.QUIT}, Ctrl-D             leaves
Esc, then Enter           begins another line of the message"""
LATE_INPUT = "your message came too late for this turn: the next turn will read it"


def parse(line: str) -> tuple[Command | str, str]:
    """Split a line into its command and the text after it; a line without a command is ("", line).

    An unknown command, such as `/x`, is returned as a str. Spaces around the text after a command are removed.
    """
    first, _, text = line.partition(" ")
    first = first.rstrip()
    if not _COMMAND.fullmatch(first):
        return "", line
    return (Command(first) if first in list(Command) else first), text.strip()


def describe_rule(rule: GrantedRule) -> str:
    """Return a rule in one line, such as `rule_1f  shop.order with any arguments, in this conversation, always`."""
    arguments = "any arguments" if rule.arguments is None else dumps(rule.arguments)
    where = "in all conversations" if rule.scope == "user" else "in this conversation"
    until = "always" if rule.until is None else f"until {rule.until:%Y-%m-%d %H:%M} UTC"
    return escape(f"{rule.rule_id}  {rule.tool} with {arguments}, {where}, {until}")


async def rate(conversation: ChatConversation, typed: str) -> str:
    """Rate the last turn that has ended with `typed`, such as `ok` or `not_ok too long`; return `turn_2: ok`.

    Raises:
        LooplineError: no turn has ended, or `typed` does not start with a reaction.
    """
    reaction, _, text = typed.partition(" ")
    if reaction not in REACTIONS:
        raise LooplineError(f"{Command.FEEDBACK} needs a reaction: {', '.join(REACTIONS)}")
    exits = await conversation.blocks(types="react.exit")
    if not exits:
        raise LooplineError("no turn has ended yet")
    turn = turn_id(exits[-1].turn)
    await conversation.feedback(turn, REACTIONS[reaction], text=text.strip())
    return f"{turn}: {reaction}"


def check_file(name: str) -> Path:
    """Return the path of a file, with `~` expanded, after a check that it can be attached.

    Raises:
        AttachmentError: the file cannot be attached.
    """
    try:
        file = Path(name).expanduser()
    except RuntimeError as error:  # `~name` of a user that this machine does not have
        raise AttachmentError(f"{name}: the file cannot be read: {error}") from error
    read_attachments(file, AttachmentCaps())
    return file


class Chat(ABC):
    """The loop of a chat: each line is a message, an answer to a pending call, or a command."""

    def __init__(self, conversation: ChatConversation, screen: Screen) -> None:
        self._conversation = conversation
        self._screen = screen
        self._pending: Sequence[ToolPending] = ()
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
        """Run a command, or send `text` if the command is empty; print an error for an unknown command.

        `/stop` and `/steer` only print a note, because this class runs no turn in the background.
        """
        match command:
            case "":
                await self._say(text)
            case Command.QUIT:
                self._leaving = True
            case Command.ATTACH:
                await self._attach(text)
            case Command.FORK | Command.FEEDBACK:
                await self._fork_or_rate(command, text)
            case Command.MODE | Command.RULES:
                await self._manage_approvals(command, text)
            case Command.HELP:
                self._screen.note(HELP)
            case Command.STOP | Command.STEER:
                self._screen.note("nothing is running")
            case _:
                self._screen.error(
                    f"there is no command {command}: {', '.join(Command)}; "
                    "begin the line with a space to send it as a message"
                )

    async def _continue_last_turn(self) -> None:
        """Continue the oldest turn that was cut off, if any; if it is paused, store and show its pending calls."""
        timeline = Timeline(await self._conversation.blocks())
        if not timeline.resumable:
            return
        turn = timeline.resumable[0]
        self._pending = tuple(turn.unanswered.values())
        for call in result(timeline, turn.number, "paused").pending:
            self._screen.note(pending_line(call))
        if not self._pending:
            await self._resume(turn.number)

    def _answers(self, line: str) -> dict[str, Json]:
        """Return the line as the answer to the first pending call; at an approval, any other text than yes or no is a no."""
        pending = self._pending[0]
        return {pending.call_id: line if pending.kind == "question" else parse_approval(line)}

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
        """Check a file, and send it with the next message; print an error if it cannot be attached."""
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
        """Continue in a copy of the conversation, or rate its last turn; print an error if that fails.

        `text` is the name of the copy, or the rating as in `rate`. The copy does not wait for the pending calls.
        """
        try:
            if command == Command.FEEDBACK:
                self._screen.note(await rate(self._conversation, text))
                return
            source = self._conversation
            blocks = await source.blocks()
            if not blocks:
                raise LooplineError("there is nothing to copy: send a message first")
            self._conversation = await source.fork(seq=blocks[-1].seq, name=text)
        except LooplineError as error:
            self._screen.error(str(error))
            return
        self._pending = ()  # a pending call is not run in a copy
        copy_name = escape(self._conversation.conversation.name)
        source_name = escape(source.conversation.name)
        self._screen.note(f"you are in {copy_name} now; {source_name} stays as it is")

    async def _manage_approvals(self, command: str, text: str) -> None:
        """Show or change the approval mode, or list or revoke the rules; print an error if it fails."""
        try:
            match command, text.split():
                case Command.MODE, []:
                    self._screen.note(await self._conversation.mode())
                case Command.MODE, _:
                    await self._conversation.set_mode(cast("ApprovalMode", text))
                    self._screen.note(f"the mode is {text} from now on")
                case _, ["revoke", rule_id]:
                    await self._conversation.revoke_rule(rule_id)
                    self._screen.note(f"{escape(rule_id)} is revoked")
                case _, []:
                    rules = await self._conversation.rules()
                    self._screen.note("\n".join(map(describe_rule, rules)) or "no rules")
                case _:
                    self._screen.error(
                        f"{Command.RULES} lists rules, {Command.RULES} revoke ID revokes one"
                    )
        except LooplineError as error:
            self._screen.error(str(error))

    def _take_result(self, finished: FinishedTurn) -> None:
        """Store whether a turn succeeded and the calls that it waits for; print a note if a message came too late."""
        self._ok = finished.result.ok
        self._pending = tuple(finished.turn.unanswered.values())
        if finished.result.late_input:
            self._screen.note(LATE_INPUT)
