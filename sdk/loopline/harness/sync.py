"""One turn of a bundle for callers without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from typing_extensions import TypeForm

from loopline.bundle import Bundle, Setting
from loopline.conversations import Attachments
from loopline.errors import LooplineError
from loopline.harness.harness import B, Harness
from loopline.harness.model_choice import ModelChoice
from loopline.react import Limits
from loopline.timeline import TimelineLog, TurnResult

Out = TypeVar("Out")

CONVERSATION = "main"
"""The default conversation."""


@overload
def run_sync(
    bundle: str | Path | Bundle[B],
    text: str,
    *,
    store: str | TimelineLog = "memory:",
    model: ModelChoice = None,
    properties: Mapping[str, Setting] | None = None,
    conversation: str = CONVERSATION,
    attachments: Attachments = (),
    deps: object = None,
    output_type: None = None,
    **limits: Unpack[Limits],
) -> TurnResult[B]: ...
@overload
def run_sync(
    bundle: str | Path | Bundle[Any],
    text: str,
    *,
    store: str | TimelineLog = "memory:",
    model: ModelChoice = None,
    properties: Mapping[str, Setting] | None = None,
    conversation: str = CONVERSATION,
    attachments: Attachments = (),
    deps: object = None,
    output_type: TypeForm[Out],
    **limits: Unpack[Limits],
) -> TurnResult[Out]: ...
def run_sync(
    bundle: str | Path | Bundle[Any],
    text: str,
    *,
    store: str | TimelineLog = "memory:",
    model: ModelChoice = None,
    properties: Mapping[str, Setting] | None = None,
    conversation: str = CONVERSATION,
    attachments: Attachments = (),
    deps: object = None,
    output_type: Any = None,
    **limits: Unpack[Limits],
) -> TurnResult[Any]:
    """Open the bundle, say `text` in the conversation, and return the result of the turn.

    The arguments are those of `Harness.open` and of `say`. With the default store nothing outlives the
    call.

    Raises:
        LooplineError: an event loop runs in this thread already, which this would block; or as
            `Harness.open` and `say` raise it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise LooplineError(
            "run_sync cannot be called while an event loop runs in this thread: "
            "use `async with Harness.open(…) as harness` and `await harness.conversation(…).say(…)`"
        )

    async def run() -> TurnResult[Any]:
        async with Harness.open(
            bundle, store=store, model=model, properties=properties, deps=deps
        ) as harness:
            handle = harness.conversation(conversation)
            return await handle.say(
                text, attachments=attachments, output_type=output_type, **limits
            )

    return asyncio.run(run())
