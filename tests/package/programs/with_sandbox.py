"""The extra `sandbox`: the filter of system calls is made and, where bubblewrap is, a program runs behind it."""

from __future__ import annotations

import asyncio
import shutil

from loopline import Bundle, Harness
from loopline.sandbox.seccomp_filter import filter_program
from loopline.testing import Call, Say, ScriptedModel

PROGRAM = 'open("outputs/tea.txt", "w").write("three minutes")'


async def main() -> None:
    """Run a turn whose program writes a file."""
    contract = [{"filename": "outputs/tea.txt"}]
    model = ScriptedModel([Call("exec.python", contract=contract, program=PROGRAM), Say("Done.")])
    guide = Bundle(id="guide", configuration={"execution": {"runtime": {"mode": "process"}}})
    async with Harness.open(guide, store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("How long?")
        reading = await talk.read(["fi:turn_1.outputs/tea.txt@1"])
    assert [item.text for item in reading] == ["three minutes"], str(model.requests[-1])


assert filter_program()
if shutil.which("bwrap"):
    asyncio.run(main())
