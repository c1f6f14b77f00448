"""What a listener hears."""

from loopline.events.events import Delta, Event, Listen
from loopline.events.observer import Caller, ObservedTurn, Observer
from loopline.events.wire import Dialect, Wire

__all__ = ["Caller", "Delta", "Dialect", "Event", "Listen", "ObservedTurn", "Observer", "Wire"]
