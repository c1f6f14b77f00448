"""What a bundle's own code wires, as far as it is written down: read, and not run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from loopline.bundle.load import LoadedBundle

if TYPE_CHECKING:
    import ast

Kind = Literal["tools", "skills"]


def wired(bundle: LoadedBundle, kind: Kind) -> list[str]:
    """The descriptor modules that calls of `build_react` name, or the one of the usual name.

    Only names that are written out are found, `f"{__package__}.tools_descriptor"` among them.
    """
    usual = f"{kind}_descriptor"
    found = dict.fromkeys(_named(bundle, f"{kind}_module"))
    if not found and bundle.holds(usual):
        return [f"{bundle.name}.{usual}"]
    return list(found)


def _named(bundle: LoadedBundle, keyword: str) -> Iterator[str]:
    import ast

    for file in bundle.code:
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            continue  # whoever imports it says so, with the line
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(attr="build_react"), keywords=given):
                    names = (_text(one.value, bundle) for one in given if one.arg == keyword)
                    yield from (name for name in names if name)
                case _:
                    pass


def _text(node: ast.expr, bundle: LoadedBundle) -> str:
    """A text that is written out, the bundle's package in it filled in; else nothing."""
    import ast

    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(
            values=[
                ast.FormattedValue(value=ast.Name(id="__package__")),
                ast.Constant(value=str(rest)),
            ]
        ):
            return f"{bundle.name}{rest}"
        case _:
            return ""
