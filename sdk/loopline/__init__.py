"""Loopline: bundles whose append-only timeline is the single source of truth."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from loopline.bundle import BaseWorkflow, Bundle
    from loopline.crew import Agent
    from loopline.errors import BundleError, LooplineError, ToolError
    from loopline.files import Attachment, OutputFile
    from loopline.harness import Harness, Store, model, run_sync
    from loopline.knowledge import Passage
    from loopline.models import ModelSettings
    from loopline.react import Limits, TurnPayload
    from loopline.timeline import ClientTool, Source, TurnResult
    from loopline.tools import Output, ToolContext, tool

__all__ = [
    "Agent",
    "Attachment",
    "BaseWorkflow",
    "Bundle",
    "BundleError",
    "ClientTool",
    "Harness",
    "Limits",
    "LooplineError",
    "ModelSettings",
    "Output",
    "OutputFile",
    "Passage",
    "Source",
    "Store",
    "ToolContext",
    "ToolError",
    "TurnPayload",
    "TurnResult",
    "__version__",
    "model",
    "run_sync",
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

    A name that has moved to a module is returned with a DeprecationWarning.

    Raises:
        AttributeError: there is no such name; `from loopline import …` raises an ImportError. The message has the nearest.
    """
    if name not in __all__:
        moved: object = import_module("loopline.names").moved_name(name, __all__)
        return moved
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


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
