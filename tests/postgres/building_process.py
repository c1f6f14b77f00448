"""A process that builds a search index with a store: `python -m tests.postgres.building_process URL FOLDER [die]`.

It prints how often it read files. With `die` it is killed while it reads them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from loopline.knowledge import IndexedFile, IndexKey
from loopline.knowledge.fts import FtsIndexes
from loopline.search import Chunk, Index
from loopline.store.postgres_log import PostgresLog

KEY = IndexKey("one", "family")
FILES = {f"docs/{number}.md": "blob" for number in range(500)}


class Builds:
    """Builds an index, and counts how often files are read for it."""

    def __init__(self, *, dies: bool = False) -> None:
        self._dies = dies
        self.count = 0

    def read(self, paths: Sequence[str]) -> Iterator[IndexedFile]:
        """Yield a file with one chunk for each path."""
        self.count += 1
        for path in paths:
            if self._dies and path == "docs/100.md":
                os.kill(os.getpid(), signal.SIGKILL)
            text = f"cache every page of {path}"
            chunk = Chunk(path=path, title="", text=text, lines=(1, 1), kind="prose")
            yield IndexedFile(path, "blob", [chunk])

    async def build(self, folder: Path, log: PostgresLog, key: IndexKey = KEY) -> None:
        """Build the index in a folder, or fetch it from the store of the log, and check that it is whole."""
        indexes = FtsIndexes(folder, shared=log.index_files)

        def build() -> Index:
            return indexes.build(key, FILES, self.read, lambda _: "notes")

        built = await asyncio.to_thread(build)
        assert (built.size, built.notes) == (len(FILES), "notes")
        assert len(built.candidates("docs", limit=5).chunks) >= 5
        built.close()


async def build_with_store(url: str, folder: Path, builds: Builds) -> None:
    """Build the index in a folder, or fetch it from the store."""
    async with await PostgresLog.open(url) as log:
        await builds.build(folder, log)


if __name__ == "__main__":
    own_builds = Builds(dies="die" in sys.argv)
    asyncio.run(build_with_store(sys.argv[1], Path(sys.argv[2]), own_builds))
    sys.stdout.write(f"{own_builds.count}\n")
