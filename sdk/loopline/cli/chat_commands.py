"""The commands inside a chat: lines that begin with a slash and a word."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

from loopline.cli.chat_handles import ChatConversation
from loopline.cli.options import REACTIONS
from loopline.errors import LooplineError
from loopline.files import AttachmentCaps, read_attachments
from loopline.timeline import turn_id

_COMMAND = re.compile(r"/[a-z]+")


class Command(StrEnum):
    """The first word of a line that is a command and not a message."""

    STEER = "/steer"
    STOP = "/stop"
    ATTACH = "/attach"
    FEEDBACK = "/feedback"
    FORK = "/fork"
    HELP = "/help"
    QUIT = "/quit"


GREETING = f"what you type while a turn runs is added to it · {Command.HELP} lists the commands"
HELP = f"""\
{Command.STEER} TEXT               changes the direction of the running turn
{Command.STOP}, Ctrl-C             stops it
{Command.ATTACH} FILE              sends a file with your next message
{Command.FEEDBACK} REACTION [WHY]  rates the last turn: ok, not_ok, neutral, or none
{Command.FORK} [NAME]              continues in a copy of the conversation
{Command.QUIT}, Ctrl-D             leaves
Esc, then Enter           begins another line of the message"""
LATE_INPUT = "your message came too late for this turn: it waits for the next one"


def parse(line: str) -> tuple[Command | str, str]:
    """Return the command that a line begins with, or "", and the rest of the line."""
    first, _, text = line.partition(" ")
    first = first.rstrip()
    if not _COMMAND.fullmatch(first):
        return "", line
    return (Command(first) if first in list(Command) else first), text.strip()


def refusal(command: str) -> str:
    """Return the error for a command that does not exist."""
    return (
        f"there is no command {command}: {', '.join(Command)}; "
        "begin the line with a space to send it as a message"
    )


async def fork(conversation: ChatConversation, name: str) -> ChatConversation:
    """Return another conversation that begins with all blocks of this one.

    Raises:
        LooplineError: this one is empty, or the name is taken or invalid.
    """
    blocks = await conversation.blocks()
    if not blocks:
        raise LooplineError("there is nothing to copy: send a message first")
    return await conversation.fork(seq=blocks[-1].seq, name=name)


async def rate(conversation: ChatConversation, typed: str) -> str:
    """Record the reaction that was typed to the last turn that has ended, and return what was recorded.

    Raises:
        LooplineError: no turn has ended, or what was typed begins with no reaction.
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


def checked_file(name: str) -> Path:
    """Return the path of a file that can be attached.

    Raises:
        AttachmentError: the file cannot be attached.
    """
    file = Path(name).expanduser()
    read_attachments(file, AttachmentCaps())
    return file
