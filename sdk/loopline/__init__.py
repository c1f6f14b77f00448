"""Loopline: bundles whose append-only timeline is the single source of truth."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from loopline.bundle import BaseWorkflow, Bundle
    from loopline.errors import (
        AttachmentError,
        BundleError,
        ConflictError,
        KnowledgeError,
        LeaseLost,
        LooplineError,
        ModelError,
        PropertyError,
        RefError,
        StoreBusy,
        StoreError,
        StoreFull,
        StoreVersion,
        ToolError,
    )
    from loopline.events import Delta
    from loopline.files import Attachment, AttachmentCaps
    from loopline.harness import Harness, Store, model, run_sync
    from loopline.knowledge import Passage
    from loopline.react import TurnPayload, TurnResult
    from loopline.timeline import Block, ConversationLimits, Source
    from loopline.tools import Output, ToolContext, tool

__all__ = [
    "Attachment",
    "AttachmentCaps",
    "AttachmentError",
    "BaseWorkflow",
    "Block",
    "Bundle",
    "BundleError",
    "ConflictError",
    "ConversationLimits",
    "Delta",
    "Harness",
    "KnowledgeError",
    "LeaseLost",
    "LooplineError",
    "ModelError",
    "Output",
    "Passage",
    "PropertyError",
    "RefError",
    "Source",
    "Store",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "StoreVersion",
    "ToolContext",
    "ToolError",
    "TurnPayload",
    "TurnResult",
    "__version__",
    "model",
    "run_sync",
    "tool",
]

_ROOMS = (
    "errors",
    "knowledge",
    "timeline",
    "events",
    "files",
    "tools",
    "react",
    "bundle",
    "harness",
)


def __getattr__(name: str) -> object:
    """A public name, from the lowest room that has it, when it is first asked for."""
    if name == "__version__":
        globals()[name] = import_module("importlib.metadata").version("loopline")
        return globals()[name]
    if name in __all__:
        for room in _ROOMS:
            module = import_module(f"loopline.{room}")
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module 'loopline' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
