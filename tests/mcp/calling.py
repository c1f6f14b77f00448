"""A process that makes one call in a turn: `calling.py FOLDER TOOL`, with the servers that the folder declares."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from loopline.testing import Call, Say, ScriptedModel
from tests.mcp.served import Served


async def main(folder: Path, tool: str) -> None:
    """Say something, so that the model calls the tool."""
    served = Served(folder, in_memory=False)
    async with served.open(ScriptedModel([Call(tool), Say("Done.")])) as harness:
        await harness.conversation("c1").say("Go!")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
