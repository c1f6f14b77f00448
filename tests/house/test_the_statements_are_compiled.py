"""The statements of the stores are those that their definitions compile to."""

from __future__ import annotations

from loopline.store import postgres_statements, statements
from tests.support.compiled_statements import postgres_texts, texts

AGAIN = "python -m tests.support.compiled_statements compiles them again"


def test_each_statement_is_what_its_definition_compiles_to() -> None:
    stored = {name: value for name, value in vars(statements).items() if name.isupper()}
    assert stored == texts(), AGAIN


def test_each_statement_for_postgres_is_what_its_definition_compiles_to() -> None:
    named, tables = postgres_texts()
    assert [*postgres_statements.STATEMENTS.values()] == [*named.values()], AGAIN
    assert tables == postgres_statements.CREATE_TABLES, AGAIN
