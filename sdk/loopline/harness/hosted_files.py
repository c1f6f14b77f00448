"""Files that a harness without a server hosts: copies in a folder of its own, with file URLs."""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp

from loopline.refs import HostedRef
from loopline.timeline import FileAdded, workspace


class HostedFolder:
    """A folder that only this user can read. It is made for the first file, and removed with the harness."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def host_file(self, name: HostedRef, file: FileAdded) -> str:
        """Return the URL of a copy of the file, which is valid until the folder is closed.

        The copy is made before this returns, by the caller's thread: a file is as large as a conversation may have one.
        """
        if self._folder is None:
            self._folder = Path(mkdtemp(prefix="loopline-files-"))
        digest = sha256(str(name).encode(errors="surrogatepass")).hexdigest()
        path = self._folder / digest[:32] / PurePosixPath(file.path).name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            part = self._folder / "part"  # what could not be written to its end is no copy
            part.write_bytes(workspace.file_bytes(file))
            part.replace(path)
        return path.as_uri()

    def close(self) -> None:
        """Remove the folder with all copies."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
