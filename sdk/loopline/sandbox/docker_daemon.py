"""The Docker daemon and the settings of containers; requests are sent by the `docker` library, which is untyped."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from loopline.errors import LooplineError, PropertyError
from loopline.models import Json, JsonObject

REQUEST_SECONDS = 60
DEFAULT_HOST = "unix:///var/run/docker.sock"
LABEL = "loopline.sandbox"
_SWEEPER = Path(__file__).with_name("supervisor") / "container_sweeper.py"
_T = TypeVar("_T")


class DaemonError(LooplineError):
    """The daemon cannot be reached or has refused a request; the message says what to do."""


class DockerDaemon:
    """The daemon at an address, by default `unix:///var/run/docker.sock`. It is connected at the first request."""

    def __init__(self, host: str = "") -> None:
        self._host = host
        self._client: Any = None
        self._connecting = asyncio.Lock()

    @property
    def sweep_command(self) -> Sequence[str]:
        """The command that removes a container, without the last argument, its name; empty if the daemon is not local."""
        kind, _, path = (self._host or DEFAULT_HOST).partition("://")
        if kind != "unix" or not sys.executable:
            return ()
        return (sys.executable, "-I", "-S", str(_SWEEPER), path)

    async def version(self) -> str:
        """Return the version of the daemon.

        Raises:
            DaemonError: the daemon cannot be reached.
        """
        version = await self._request(lambda client: client.version())
        return str(version["Version"])

    async def has_image(self, image: str) -> bool:
        """Return whether the daemon has an image.

        Raises:
            DaemonError: the daemon cannot be reached.
        """
        try:
            await self._request(lambda client: client.inspect_image(image))
        except _NotFoundError:
            return False
        return True

    async def uses_apparmor(self) -> bool:
        """Return whether containers get an AppArmor profile, which would forbid the supervisor's mounts."""
        information = await self._request(lambda client: client.info())
        return "apparmor" in str(information["SecurityOptions"])

    async def begin(self, config: JsonObject, name: str) -> str:
        """Create and start a container, and return its id.

        Raises:
            DaemonError: the daemon has refused; the container is removed.
        """
        container = await self._request(
            lambda client: client.create_container_from_config(config, name)
        )
        try:
            await self._request(lambda client: client.start(container["Id"]))
        except BaseException:
            await asyncio.shield(self.remove(container["Id"]))
            raise
        return str(container["Id"])

    async def remove(self, container: str) -> None:
        """Kill and remove a container, and wait until it no longer exists; give up silently after 200 attempts.

        Errors of the daemon are ignored. If the daemon cannot be reached, the container counts as removed.
        """
        for attempt in range(200):
            with suppress(DaemonError):
                await self._request(
                    lambda client: client.remove_container(container, v=True, force=True)
                )
            if not await self.has_container(container):
                return
            await asyncio.sleep(0.01 * (attempt + 1))

    async def has_container(self, container: str) -> bool:
        """Return whether a container exists, running or not; false if the daemon cannot be reached."""
        try:
            await self._request(lambda client: client.inspect_container(container))
        except DaemonError:
            return False
        return True

    async def remove_unstarted(self) -> None:
        """Remove containers that were created but not started, if the process that created them no longer exists.

        Raises:
            DaemonError: the daemon cannot be reached.
        """
        filters = {"label": [LABEL], "status": ["created"]}
        containers = await self._request(
            lambda client: client.containers(all=True, filters=filters)
        )
        for container in containers:
            process = container["Labels"][LABEL].partition("-")[0]
            if not _is_alive(int(process)):
                await self.remove(container["Id"])

    async def close(self) -> None:
        """Close the connections to the daemon."""
        client = self._client
        self._client = None
        if client is not None:
            await asyncio.to_thread(client.close)

    async def _request(self, request: Callable[[Any], _T]) -> _T:
        """Send a request in a thread, and return the response."""
        async with self._connecting:
            if self._client is None:
                self._client = await asyncio.to_thread(_connect, self._host)
        return await asyncio.to_thread(_send, request, self._client)


class _NotFoundError(DaemonError):
    """The image or container of a request does not exist."""


def _connect(host: str) -> Any:
    """Return a client, with timeouts of 60 s, for the daemon at `host`, or at the default address if it is empty.

    Raise DaemonError if the library `docker` is not installed or the daemon does not answer.
    """
    try:
        library = import_module("docker")
    except ImportError as error:
        raise DaemonError(f"{error}: pip install 'loopline[docker]'") from error
    errors = import_module("docker.errors")
    address = host or DEFAULT_HOST
    problem = f"no Docker daemon answers at {address}: start dockerd, or set DOCKER_HOST"
    kind, _, path = address.partition("://")
    if kind == "unix" and not Path(path).exists():
        raise DaemonError(problem)
    try:
        return library.APIClient(base_url=address, timeout=REQUEST_SECONDS)
    except errors.DockerException as error:
        raise DaemonError(problem) from error


def _send(request: Callable[[Any], _T], client: Any) -> _T:
    """Return `request(client)`; raise _NotFoundError for a missing image or container, and DaemonError otherwise."""
    errors = import_module("docker.errors")
    try:
        return request(client)
    except errors.NotFound as error:
        raise _NotFoundError(str(error)) from error
    except (errors.DockerException, OSError) as error:
        raise DaemonError(f"docker: {error}") from error


