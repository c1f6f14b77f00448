"""Soundness: a body is recorded only when it comes back from the store as it went in."""

from __future__ import annotations

from loopline.errors import LooplineError
from loopline.timeline.blocks import Body, Unknown, UserPrompt
from loopline.timeline.codec import decode, encode


class UnsoundBody(LooplineError):
    """A body holds a value that its type does not allow; the message names the field."""


def sound(body: Body) -> tuple[str, int, str]:
    """The body as `encode` makes it, once it has been read again from that.

    Raises:
        UnsoundBody: one of its fields has a value of the wrong type, or one that JSON cannot hold.
    """
    try:
        encoded = kind, version, stored = encode(body)
        again = decode(kind, version, stored)
        if isinstance(body, Unknown):
            f"{kind}{stored}".encode()  # of the others the codec has made sure
    except (ValueError, TypeError, RecursionError) as error:
        first = str(error).splitlines()
        raise UnsoundBody(f"{body.type}: {' '.join(first[:3])}") from error
    if again != body:
        raise UnsoundBody(f"{body.type}: it would read again as {again!r}")
    return encoded


def check(body: Body) -> None:
    """Refuse a body that no log would record.

    Raises:
        UnsoundBody: it is not `sound`.
    """
    sound(body)


def warm() -> None:
    """Prepare the codec, which takes a moment the first time; blocks."""
    check(UserPrompt(text=""))
