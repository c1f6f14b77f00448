"""What a listener hears."""

from loopline.events import sse
from loopline.events.events import Delta, Event, Listen
from loopline.events.mailbox import HELD_EVENTS, Mailbox
from loopline.events.wire import Dialect, Wire

__all__ = ["HELD_EVENTS", "Delta", "Dialect", "Event", "Listen", "Mailbox", "Wire", "sse"]
