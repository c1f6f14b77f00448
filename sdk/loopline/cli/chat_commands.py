"""The commands of a chat: lines that begin with a slash and a word."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

from loopline.files import AttachmentCaps, entered

_COMMAND = re.compile(r"/[a-z]+")


class Command(StrEnum):
    """What a line of a chat may begin with, instead of being a message."""

    STEER = "/steer"
    STOP = "/stop"
    ATTACH = "/attach"
    HELP = "/help"
    QUIT = "/quit"


HELP = (
    "what you type while a turn runs is added to it · "
    f"{Command.STEER} TEXT turns it another way · {Command.STOP} ends it · {Command.QUIT} leaves · "
    f"{Command.ATTACH} FILE sends a file with your next message · Esc Enter begins another line"
)


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


def checked_file(name: str) -> Path:
    """Return the path of a file that can be attached.

    Raises:
        AttachmentError: it cannot.
    """
    file = Path(name).expanduser()
    entered(file, AttachmentCaps())
    return file
