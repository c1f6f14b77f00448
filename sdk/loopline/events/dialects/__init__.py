"""The vocabularies that events can be told in: five that others speak, and Loopline's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from loopline.events.dialects.beakr import Beakr
from loopline.events.dialects.chatcli import AgentEvent, ChatCli
from loopline.events.dialects.encoder import Dialect, DialectEncoder, Record, position
from loopline.events.dialects.fim import Fim
from loopline.events.dialects.kdcube import KdCube
from loopline.events.dialects.nadoo import Nadoo
from loopline.events.dialects.plain import Plain
from loopline.timeline import Block, ConversationKey

DialectName = Literal["plain", "fim", "nadoo", "chatcli", "beakr", "kdcube"]

DIALECTS: Mapping[DialectName, str] = {
    "plain": "Loopline's own: every block by its type, in its stored form",
    "fim": "FIM One: steps, an answer, and `done`",
    "nadoo": "Nadoo: a node that thinks, calls, and is finished",
    "chatcli": "ChatCLI: log records of a worker, and an agent's events",
    "beakr": "Beakr: updates of a graph's channels, and tokens",
    "kdcube": "KDCube: events in envelopes, each on its route",
}
"""The vocabularies by name, each in a line."""


def dialect(name: DialectName, conversation: ConversationKey) -> Dialect:
    """A vocabulary, at the beginning of a conversation.

    What a later turn says may need earlier blocks, such as the sources that it cites: have it take these
    first.
    """
    match name:
        case "plain":
            return Plain()
        case "fim":
            return DialectEncoder(Fim())
        case "nadoo":
            return DialectEncoder(Nadoo())
        case "chatcli":
            return DialectEncoder(ChatCli())
        case "beakr":
            return DialectEncoder(Beakr())
        case "kdcube":
            return DialectEncoder(KdCube(conversation))


def replayed(
    name: DialectName, conversation: ConversationKey, blocks: Iterable[Block], after: str = ""
) -> Iterator[Record]:
    """The lasting records of a conversation's blocks, from its first on, that follow the one of that id.

    They are what a listener was sent live, to the byte.

    Raises:
        LooplineError: `after` is neither empty nor the id of a record.
    """
    since = position(after)
    speaking = dialect(name, conversation)
    records = (record for block in blocks for record in speaking.take(block))
    return (record for record in records if record.id and position(record.id) > since)


__all__ = ["DIALECTS", "AgentEvent", "DialectName", "dialect", "replayed"]
