"""How long a server stores conversations that nobody uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Self

from loopline.errors import LooplineError
from loopline.harness import forget_inactive
from loopline.timeline import ConversationKey, TimelineLog

SECONDS_BETWEEN = 3_600.0
"""How often a server looks for conversations to forget."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How many days after its last activity a conversation is forgotten; 0 days store it for ever.

    `by_tenant` has the days of single tenants, and `days` those of all others.
    """

    days: int = 0
    by_tenant: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def parse(cls, written: Iterable[str]) -> Self:
        """Return the retention that is written as `90` or, for a tenant, `acme=30`.

        Raises:
            LooplineError: it is written in another way, or twice.
        """
        days: dict[str, int] = {}
        for text in written:
            tenant, _, number = text.rpartition("=")
            if not (number.isascii() and number.isdecimal()) or len(number) > 5:
                raise LooplineError(f"no retention {text!r}: write days, or TENANT=DAYS")
            if tenant in days:
                raise LooplineError(f"the retention of {tenant or 'all tenants'} is given twice")
            days[tenant] = int(number)
        return cls(days.pop("", 0), days)

    async def forget_expired(self, log: TimelineLog, now: datetime) -> Sequence[ConversationKey]:
        """Forget the conversations that nobody has used for too long; return their keys."""
        forgotten: list[ConversationKey] = []
        for tenant, days in self.by_tenant.items():
            if days:
                outcome = await forget_inactive(log, now - timedelta(days=days), tenant=tenant)
                forgotten.extend(outcome.forgotten)
        if self.days:
            before = now - timedelta(days=self.days)
            outcome = await forget_inactive(log, before, except_tenants=self.by_tenant)
            forgotten.extend(outcome.forgotten)
        return forgotten
