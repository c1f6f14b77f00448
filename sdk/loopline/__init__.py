"""Loopline: bundles whose append-only timeline is the single source of truth."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from loopline.bundle import BaseWorkflow, Bundle, ChatCommunicator
    from loopline.conversations import Conversation, InterruptQueue, Receipt
    from loopline.crew import Agent
    from loopline.errors import (
        AttachmentError,
        BundleError,
        CassetteError,
        ConflictError,
        KnowledgeError,
        LeaseLost,
        LooplineError,
        ModelAccessError,
        ModelError,
        ModelOverflow,
        ModelOverloaded,
        ModelRateLimited,
        ModelReplyTooLarge,
        ModelRequestError,
        ModelStreamBroken,
        ModelTimedOut,
        ModelUnavailable,
        ModelUnreachable,
        PropertyError,
        RefError,
        StepFailed,
        StepInterrupted,
        StoreBusy,
        StoreError,
        StoreFailed,
        StoreFull,
        StoreVersion,
        ToolError,
        WrongBundle,
    )
    from loopline.events import AgentEvent, Delta, Event, PartialOutput
    from loopline.files import Attachment, AttachmentCaps, OutputFile
    from loopline.harness import Harness, Store, model, run_sync
    from loopline.knowledge import Passage
    from loopline.models import (
        Model,
        ModelRegistry,
        ModelSettings,
        StructuredCallError,
        StructuredCallResult,
        Usage,
        structured_llm_call,
    )
    from loopline.react import (
        Allow,
        ApprovalLimits,
        Ask,
        Deny,
        Guard,
        GuardedCall,
        Guards,
        Hold,
        Limits,
        Middleware,
        ReactStateV2,
        Reminder,
        RoundHook,
        Stop,
        TurnPayload,
        Verdict,
        allow_only,
        ask_before,
        block_repeated_failures,
        rate_limit,
        read_only,
    )
    from loopline.reader import Reading
    from loopline.timeline import (
        Block,
        ClientTool,
        ConversationLimits,
        ConversationSummary,
        PendingCall,
        PlanSnapshot,
        Source,
        TurnResult,
    )
    from loopline.tools import Output, ToolContext, tool

__all__ = [
    "Agent",
    "AgentEvent",
    "Allow",
    "ApprovalLimits",
    "Ask",
    "Attachment",
    "AttachmentCaps",
    "AttachmentError",
    "BaseWorkflow",
    "Block",
    "Bundle",
    "BundleError",
    "CassetteError",
    "ChatCommunicator",
    "ClientTool",
    "ConflictError",
    "Conversation",
    "ConversationLimits",
    "ConversationSummary",
    "Delta",
    "Deny",
    "Event",
    "Guard",
    "GuardedCall",
    "Guards",
    "Harness",
    "Hold",
    "InterruptQueue",
    "KnowledgeError",
    "LeaseLost",
    "Limits",
    "LooplineError",
    "Middleware",
    "Model",
    "ModelAccessError",
    "ModelError",
    "ModelOverflow",
    "ModelOverloaded",
    "ModelRateLimited",
    "ModelRegistry",
    "ModelReplyTooLarge",
    "ModelRequestError",
    "ModelSettings",
    "ModelStreamBroken",
    "ModelTimedOut",
    "ModelUnavailable",
    "ModelUnreachable",
    "Output",
    "OutputFile",
    "PartialOutput",
    "Passage",
    "PendingCall",
    "PlanSnapshot",
    "PropertyError",
    "ReactStateV2",
    "Reading",
    "Receipt",
    "RefError",
    "Reminder",
    "RoundHook",
    "Source",
    "StepFailed",
    "StepInterrupted",
    "Stop",
    "Store",
    "StoreBusy",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "StoreVersion",
    "StructuredCallError",
    "StructuredCallResult",
    "ToolContext",
    "ToolError",
    "TurnPayload",
    "TurnResult",
    "Usage",
    "Verdict",
    "WrongBundle",
    "__version__",
    "allow_only",
    "ask_before",
    "block_repeated_failures",
    "model",
    "rate_limit",
    "read_only",
    "run_sync",
    "structured_llm_call",
    "tool",
]

_FOLDERS = (
    "errors",
    "models",
    "knowledge",
    "timeline",
    "events",
    "files",
    "tools",
    "reader",
    "react",
    "crew",
    "bundle",
    "conversations",
    "harness",
)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, from the lowest folder that exports it.

    Raises:
        AttributeError: `name` is not in `__all__`.
    """
    if name not in __all__:
        nearest = "" if name.startswith("_") else _nearest(name)
        raise AttributeError(f"module 'loopline' has no attribute {name!r}{nearest}")
    value: object
    if name == "__version__":
        value = import_module("importlib.metadata").version("loopline")
    else:
        folders = (import_module(f"loopline.{folder}") for folder in _FOLDERS)
        values = (getattr(folder, name, None) for folder in folders)
        # A folder also has its submodules as attributes: `loopline.models.model` is not `loopline.model`.
        value = next(value for value in values if value and not isinstance(value, ModuleType))
    globals()[name] = value
    return value


def _nearest(name: str) -> str:
    """Return the end of the error about an unknown name."""
    hint: str = import_module("loopline.names").nearest_hint(name, __all__)
    return f", {hint}"


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
