"""What a listener hears."""

from loopline.events.events import Delta, Event, Listen
from loopline.events.wire import Dialect, Wire

__all__ = ["Delta", "Dialect", "Event", "Listen", "Wire"]
