"""Mutants of a source file: every small fault that its syntax tree offers, and a seeded draw of some."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SWAPS: dict[type[ast.cmpop], tuple[tuple[str, str], ...]] = {
    ast.Lt: (("boundary", "<="), ("comparison", ">=")),
    ast.LtE: (("boundary", "<"), ("comparison", ">")),
    ast.Gt: (("boundary", ">="), ("comparison", "<=")),
    ast.GtE: (("boundary", ">"), ("comparison", "<")),
    ast.Eq: (("comparison", "!="),),
    ast.NotEq: (("comparison", "=="),),
    ast.Is: (("comparison", "is not"),),
    ast.IsNot: (("comparison", "is"),),
    ast.In: (("comparison", "not in"),),
    ast.NotIn: (("comparison", "in"),),
}
SYMBOLS: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A fault: in a file of the package, at a line of a function, the text from `start` to `end` becomes another.

    `start` and `end` count bytes. `function` is empty for what runs when the module is imported.
    """

    path: str
    function: str
    line: int
    operator: str
    start: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def shown(self, source: bytes) -> str:
        before = " ".join(source[self.start : self.end].decode().split())
        after = " ".join(self.text.split())
        return f"{before[:70]} → {after[:70] or 'nothing'}"


class _Places:
    """Where in the bytes of a file its nodes stand."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path = path
        self.source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        return self._lines[line - 1] + column

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.at(node.lineno, node.col_offset)
        return start, self.at(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()


def mutants(path: str, source: bytes) -> Iterator[Mutant]:
    places = _Places(path, source)
    yield from _within(ast.parse(source), "", places)


def drawn(sources: dict[str, bytes], count: int, seed: int) -> list[Mutant]:
    every = [mutant for path in sorted(sources) for mutant in mutants(path, sources[path])]
    return random.Random(seed).sample(every, min(count, len(every)))


def sources_of(package: Path, rooms: Sequence[str]) -> dict[str, bytes]:
    files = [file for room in rooms for file in sorted((package / room).rglob("*.py"))]
    return {file.relative_to(package).as_posix(): file.read_bytes() for file in files}


def _within(node: ast.AST, function: str, places: _Places) -> Iterator[Mutant]:
    """The mutants of what stands in a node; annotations, docstrings and error texts are left alone."""
    if isinstance(node, ast.expr):
        yield from _expression(node, function, places)
    inside = function
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        inside = f"{function}.{node.name}".lstrip(".")
    for child in _children(node):
        if isinstance(child, ast.stmt):
            yield from _statement(child, inside, places)
        else:
            yield from _within(child, function, places)


def _children(node: ast.AST) -> list[ast.AST]:
    match node:
        case ast.FunctionDef(args=args, body=body) | ast.AsyncFunctionDef(args=args, body=body):
            return [*args.defaults, *filter(None, args.kw_defaults), *body]
        case ast.ClassDef(bases=bases, body=body):
            names = [base.id for base in bases if isinstance(base, ast.Name)]
            return [] if "Protocol" in names else [*body]
        case ast.AnnAssign(value=value):
            return [] if value is None else [value]
        case ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return []
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return []
        case _:
            return list(ast.iter_child_nodes(node))


def _statement(node: ast.stmt, function: str, places: _Places) -> Iterator[Mutant]:
    match node:
        case ast.Expr(value=ast.Constant()):
            return
        case ast.Expr() | ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            if function:
                yield _mutant(node, function, places, "dropped statement", "pass")
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield _mutant(node, function, places, "dropped return", "return None")
        case ast.If(test=test) if not _is_type_checking(test):
            negated = f"not ({places.text(test)})"
            yield _mutant(test, function, places, "negation", negated)
        case _:
            pass
    yield from _within(node, function, places)


def _expression(node: ast.expr, function: str, places: _Places) -> Iterator[Mutant]:
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield _without(node, keyword, function, places)
    for operator, text in _changed(node, places):
        yield _mutant(node, function, places, operator, text)


def _changed(node: ast.expr, places: _Places) -> Iterator[tuple[str, str]]:
    """What an expression may become, and by which operator."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            for operator, symbol in SWAPS[type(op)]:
                yield operator, f"(({places.text(left)}) {symbol} ({places.text(right)}))"
        case ast.BoolOp(op=op, values=values):
            text = " or " if isinstance(op, ast.And) else " and "
            yield "and/or", f"({text.join(f'({places.text(value)})' for value in values)})"
        case ast.BinOp(left=left, op=op, right=right) if _is_sum(left, op, right):
            yield (
                "arithmetic",
                f"(({places.text(left)}) {SYMBOLS[type(op)]} ({places.text(right)}))",
            )
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "negation", f"({places.text(operand)})"
        case ast.Constant(value=bool() as value):
            yield "constant", str(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", f"{value + 1}"
        case _:
            pass


def _without(
    call: ast.Call,
    dropped: ast.keyword,
    function: str,
    places: _Places,
) -> Mutant:
    kept = [places.text(arg) for arg in call.args]
    for keyword in call.keywords:
        if keyword is not dropped:
            start, end = places.span(keyword)
            kept.append(places.source[start:end].decode())
    text = f"{places.text(call.func)}({', '.join(kept)})"
    return _mutant(call, function, places, f"dropped argument {dropped.arg}", text)


def _mutant(
    node: ast.expr | ast.stmt, function: str, places: _Places, operator: str, text: str
) -> Mutant:
    start, end = places.span(node)
    return Mutant(
        path=places.path,
        function=function,
        line=node.lineno,
        operator=operator,
        start=start,
        end=end,
        text=text,
    )


def _is_sum(left: ast.expr, op: ast.operator, right: ast.expr) -> bool:
    """Whether it may be a sum of numbers, as texts and lists make no mutant worth a run."""
    parts = (left, right)
    joins = any(isinstance(part, ast.JoinedStr | ast.List | ast.Tuple) for part in parts)
    joins |= any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts)
    return type(op) in SYMBOLS and not joins


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_type_checking(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "TYPE_CHECKING"
