"""The temporary folder with copies of files that a workflow gives its user, when no server hosts them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath

from loopline.refs import HostedRef
from loopline.shared_files import replace_file
from loopline.timeline import FileAdded, workspace

PREFIX = "loopline-files-"
LOCKED_WITHIN_SECONDS = 60.0
"""A folder without a lock that is younger may be one whose process locks it next."""


class HostedFolder:
    """A temporary folder for copies of files; it is created for the first file and removed when the harness closes.

    Its process holds a lock on it. The folders of killed processes, which nobody locks, are removed when another folder is
    created.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lock = -1

    def host_file(self, name: HostedRef, file: FileAdded) -> str:
        """Copy the file into the folder in the calling thread, and return its `file:` URL, valid until `close`."""
        if self._folder is None:
            remove_abandoned_folders(Path(tempfile.gettempdir()), LOCKED_WITHIN_SECONDS)
            self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            self._lock = _lock_folder(self._folder)
        digest = sha256(str(name).encode(errors="surrogatepass")).hexdigest()
        path = self._folder / digest[:32] / PurePosixPath(file.path).name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            replace_file(path, workspace.file_bytes(file))
        return path.as_uri()

    async def close(self) -> None:
        """Remove the folder with all copies."""
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._folder = None
            os.close(self._lock)


def remove_abandoned_folders(temporary: Path, min_seconds: float) -> None:
    """Remove the hosted folders in `temporary` that are at least `min_seconds` old and whose process has ended.

    Folders of other users are left.
    """
    newest = time.time() - min_seconds
    for folder in temporary.glob(f"{PREFIX}*"):
        # It may be the folder of another user, or another process may remove it now.
        with suppress(OSError):
            status = folder.lstat()
            if status.st_uid == os.geteuid() and status.st_ctime <= newest:
                lock = _lock_folder(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock_folder(folder: Path) -> int:
    """Lock a folder, and return the descriptor that holds the lock.

    Raises:
        OSError: another process holds the lock, or the path is not a folder.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock
