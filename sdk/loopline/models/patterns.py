"""Regular expressions from outside, which RE2 reads: no text makes a search take more than linear time."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from loopline.errors import LooplineError

PATTERN_CHARACTERS = 1_000
PROGRAM_INSTRUCTIONS = 10_000
"""Instructions of a compiled expression; `.` has nine of them, because it matches up to four bytes."""
MEMORY_BYTES = 2**20
"""Memory of a compiled expression. RE2 refuses what does not fit into two thirds of it, within milliseconds."""


class Expression(Protocol):
    """A compiled regular expression."""

    @property
    def programsize(self) -> int:
        """Return the number of its instructions: a search takes at most this times the bytes of the text."""
        ...

    def search(self, text: bytes | str, /) -> object | None:
        """Return the first match in the text, None if there is none."""
        ...


class _Options(Protocol):
    log_errors: bool
    case_sensitive: bool
    max_mem: int


def compile_pattern(pattern: str, *, ignore_case: bool = False) -> Expression:
    """Compile a regular expression with RE2, which has neither look-around nor back-references.

    Raises:
        LooplineError: RE2 cannot read it, or it is too long.
    """
    if len(pattern) > PATTERN_CHARACTERS:
        raise LooplineError(
            f"a regular expression may have {PATTERN_CHARACTERS:,} characters, not {len(pattern):,}"
        )
    library = import_module("re2")
    make: Callable[..., Expression] = library.compile
    failure: type[Exception] = library.error
    options: _Options = library.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    options.max_mem = MEMORY_BYTES
    try:
        expression = make(pattern, options)
    except failure as error:
        reason = str(error.args[0] if error.args else error)
        text = reason.removeprefix("b'").removesuffix("'")
        raise LooplineError(
            f"{pattern!r} is no regular expression of RE2: {text}. It has no look-around and no back-references"
        ) from error
    if expression.programsize > PROGRAM_INSTRUCTIONS:
        raise LooplineError(f"{pattern!r} repeats too much: write smaller numbers of repetitions")
    return expression
