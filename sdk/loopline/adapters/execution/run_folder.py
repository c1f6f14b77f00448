"""The folder of one execution: what its program finds, and what is taken from it. Nothing in it is trusted."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

from loopline.sandbox import ContractFile, Execution, ProducedFile

PROGRAM = {"python": "user_code.py", "shell": "user_code.sh"}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder with `work/` and `out/`; `owner` is the user that the program runs as."""

    path: Path
    owner: int | None

    @property
    def work(self) -> Path:
        """Return the working directory."""
        return self.path / "work"

    @property
    def out(self) -> Path:
        """Return the directory of what the program makes."""
        return self.path / "out"

    @property
    def socket(self) -> Path:
        """Return the path of the supervisor's socket."""
        return self.path / "s.sock"

    def fill(self, execution: Execution, work: str) -> None:
        """Make the folder with the program, its inputs, and folders for what it makes.

        `work` is the working directory as the program sees it; a link to the user's files points there.
        """
        self.path.mkdir(mode=0o700)
        turn = execution.turn_id
        folders = [self.work, self.out, self.work / turn, self.out / turn]
        folders += [self.out / turn / area for area in ("files", "outputs")]
        folders += [self.work / turn / "attachments"]
        for folder in folders:
            folder.mkdir(mode=0o750)
        files = {PROGRAM[execution.language]: execution.program.encode("utf-8", "replace")}
        for name, data in {**execution.inputs, **files}.items():
            path = self.work / name
            for parent in reversed(path.relative_to(self.work).parents):
                (self.work / parent).mkdir(mode=0o750, exist_ok=True)
            path.write_bytes(data)
        for file in execution.contract:
            (self.out / turn / file.name).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        (self.out / turn / "attachments").symlink_to(f"{work}/{turn}/attachments")
        if self.owner is not None:
            for parent_path, below, names in os.walk(self.path):
                for name in (*below, *names):
                    os.chown(Path(parent_path, name), self.owner, self.owner, follow_symlinks=False)

    def collect(
        self, turn: str, contract: Iterable[ContractFile], limit: int
    ) -> list[ProducedFile]:
        """Return the files of the contract as they are: plain files only, no link is followed."""
        produced: list[ProducedFile] = []
        for file in contract:
            data, problem = self._read(f"{turn}/{file.name}", limit)
            produced.append(ProducedFile(name=file.name, data=data, problem=problem))
        return produced

    def _read(self, name: str, limit: int) -> tuple[bytes | None, str]:
        *folders, last = name.split("/")
        opened = [os.open(self.out, _FOLDER)]
        try:
            for folder in folders:
                opened.append(os.open(folder, _FOLDER, dir_fd=opened[-1]))
            opened.append(os.open(last, _FILE, dir_fd=opened[-1]))
            return _content(opened[-1], limit)
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            return None, f"it is no plain file: {error.strerror}"
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def usage(self) -> tuple[int, int]:
        """Return the bytes and the number of all files, links not followed."""
        size, count, waiting = 0, 0, [self.work, self.out]
        while waiting:
            with suppress(OSError), os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    count += 1
                    with suppress(OSError):
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(Path(entry.path))
        return size, count

    def largest(self) -> tuple[int, str]:
        """Return the bytes and the path of the largest file, links not followed."""
        sizes = [
            (Path(folder, name).lstat().st_size, str(Path(folder, name).relative_to(self.path)))
            for place in (self.work, self.out)
            for folder, _, names in os.walk(place)
            for name in names
        ]
        return max(sizes, default=(0, ""))

    def remove(self) -> None:
        """Remove the folder, whatever rights the program has taken from it."""
        remove_tree(self.path)


def _content(descriptor: int, limit: int) -> tuple[bytes | None, str]:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return None, "it is no plain file"
    if status.st_nlink > 1:
        return None, "it has a second name: write a file of its own"
    if status.st_size > limit:
        return None, f"file_too_large: it has {status.st_size:,} bytes, and may have {limit:,}"
    parts: list[bytes] = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts), ""


def remove_tree(path: Path) -> None:
    """Remove a folder and all below it, also folders that may not be listed."""

    def retry(function: object, name: str, error: object) -> None:
        del function, error
        with suppress(OSError):
            Path(name).parent.chmod(0o700)
            if Path(name).is_dir() and not Path(name).is_symlink():
                Path(name).chmod(0o700)
                rmtree(name, ignore_errors=True)
            else:
                Path(name).unlink()

    rmtree(path, onerror=retry)
    if path.exists():
        rmtree(path, ignore_errors=True)


def environment(execution: Execution, work: str, out: str, socket: str) -> Mapping[str, str]:
    """Return the variables of a program, and nothing else."""
    folder = (
        f"/workspace/bundles/{Path(execution.bundle_root).name}" if execution.bundle_root else ""
    )
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": work,
        "TMPDIR": work,
        "LANG": "C.UTF-8",
        "MPLBACKEND": "Agg",
        "OPENBLAS_NUM_THREADS": "2",
        "OMP_NUM_THREADS": "2",
        "WORKDIR": work,
        "OUTPUT_DIR": out,
        "EXECUTION_ID": execution.execution_id,
        "RUNTIME_GLOBALS_JSON": _globals(execution),
        "RUNTIME_TOOL_MODULES": ",".join(sorted({tool.split(".")[0] for tool in execution.tools})),
        "BUNDLE_ROOT": folder,
        "BUNDLE_ID": execution.bundle_id,
        "SUPERVISOR_SOCKET_PATH": socket,
        **execution.variables,
    }


def _globals(execution: Execution) -> str:
    contract = [
        {"filename": file.name, "description": file.description, "visibility": file.visibility}
        for file in execution.contract
    ]
    return json.dumps(
        {"turn_id": execution.turn_id, "tools": list(execution.tools), "contract": contract}
    )
