"""What a listener hears."""

from loopline.events.events import Delta, Event, Listen

__all__ = ["Delta", "Event", "Listen"]
