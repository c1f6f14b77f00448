"""The daemon of docker: the few requests that a sandbox makes of it, by docker's own library."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar, cast

from loopline.errors import LooplineError, PropertyError
from loopline.models import Json, JsonObject

REQUEST_SECONDS = 60
DEFAULT_HOST = "unix:///var/run/docker.sock"
LABEL = "loopline.sandbox"
_SWEEPER = Path(__file__).with_name("supervisor") / "container_sweeper.py"
_T = TypeVar("_T")


class _Client(Protocol):
    """What is used of docker's client, which has no types."""

    def version(self) -> Mapping[str, object]: ...

    def info(self) -> Mapping[str, object]: ...

    def inspect_image(self, image: str) -> Mapping[str, object]: ...

    def inspect_container(self, container: str) -> Mapping[str, object]: ...

    def create_container_from_config(
        self, config: JsonObject, name: str | None = None
    ) -> Mapping[str, str]: ...

    def start(self, container: str) -> None: ...

    def remove_container(self, container: str, *, v: bool, force: bool) -> None: ...

    containers: Callable[..., Sequence[Mapping[str, object]]]

    def close(self) -> None: ...


class _Library(Protocol):
    APIClient: Callable[..., _Client]


class _Errors(Protocol):
    DockerException: type[Exception]
    NotFound: type[Exception]


class DaemonError(LooplineError):
    """The daemon cannot be asked, or has refused; the message says what to do."""


class DockerDaemon:
    """A daemon at an address, such as `unix:///var/run/docker.sock`, which is also the one without an address."""

    def __init__(self, host: str = "") -> None:
        self._host = host
        self._client: _Client | None = None
        self._connecting = asyncio.Lock()

    @property
    def sweep_command(self) -> Sequence[str]:
        """Return the command that removes a container by its name; none for a daemon that is reached by a network."""
        kind, _, path = (self._host or DEFAULT_HOST).partition("://")
        is_here = kind == "unix" and bool(sys.executable)
        return (sys.executable, "-I", "-S", str(_SWEEPER), path) if is_here else ()

    async def version(self) -> str:
        """Return the version of the daemon.

        Raises:
            DaemonError: it is not there.
        """
        answer = await self._ask(lambda client: client.version())
        return str(answer["Version"])

    async def has_image(self, image: str) -> bool:
        """Return whether the daemon has an image.

        Raises:
            DaemonError: the daemon is not there.
        """
        try:
            await self._ask(lambda client: client.inspect_image(image))
        except _NotThereError:
            return False
        return True

    async def uses_apparmor(self) -> bool:
        """Return whether containers get a profile of AppArmor, which would forbid the supervisor's mounts."""
        return "apparmor" in str((await self._ask(lambda client: client.info()))["SecurityOptions"])

    async def begin(self, config: JsonObject, name: str) -> str:
        """Make a container and start it; return its id.

        Raises:
            DaemonError: the daemon has refused; no container is left.
        """
        container = await self._ask(
            lambda client: client.create_container_from_config(config, name)
        )
        try:
            await self._ask(lambda client: client.start(container["Id"]))
        except BaseException:
            await asyncio.shield(self.remove(container["Id"]))
            raise
        return container["Id"]

    async def remove(self, container: str) -> None:
        """Kill a container if it runs, and return once it is gone."""
        for attempt in range(200):
            with suppress(DaemonError):
                await self._ask(
                    lambda client: client.remove_container(container, v=True, force=True)
                )
            if not await self.has_container(container):
                return
            await asyncio.sleep(0.01 * (attempt + 1))

    async def has_container(self, container: str) -> bool:
        """Return whether a container is there, running or not."""
        try:
            await self._ask(lambda client: client.inspect_container(container))
        except _NotThereError:
            return False
        except DaemonError:
            return False  # with the daemon its containers are out of reach
        return True

    async def remove_unstarted(self) -> None:
        """Remove containers that a process made and did not start, because it was killed in between."""
        filters = {"label": [LABEL], "status": ["created"]}
        containers = await self._ask(lambda client: client.containers(all=True, filters=filters))
        for container in containers:
            labels = cast("Mapping[str, str]", container["Labels"])
            process = labels[LABEL].partition("-")[0]
            if not _is_alive(int(process)):
                await self.remove(str(container["Id"]))

    async def close(self) -> None:
        """Close the connections to the daemon."""
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.close)

    async def _ask(self, request: Callable[[_Client], _T]) -> _T:
        async with self._connecting:
            if self._client is None:
                self._client = await asyncio.to_thread(partial(_connect, self._host))
        return await asyncio.to_thread(_answered, request, self._client)


class _NotThereError(DaemonError):
    """What was asked for is not there."""


def _connect(host: str) -> _Client:
    try:
        library = cast("_Library", import_module("docker"))
    except ImportError as error:
        raise DaemonError(f"{error}: pip install 'loopline[docker]'") from error
    errors = cast("_Errors", import_module("docker.errors"))
    where = host or DEFAULT_HOST
    absent = f"no daemon of docker answers at {where}: start dockerd, or set DOCKER_HOST"
    kind, _, path = where.partition("://")
    if kind == "unix" and not Path(path).exists():
        raise DaemonError(absent)
    try:
        return library.APIClient(base_url=where, timeout=REQUEST_SECONDS)
    except errors.DockerException as error:
        raise DaemonError(absent) from error


