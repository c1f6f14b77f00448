"""How a container of programs is made: its image, its network, its share of the machine, and what else is permitted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath

from loopline.errors import PropertyError
from loopline.models import Json, JsonObject

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
