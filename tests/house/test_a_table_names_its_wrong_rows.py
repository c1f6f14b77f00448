"""What `each_row` promises to the tests of tables: every row is tried, and a wrong one is named."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.rows import each_row


@each_row([0, 1, 2, 3, 4])
def wrong_up_to_three(number: int) -> None:
    if number == 1:
        pytest.fail("one")
    if number == 2:
        raise SystemExit(2)
    assert number != 3


@each_row([0, 1, 2])
async def later(number: int) -> None:
    await asyncio.sleep(0)
    assert number != 1


def test_a_table_fails_once_with_each_wrong_row() -> None:
    with pytest.raises(BaseExceptionGroup, match="3 rows are wrong") as raised:
        wrong_up_to_three()
    notes = [error.__notes__[0] for error in raised.value.exceptions]
    assert notes == [f"The row is ({number},)." for number in (1, 2, 3)]


async def test_a_table_of_rows_that_wait_fails_with_each_wrong_row() -> None:
    with pytest.raises(BaseExceptionGroup, match="1 rows are wrong"):
        await later()


def test_a_table_without_rows_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no row"):
        each_row([])
