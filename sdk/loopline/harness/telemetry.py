"""Telemetry by name: the observer of a harness's turns."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Literal

from loopline.errors import LooplineError
from loopline.events import Observer

if TYPE_CHECKING:
    from loopline.telemetry.otel import Otlp

Telemetry = Literal["otlp"] | Observer | None
_VARIABLE = "LOOPLINE_TELEMETRY"
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_WITH_CONTENT = {"true", "span_only", "span_and_event"}


def chosen_telemetry(choice: Telemetry) -> Telemetry:
    """Return the chosen telemetry, else that of `LOOPLINE_TELEMETRY`, else none.

    Raises:
        LooplineError: there is none of that name.
    """
    named: object = choice  # who calls this is not always checked by types
    if choice is None:
        return _named(os.environ.get(_VARIABLE, ""), _VARIABLE)
    return _named(named, "telemetry") if isinstance(named, str) else choice


def _named(name: str, source: str) -> Telemetry:
    match name:
        case "":
            return None
        case "otlp":
            return "otlp"
        case _:
            raise LooplineError(f"{source} is {name!r}: use 'otlp', or leave it out")


async def open_observer(telemetry: Telemetry) -> Observer | None:
    """Open and return the observer.

    Raises:
        LooplineError: a package is missing, or an `OTEL_*` variable has a wrong value.
    """
    return await asyncio.to_thread(_otlp) if telemetry == "otlp" else telemetry


def _otlp() -> Otlp:
    """Import and open the adapter, which takes a while: not on the event loop."""
    try:
        from loopline.telemetry.otel import Otlp
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise LooplineError("telemetry is not installed: pip install 'loopline[otel]'") from error
    try:
        return Otlp(
            content=os.environ.get(_CONTENT, "").strip().lower() in _WITH_CONTENT,
            traces=_sent("OTEL_TRACES_EXPORTER"),
            metrics=_sent("OTEL_METRICS_EXPORTER"),
        )
    except ValueError as error:
        raise LooplineError(f"a variable OTEL_… has a wrong value: {error}") from error


def _sent(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() != "none"
