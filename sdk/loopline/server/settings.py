"""The settings of a server: its limits, times and signing keys, and how long it stores conversations."""

from __future__ import annotations

import re
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
"""The time between two searches for expired conversations."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The days after its last activity until a conversation is forgotten; 0 keeps it forever.

    `by_tenant` has the days of single tenants, and `days` applies to all other tenants.
    """

    days: int = 0
    by_tenant: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Parse retentions such as `90`, or `acme=30` for a tenant.

        Raises:
            LooplineError: a text is malformed, or the retention of a tenant is given twice.
        """
        days: dict[str, int] = {}
        for text in texts:
            tenant, _, number = text.rpartition("=")
            if not (number.isascii() and number.isdecimal()) or len(number) > 5:
                raise LooplineError(
                    f"the retention {text!r} is malformed: write DAYS or TENANT=DAYS"
                )
            if tenant in days:
                raise LooplineError(f"the retention of {tenant or 'all tenants'} is given twice")
            days[tenant] = int(number)
        return cls(days.pop("", 0), days)

    async def forget_expired(self, log: TimelineLog, now: datetime) -> Sequence[ConversationKey]:
        """Forget conversations that were inactive for the days of their tenant, and return their keys.

        A tenant with 0 days keeps all conversations.
        """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLogin:
    """The OpenID provider at which people sign in on the web page.

    `client_id` is the id of the page there, and `secret` its secret if the provider asks for one. The address to which the
    provider returns is that of the page: the URL of the server with `/page/`.
    """

    issuer: str
    client_id: str
    secret: str = field(default="", repr=False)
    scope: str = "openid"


MB = 1024 * 1024
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The limits of a server.

    Attributes:
        body_bytes: the largest body of a request. It is larger than a message, because files may be in base64.
        listeners: the event streams at one time.
        user_listeners: the event streams of one user at one time, if there is authentication. A further stream is refused
            with 429, before its message is stored.
        turns: the turns at one time.
        requests_per_minute: the requests of one user.
        keep_alive_seconds: after this time without another event, an event stream gets a comment.
        drain_seconds: how long the server may take to end; for three quarters of that time it waits for its turns.
        recovery_seconds: how often the server looks for turns whose process has died, and resumes them.
        signing_key: signs the URLs of files, and approvals. Without a key a random one is used, so restarts invalidate them.
        url_seconds: how long the URL of a file is valid.
        public_url: the address of the server from outside (`loopline serve --public-url`). The URLs of files, events and
            webhooks, and `servers` of the OpenAPI document, begin with it. Without it they are paths of this server.
        approval_seconds: how long a signed approval is valid.
        origins: the origins of web pages that may read answers in a browser.
        isolated_only: bundles that run programs without isolation are refused.
        webhook_secret: signs webhooks; without it none is sent.
        webhook_networks: networks that webhooks may reach although they are not public.
        retention: how long inactive conversations are stored.
        stop_abandoned: a turn is stopped if the client closes the stream of its message.
        submits_only: the server runs no turns: it stores messages, and workers of the same store run their turns
            (`loopline serve --workers N`).
        docs: the server serves the OpenAPI document, and a page that shows it.
        login: the OpenID provider at which people sign in on the web page. The server must accept its tokens.
        quotas: what users and tenants may use in a day.
        caps: the limits of the files of a message. By default images are decoded before they are stored.
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
    stop_abandoned: bool = False
    submits_only: bool = False
    docs: bool = True
    login: PageLogin | None = None
    quotas: DailyQuotas = field(default_factory=DailyQuotas)
    caps: AttachmentCaps = field(default_factory=lambda: AttachmentCaps(decode_images=True))

    def __post_init__(self) -> None:
        """Check `requests_per_minute`, `recovery_seconds`, `origins` and `public_url`."""
        if not self.requests_per_minute > 0:
            raise LooplineError(
                f"requests_per_minute is {self.requests_per_minute}: it must be above 0"
            )
        if not self.recovery_seconds > 0:
            raise LooplineError(f"recovery_seconds is {self.recovery_seconds}: it must be above 0")
        for origin in self.origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise LooplineError(
                    f"{origin!r} is not an origin: write it as browsers send it, such as https://example.org:8443, in lower "
                    "case and without a path"
                )
        parts = urlsplit(self.public_url)
        is_plain = not (parts.query or parts.fragment or parts.username)
        if self.public_url and not (
            parts.scheme in ("http", "https") and parts.hostname and is_plain
        ):
            raise LooplineError(
                f"public_url must be the URL of the server, such as https://example.org/talk, not {self.public_url!r}"
            )
