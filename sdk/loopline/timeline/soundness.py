"""Soundness: a body is recorded only when it comes back from the store as it went in."""

from __future__ import annotations

from loopline.errors import LooplineError
from loopline.timeline.blocks import Body, UserPrompt
from loopline.timeline.codec import decode, encode


class UnsoundBody(LooplineError):
    """A body holds a value that its type does not allow; the message names the field."""


def check(body: Body) -> None:
    """Refuse a body that could not be read again, before anything is recorded.

    Raises:
        UnsoundBody: one of its fields has a value of the wrong type, or one that JSON cannot hold.
    """
    try:
        again = decode(*encode(body))
    except (ValueError, TypeError, RecursionError) as error:
        first = str(error).splitlines()
        raise UnsoundBody(f"{body.type}: {' '.join(first[:3])}") from error
    if again != body:
        raise UnsoundBody(f"{body.type}: it would read again as {again!r}")


def warm() -> None:
    """Prepare the codec, which takes a moment the first time; blocks."""
    check(UserPrompt(text=""))
