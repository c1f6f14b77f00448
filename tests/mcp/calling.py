"""A process that makes one call in a turn: `calling.py FOLDER TOOL`, with the servers that the folder declares.

With a third argument its events are followed, so that the call may ask its user: what it asks is printed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from loopline.events import Delta
from loopline.testing import Call, Say, ScriptedModel
from tests.mcp.served import Served


async def main(folder: Path, tool: str, *, is_heard: bool) -> None:
    """Say something, so that the model calls the tool."""
    served = Served(folder, in_memory=False)
    async with served.open(ScriptedModel([Call(tool), Say("Done.")])) as harness:
        talk = harness.conversation("c1")
        if not is_heard:
            await talk.say("Go!")
            return
        async for event in talk.stream("Go!"):
            if isinstance(event, Delta) and event.type == "pending":
                sys.stdout.write(f"{event.text}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], is_heard=len(sys.argv) > 3))
