"""Support for the tests of bundles: a model that follows a script, a clock that tests advance, and cassettes."""

from loopline.harness import Cassette
from loopline.testing.clock import FakeClock
from loopline.testing.scripted import Call, Fail, Raw, Refuse, Say, ScriptedModel, ScriptError, Wait

__all__ = [
    "Call",
    "Cassette",
    "Fail",
    "FakeClock",
    "Raw",
    "Refuse",
    "Say",
    "ScriptError",
    "ScriptedModel",
    "Wait",
]
