"""The extra `redaction`: what is stored of a message has marks in place of a key and an address."""

from __future__ import annotations

import asyncio

from loopline import Bundle, Harness
from loopline.testing import Say, ScriptedModel

KINDS = ["secret", "email", "card", "phone", "ssn", "iban", "ip"]
TEXT = "I am ann@example.com with AKIAIOSFODNN7EXAMPLE."


async def main() -> None:
    """Run a turn whose message has both."""
    bundle = Bundle(id="guide", configuration={"privacy": {"redact": list(KINDS)}})
    async with Harness.open(bundle, store="memory:", model=ScriptedModel([Say("Yes.")])) as harness:
        talk = harness.conversation("c")
        await talk.say(TEXT)
        document = str(await talk.export())
    assert "I am [redacted email] with [redacted secret]." in document, document


asyncio.run(main())
