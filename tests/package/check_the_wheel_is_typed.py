"""Whoever installs the wheel has complete types."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.package.check_the_wheel_runs import EXTRAS, PROGRAMS
from tests.package.conftest import Built, with_python
from tests.package.machine import Environment, run

PYRIGHT = Path(sys.executable).with_name("pyright")


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Install the wheel with its extras, whose types some of its own build on."""
    folder, extras = tmp_path_factory.mktemp("typed"), ",".join(EXTRAS)
    return with_python("3.11", folder, f"loopline[{extras}] @ {built.wheel.as_uri()}")


def test_every_public_type_is_known(installed: Environment) -> None:
    told = run(
        *(PYRIGHT, "--verifytypes", "loopline", "--ignoreexternal"),
        cwd=installed.desk,
        path=installed.scripts,
        settings={"VIRTUAL_ENV": str(installed.scripts.parent)},
    )
    assert f'Package directory: "{installed.folder}' in told


def test_a_program_of_a_user_passes_the_strictest_check(installed: Environment) -> None:
    shutil.copy(PROGRAMS / "teapot.py", installed.desk)
    (installed.desk / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}', "utf-8")
    run(PYRIGHT, "--pythonpath", installed.scripts / "python", "--warnings", cwd=installed.desk)
