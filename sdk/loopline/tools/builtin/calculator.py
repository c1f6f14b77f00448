"""`calculator`: arithmetic written as text, parsed by Python's `ast` module and evaluated node by node, never as code."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence

from loopline.errors import ToolError
from loopline.models import JsonObject, ToolSpec
from loopline.names import parse_expression
from loopline.tools.functions import RerunnableTool
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome
from loopline.tools.parameters import object_schema, text_argument

MAX_LENGTH = 1_000
"""The largest number of characters of an expression."""
MAX_DEPTH = 40
"""The largest number of nested parentheses, and of nested signs and powers."""
MAX_DIGITS = 1_000
"""The largest number of digits of an integer."""
SIGNIFICANT = 15
"""The number of significant digits with which a float is formatted."""

_MAX_BITS = int(MAX_DIGITS * math.log2(10))
_LARGEST = 10**MAX_DIGITS
_SPACE = re.compile(r"\s")
_SENTENCE_END = re.compile("[.;] ")
_WORD = re.compile(
    r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<sign>[-+*/%(),])|\s"
)
_EXCERPT = 20

Number = int | float


class Calculator(RerunnableTool):
    """The tool that evaluates an arithmetic expression."""

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

    def parse(self, arguments: JsonObject) -> str:
        """Return the expression."""
        return text_argument(arguments, "expression")

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the value of the expression as text.

        Raises:
            ToolError: the expression cannot be evaluated; the message names the problem and its position.
        """
        del call
        return Outcome(text=format_number(calculate(self.parse(arguments))))


def calculate(expression: str) -> Number:
    """Return the value of an expression.

    Integers stay exact. As in Python, `**` is evaluated from the right and binds tighter than a sign before it; `//`
    and `%` round down.

    Raises:
        ToolError: the text is not an expression or is too long or nested too deeply, or the value is not a real number
            or is too large; the message names the position.
    """
    if len(expression) > MAX_LENGTH:
        raise ToolError(f"calculator: an expression has at most {MAX_LENGTH} characters")
    return _Expression(expression.strip()).value()


def format_number(value: Number) -> str:
    """Return the value as text: an integer in full, a float with 15 significant digits."""
    return str(value) if isinstance(value, int) else f"{value + 0.0:.{SIGNIFICANT}g}"


class _Expression:
    """An expression with its text, which error messages quote from the position of the problem."""

    def __init__(self, text: str) -> None:
        self._text = text

    def value(self) -> Number:
        """Evaluate the expression; raise a ToolError with the problem and its position if that is not possible."""
        self._check_words()
        try:
            # Python would end the expression at a line break. A space in its place keeps all positions.
            body = parse_expression(_SPACE.sub(" ", self._text))
        except SyntaxError as error:
            at = error.offset - 1 if error.offset else len(self._text)
            raise self._error(_SENTENCE_END.split(error.msg)[0], at) from error
        except (MemoryError, RecursionError) as error:  # the parser of some versions of Python
            raise self._error(_TOO_DEEP, 0) from error
        return self._evaluate(body, 0)

    def _check_words(self) -> None:
        """Check the text before Python parses it.

        Raises:
            ToolError: it has other parts than numbers, known names, operators and parentheses, or is nested too deeply.
        """
        at = 0
        depth = 0
        while at < len(self._text):
            word = _WORD.match(self._text, at)
            if word is None:
                character = self._text[at]
                hint = ", a power is **" if character == "^" else ""
                raise self._error(f"{character!r} means nothing here{hint}", at)
            name = word["name"]
            if name and name not in _FUNCTIONS and name not in _CONSTANTS:
                raise self._unknown_name(name, at)
            depth += (word["sign"] == "(") - (word["sign"] == ")")
            self._check_depth(depth, at)
            at = word.end()

    def _evaluate(self, node: ast.expr, depth: int) -> Number:
        """Return the value of a node that is nested in `depth` signs and powers; raise a ToolError if it has none."""
        at = node.col_offset
        match node:
            case ast.Constant(value=int() | float() as value):
                return self._apply(lambda: value, (), at)
            case ast.Name(id=name) if name in _CONSTANTS:
                return _CONSTANTS[name]
            case ast.Name(id=name):
                raise self._error(f"{name} is a function: write {name}(…)", at)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                if name not in _FUNCTIONS:
                    raise self._unknown_name(name, at)
                values = [self._evaluate(argument, depth) for argument in arguments]
                return self._apply(_FUNCTIONS[name], values, at)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                self._check_depth(depth + 1, at)
                value = self._evaluate(operand, depth + 1)
                return -value if isinstance(sign, ast.USub) else value
            case ast.BinOp():
                return self._evaluate_operations(node, depth)
            case _:
                raise self._error("a number, a name or an operation was expected", at)

    def _evaluate_operations(self, node: ast.BinOp, depth: int) -> Number:
        """Evaluate operations from left to right, in a loop because a sum may have 500 terms."""
        operations = [node]
        while isinstance(operations[-1].left, ast.BinOp):
            operations.append(operations[-1].left)
        value = self._evaluate(operations[-1].left, depth)
        for operation in reversed(operations):
            sign, function = _OPERATORS[type(operation.op).__name__]
            at = self._text.index(sign, operation.left.end_col_offset)
            right_depth = depth + 1 if sign == "**" else depth
            self._check_depth(right_depth, at)
            right = self._evaluate(operation.right, right_depth)
            value = self._apply(function, (value, right), at)
        return value

    def _check_depth(self, depth: int, at: int) -> None:
        if depth > MAX_DEPTH:
            raise self._error(_TOO_DEEP, at)

    def _apply(self, function: Callable[..., Number], values: Sequence[Number], at: int) -> Number:
        """Call the function with the values; raise a ToolError with the position `at` if it fails or is too large."""
        try:
            return _check_bounds(function(*values))
        except ZeroDivisionError:
            problem = "this divides by zero"
        except OverflowError:
            problem = "this is too large"
        except TypeError:
            problem = f"this is not for {len(values)} values"
        except ValueError as error:
            problem = str(error)
        raise self._error(problem, at)

    def _unknown_name(self, name: str, at: int) -> ToolError:
        names = ", ".join((*_FUNCTIONS, *_CONSTANTS))
        return self._error(f"{name[:_EXCERPT]!r} is not known here: only {names}", at)

    def _error(self, problem: str, at: int) -> ToolError:
        excerpt = self._text[at : at + _EXCERPT]
        place = f"at character {at + 1}, {excerpt!r}" if excerpt else "at the end"
        return ToolError(f"calculator: {problem} ({place})")


