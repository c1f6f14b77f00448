"""Regular expressions from outside, compiled by RE2: a search always takes linear time."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from loopline.errors import LooplineError

PATTERN_CHARACTERS = 1_000
PROGRAM_INSTRUCTIONS = 10_000
"""The most instructions of a compiled expression; `.` has nine, because it matches up to four bytes."""
MEMORY_BYTES = 2**20
"""The memory limit of RE2. An expression that needs more than two thirds of it is rejected within milliseconds."""


class Expression(Protocol):
    """A compiled regular expression."""

    @property
    def programsize(self) -> int:
        """The number of instructions; a search takes at most this number times the bytes of the text in steps."""
        ...

    def search(self, text: bytes | str, /) -> object | None:
        """Return the first match in the text, or None."""
        ...


def compile_pattern(pattern: str, *, ignore_case: bool = False) -> Expression:
    """Compile a regular expression with RE2, which does not support look-around and back-references.

    Raises:
        LooplineError: the expression is invalid, has over 1,000 characters, or compiles to over 10,000 instructions.
    """
    if len(pattern) > PATTERN_CHARACTERS:
        raise LooplineError(
            f"a regular expression may have {PATTERN_CHARACTERS:,} characters, not {len(pattern):,}"
        )
    library = import_module("re2")
    make: Callable[..., Expression] = library.compile
    failure: type[Exception] = library.error
    options: Any = library.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    options.max_mem = MEMORY_BYTES
    try:
        expression = make(pattern, options)
    except (failure, UnicodeEncodeError) as error:
        text = str(error).removeprefix("b'").removesuffix("'")
        raise LooplineError(
            f"{pattern!r} is not a regular expression of RE2, which does not support look-around "
            f"and back-references: {text}"
        ) from error
    if expression.programsize > PROGRAM_INSTRUCTIONS:
        raise LooplineError(f"{pattern!r} repeats too much: write smaller numbers of repetitions")
    return expression
