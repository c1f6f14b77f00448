"""What a listener hears, and in whose words it can be told."""

from loopline.events import sse
from loopline.events.dialects import DIALECTS, AgentEvent, DialectName, dialect, replayed
from loopline.events.events import Delta, Event, Listen
from loopline.events.mailbox import HELD_EVENTS, Mailbox
from loopline.events.observer import Caller, ObservedTurn, Observer
from loopline.events.partial_output import PartialOutput
from loopline.events.wire import Dialect, Wire

__all__ = [
    "DIALECTS",
    "HELD_EVENTS",
    "AgentEvent",
    "Caller",
    "Delta",
    "Dialect",
    "DialectName",
    "Event",
    "Listen",
    "Mailbox",
    "ObservedTurn",
    "Observer",
    "PartialOutput",
    "Wire",
    "dialect",
    "replayed",
    "sse",
]
