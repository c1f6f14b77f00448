"""Events of a turn: what subscribers receive, and the dialects that translate it."""

from loopline.events import sse
from loopline.events.dialects import DIALECTS, AgentEvent, DialectName, dialect, replayed
from loopline.events.dialects.encoder import Dialect, Record
from loopline.events.events import (
    Caller,
    Delta,
    Event,
    EventSink,
    ObservedTurn,
    Observer,
    PartialOutput,
)
from loopline.events.mailbox import HELD_EVENTS, Mailbox

__all__ = [
    "DIALECTS",
    "HELD_EVENTS",
    "AgentEvent",
    "Caller",
    "Delta",
    "Dialect",
    "DialectName",
    "Event",
    "EventSink",
    "Mailbox",
    "ObservedTurn",
    "Observer",
    "PartialOutput",
    "Record",
    "dialect",
    "replayed",
    "sse",
]
