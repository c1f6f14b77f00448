"""What a listener hears, and in whose words it can be told."""

from loopline.events.dialects import DIALECTS, DialectName, dialect, replayed
from loopline.events.events import Delta, Event, Listen
from loopline.events.wire import Dialect, Wire

__all__ = [
    "DIALECTS",
    "Delta",
    "Dialect",
    "DialectName",
    "Event",
    "Listen",
    "Wire",
    "dialect",
    "replayed",
]
