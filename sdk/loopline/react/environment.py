"""Readers of environment variables: each parses the text of a variable, or says which texts it accepts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TypeVar

from loopline.errors import LooplineError

T = TypeVar("T")

Parse = Callable[[str], T]
"""Parses the text of a variable.

Raises:
    ValueError: the text is not valid; the message says which texts are.
"""

_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_DURATION = re.compile(r"(?<!\d)(\d++(?:\.\d++)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_variables(
    environment: Mapping[str, str],
    parsers: Mapping[str, Parse[T]],
    *,
    ignores_invalid: bool = False,
) -> dict[str, T]:
    """Parse the variables of `parsers` that are set, and return their values by name.

    An empty variable counts as not set. With `ignores_invalid` a variable with an invalid text does too.

    Raises:
        LooplineError: a text is not valid; the message names the variable and says which texts are valid.
    """
    values: dict[str, T] = {}
    for name, parse in parsers.items():
        text = environment.get(name, "").strip()
        if not text:
            continue
        try:
            values[name] = parse(text)
        except (ValueError, LooplineError) as error:
            if not ignores_invalid:
                raise LooplineError(
                    f"the environment variable {name} is {text!r}: {error}"
                ) from error
    return values


def parse_switch(text: str) -> bool:
    """Parse 1, true, yes or on as True, and 0, false, no or off as False, in any case."""
    switch = _SWITCHES.get(text.lower())
    if switch is None:
        raise ValueError("it takes true, 1, yes, on, false, 0, no or off")
    return switch


def whole_number(minimum: int = 0) -> Parse[int]:
    """Return a parser of whole numbers that are at least `minimum`; it raises a ValueError for other texts."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or int(text) < minimum:
            above = f" above {minimum - 1}" if minimum else ""
            raise ValueError(f"it takes a whole number{above}")
        return int(text)

    return parse


def parse_duration(text: str) -> float:
    """Parse a duration such as 90s or 1h30m, and return its seconds, above 0; raise a ValueError for other texts."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("it takes a duration such as 90s, 10m or 1h30m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not 0 < seconds < inf:
        raise ValueError("it takes a duration above 0, such as 10m")
    return seconds


def parse_names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of names, and return them in lower case."""
    names = tuple(name for part in text.split(",") if (name := part.strip().lower()))
    if not names:
        raise ValueError("it takes names, separated by commas")
    return names


def one_of(choices: Sequence[T]) -> Parse[T]:
    """Return a parser of one of these choices, in any case; it raises a ValueError for other texts."""

    def parse(text: str) -> T:
        for choice in choices:
            if choice == text.lower():
                return choice
        raise ValueError(f"it takes one of {', '.join(map(str, choices))}")

    return parse
