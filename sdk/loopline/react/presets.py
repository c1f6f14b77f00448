"""Presets: the options of the five systems that this engine unites, and its own, as plain values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

from loopline.errors import LooplineError
from loopline.react.loop_options import Limits, LoopOptions, check_limits
from loopline.timeline import LimitValue

PresetName = Literal["bare", "kdcube", "fim", "nadoo", "chatcli", "beakr"]

Variable = Callable[[str], Limits]
"""What the text of an environment variable sets.

Raises:
    ValueError: it is none of what the variable takes, which the message says.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Policies under a name. `variables` are the environment variables that its users know."""

    name: str
    about: str
    options: LoopOptions = field(default_factory=LoopOptions)
    variables: Mapping[str, Variable] = field(default_factory=dict[str, Variable], hash=False)

    def environment(self, environment: Mapping[str, str]) -> Limits:
        """What the environment sets of it.

        Raises:
            LooplineError: a variable holds junk; the message names it and says what it takes.
        """
        limits: Limits = {}
        for name, variable in self.variables.items():
            text = environment.get(name, "").strip()
            if not text:
                continue
            try:
                limits.update(check_limits(variable(text)))
            except (ValueError, LooplineError) as error:
                raise LooplineError(
                    f"the environment variable {name} is {text!r}: {error}"
                ) from error
        return limits


def presets_diff(one: Preset, other: Preset) -> dict[str, tuple[LimitValue, LimitValue]]:
    """The options in which two presets differ, by name."""
    theirs = other.options.values
    apart = one.options.differences(other.options)
    return {name: (value, theirs[name]) for name, value in apart.items()}


def named_preset(choice: str | Preset) -> Preset:
    """The preset of that name.

    Raises:
        LooplineError: there is none.
    """
    if isinstance(choice, Preset):
        return choice
    if choice not in PRESETS:
        nearest = get_close_matches(choice, PRESETS, 1, 0.0)[0]
        raise LooplineError(
            f"no preset {choice!r}, nearest is {nearest!r}: there are {', '.join(PRESETS)}"
        )
    return PRESETS[choice]


_DURATION = re.compile(r"(?<!\d)(\d++(?:\.\d++)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _duration(text: str) -> Limits:
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("it takes a duration such as 90s, 10m or 1h30m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not seconds:
        raise ValueError("it takes a duration above 0, such as 10m")
    return {"deadline_seconds": seconds}


def _turns(text: str) -> Limits:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ValueError("it takes a whole number above 0")
    return {"max_iterations": int(text)}


def _parallel(text: str) -> Limits:
    match text.lower():
        case "true" | "1":
            return {}
        case "false" | "0":
            return {"parallel_tools": 1, "max_depth": 0}
        case _:
            raise ValueError("it takes true, 1, false or 0")


_ALL = (
    Preset(name="bare", about="the engine's own defaults"),
    Preset(
        name="kdcube",
        about="channels in one stream, one call after the other",
        options=LoopOptions(protocol="tagged", chain="first", parallel_tools=1, dialect="kdcube"),
    ),
    Preset(
        name="fim",
        about="a loop of calls, then a request of its own that writes the answer",
        options=LoopOptions(
            max_iterations=50,
            chain="first",
            text_protocol="json",
            on_exhausted="summary",
            answer_mode="synthesize",
            unknown_effect="read",
            select_tools=True,
            cycle_warning_rounds=3,
            completion_check=True,
            result_characters=50_000,
            summary_hint="react_iteration",
            dialect="fim",
        ),
    ),
    Preset(
        name="nadoo",
        about="thought, action, observation: one tool at a time",
        options=LoopOptions(
            max_iterations=10,
            protocol="thought_action",
            chain="first",
            parallel_tools=1,
            dialect="nadoo",
        ),
    ),
    Preset(
        name="chatcli",
        about="a worker with 30 rounds and 10 minutes, whose work is kept at the limit",
        options=LoopOptions(
            max_iterations=30,
            chain="first",
            deadline_seconds=600.0,
            on_exhausted="partial",
            text_protocol="tagged",
            failure_reflection=True,
            result_characters=20_000,
            dialect="chatcli",
        ),
        variables={
            "CHATCLI_AGENT_WORKER_MAX_TURNS": _turns,
            "CHATCLI_AGENT_WORKER_TIMEOUT": _duration,
            "CHATCLI_AGENT_PARALLEL_MODE": _parallel,
        },
    ),
    Preset(
        name="beakr",
        about="as many rounds as 200,000 tokens and 10 minutes allow",
        options=LoopOptions(
            max_iterations=None,
            max_tokens=200_000,
            deadline_seconds=600.0,
            protocol="native",
            dialect="beakr",
        ),
    ),
)
PRESETS: Mapping[str, Preset] = {one.name: one for one in _ALL}

NADOO_MODES = (
    "standard",
    "chain_of_thought",
    "function_calling",
    "react",
    "reflection",
    "tree_of_thoughts",
)
"""The values that Nadoo's `agent_mode` may have; a loop is "react"."""


def check_mode(mode: str) -> None:
    """Refuse an `agent_mode` that is not this loop.

    Raises:
        LooplineError: it is another one, or none at all.
    """
    if mode in ("", "react"):
        return
    if mode in NADOO_MODES:
        raise LooplineError(f"agent_mode {mode!r} is not a loop: only 'react' runs here")
    raise LooplineError(f"no agent_mode {mode!r}: only 'react' runs here")
