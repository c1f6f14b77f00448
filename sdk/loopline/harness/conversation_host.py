"""What a harness and a store share: they return conversations by name and import documents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic

from typing_extensions import TypeVar

from loopline.clock import Clock
from loopline.conversations import Conversation
from loopline.errors import LooplineError
from loopline.harness.conversation_names import ConversationNames
from loopline.models import JsonObject
from loopline.reader import DocumentError, import_actions, import_mark, read_document
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    DEFAULT_USER,
    Block,
    ImportedAction,
    child_action,
    parent_name,
    unknown_names,
)

T_co = TypeVar("T_co", covariant=True, default=None)


class ConversationHost(ConversationNames[Conversation[T_co]], Generic[T_co]):
    """The owner of an open log of conversations that can run."""

    _clock: Clock

    async def load(
        self,
        document: JsonObject,
        *,
        name: str = "",
        confirm: Sequence[str] = (),
        user: str = DEFAULT_USER,
        tenant: str = DEFAULT_TENANT,
        project: str = DEFAULT_PROJECT,
    ) -> Conversation[T_co]:
        """Import an exported conversation block by block; without a name it keeps its own.

        Anybody can write a document, so nothing in it acts: its unfinished turns are not resumed, repositories that it
        names are not read, and it cannot replace a child run. `confirm` names those of its `import_actions` that a
        person has checked and allows.

        Raises:
            DocumentError: its version is unknown, or it is damaged; the message names the place.
            LooplineError: it has no such action to confirm, or its name is that of a child run.
            ConflictError: a conversation of that name exists.
        """
        own_name = name or _own_name(document)
        talk = self.conversation(own_name, user=user, tenant=tenant, project=project)

        def read() -> list[Block]:
            blocks = read_document(document)
            _check_confirmed(confirm, import_actions(blocks, own_name), own_name)
            return [*blocks, import_mark(blocks, confirm, self._clock.now())]

        await self.log.restore(talk.conversation, await asyncio.to_thread(read))
        return talk


def _own_name(document: JsonObject) -> str:
    name = document.get("conversation_id")
    if "version" not in document and "blocks" not in document:
        raise DocumentError("it is no exported conversation: it has neither a version nor blocks")
    if not isinstance(name, str) or not name:
        raise DocumentError(
            "conversation_id: it is not a name: import the document under a name of your own"
        )
    return name


def _check_confirmed(
    confirm: Sequence[str], actions: Sequence[ImportedAction], own_name: str
) -> None:
    unknown = unknown_names(confirm, actions)
    if unknown:
        names = ", ".join(action.name for action in actions) or "nothing"
        raise LooplineError(
            f"{unknown[0]!r} cannot be confirmed: the actions of this document are {names}"
        )
    if parent_name(own_name) is not None and child_action(own_name) not in confirm:
        raise LooplineError(
            f"{own_name!r} is the name of a child run, and a parent would use its answer: import it under "
            f"another name, or confirm {child_action(own_name)}"
        )
