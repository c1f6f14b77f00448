"""Whoever installs the wheel has complete types."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tests.package.check_the_wheel_runs import PROGRAMS
from tests.package.machine import Environment, run

PYRIGHT = Path(sys.executable).with_name("pyright")


def test_every_public_type_is_known(installed: Environment) -> None:
    told = json.loads(
        run(
            *(PYRIGHT, "--verifytypes", "loopline", "--ignoreexternal", "--outputjson"),
            cwd=installed.desk,
            path=installed.scripts,
            settings={"VIRTUAL_ENV": str(installed.scripts.parent)},
        )
    )
    completeness = told["typeCompleteness"]
    assert Path(completeness["pyTypedPath"]).is_relative_to(installed.folder)
    assert completeness["completenessScore"] == 1


def test_a_program_of_a_user_passes_the_strictest_check(installed: Environment) -> None:
    shutil.copy(PROGRAMS / "teapot.py", installed.desk)
    (installed.desk / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}', "utf-8")
    run(PYRIGHT, "--pythonpath", installed.scripts / "python", "--warnings", cwd=installed.desk)
