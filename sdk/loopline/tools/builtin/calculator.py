"""`calculator`: arithmetic written as text, read by a grammar of its own; nothing is ever run as code."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loopline.errors import ToolError
from loopline.models import JsonObject, ToolSpec
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome
from loopline.tools.parameters import check_names, object_schema, text_argument
from loopline.tools.tool import RerunnableTool

MAX_LENGTH = 1_000
"""Characters of an expression."""
MAX_DEPTH = 40
"""Parentheses, signs and powers inside one another."""
MAX_DIGITS = 1_000
"""Digits of a whole number."""
SIGNIFICANT = 15
"""Digits of a number that is not whole."""

_MAX_BITS = int(MAX_DIGITS * math.log2(10))
_LARGEST = 10**MAX_DIGITS
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<sign>\*\*|//|[-+*/%(),])|(?P<end>\Z))"
)
_SHOWN = 20

Number = int | float


class Calculator(RerunnableTool):
    """A tool that evaluates an arithmetic expression."""

    spec: ToolSpec = ToolSpec(
        name="calculator",
        description=(
            "Work out an arithmetic expression, such as sqrt(2) * (3 + 4) ** 2. There are + - * / // % "
            "**, parentheses, pi, e, and sqrt abs round min max floor ceil sin cos tan log exp; angles "
            "are in radians, log(x) is natural and log(x, base) is not, round(x, digits) rounds halves "
            "to even."
        ),
        parameters=object_schema(
            {"expression": {"type": "string", "description": "What to work out."}}, "expression"
        ),
    )

    def check(self, arguments: JsonObject) -> None:
        """Refuse anything but an expression."""
        check_names(self.spec, arguments)
        text_argument(arguments, "expression")

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Evaluate the expression.

        Raises:
            ToolError: it has no value; the message says where in the expression the problem is.
        """
        del call
        return Outcome(text=shown(calculate(text_argument(arguments, "expression"))))


def calculate(expression: str) -> Number:
    """Return the value of an expression.

    Whole numbers stay exact. Powers are evaluated from the right and bind more than a sign before them; `//` and `%`
    round down.

    Raises:
        ToolError: it is no expression, or its value is too large; the message says where.
    """
    if len(expression) > MAX_LENGTH:
        raise ToolError(f"calculator: an expression has at most {MAX_LENGTH} characters")
    return _Expression(expression).value()


def shown(value: Number) -> str:
    """Return the value as text: whole numbers in full, others with 15 significant digits."""
    return str(value) if isinstance(value, int) else f"{value + 0.0:.{SIGNIFICANT}g}"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


