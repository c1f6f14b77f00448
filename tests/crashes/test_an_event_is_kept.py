"""A process is killed in a tool that has emitted: what was durable is there, and the turn is carried on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

from loopline import Harness
from loopline.testing import Say, ScriptedModel
from loopline.timeline import CustomEvent, Exit
from tests.crashes.event_process import BUNDLE
from tests.crashes.processes import HERE, ROOT, url
from tests.support.warm_programs import warm_program


def run(store: Path) -> int:
    """How a process ends that emits in the store."""
    command = warm_program("-m", "tests.crashes.event_process", str(store))
    return subprocess.run(command, cwd=ROOT, check=False).returncode


async def test_durable_events_outlive_a_kill_in_the_call_that_emitted_them(tmp_path: Path) -> None:
    store = tmp_path / "talk.db"
    assert await asyncio.to_thread(run, store) == -signal.SIGKILL
    async with Harness.open(
        BUNDLE, store=url(store), model=ScriptedModel([Say("Done.")])
    ) as harness:
        talk = harness.conversation(HERE.name)
        result = await talk.resume()
        bodies = [block.body for block in await talk.blocks()]
    assert result.answer == "Done."
    assert [body for body in bodies if isinstance(body, CustomEvent)] == [
        CustomEvent(name="kept", data={"n": n}, call_id="c1") for n in (1, 2)
    ]
    assert isinstance(bodies[-1], Exit)
