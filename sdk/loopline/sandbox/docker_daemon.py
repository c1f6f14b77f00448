"""The daemon of docker: the few requests that a sandbox makes of it, by docker's own library."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypeVar, cast

from loopline.errors import LooplineError
from loopline.models import JsonObject

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
