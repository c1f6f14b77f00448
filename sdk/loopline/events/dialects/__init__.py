"""The dialects of events: Loopline's own, and those of other systems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from loopline.events.dialects.ag_ui import AgUi
from loopline.events.dialects.beakr import Beakr
from loopline.events.dialects.chatcli import AgentEvent, ChatCli
from loopline.events.dialects.client_run import ClientRun, FileUrl, RunDialect
from loopline.events.dialects.encoder import DialectEncoder, Plain, Record, SharedDialect, position
from loopline.events.dialects.fim import Fim
from loopline.events.dialects.kdcube import KdCube
from loopline.events.dialects.nadoo import Nadoo
from loopline.events.dialects.vercel import Vercel
from loopline.timeline import Block, ConversationKey

DialectName = Literal["plain", "fim", "nadoo", "chatcli", "beakr", "kdcube", "ag-ui", "vercel"]


def dialect(
    name: DialectName, conversation: ConversationKey, *, file_url: FileUrl | None = None
) -> SharedDialect:
    """Create a dialect for all listeners of a conversation. With `file_url`, `kdcube` has the URLs of output files.

    The dialect must take the conversation's blocks from the first one on: later records may need earlier blocks, such as
    the sources that an answer cites.
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
            return DialectEncoder(KdCube(conversation, file_url))
        case "ag-ui":
            return RunDialect(AgUi(conversation))
        case "vercel":
            return RunDialect(Vercel())


RunDialectName = Literal["ag-ui", "vercel"]


def run_dialect(name: RunDialectName, conversation: ConversationKey, run: ClientRun) -> RunDialect:
    """Create a dialect for one client that follows one run of the conversation."""
    match name:
        case "ag-ui":
            return RunDialect(AgUi(conversation, run))
        case "vercel":
            return RunDialect(Vercel(run))


def replayed(
    name: DialectName, conversation: ConversationKey, blocks: Iterable[Block], after: str = ""
) -> Iterator[Record]:
    """Return an iterator over the records with an id after `after`; `blocks` are all blocks of the conversation.

    The records are equal to those that a live subscriber received.

    Raises:
        LooplineError: `after` is neither "" nor the id of a record.
    """
    start = position(after)
    encoder = dialect(name, conversation)
    records = (record for block in blocks for record in encoder.take(block))
    return (record for record in records if record.id and position(record.id) > start)


__all__ = ["AgentEvent", "DialectName", "dialect", "replayed", "run_dialect"]
