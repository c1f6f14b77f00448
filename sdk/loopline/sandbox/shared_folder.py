"""The folder that the executions of a sandbox share, and the shell process that removes it after a kill."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loopline.sandbox.run_folder import remove_folder

LONGEST_FOLDER = 60
"""Characters of the path below which programs run: that of a socket in it has at most 107."""
_CLOSED = b"closed"
_SWEEP = """word=$(cat)
for group in $2; do
  [ -d "$group" ] || continue
  while read -r process; do kill -9 "$process"; done <"$group/cgroup.procs"
  tries=0
  until rmdir "$group" || [ $tries -gt 100 ]; do tries=$((tries + 1)); sleep 0.05; done
done 2>/dev/null
tries=0
until rm -rf "$1" || [ $tries -gt 100 ]; do tries=$((tries + 1)); sleep 0.05; done 2>/dev/null
name=${1##*/}
shift 2
[ -n "$word" ] || [ $# -eq 0 ] || exec "$@" "$name" 2>/dev/null
"""
"""Removes what is left when the process that holds the other end of its standard input is gone."""


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """A folder below which programs run, and who sweeps it up."""

    path: Path
    sweeper: asyncio.subprocess.Process

    async def remove(self) -> None:
        """Remove the folder."""
        await asyncio.to_thread(remove_folder, self.path)
        if self.sweeper.stdin is not None:
            self.sweeper.stdin.write(_CLOSED)
            self.sweeper.stdin.close()
        await self.sweeper.wait()


async def make_shared_folder(
    parent: Path | None, group_parents: Sequence[Path] = (), *, after_kill: Sequence[str] = ()
) -> SharedFolder:
    """Make a new folder; after a kill of this process it goes away, with the control groups that have its name.

    The command `after_kill` is run then too, with the folder's name as its last argument.
    """
    path = (parent or _short_folder()) / f"loopline-exec-{os.urandom(6).hex()}"
    pattern = " ".join(f"{folder}/{path.name}-*" for folder in group_parents)
    # Before there is anything to sweep: this process may be killed at any time.
    sweeper = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", _SWEEP, "sweep", str(path), pattern, *after_kill),
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    await asyncio.to_thread(path.mkdir, mode=0o700)
    return SharedFolder(path, sweeper)


def _short_folder() -> Path:
    """Return the folder for temporary files, or another one if a socket's path would be too long there."""
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) < LONGEST_FOLDER else Path("/tmp")
