"""Asking: one request to a model, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable

from loopline.errors import ModelError, StoreError
from loopline.models import Model, Prompt, Reply, TextDelta


async def ask(model: Model, prompt: Prompt, hear: Callable[[TextDelta], None]) -> Reply:
    """The model's reply; `hear` gets its pieces on the way.

    Raises:
        ModelError: it could not be asked, broke off, or ended without a reply.
    """
    reply: Reply | None = None
    try:
        async for piece in model.stream(prompt):
            match piece:
                case TextDelta():
                    hear(piece)
                case Reply():
                    reply = piece
    except (StoreError, ModelError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise ModelError(f"{model.name}: {cause}") from error
    if reply is None:
        raise ModelError(f"{model.name}: the stream ended without a reply")
    return reply
