"""The statements of the stores are those that their definitions compile to."""

from __future__ import annotations

from loopline.store import statements
from tests.support.compiled_statements import texts


def test_each_statement_is_what_its_definition_compiles_to() -> None:
    stored = {name: value for name, value in vars(statements).items() if name.isupper()}
    assert stored == texts(), "python -m tests.support.compiled_statements compiles them again"
