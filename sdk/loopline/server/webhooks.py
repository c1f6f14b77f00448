"""Webhooks: a signed request to a URL when a turn in the background has ended.

The headers and the signature are those of Standard Webhooks, https://www.standardwebhooks.com.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from base64 import b64encode
from hashlib import sha256
from http import HTTPStatus
from urllib.parse import urlsplit

from loopline.clock import Clock
from loopline.errors import LooplineError
from loopline.harness import WebhookSender, webhook_sender
from loopline.models import JsonObject, dumps
from loopline.server.problems import RequestProblem
from loopline.server.settings import ServerSettings
from loopline.tasks import cancel_all
from loopline.timeline import ConversationKey, iso_time

WAITS = (0.0, 1.0, 5.0, 30.0, 120.0, 600.0)
"""The seconds before each attempt."""
_GONE = 410
_log = logging.getLogger("loopline")


class Webhooks:
    """Sends webhooks in the background. Each is repeated until it is accepted or the attempts in `WAITS` are used up."""

    def __init__(self, settings: ServerSettings, clock: Clock) -> None:
        self._secret = settings.webhook_secret
        self._networks = settings.webhook_networks
        self._clock = clock
        self._sender: WebhookSender | None = None
        self.deliveries: set[asyncio.Task[None]] = set[asyncio.Task[None]]()

    def check(self, url: str) -> None:
        """Check that a webhook can be sent to a URL. The IP address is checked when it is sent.

        Raises:
            RequestProblem: the server has no secret for signatures, 422.
            LooplineError: the URL is malformed, or is not https and there are no `webhook_networks`.
        """
        if not self._secret:
            raise RequestProblem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "this server does not send webhooks: it has no secret to sign them",
                action_by="operator",
            )
        if not _is_web_url(url):
            raise LooplineError("the webhook must have an http or https URL")
        if not url.lower().startswith("https:") and not self._networks:
            raise LooplineError("the URL of a webhook must begin with https://")

    def send(
        self, url: str, key: ConversationKey, turn: str, data: JsonObject, turn_url: str = ""
    ) -> None:
        """Start to send the result of a turn in the background, with the URL of the turn if it is not empty.

        The id of the webhook is the same for the same turn and URL. Failures are only logged.
        """
        names = "\n".join((key.tenant, key.project, key.user, key.name, turn, url))
        message = f"msg_{sha256(names.encode(errors='surrogatepass')).hexdigest()[:32]}"
        content: JsonObject = {
            "type": "turn.ended",
            "timestamp": iso_time(self._clock.now()),
            "data": data,
        }
        if turn_url:
            content["url"] = turn_url
        task = asyncio.create_task(self._deliver(url, message, dumps(content).encode()))
        self.deliveries.add(task)
        task.add_done_callback(self.deliveries.discard)

    async def close(self) -> None:
        """Cancel all webhooks that are not sent yet."""
        await cancel_all(*self.deliveries)
        if self._sender is not None:
            await self._sender.close()

    async def _deliver(self, url: str, message: str, body: bytes) -> None:
        """Post the webhook after each wait in `WAITS` until the status is 2xx. Failures are logged, not raised.

        The status 410 and an address that is not allowed end the attempts.
        """
        if self._sender is None:
            self._sender = webhook_sender(self._networks)
        host = urlsplit(url).hostname
        for wait in WAITS:
            await self._clock.sleep(wait)
            try:
                status = await self._sender.post(url, body, self._headers(message, body))
            except ConnectionError as error:
                _log.info("webhook %s to %s: %s", message, host, error)
                continue
            except LooplineError as error:
                _log.warning("webhook %s to %s is not sent: %s", message, host, error)
                return
            if HTTPStatus(200) <= status < HTTPStatus(300):
                return
            _log.info("webhook %s to %s: status %s", message, host, status)
            if status == _GONE:
                return
        _log.warning("webhook %s to %s was not accepted in %s attempts", message, host, len(WAITS))

    def _headers(self, message: str, body: bytes) -> dict[str, str]:
        """Return the headers of Standard Webhooks: the id, the current time, and the signature of both and `body`."""
        timestamp = f"{int(self._clock.now().timestamp())}"
        return {
            "Content-Type": "application/json",
            "User-Agent": "Loopline-Webhooks/1",
            "webhook-id": message,
            "webhook-timestamp": timestamp,
            "webhook-signature": signature(self._secret, message, timestamp, body),
        }


def _is_web_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.username


def signature(secret: bytes, message: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a webhook. The receiver must compare it in constant time."""
    signed = f"{message}.{timestamp}.".encode() + body
    return f"v1,{b64encode(hmac.new(secret, signed, sha256).digest()).decode()}"
