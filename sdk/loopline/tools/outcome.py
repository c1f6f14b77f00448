"""What comes of a call: a value that the loop records; a tool itself writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopline.models import Json
from loopline.timeline import Body, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a result that stands under its own heading, and may be citable."""

    heading: str
    text: str
    source: Source | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a call gave.

    `text` leads; `sections` follow, each citable one under the number of its source; `sources` are
    listed last. An `answer` that is not None is the turn's. `bodies` are recorded in the same append as the result. `found` counts what a search
    found, `shows` are pairs of a ref and the sha256 of the text that was put before the model.
    """

    text: str
    sections: tuple[Section, ...] = ()
    sources: tuple[Source, ...] = ()
    bodies: tuple[Body, ...] = ()
    found: int | None = None
    shows: tuple[tuple[str, str], ...] = ()
    artifact: Json = None
    answer: object = None


@dataclass(frozen=True, slots=True)
class Output:
    """What a tool function may return when text alone does not say it.

    `sources` join the conversation's pool and can be cited. `artifact`, any JSON value, is kept whole
    under the call's id as `ar:<turn>.artifacts.<call_id>` and is not put before the model. An `answer` is that
    of the turn, which ends with it once every call of the round has its result: a value of the turn's output
    type, or a text where it has none.
    """

    text: str = ""
    sources: Sequence[Source] = ()
    artifact: Json = None
    answer: object = None
