"""The settings of a server: its limits, and how long things may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loopline.files import AttachmentCaps

MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The limits of a server.

    `body_bytes` limits the body of a request; files travel in base64, so it is more than a message may have.
    `listeners` and `turns` limit the event streams and the turns at one time, `requests_per_minute` those of one user.
    A server that is told to end waits `drain_seconds` for its turns. `signing_key` signs the URLs of files, which are
    valid for `url_seconds`; without one they are valid until the server ends. Pages of the `origins` may read answers
    in a browser. `docs` shows the OpenAPI document and a page that explores it.
    """

    body_bytes: int = 36 * MB
    listeners: int = 2_000
    turns: int = 200
    requests_per_minute: int = 600
    keep_alive_seconds: float = 15.0
    drain_seconds: float = 20.0
    signing_key: bytes = field(default=b"", repr=False)
    url_seconds: int = 900
    origins: Sequence[str] = ()
    docs: bool = True
    caps: AttachmentCaps = field(default_factory=lambda: AttachmentCaps(known_types=True))
