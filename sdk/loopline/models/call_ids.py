"""Which id a call and its result go out under: the provider's own, or ours.

A provider's id goes out only with the reply that it came in, and only to the family that wrote both.
Everywhere else the call and its result carry our id. The prompt decides which calls go back as they
came; a wire asks here and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopline.models.prompt import AssistantMessage, Echo, Prompt, ToolCall, ToolMessage


def is_of_family(wire: str, family: str) -> bool:
    """Return whether what came on `wire` may go back to `family`.

    A family is a wire, or a wire and a provider on it: `pydantic-ai:mistral`. What names no provider,
    as older stores have it, goes back to all of its wire.
    """
    return family == wire or family.startswith(f"{wire}:")


def is_beside(echo: Echo) -> bool:
    """Return whether it goes back beside the text, as fields of a chat message, and not for the text."""
    return is_of_family("openai", echo.wire)


def names_calls(echo: Echo, calls: Sequence[ToolCall]) -> int:
    """Return how many of these calls have a part of the reply by the provider's id."""
    return sum(any(call.provider_id in part.values() for part in echo.parts) for call in calls)


def sent_id(of: ToolCall | ToolMessage, family: str) -> str:
    """Return the id under which a call, or its result, goes out to this family."""
    is_echoed = bool(of.echoed_on) and is_of_family(of.echoed_on, family)
    return of.provider_id if is_echoed else of.call_id


def echo_for(message: AssistantMessage, family: str) -> Echo | None:
    """Return the reply as it goes back to this family; None where text and calls stand for it.

    It stands for all of its calls or for none: plain thinking goes beside calls that it does not name.
    """
    echo, calls = message.echo, message.calls
    if echo is None or not is_of_family(echo.wire, family):
        return None
    if all(call.echoed_on for call in calls):
        return echo
    return None if echo.bound or names_calls(echo, calls) else echo


def breaks_off(prompt: Prompt, family: str) -> bool:
    """Return whether this family would have to go on with calls whose thinking it cannot see."""
    said = prompt.last_said
    return said is not None and bool(said.calls) and echo_for(said, family) is None
