"""The calculator works out what Python would, and whatever it is given it answers soon."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import ToolError
from loopline.tools.builtin import calculator

SIGNS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": lambda left, right: left // right,
    "%": lambda left, right: left % right,
}
Sum = tuple[str, int]


def both(pair: tuple[Sum, str, Sum]) -> Sum:
    (left, a), sign, (right, b) = pair
    return f"({left}) {sign}({right} )", SIGNS[sign](a, b)


def is_defined(pair: tuple[Sum, str, Sum]) -> bool:
    return pair[1] not in ("//", "%") or pair[2][1] != 0


def sums() -> st.SearchStrategy[Sum]:
    numbers = st.integers(0, 10**6).map(lambda value: (str(value), value))
    return st.recursive(
        numbers,
        lambda inner: (
            st.tuples(inner, st.sampled_from(sorted(SIGNS)), inner).filter(is_defined).map(both)
            | inner.map(lambda one: (f"-({one[0]})", -one[1]))
            | inner.map(lambda one: (f"abs({one[0]})", abs(one[1])))
        ),
        max_leaves=12,
    )


@given(sums())
def test_whole_numbers_are_exact(written: Sum) -> None:
    text, value = written
    assert calculator.calculate(text) == value
    assert calculator.format_number(calculator.calculate(text)) == str(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_read_as_python_writes_it(value: float) -> None:
    assert calculator.calculate(repr(value)) == value


@given(st.integers(-50, 50), st.integers(0, 50))
def test_powers_are_exact(base: int, exponent: int) -> None:
    assert calculator.calculate(f"({base})**{exponent}") == base**exponent


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("10 - 4 - 3", "3"),
        ("100 / 10 / 5", "2"),
        ("-2 ** 2", "-4"),
        ("2 ** -1", "0.5"),
        ("2 ** 3 ** 2", "512"),
        ("--5", "5"),
        ("7 / 2", "3.5"),
        ("6 / 3", "2"),
        ("10 ** 40 / 10 ** 39", "10"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("0.1 + 0.2", "0.3"),
        ("1e3", "1000"),
        (".5 + 1.", "1.5"),
        ("-0.0", "0"),
        ("sqrt(16)", "4"),
        ("sqrt(10 ** 40)", str(10**20)),
        ("abs(-3)", "3"),
        ("round(2.567, 2)", "2.57"),
        ("round(2.5)", "2"),
        ("round(12345, -2)", "12300"),
        ("min(3, 1, 2)", "1"),
        ("max(3)", "3"),
        ("floor(-2.5)", "-3"),
        ("ceil(2.1)", "3"),
        ("sin(0) + cos(0) + tan(0)", "1"),
        ("sin(pi / 2)", "1"),
        ("log(e)", "1"),
        ("log(8, 2)", "3"),
        ("log(1000, 10)", "3"),
        ("exp(0)", "1"),
        ("max(1, min(2, 3) + 4)", "6"),
        ("\t1\n+ 2 ", "3"),
    ],
)
def test_a_sum_has_its_value(text: str, value: str) -> None:
    assert calculator.format_number(calculator.calculate(text)) == value


@pytest.mark.parametrize(
    ("text", "problem", "place"),
    [
        ("", "invalid syntax", "at the end"),
        ("1 +", "invalid syntax", "at the end"),
        ("1 2", "invalid syntax", "at character 3, '2'"),
        ("2pi", "invalid decimal literal", "at character 1, '2pi'"),
        ("(1 + 2", "'(' was never closed", "at character 1, '(1 + 2'"),
        ("1)", "unmatched ')'", "at character 2, ')'"),
        ("sqrt", "sqrt is a function: write sqrt(…)", "at character 1, 'sqrt'"),
        ("max(1,", "'(' was never closed", "at character 4, '(1,'"),
        ("sqrt()", "this is not for 0 values", "at character 1"),
        ("sqrt(1, 2)", "this is not for 2 values", "at character 1"),
        ("pi(1)", "'pi' is not known here", "at character 1"),
        ("1 + x", "'x' is not known here: only sqrt, abs", "at character 5, 'x'"),
        ("2 ^ 3", "'^' means nothing here, a power is **", "at character 3"),
        ("1 < 2", "'<' means nothing here", "at character 3"),
        ("1 == 1", "'=' means nothing here", "at character 3"),
        ("٣ + 1", "'٣' means nothing here", "at character 1"),
        ("1 / 0", "this divides by zero", "at character 3, '/ 0'"),
        ("1 % 0", "this divides by zero", "at character 3"),
        ("0 ** -1", "this divides by zero", "at character 3"),
        ("sqrt(-1)", "the value is not a real number", "at character 1"),
        ("(-8) ** (1 / 3)", "the value is not a real number", "at character 6"),
        ("log(0)", "the value is not a real number", "at character 1"),
        ("1e999", "this is too large", "at character 1"),
        ("1e308 * 10", "this is too large", "at character 7"),
        ("exp(1000)", "this is too large", "at character 1"),
        ("10 ** 400 * 0.5", "this is too large", "at character 11"),
        ("9 ** 9 ** 9", "this is too large", "at character 3"),
        ("10 ** 1000", "this is too large", "at character 4"),
        ("10 ** 999 * 10", "this is too large", "at character 11"),
        ("round(1, 0.5)", "digits are an integer", "at character 1"),
        ("round(1, -10 ** 9)", "digits are an integer", "at character 1"),
        ("(" * 99, "nested more than 40 deep", "at character 41"),
        ("-" * 99 + "1", "nested more than 40 deep", "at character 41"),
        ("2**" * 99 + "1", "nested more than 40 deep", "at character"),
        ("__import__('os')", "'__import__' is not known here", "at character 1"),
        ("(1).real", "'.' means nothing here", "at character 4, '.real'"),
        ("'a'", '"\'" means nothing here', "at character 1"),
        ("1;2", "';' means nothing here", "at character 2"),
        ("0x10", "'x10' is not known here", "at character 2"),
        ("1j", "'j' is not known here", "at character 2"),
        ("1 if 2 else 3", "'if' is not known here", "at character 3"),
        ("True", "'True' is not known here", "at character 1"),
        ("1, 2", "a number, a name or an operation was expected", "at character 1"),
        ("max(*2)", "a number, a name or an operation was expected", "at character 5, '*2)'"),
        ("max(**2)", "a number, a name or an operation was expected", "at character 1"),
        ("3(4)", "a number, a name or an operation was expected", "at character 1"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, problem: str, place: str) -> None:
    with pytest.raises(ToolError) as raised:
        calculator.calculate(text)
    assert problem in str(raised.value)
    assert place in str(raised.value)


def test_an_expression_has_an_end() -> None:
    assert (
        calculator.calculate("1+" * (calculator.MAX_LENGTH // 2 - 1) + "1")
        == calculator.MAX_LENGTH // 2
    )
    with pytest.raises(ToolError, match="at most 1000 characters"):
        calculator.calculate("1" + "+1" * (calculator.MAX_LENGTH // 2))


def test_parentheses_may_be_as_deep_as_is_allowed() -> None:
    assert calculator.calculate("(" * calculator.MAX_DEPTH + "1" + ")" * calculator.MAX_DEPTH) == 1


WORDS = [
    *("(", ")", ",", "+", "-", "*", "/", "//", "%", "**", "^", " ", ".", "e", "pi", "0", "9"),
    *("99999999", "1e308", "1e-308", "sqrt(", "round(", "floor(", "log(", "exp(", "max(", "abs("),
    *("__", "é", "\udc80", "\x00", "=", "lambda", "[", "'", '"', "\\", "j"),
]


def answer(text: str) -> calculator.Number | None:
    """The value; None when there is none. Anything but a ToolError fails the test."""
    try:
        return calculator.calculate(text)
    except ToolError:
        return None


@given(st.lists(st.sampled_from(WORDS), max_size=80).map("".join) | st.text(max_size=80))
def test_any_text_has_a_value_of_a_bounded_size_or_is_told_why_not(text: str) -> None:
    value = answer(text)
    if value is not None:
        assert isinstance(value, int) or math.isfinite(value)
        assert len(calculator.format_number(value)) <= calculator.MAX_DIGITS + 1


@given(st.lists(st.sampled_from(["9" * 9, "**", "*", "(", ")", "-"]), max_size=100).map("".join))
def test_towers_of_powers_are_refused_before_they_are_worked_out(text: str) -> None:
    value = answer(text)
    assert value is None or len(calculator.format_number(value)) <= calculator.MAX_DIGITS + 1
