"""The Dockerfile of a server: what it copies is there, and what it runs answers. `tests.bench.container_image` builds and runs it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import ROOT
from tests.doors.command import Loopline

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
BUNDLE = """from loopline import Bundle
bundle = Bundle(id="shop", instructions="You help.")
"""


def instructions() -> Iterator[tuple[str, str]]:
    """The instructions of the file with their arguments."""
    text = (ROOT / "docs" / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, arguments = line.partition(" ")
            yield name, arguments.strip()


def arguments(name: str) -> list[str]:
    """The arguments of an instruction, each time that it is given."""
    return [text for instruction, text in instructions() if instruction == name]


def command(text: str) -> list[str]:
    words: list[str] = json.loads(text[text.index("[") :])
    return words


def test_what_the_package_is_built_from_is_copied_and_is_there() -> None:
    copied = [path for line in arguments("COPY") for path in line.split()[:-1]]
    assert [path for path in copied if not (ROOT / path).exists()] == []
    [folder] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    package = folder.partition("/")[0]
    licences = [path for path in PROJECT["license-files"] if not path.startswith(f"{package}/")]
    assert {"pyproject.toml", PROJECT["readme"], *licences, package} == set(copied)
    [install] = [line for line in arguments("RUN") if line.startswith("pip install")]
    assert '"/source[${EXTRAS}]"' in install
    assert "EXTRAS=server" in arguments("ARG")
    assert "server" in PROJECT["optional-dependencies"]


def test_the_server_is_not_run_by_root() -> None:
    names = [name for name, _ in instructions()]
    assert arguments("USER") == ["loopline"]
    assert "useradd --uid 10001 --create-home loopline" in arguments("RUN")[0]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_its_command_serves_and_its_check_says_whether_it_does(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "__init__.py").write_text(BUNDLE)
    loopline = Loopline(tmp_path)
    assert loopline("key", "keys.json", "--user", "ann").code == 0
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = f"{free.getsockname()[1]}"
    here = {"/bundle": "bundle", "/data/keys.json": "keys.json", "8000": port}
    [entry], [given] = arguments("ENTRYPOINT"), arguments("CMD")
    program, *words = [here.get(word, word) for word in command(entry) + command(given)]
    assert program == "loopline"
    python, *check = [
        word.replace(":8000", f":{port}") for word in command(arguments("HEALTHCHECK")[0])
    ]
    assert python == "python"
    assert (
        subprocess.run([sys.executable, *check], check=False, capture_output=True).returncode == 1
    )
    process = loopline.start(*words)
    try:
        assert any(is_ready(check) for _ in range(600))
    finally:
        process.kill()
        process.communicate()


def is_ready(check: list[str]) -> bool:
    """Whether the check of health says so now; else wait a little."""
    if subprocess.run([sys.executable, *check], check=False, capture_output=True).returncode == 0:
        return True
    time.sleep(0.1)
    return False
