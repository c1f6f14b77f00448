"""The extra `postgres`: a store in PostgreSQL is tried, and a server that is not there is an error that names it without the password."""

from __future__ import annotations

import asyncio

from loopline import Store
from loopline.errors import StoreError


async def refusal() -> str:
    """Open a store of a server that does not exist, and return the text of the error."""
    try:
        async with Store.open("postgresql://ann:secret@127.0.0.1:1/talk"):
            return ""
    except StoreError as error:
        return str(error)


text = asyncio.run(refusal())
assert "127.0.0.1" in text, text
assert "secret" not in text, text