_NOT_REAL = "the value is not a real number"
_DIGITS = f"digits are an integer from {-MAX_DIGITS} to {MAX_DIGITS}"
_TOO_DEEP = f"this is nested more than {MAX_DEPTH} deep"


def _check_bounds(value: Number) -> Number:
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    if isinstance(value, int) and abs(value) >= _LARGEST:
        raise OverflowError
    return value


def _quotient(dividend: Number, divisor: Number) -> Number:
    are_integers = isinstance(dividend, int) and isinstance(divisor, int)
    if are_integers and divisor and dividend % divisor == 0:
        return dividend // divisor
    return dividend / divisor


def _power(base: Number, exponent: Number) -> Number:
    """Return the power, exact if both are integers and the exponent is not negative, otherwise a float.

    Raises:
        OverflowError: the integer would be far too large; it is not computed.
        ValueError: the value is not a real number.
    """
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        # Estimate the size first: computing 9 ** 9 ** 9 would take hours.
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
    """Call a function of `math`; raise a ValueError if its value is not a real number."""
    if values[0] == 0 and function is math.pow:
        return 0.0 ** values[1]
    try:
        return function(*values)
    except ValueError as error:
        raise ValueError(_NOT_REAL) from error


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > MAX_DIGITS:
        raise ValueError(_DIGITS)
    return round(value) if digits == 0 else round(value, digits)


def _absolute(value: Number) -> Number:
    return abs(value)


def _least(value: Number, *values: Number) -> Number:
    return min((value, *values))


def _greatest(value: Number, *values: Number) -> Number:
    return max((value, *values))


_OPERATORS: Mapping[str, tuple[str, Callable[[Number, Number], Number]]] = {
    "Add": ("+", lambda x, y: x + y),
    "Sub": ("-", lambda x, y: x - y),
    "Mult": ("*", lambda x, y: x * y),
    "Div": ("/", _quotient),
    "FloorDiv": ("//", lambda x, y: x // y),
    "Mod": ("%", lambda x, y: x % y),
    "Pow": ("**", _power),
}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "sqrt": _root,
    "abs": _absolute,
    "round": _round,
    "min": _least,
    "max": _greatest,
    "floor": math.floor,
    "ceil": math.ceil,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "log": _logarithm,
    "exp": math.exp,
}
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}
