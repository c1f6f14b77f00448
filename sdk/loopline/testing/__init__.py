"""For the tests of bundles: a model that follows a script, and a clock that obeys."""

from loopline.testing.clock import FakeClock
from loopline.testing.scripted import (
    Call,
    Fail,
    Raw,
    Refuse,
    Say,
    ScriptedModel,
    ScriptError,
    Wait,
)

__all__ = [
    "Call",
    "Fail",
    "FakeClock",
    "Raw",
    "Refuse",
    "Say",
    "ScriptError",
    "ScriptedModel",
    "Wait",
]
