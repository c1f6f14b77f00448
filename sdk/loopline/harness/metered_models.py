"""Metering: a caller of the harness may stand around every model of a run, whoever asks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from loopline.models import ModelRegistry
from loopline.timeline import ConversationKey

OpenModels = Callable[[ConversationKey], AbstractAsyncContextManager[ModelRegistry]]
"""Opens the models of a run of a conversation."""
Metering = Callable[[ConversationKey, ModelRegistry], AbstractAsyncContextManager[ModelRegistry]]
"""Returns models that take the place of a run's, until the run has ended."""


def metered_models(models: OpenModels, metering: Metering | None) -> OpenModels:
    """Return what opens the models of a run as the metering has them."""
    if metering is None:
        return models

    @asynccontextmanager
    async def metered(conversation: ConversationKey) -> AsyncGenerator[ModelRegistry, None]:
        async with (
            models(conversation) as registry,
            metering(conversation, registry) as counted,
        ):
            yield counted

    return metered
