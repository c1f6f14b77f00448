"""Names come from the field: few of them say nothing, a module is a noun, and one class has one name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.house.tree import functions, place, python_files, tree
from tests.support.rows import each_row

_CONTENTLESS = """
one ones other others another same such part_ kin each every none_ whole all_ both any_ rest more most less least
much many some thing things stuff what who whom which place places obj objs foo bar tmp data2 word words words_
found made said told known given kept asked heard seen wanted held taken left right_one come came gone got begun
ended done_ been was be had has_ is_ here there then now_ next_one hand hands ear ears apart beside behind ahead
"""
CONTENTLESS = frozenset(_CONTENTLESS.split())
"""Names that say nothing of what they hold."""
SHARE = 0.01
"""The largest share of the package's names that may say nothing."""
GERUNDS = {
    "caching": "the field's noun for what providers do with a prefix",
    "embedding": "the field's noun for a vector of a text",
    "ranking": "the field's noun for the order of what a search found",
    "rendering": "the field's noun for how a prompt is made of blocks",
    "streaming": "the field's noun for a reply that comes in pieces",
    "testing": "the public module for those who test their bundles",
}
"""Words that end in -ing and are nouns of the field, with the reason."""
LOOKUPS_PER_THOUSAND_LINES = 1
"""How often a dict may be asked for a key that is spelled out: past the door there are values."""
LOOKUP = re.compile(r"""(?<!router)\.get\(\s*["']""")
_NO_VERBS = """
a an the what who whom whose which whether how where when why that this these those it its they their there one two
some any each every all both no none nothing nobody as at by for from in into of off on onto out over to up with
"""
NO_VERBS = frozenset(_NO_VERBS.split())
"""Words that begin no imperative."""


def names(module: ast.AST) -> Iterator[str]:
    """Every name that the module binds: parameters, targets, functions, classes, attributes of self."""
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name) if name not in {"self", "cls"}:
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def contentless(bound: Iterable[str]) -> list[str]:
    return [name for name in bound if name.strip("_") in CONTENTLESS]


def is_gerund(stem: str) -> bool:
    return stem.endswith("ing") and stem not in {*GERUNDS, "ring", "string"}


def lookups(text: str) -> int:
    return len(LOOKUP.findall(text))


def is_imperative(docstring: str) -> bool:
    """Whether the first word may be a verb."""
    return re.split(r"\W", docstring.strip("`"), maxsplit=1)[0].lower() not in NO_VERBS


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def modules() -> list[Path]:
    return python_files("sdk")


def test_few_names_say_nothing() -> None:
    bound = {path: list(names(tree(path))) for path in modules()}
    empty = {path: contentless(names) for path, names in bound.items()}
    count, every = sum(map(len, empty.values())), sum(map(len, bound.values()))
    worst = sorted(empty, key=lambda path: -len(empty[path]))[:10]
    assert count <= SHARE * every, [(place(path, 1), empty[path]) for path in worst]


def test_a_module_is_a_noun() -> None:
    assert [place(path, 1) for path in modules() if is_gerund(path.stem.strip("_"))] == []


def test_a_public_class_has_a_name_of_its_own() -> None:
    homes = defaultdict[str, list[str]](list)
    for path in modules():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(place(path, node.lineno))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_keys_that_are_spelled_out_are_looked_up_at_the_door_only() -> None:
    texts = [path.read_text("utf-8") for path in modules()]
    limit = LOOKUPS_PER_THOUSAND_LINES * sum(len(text.splitlines()) for text in texts) / 1000
    assert sum(map(lookups, texts)) <= limit


def test_the_docstring_of_a_function_begins_with_a_verb() -> None:
    assert [
        f"{place(path, node.lineno)} {docstring.splitlines()[0]}"
        for path in modules()
        for node in functions(path)
        if (docstring := ast.get_docstring(node)) and not is_property(node)
        if not is_imperative(docstring)
    ] == []


@each_row(["one = 1", "for found in x: pass", "def f(said): pass", "class _Told: pass\ntold = 1"])
def test_a_name_that_says_nothing_is_noticed(code: str) -> None:
    assert len(contentless(names(ast.parse(code)))) == 1


def test_attributes_of_others_and_reads_are_no_names() -> None:
    assert contentless(names(ast.parse("call.found = one\nprint(told)"))) == []


@each_row([("hearing", True), ("testing", False), ("string", False), ("retry", False)])
def test_a_gerund_is_told_from_a_noun(stem: str, gerund: bool) -> None:
    assert is_gerund(stem) is gerund


def test_a_lookup_is_counted_whatever_its_quotes() -> None:
    assert lookups("a.get('b') or a.get(\n    \"c\", 1) or a.get(key)") == 2


@each_row(
    [("Return it.", True), ("The value.", False), ("What it is.", False), ("`Read` it.", True)]
)
def test_an_imperative_is_told_from_a_noun(docstring: str, imperative: bool) -> None:
    assert is_imperative(docstring) is imperative
