"""A daemon of docker for tests: started by hand, with an image of nothing but folders."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from loopline.sandbox.docker_daemon import LABEL, DockerSettings

IMAGE = "skeleton:1"
SETTINGS = DockerSettings(
    image=IMAGE,
    python="/usr/bin/python3",
    network_mode="host",  # a program is to have no network even if its supervisor has one
    extra_args=["--volume", "/usr:/usr:ro", "--pids-limit", "2000"],
)
START_SECONDS = 30
_FOLDERS = ("dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var", "workspace")
_LINKS = ("bin", "lib", "lib64", "sbin")


class DaemonUnavailableError(Exception):
    """No daemon can be started here; the message says why."""


class _Client(Protocol):
    containers: Callable[..., Sequence[Mapping[str, str]]]

    def import_image_from_data(self, data: bytes, *, repository: str, tag: str) -> str: ...

    def close(self) -> None: ...


class _Library(Protocol):
    APIClient: Callable[..., _Client]


@contextmanager
def docker_daemon() -> Generator[str]:
    """The address of a daemon, which touches no network here; `DaemonUnavailableError` if none starts."""
    if shutil.which("dockerd") is None:
        raise DaemonUnavailableError("dockerd is not installed")
    folder = Path(tempfile.mkdtemp(prefix="ld"))
    host = f"unix://{folder}/s"
    command = [
        "unshare",
        "--mount",
        "dockerd",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
    ]
    command += ["--ip-forward=false", "--data-root", f"{folder}/data", "--host", host]
    command += ["--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"]
    # Its mounts go with it. Without the right to raise limits, the daemon's own default cannot be set.
    command += ["--default-ulimit", "nofile=4096:4096", "--log-level", "error"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        _until_up(process, folder)
        library = cast("_Library", import_module("docker"))
        client = library.APIClient(base_url=host)
        repository, _, tag = IMAGE.partition(":")
        client.import_image_from_data(skeleton(), repository=repository, tag=tag)
        client.close()
        yield host
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _until_up(process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not (folder / "s").exists() or not (folder / "pid").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            text = (folder / "log").read_text("utf-8", "replace").strip()
            raise DaemonUnavailableError(f"dockerd does not start here: {text[-300:]}")
        time.sleep(0.02)


def containers(host: str) -> Sequence[str]:
    """The ids of all containers of programs, running or not."""
    client = cast("_Library", import_module("docker")).APIClient(base_url=host)
    listed = client.containers(all=True, filters={"label": [LABEL]})
    client.close()
    return [container["Id"] for container in listed]


def skeleton() -> bytes:
    """Return an image of empty folders, in which /usr of this machine is mounted."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in _FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o700 if name == "root" else 0o755
            archive.addfile(entry)
        for name in _LINKS:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(entry)
    return file.getvalue()
