"""What a call reads in the logs of its child runs."""

from __future__ import annotations

from loopline.timeline import BodyUnion, ReflectionDue, Timeline, turn_number
from loopline.tools import ToolInvocation

_REFLECTIONS = BodyUnion[ReflectionDue](ReflectionDue)


async def child_timeline(conversation: str, call: ToolInvocation) -> Timeline | None:
    """Return all of the conversation of a run that has ended; None if it cannot be read."""
    view = None if call.reader.lookup is None else await call.reader.lookup(conversation)
    return None if view is None else await view.full()


async def reflections_below(call: ToolInvocation) -> tuple[ReflectionDue, ...]:
    """Return the lessons that are due after runs that the call's own runs have begun, in the order in which those began.

    Nobody follows the conversation of a child run, so what is due there is recorded by its caller too, up to the
    conversation of the user.
    """
    turn = call.timeline.turn(turn_number(call.context.turn_id))
    due: list[ReflectionDue] = []
    for link in turn.children.values():
        own = link.call_id == call.context.call_id
        timeline = await child_timeline(link.conversation, call) if own else None
        if timeline is not None:
            due += [body for _, body in _REFLECTIONS.among(timeline.blocks) if body.agent]
    return tuple(due)
