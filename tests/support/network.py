"""Cuts parts of a deployment off the network, with rules of nftables; it needs root and the package `nftables` of Debian."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import count

_FIRST_GROUP = 50_000


def port_traffic(port: int) -> Sequence[str]:
    return (f"tcp dport {port}", f"tcp sport {port}")


def group_traffic(group: int) -> Sequence[str]:
    """Return what the packets of the connections of a group of processes match."""
    return (f"ct mark {group}",)


class Network:
    """The network of this machine. The kernel sends dropped packets again, as in a real partition."""

    def __init__(self) -> None:
        self._table = f"inet loopline_{os.getpid()}"
        self._groups = count(_FIRST_GROUP)
        self._cut = list[str]()

    def create(self) -> None:
        """Create a table of rules, which drop nothing yet."""
        _run(
            f"add table {self._table}",
            f"add chain {self._table} marks {{ type filter hook output priority -10; }}",
            f"add chain {self._table} outgoing {{ type filter hook output priority 0; }}",
            f"add chain {self._table} incoming {{ type filter hook input priority 0; }}",
        )

    def remove(self) -> None:
        _run(f"delete table {self._table}")

    def new_group(self) -> int:
        """Return the id of a group for processes that are cut off together."""
        group = next(self._groups)
        _run(f"add rule {self._table} marks meta skgid {group} ct mark set {group}")
        return group

    def cut(self, traffic: Sequence[str]) -> None:
        """Drop every packet that matches."""
        self._cut += traffic
        self._apply()

    def join(self, traffic: Sequence[str]) -> None:
        self._cut = [cut for cut in self._cut if cut not in traffic]
        self._apply()

    def _apply(self) -> None:
        chains = [f"{self._table} {chain}" for chain in ("outgoing", "incoming")]
        rules = [f"add rule {chain} {cut} drop" for chain in chains for cut in self._cut]
        _run(*(f"flush chain {chain}" for chain in chains), *rules)


@contextmanager
def network() -> Generator[Network]:
    """Create rules, which are removed at the end."""
    created = Network()
    created.create()
    try:
        yield created
    finally:
        created.remove()


def _run(*rules: str) -> None:
    subprocess.run(["nft", "-f", "-"], input="\n".join([*rules, ""]), text=True, check=True)
