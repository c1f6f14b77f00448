"""The dialects of events: those of five other systems, and Loopline's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from loopline.events.dialects.beakr import Beakr
from loopline.events.dialects.chatcli import AgentEvent, ChatCli
from loopline.events.dialects.encoder import Dialect, DialectEncoder, Plain, Record, position
from loopline.events.dialects.fim import Fim
from loopline.events.dialects.kdcube import KdCube
from loopline.events.dialects.nadoo import Nadoo
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
"""Each dialect in a line."""


def dialect(name: DialectName, conversation: ConversationKey) -> Dialect:
    """Return a dialect at the beginning of a conversation.

    A later turn may need earlier blocks, such as the sources that it cites: let the dialect take those first.
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
    """Return the records with an id, after the one with the id `after`, of all blocks of a conversation.

    They are the bytes that a subscriber received live.

    Raises:
        LooplineError: `after` is neither empty nor the id of a record.
    """
    start = position(after)
    encoder = dialect(name, conversation)
    records = (record for block in blocks for record in encoder.take(block))
    return (record for record in records if record.id and position(record.id) > start)


__all__ = ["DIALECTS", "AgentEvent", "DialectName", "dialect", "replayed"]
