"""The rows that say until when a runner has a conversation, on the clock that counts from boot."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sqlalchemy import Connection, bindparam, select

from loopline.adapters.sql.schema import leases

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OWNER = select(leases.c.generation, leases.c.boot, leases.c.ends).where(
    leases.c.conversation == bindparam("row")
)
_BEGIN_LEASE = leases.insert()
_CLAIM = (
    leases.update()
    .where(leases.c.conversation == bindparam("row"))
    .values(generation=bindparam("newest"), boot=bindparam("this_boot"), ends=bindparam("this_end"))
)
_PUT_OFF = (
    leases.update()
    .where(leases.c.conversation == bindparam("row"))
    .values(ends=bindparam("this_end"))
)


@dataclass(frozen=True, slots=True)
class Owner:
    """A lock file of that generation is held, and the lease ends so many ms after that boot."""

    generation: int = 0
    boot: str = ""
    ends: int = 0

    def is_silent(self, boot: str, now: int) -> bool:
        """Whether the lease has ended; one of another boot has left its lock, which is enough."""
        return self.ends > 0 and self.boot == boot and self.ends < now


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Somebody holds the lock of that generation; `takes_over` if it is a new one."""

    generation: int
    takes_over: bool
    boot: str
    now: int
    seconds: float

    @property
    def ends(self) -> int:
        """When the lease ends that is claimed."""
        return self.now + round(self.seconds * 1000)

    def stands(self, owner: Owner) -> bool:
        """Whether that is the lock to hold."""
        if self.takes_over:
            is_next = self.generation == owner.generation + 1
            return is_next and owner.is_silent(self.boot, self.now)
        return self.generation == owner.generation


def owner_of(connection: Connection, row: int) -> Owner:
    """Who had the conversation last."""
    found = connection.execute(_OWNER, {"row": row}).one_or_none()
    return Owner() if found is None else Owner(found.generation, found.boot, found.ends)


def claimed(connection: Connection, row: int, claim: Claim) -> Owner | None:
    """None if the claim stands, which is written down; else who has the conversation."""
    found = connection.execute(_OWNER, {"row": row}).one_or_none()
    owner = Owner() if found is None else Owner(found.generation, found.boot, found.ends)
    if not claim.stands(owner):
        return owner
    if found is None:
        begun = {"conversation": row, "generation": claim.generation}
        connection.execute(_BEGIN_LEASE, {**begun, "boot": claim.boot, "ends": claim.ends})
    else:
        changed = {"row": row, "newest": claim.generation, "this_boot": claim.boot}
        connection.execute(_CLAIM, {**changed, "this_end": claim.ends})
    return None


def put_off(connection: Connection, rows: Iterable[int], ends: int) -> None:
    """Let the leases end then."""
    put = [{"row": row, "this_end": ends} for row in rows]
    if put:
        connection.execute(_PUT_OFF, put)


@cache
def boot_id() -> str:
    """Which time the machine has been started; empty where it does not say."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def since_boot() -> int:
    """Milliseconds since the machine was started, those it slept through included."""
    clock: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000
