"""The statements of the stores are those that their definitions compile to, and those for PostgreSQL say the same."""

from __future__ import annotations

import re

from loopline.store import postgres_statements, statements
from tests.support.compiled_statements import texts

NUMBERS = (
    "after at before bytes conversation ends first generation head last last_seq limit n owner round "
    "row seq started term ts turn turns until version"
)
LISTS = "keys positions rows turns types"
TYPED = re.compile(r"%\((\w+)\)s::(\w+)")
LITERAL = re.compile("'[^']*'")
TRANSLATED = postgres_statements.STATEMENTS


def test_each_statement_is_what_its_definition_compiles_to() -> None:
    stored = {name: value for name, value in vars(statements).items() if name.isupper()}
    assert stored == texts(), "python -m tests.support.compiled_statements compiles them again"


def test_only_numbers_are_sent_to_postgres_as_numbers() -> None:
    typed = {pair for text in TRANSLATED.values() for pair in TYPED.findall(text)}
    assert " ".join(sorted(name for name, kind in typed if kind == "BIGINT")) == NUMBERS
    assert " ".join(sorted(name for name, kind in typed if kind == "json")) == LISTS


def test_a_translation_keeps_the_literals_and_nothing_that_sqlite_alone_knows() -> None:
    for text, translated in TRANSLATED.items():
        assert "json_each" not in translated
        assert " BLOB" not in translated
        kept = [literal.replace("%%", "%") for literal in LITERAL.findall(translated)]
        assert [literal for literal in kept if literal != "'UTF8'"] == LITERAL.findall(text)
