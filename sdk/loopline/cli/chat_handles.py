"""The conversation that a chat is about: one of this machine, or one on a server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from loopline.cli.access import unused_name
from loopline.cli.process import UsageError
from loopline.conversations import Conversation
from loopline.errors import LooplineError
from loopline.models import Json

if TYPE_CHECKING:
    from loopline.client import RemoteConversation, RemoteServer

KEY_VARIABLE = "LOOPLINE_KEY"
ChatConversation: TypeAlias = "Conversation[Any] | RemoteConversation"


async def answer_question(conversation: ChatConversation, call_id: str, value: Json) -> bool:
    """Answer a question of a call that stays open for it; None declines. Return whether the call still asked."""
    if isinstance(conversation, Conversation):
        return conversation.answer(call_id, value)
    return await conversation.answer(call_id, value)


@asynccontextmanager
async def open_server(url: str, key_file: Path | None) -> AsyncGenerator[RemoteServer]:
    """Open a server with the key of the file, else of the environment, else without one.

    Raises:
        UsageError: the file cannot be read, or the URL is no address of a server.
        LooplineError: the server cannot be reached, or refuses the key.
    """
    from loopline.client import connect

    key = await asyncio.to_thread(_stored_key, key_file)
    try:
        server = connect(url, key)
    except LooplineError as error:
        raise UsageError(str(error)) from error
    async with server:
        yield server


def _stored_key(file: Path | None) -> str:
    if file is None:
        return os.environ.get(KEY_VARIABLE, "").strip()
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{file}: it cannot be read: {error}") from error


async def remote_conversation(
    server: RemoteServer, name: str | None, bundle: str
) -> RemoteConversation:
    """Return the conversation of that name; without one a new one, which is named after the bundle.

    Raises:
        UsageError: the bundle is not served there.
    """
    if bundle and bundle not in server.bundles:
        raise UsageError(f"no bundle {bundle!r} is served there: {', '.join(server.bundles)}")
    if name is None:
        names = [row.conversation_id for row in await server.conversations(limit=500)]
        name = unused_name(bundle or server.bundles[0], names)
    return server.conversation(name, bundle=bundle)