def _is_alive(process: int) -> bool:
    """Return whether a process with this id exists, including processes of other users."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


DEFAULT_IMAGE = "py-code-exec:latest"
_SIZE_PATTERN = re.compile(r"[0-9]+(\.[0-9]+)?[bkmg]?", re.IGNORECASE)
_ULIMIT_PATTERN = re.compile(r"([a-z]+)=([0-9]+)(?::([0-9]+))?")
_CPUSET_PATTERN = re.compile(r"[0-9,-]+")
_LABEL_PATTERN = re.compile(r"([A-Za-z0-9._-]+)=(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSettings:
    """The settings of the container. `cpus`, `memory` and `extra_args` have the form of the options of `docker run`."""

    image: str = DEFAULT_IMAGE
    python: str = "python3"
    network_mode: str = "none"
    cpus: str = ""
    memory: str = ""
    extra_args: Sequence[str] = ()

    def options(self) -> JsonObject:
        """Return the settings as a `HostConfig` for the daemon; `Labels` is a list of texts such as `team=a`.

        Raises:
            PropertyError: a value is malformed, or an argument is not in the list of permitted arguments.
        """
        options: JsonObject = {}
        if self.cpus:
            options["NanoCpus"] = _parse("cpus", _CPUS, self.cpus)
        if self.memory:
            options["Memory"] = _parse("memory", _SIZE, self.memory)
        lists: dict[str, list[Json]] = {}
        for name, value in _pairs(self.extra_args):
            if name not in _PERMITTED:
                raise PropertyError(
                    f"execution.runtime.extra_args: {name} is not permitted; these are: "
                    f"{', '.join(sorted(_PERMITTED))}"
                )
            key, form = _PERMITTED[name]
            parsed = _parse(f"extra_args: {name}", form, value)
            if key in _LISTS:
                lists.setdefault(key, []).append(parsed)
            else:
                options[key] = parsed
        return {**options, **lists}


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each argument with its value, which follows a `=` or is the next argument; `-v` is yielded as `--volume`.

    Raise PropertyError if the last argument does not have a value.
    """
    remaining = list(arguments)
    while remaining:
        name, equals, value = remaining.pop(0).partition("=")
        if not equals:
            if not remaining:
                raise PropertyError(f"execution.runtime.extra_args: {name} needs a value")
            value = remaining.pop(0)
        yield ("--volume" if name == "-v" else name), value


_Form = tuple[str, Callable[[str], Json]]
"""The description of a value for errors, and a function that converts it, or returns None if it is malformed."""


def _parse(name: str, form: _Form, value: str) -> Json:
    description, convert = form
    parsed = convert(value)
    if parsed is None:
        raise PropertyError(f"execution.runtime.{name} must be {description}, not {value!r}")
    return parsed


def _convert_cpus(value: str) -> Json:
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number * 1_000_000_000) if 0 < number < 10_000 else None


def _convert_size(value: str) -> Json:
    if not _SIZE_PATTERN.fullmatch(value):
        return None
    unit = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(value[-1].lower(), 1)
    return int(float(value.rstrip("bkmgBKMG")) * unit)


def _convert_count(value: str) -> Json:
    return int(value) if value.isdigit() and 0 < int(value) < 1 << 31 else None


def _convert_ulimit(value: str) -> Json:
    match = _ULIMIT_PATTERN.fullmatch(value)
    if match is None:
        return None
    return {"Name": match[1], "Soft": int(match[2]), "Hard": int(match[3] or match[2])}


def _convert_label(value: str) -> Json:
    match = _LABEL_PATTERN.fullmatch(value)
    return None if match is None or match[1].startswith("loopline.") else value


def _convert_volume(value: str) -> Json:
    """Accept a read-only mount of `/usr` or a folder in it; other folders of the machine are refused."""
    source, _, target = value.partition(":")
    path = PurePosixPath(source)
    is_in_usr = path.parts[:2] == ("/", "usr") and ".." not in path.parts
    return value if is_in_usr and target == f"{source}:ro" else None


def _convert_cpu_set(value: str) -> Json:
    return value if _CPUSET_PATTERN.fullmatch(value) else None


_CPUS: _Form = ("a number above 0", _convert_cpus)
_SIZE: _Form = ("a size such as 2g", _convert_size)
_COUNT: _Form = ("a number above 0", _convert_count)
_VOLUME = "/usr or a folder in it, read-only and at the same path: /usr:/usr:ro"
_PERMITTED: Mapping[str, tuple[str, _Form]] = {
    "--cpu-shares": ("CpuShares", _COUNT),
    "--cpuset-cpus": ("CpusetCpus", ("like 0-1", _convert_cpu_set)),
    "--label": ("Labels", ("like team=a", _convert_label)),
    "--memory-reservation": ("MemoryReservation", _SIZE),
    "--memory-swap": ("MemorySwap", _SIZE),
    "--pids-limit": ("PidsLimit", _COUNT),
    "--shm-size": ("ShmSize", _SIZE),
    "--ulimit": ("Ulimits", ("like nofile=1024:1024", _convert_ulimit)),
    "--volume": ("Binds", (_VOLUME, _convert_volume)),
}
"""The arguments of `docker run` that a bundle may add, with their keys. None of them weakens the isolation."""
_LISTS = ("Binds", "Labels", "Ulimits")
