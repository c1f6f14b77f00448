"""Loopline: bundles whose append-only timeline is the single source of truth."""

from loopline.bundle import BaseWorkflow, Bundle
from loopline.errors import (
    BundleError,
    ConflictError,
    DecisionError,
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
from loopline.harness import Harness, Store
from loopline.knowledge import Passage
from loopline.react import TurnPayload, TurnResult
from loopline.timeline import Block, Source
from loopline.tools import Output, ToolContext, tool

__all__ = [
    "BaseWorkflow",
    "Block",
    "Bundle",
    "BundleError",
    "ConflictError",
    "DecisionError",
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
    "tool",
]
