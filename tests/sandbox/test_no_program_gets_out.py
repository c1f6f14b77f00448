"""Programs that try to get out: none does. `python -m tests.bench.escapes` runs each alone and prints what stopped it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loopline.sandbox import Execution, ProducedFile, ProgramEnd, Sandbox, Session
from loopline.sandbox.process import LocalSandbox
from tests.bench.executions import execution, session
from tests.support.escapes import (
    ATTEMPTS,
    ENDS,
    NAMES,
    SECRET,
    Canaries,
    canaries,
    judge,
    judge_all,
    judge_attempts,
)


@pytest.fixture
def watched() -> Iterator[Canaries]:
    with tempfile.TemporaryDirectory(prefix="lc") as folder, canaries(Path(folder)) as opened:
        yield opened


def test_there_are_enough_of_them() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 140


async def test_no_attempt_succeeds(isolated: Sandbox, watched: Canaries) -> None:
    verdicts = await judge_attempts(isolated, watched)
    assert len(verdicts) == len(ATTEMPTS)
    assert [verdict for verdict in verdicts if verdict.escaped] == []
    assert watched.touched == 0


async def test_no_end_is_other_than_it_should_be(isolated: Sandbox, watched: Canaries) -> None:
    verdicts = await judge_all(isolated, list(ENDS), watched)
    assert [verdict for verdict in verdicts if verdict.escaped] == []


class LeakingSandbox(LocalSandbox):
    """A sandbox whose programs leave the secret of the host in a file."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._file = ProducedFile(name=name, data=SECRET.encode())

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        return ProgramEnd(isolation="none", user_out="STOPPED", files=[self._file])


@pytest.mark.parametrize("name", ["outputs/a", "outputs/other", "files/other"])
async def test_a_secret_in_a_stored_file_counts_as_an_escape(watched: Canaries, name: str) -> None:
    assert (await judge(LeakingSandbox(name), "a zip bomb", watched)).escaped


async def test_a_program_changes_no_priority_but_its_own(isolated: Sandbox) -> None:
    program = """
import os
begun = os.getpriority(os.PRIO_PROCESS, 0)
os.nice(1)
try:
    os.setpriority(os.PRIO_PROCESS, os.getpid(), 5)
except PermissionError:
    print("refused at", os.getpriority(os.PRIO_PROCESS, 0) - begun)
"""
    end = await isolated.run(execution(program), session())
    assert end.user_out == "refused at 1\n", end


async def test_a_program_learns_no_path_of_the_host(
    isolated: Sandbox, runs: Path, tmp_path: Path
) -> None:
    program = """
import glob, os
for path in glob.glob("/proc/*/*") + glob.glob("/proc/*/task/*/*"):
    if path.rpartition("/")[2] not in ("mem", "pagemap", "kcore", "kpagecount", "kpageflags", "kmsg"):
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", 0) as file:
                print(path, file.read(10_000))
        except OSError:
            pass
print(os.listdir(os.environ["BUNDLE_ROOT"]))
"""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "prices.txt").touch()
    end = await isolated.run(replace(execution(program), bundle_root=str(bundle)), session())
    assert end.failure is None, end
    assert "/proc/self/mountinfo b''" in end.user_out
    assert end.user_out.endswith("['prices.txt']\n")
    assert str(tmp_path) not in end.user_out
    assert f"{runs}/" not in end.user_out


@pytest.mark.parametrize(
    "name",
    [
        "tcp",
        "abstract socket",
        "socket of a path",
        "the secret of the host",
        "a signal to the host",
        "processes of the host",
        "names of interfaces",
        "leaving by a link",
    ],
)
async def test_without_isolation_they_get_out(name: str, runs: Path, watched: Canaries) -> None:
    sandbox = LocalSandbox(folder=runs)
    verdict = await judge(sandbox, name, watched)
    await sandbox.close()
    assert verdict.escaped