class _Expression:
    """An expression that is parsed from left to right and evaluated on the way."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self._next = self._token(0)

    def value(self) -> Number:
        """Return the value of the whole expression."""
        value = self._sum()
        if self._next.kind != "end":
            raise self._wrong("an operator or the end was expected", self._next.at)
        return value

    def _sum(self) -> Number:
        value = self._product()
        while self._next.text in ("+", "-"):
            sign = self._take()
            value = self._applied(_BINARY_OPERATORS[sign.text], (value, self._product()), sign.at)
        return value

    def _product(self) -> Number:
        value = self._signed()
        while self._next.text in ("*", "/", "//", "%"):
            sign = self._take()
            value = self._applied(_BINARY_OPERATORS[sign.text], (value, self._signed()), sign.at)
        return value

    def _signed(self) -> Number:
        if self._next.text not in ("+", "-"):
            return self._power()
        sign = self._take()
        self._deeper(sign.at)
        value = self._signed()
        self._depth -= 1
        return -value if sign.text == "-" else value

    def _power(self) -> Number:
        base = self._atom()
        if self._next.text != "**":
            return base
        sign = self._take()
        self._deeper(sign.at)
        exponent = self._signed()
        self._depth -= 1
        return self._applied(_power, (base, exponent), sign.at)

    def _atom(self) -> Number:
        token = self._take()
        match token.kind, token.text:
            case "number", text:
                return self._applied(int if text.isdecimal() else float, (text,), token.at)
            case "name", name if name in _CONSTANTS and self._next.text != "(":
                return _CONSTANTS[name]
            case "name", name if name in _FUNCTIONS:
                return self._applied(_FUNCTIONS[name], self._arguments(token), token.at)
            case "name", name:
                names = ", ".join((*_FUNCTIONS, *_CONSTANTS))
                raise self._wrong(f"{name[:_SHOWN]!r} is not known here: only {names}", token.at)
            case "sign", "(":
                self._deeper(token.at)
                value = self._sum()
                self._expect(")", token)
                self._depth -= 1
                return value
            case _:
                raise self._wrong("a number, a name or ( was expected", token.at)

    def _arguments(self, name: _Token) -> tuple[Number, ...]:
        opening = self._next
        self._expect("(", name)
        self._deeper(opening.at)
        values: list[Number] = []
        while self._next.text != ")":
            values.append(self._sum())
            if self._next.text != ",":
                break
            self._take()
        self._expect(")", opening)
        self._depth -= 1
        return tuple(values)

    def _expect(self, sign: str, before: _Token) -> None:
        if self._next.text != sign:
            problem = (
                f"{sign} was expected for the {before.text[:_SHOWN]} at character {before.at + 1}"
            )
            raise self._wrong(problem, self._next.at)
        self._take()

    def _deeper(self, at: int) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(f"this is nested more than {MAX_DEPTH} deep", at)

    def _take(self) -> _Token:
        token = self._next
        self._next = self._token(token.at + len(token.text))
        return token

    def _token(self, at: int) -> _Token:
        match = _TOKEN.match(self._text, at)
        if match is None or match.lastgroup is None:
            at += len(self._text[at:]) - len(self._text[at:].lstrip())
            strange = self._text[at]
            hint = ", a power is **" if strange == "^" else ""
            raise self._wrong(f"{strange!r} means nothing here{hint}", at)
        return _Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))

    def _applied(
        self, function: Callable[..., Number], values: tuple[Number | str, ...], at: int
    ) -> Number:
        """Return the function's value; an error names its position."""
        try:
            return _bounded(function(*values))
        except ZeroDivisionError:
            problem = "this divides by zero"
        except OverflowError:
            problem = "this is too large"
        except TypeError:
            problem = f"this is not for {len(values)} values"
        except ValueError as error:
            problem = str(error)
        raise self._wrong(problem, at)

    def _wrong(self, problem: str, at: int) -> ToolError:
        excerpt = self._text[at : at + _SHOWN]
        where = f"at character {at + 1}, {excerpt!r}" if excerpt else "at the end"
        return ToolError(f"calculator: {problem} ({where})")


_NOT_REAL = "the value is no real number"
_DIGITS = f"digits are a whole number from {-MAX_DIGITS} to {MAX_DIGITS}"


def _bounded(value: Number) -> Number:
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise OverflowError
    return value


def _quotient(dividend: Number, divisor: Number) -> Number:
    is_whole = isinstance(dividend, int) and isinstance(divisor, int)
    if is_whole and divisor and dividend % divisor == 0:
        return dividend // divisor
    return dividend / divisor


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        if abs(base) > 1 and (base.bit_length() - 1) * exponent > _MAX_BITS:
            raise OverflowError
        raised: int = base**exponent
        return raised
    return _real(math.pow, float(base), float(exponent))


def _root(value: Number) -> Number:
    if isinstance(value, int) and value >= 0 and math.isqrt(value) ** 2 == value:
        return math.isqrt(value)
    return _real(math.sqrt, value)


def _logarithm(value: Number, base: Number = math.e) -> Number:
    return _real(math.log, value) if base == math.e else _real(math.log, value, base)


def _real(function: Callable[..., float], *values: Number) -> Number:
    if values[0] == 0 and function is math.pow:
        return 0.0 ** values[1]
    try:
        return function(*values)
    except ValueError as error:
        raise ValueError(_NOT_REAL) from error


def _rounded(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > MAX_DIGITS:
        raise ValueError(_DIGITS)
    return round(value) if digits == 0 else round(value, digits)


def _minimum(value: Number, *values: Number) -> Number:
    return min((value, *values))


def _maximum(value: Number, *values: Number) -> Number:
    return max((value, *values))


def _absolute(value: Number) -> Number:
    return abs(value)


_BINARY_OPERATORS: Mapping[str, Callable[[Number, Number], Number]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": _quotient,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "sqrt": _root,
    "abs": _absolute,
    "round": _rounded,
    "min": _minimum,
    "max": _maximum,
    "floor": math.floor,
    "ceil": math.ceil,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "log": _logarithm,
    "exp": math.exp,
}
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}
