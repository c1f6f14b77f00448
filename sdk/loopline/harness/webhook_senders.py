"""What sends webhooks: requests to addresses that clients name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from typing import Protocol

from loopline.errors import LooplineError


class WebhookSender(Protocol):
    """Sends requests to addresses of the public web."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Send the body, and return the status.

        Raises:
            LooplineError: the address may not be reached.
            ConnectionError: there was no answer in time.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


def webhook_sender(networks: Sequence[str]) -> WebhookSender:
    """Return what sends webhooks, also to addresses of these networks, which are not public.

    Raises:
        LooplineError: one of them is no network.
    """
    try:
        allowed = [ip_network(network) for network in networks]
    except ValueError as error:
        raise LooplineError(f"{error}: write networks such as 10.1.0.0/16") from error
    from loopline.web.webhook_client import WebhookClient

    return WebhookClient(allowed)
