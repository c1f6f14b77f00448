"""The settings of a server: its limits, and how long things may take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Self
from urllib.parse import urlsplit

from loopline.errors import LooplineError
from loopline.files import AttachmentCaps
from loopline.harness import forget_inactive
from loopline.server.quotas import DailyQuotas
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


MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The limits of a server.

    `body_bytes` limits the body of a request; files travel in base64, so it is more than a message may have.
    `listeners` and `turns` limit the event streams and the turns at one time, `user_listeners` the streams of one user where
    there is authentication, and `requests_per_minute` its requests.
    A server that is told to end is gone after `drain_seconds`, three quarters of which it waits for its turns. Every `recovery_seconds` it looks for turns whose process is gone, resumes them,
    and tells who listens which of them no bundle here runs. `signing_key` signs the URLs of files, which are
    valid for `url_seconds`; without one they are valid until the server ends. Those that workflows get, and all others that leave
    the server, begin with `public_url`; without one they are paths of this server. It signs approvals too, which are valid
    for `approval_seconds`. Pages of the `origins` may read answers in a browser. With `isolated_only` no bundle is served
    that runs programs without isolation. `webhook_secret` signs webhooks, which are not sent without one, and
    `webhook_networks` are networks that they may reach although they are not public. Conversations that nobody uses are
    forgotten by the `retention`. `docs` shows the OpenAPI document and a page that explores it.
    `quotas` are what users and tenants may use in a day.
    """

    body_bytes: int = 36 * MB
    listeners: int = 2_000
    user_listeners: int = 200
    turns: int = 200
    requests_per_minute: int = 600
    keep_alive_seconds: float = 15.0
    drain_seconds: float = 20.0
    recovery_seconds: float = 30.0
    signing_key: bytes = field(default=b"", repr=False)
    url_seconds: int = 900
    public_url: str = ""
    approval_seconds: int = 3_600
    origins: Sequence[str] = ()
    isolated_only: bool = False
    webhook_secret: bytes = field(default=b"", repr=False)
    webhook_networks: Sequence[str] = ()
    retention: Retention = field(default_factory=Retention)
    docs: bool = True
    quotas: DailyQuotas = field(default_factory=DailyQuotas)
    caps: AttachmentCaps = field(
        default_factory=lambda: AttachmentCaps(known_types=True, decode_images=True)
    )

    def __post_init__(self) -> None:
        """Check the public URL, and how often turns are looked for."""
        if not self.recovery_seconds > 0:
            raise LooplineError(f"recovery_seconds is {self.recovery_seconds}: it must be above 0")
        parts = urlsplit(self.public_url)
        is_plain = not (parts.query or parts.fragment or parts.username)
        if self.public_url and not (
            parts.scheme in ("http", "https") and parts.hostname and is_plain
        ):
            raise LooplineError(
                f"public_url is where the server is reached, such as https://example.org/talk, not {self.public_url!r}"
            )
