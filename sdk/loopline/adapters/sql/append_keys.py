"""The keys of appends: which append used one."""

from __future__ import annotations

from loopline.adapters.sql import statements
from loopline.adapters.sql.rows import key_parameters
from loopline.adapters.sql.sqlite import Connection, execute
from loopline.timeline import ConversationKey


def appended(connection: Connection, conversation: ConversationKey, key: str) -> int | None:
    """Return the last seq of the append that used the key, or None."""
    owner = execute(connection, statements.SELECT_ID, key_parameters(conversation)).fetchone()
    if owner is None:
        return None
    parameters = {"conversation": owner[0], "key": key}
    row = execute(connection, statements.SELECT_APPEND, parameters).fetchone()
    return None if row is None else int(row[0])
