"""A name that was at the top of the package is still found there, with a warning that says where it is now."""

from __future__ import annotations

from importlib import import_module

import pytest

import loopline
from loopline.names import MODULES

MOVED = [(module, name) for module, names in MODULES.items() for name in names]


@pytest.mark.parametrize(("module", "name"), MOVED)
def test_a_name_that_has_moved_is_found_with_a_warning(module: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"write from loopline.{module} import {name}"):
        value: object = getattr(loopline, name)
    assert value is getattr(import_module(f"loopline.{module}"), name)
