"""The extra `postgres`: a store in PostgreSQL is tried, and a server that is not there is an error that names it without the password."""

from __future__ import annotations

import asyncio

from loopline import Store
from loopline.errors import StoreError


async def main() -> None:
    """Open a store of a server that does not exist."""
    try:
        async with Store.open("postgresql://ann:secret@127.0.0.1:1/talk"):
            raise AssertionError("there is no server at this port")
    except StoreError as error:
        assert "127.0.0.1" in str(error), error
        assert "secret" not in str(error), error


asyncio.run(main())
