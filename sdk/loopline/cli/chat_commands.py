"""The commands of a chat: lines that begin with a slash and a word."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

from loopline.cli.options import REACTIONS
from loopline.conversations import Conversation
from loopline.errors import LooplineError
from loopline.files import AttachmentCaps, read_attachments
from loopline.timeline import turn_id

_COMMAND = re.compile(r"/[a-z]+")


class Command(StrEnum):
    """What a line of a chat may begin with, instead of being a message."""

    STEER = "/steer"
    STOP = "/stop"
    ATTACH = "/attach"
    FEEDBACK = "/feedback"
    FORK = "/fork"
    HELP = "/help"
    QUIT = "/quit"


GREETING = f"what you type while a turn runs is added to it · {Command.HELP} lists the commands"
HELP = f"""\
{Command.STEER} TEXT               turns the running turn another way
{Command.STOP}, Ctrl-C             ends it
{Command.ATTACH} FILE              sends a file with your next message
{Command.FEEDBACK} REACTION [WHY]  judges the last turn: ok, not_ok, neutral, or none
{Command.FORK} [NAME]              goes on in a copy of the conversation
{Command.QUIT}, Ctrl-D             leaves
Esc, then Enter           begins another line of the message"""


def parse(line: str) -> tuple[Command | str, str]:
    """Return the command that a line begins with, or nothing, and the rest of the line."""
    word, _, rest = line.partition(" ")
    word = word.rstrip()
    if not _COMMAND.fullmatch(word):
        return "", line
    return (Command(word) if word in list(Command) else word), rest.strip()


def refusal(command: str) -> str:
    """Return what is said of a command that does not exist."""
    return (
        f"there is no command {command}: {', '.join(Command)}; "
        "begin the line with a space to send it as a message"
    )


async def fork(talk: Conversation, name: str) -> Conversation:
    """Return another conversation that begins with all there is of this one.

    Raises:
        LooplineError: nothing has been said here yet, or the name is taken or none.
    """
    blocks = await talk.blocks()
    if not blocks:
        raise LooplineError("there is nothing to copy: say something first")
    return await talk.fork(seq=blocks[-1].seq, name=name)


async def judge(talk: Conversation, rest: str) -> str:
    """Judge the last turn that has ended by what was typed, and return what was recorded.

    Raises:
        LooplineError: no turn has ended, or what was typed begins with no reaction.
    """
    reaction, _, text = rest.partition(" ")
    if reaction not in REACTIONS:
        raise LooplineError(f"{Command.FEEDBACK} needs a reaction: {', '.join(REACTIONS)}")
    ended = [turn_id(one.turn) for one in await talk.blocks(types="react.exit")]
    if not ended:
        raise LooplineError("no turn has ended yet")
    await talk.feedback(ended[-1], REACTIONS[reaction], text=text.strip())
    return f"{ended[-1]}: {reaction}"


def checked_file(name: str) -> Path:
    """Return the path of a file that can be attached.

    Raises:
        AttachmentError: it cannot.
    """
    file = Path(name).expanduser()
    read_attachments(file, AttachmentCaps())
    return file
