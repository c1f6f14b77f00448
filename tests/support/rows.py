"""One test over all rows of a table: it names each wrong row, and costs less than a test for each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeAlias, cast

import pytest

Test: TypeAlias = Callable[..., Any]


def each_row(rows: Iterable[Sequence[object] | object]) -> Callable[[Test], Test]:
    """Call a test with the values of each row as its arguments, and let it fail once with the errors of all rows.

    A row that is no tuple is one argument. The test can have no fixtures and no marks of its own.
    """
    table = [as_arguments(row) for row in rows]
    assert table, "the table has no row"

    def decorate(test: Test) -> Test:
        def run() -> None:
            errors = Errors()
            for errors.row in table:
                with errors:
                    test(*errors.row)
            errors.fail()

        async def wait() -> None:
            errors = Errors()
            for errors.row in table:
                with errors:
                    await test(*errors.row)
            errors.fail()

        over_rows: Test = wait if inspect.iscoroutinefunction(test) else run
        over_rows.__name__, over_rows.__doc__ = test.__name__, test.__doc__
        return pytest.mark.hypothesis(over_rows) if hasattr(test, "hypothesis") else over_rows

    return decorate


def as_arguments(row: object) -> Sequence[object]:
    return cast("tuple[object, ...]", row) if isinstance(row, tuple) else (row,)


class Errors(AbstractContextManager[None, bool]):
    """The errors of rows: what is raised within is noted with the row, and the next row is tried."""

    def __init__(self) -> None:
        self.row: Sequence[object] = ()
        self.errors: list[BaseException] = []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None or isinstance(error, KeyboardInterrupt):
            return False
        error.add_note(f"The row is {self.row!r}.")
        self.errors.append(error)
        return True

    def fail(self) -> None:
        if self.errors:
            raise BaseExceptionGroup(f"{len(self.errors)} rows are wrong", self.errors)
