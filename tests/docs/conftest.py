"""The site, built once for all tests of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import ROOT


def load_builder() -> ModuleType:
    """Import the program that builds the site."""
    spec = importlib.util.spec_from_file_location("site_builder", ROOT / "docs/site/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["site_builder"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def builder() -> ModuleType:
    """The program that builds the site."""
    return load_builder()


@pytest.fixture(scope="session")
def site(builder: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the files of the site."""
    folder: Path = builder.build(tmp_path_factory.mktemp("site"))
    return folder