def _answered(request: Callable[[_Client], _T], client: _Client) -> _T:
    errors = cast("_Errors", import_module("docker.errors"))
    try:
        return request(client)
    except errors.NotFound as error:
        raise _NotThereError(str(error)) from error
    except (errors.DockerException, OSError) as error:
        raise DaemonError(f"docker: {error}") from error


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


DEFAULT_IMAGE = "py-code-exec:latest"
_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?[bkmg]?", re.IGNORECASE)
_ULIMIT = re.compile(r"([a-z]+)=([0-9]+)(?::([0-9]+))?")
_CPUS = re.compile(r"[0-9,-]+")
_LABEL = re.compile(r"([A-Za-z0-9._-]+)=(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSettings:
    """The container that programs share. `cpus`, `memory` and `extra_args` are those of `docker run`."""

    image: str = DEFAULT_IMAGE
    python: str = "python3"
    network_mode: str = "none"
    cpus: str = ""
    memory: str = ""
    extra_args: Sequence[str] = ()

    def options(self) -> JsonObject:
        """Return what the daemon is asked for.

        Raises:
            PropertyError: a value is malformed, or an argument is not on the list.
        """
        options: JsonObject = {}
        if self.cpus:
            options["NanoCpus"] = int(_number(self.cpus, "cpus") * 1_000_000_000)
        if self.memory:
            options["Memory"] = _size(self.memory, "memory")
        for name, value in _pairs(self.extra_args):
            if name not in _PERMITTED:
                raise PropertyError(
                    f"execution.runtime.extra_args: {name} is not permitted; these are: "
                    f"{', '.join(sorted(_PERMITTED))}"
                )
            _PERMITTED[name](options, value)
        return options


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each argument with its value, which is written after a `=` or as the next one."""
    waiting = list(arguments)
    while waiting:
        name, equals, value = waiting.pop(0).partition("=")
        if not equals:
            if not waiting:
                raise PropertyError(f"execution.runtime.extra_args: {name} needs a value")
            value = waiting.pop(0)
        yield ("--volume" if name == "-v" else name), value


def _number(value: str, name: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 10_000:
        raise PropertyError(f"execution.runtime.{name} must be a number above 0, not {value!r}")
    return number


def _size(value: str, name: str) -> int:
    if not _SIZE.fullmatch(value):
        raise PropertyError(f"execution.runtime.{name} must be a size such as 2g, not {value!r}")
    unit = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(value[-1].lower(), 1)
    return int(float(value.rstrip("bkmgBKMG")) * unit)


def _count(key: str, name: str, options: dict[str, Json], value: str) -> None:
    if not value.isdigit() or not 0 < int(value) < 1 << 31:
        raise PropertyError(f"execution.runtime.extra_args: {name} needs a number, not {value!r}")
    options[key] = int(value)


def _bytes(key: str, name: str, options: dict[str, Json], value: str) -> None:
    options[key] = _size(value, f"extra_args: {name}")


def _cpus(options: dict[str, Json], value: str) -> None:
    if not _CPUS.fullmatch(value):
        raise PropertyError(
            f"execution.runtime.extra_args: --cpuset-cpus is like 0-1, not {value!r}"
        )
    options["CpusetCpus"] = value


def _ulimit(options: dict[str, Json], value: str) -> None:
    match = _ULIMIT.fullmatch(value)
    if match is None:
        raise PropertyError(
            f"execution.runtime.extra_args: --ulimit is like nofile=1024:1024, not {value!r}"
        )
    limit: Json = {"Name": match[1], "Soft": int(match[2]), "Hard": int(match[3] or match[2])}
    options["Ulimits"] = [*_listed(options, "Ulimits"), limit]


def _label(options: dict[str, Json], value: str) -> None:
    match = _LABEL.fullmatch(value)
    if match is None or match[1].startswith("loopline."):
        raise PropertyError(f"execution.runtime.extra_args: --label is like team=a, not {value!r}")
    options["Labels"] = [*_listed(options, "Labels"), value]


def _volume(options: dict[str, Json], value: str) -> None:
    """Mount a folder of the system's programs to be read; nothing else of the machine is shown."""
    source, _, target = value.partition(":")
    path = PurePosixPath(source)
    if path.parts[:2] != ("/", "usr") or ".." in path.parts or target != f"{source}:ro":
        raise PropertyError(
            f"execution.runtime.extra_args: --volume is /usr or a folder in it, to be read at the same place: "
            f"/usr:/usr:ro, not {value!r}"
        )
    options["Binds"] = [*_listed(options, "Binds"), value]


def _listed(options: Mapping[str, Json], key: str) -> list[Json]:
    value = options.get(key)
    return value if isinstance(value, list) else []


_PERMITTED: Mapping[str, Callable[[dict[str, Json], str], None]] = {
    "--cpu-shares": partial(_count, "CpuShares", "--cpu-shares"),
    "--cpuset-cpus": _cpus,
    "--label": _label,
    "--memory-reservation": partial(_bytes, "MemoryReservation", "--memory-reservation"),
    "--memory-swap": partial(_bytes, "MemorySwap", "--memory-swap"),
    "--pids-limit": partial(_count, "PidsLimit", "--pids-limit"),
    "--shm-size": partial(_bytes, "ShmSize", "--shm-size"),
    "--ulimit": _ulimit,
    "--volume": _volume,
}
"""The arguments of `docker run` that a bundle may add: none of them weakens the isolation."""
