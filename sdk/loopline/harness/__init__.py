"""Where a bundle, a store and a model come together; the only place that picks adapters."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loopline.harness.cassette import Cassette
    from loopline.harness.conversation_names import ConversationNames
    from loopline.harness.harness import Harness
    from loopline.harness.provider_models import model
    from loopline.harness.read_only_store import ReadOnlyStore
    from loopline.harness.store import Store
    from loopline.harness.sync import run_sync

__all__ = [
    "Cassette",
    "ConversationNames",
    "Harness",
    "ReadOnlyStore",
    "Store",
    "model",
    "run_sync",
]

_MODULES = {
    "Cassette": "cassette",
    "ConversationNames": "conversation_names",
    "Harness": "harness",
    "ReadOnlyStore": "read_only_store",
    "Store": "store",
    "model": "provider_models",
    "run_sync": "sync",
}


def __getattr__(name: str) -> object:
    """Return a name of this room when it is first asked for: who reads a store needs no loop."""
    if name not in _MODULES:
        raise AttributeError(f"module 'loopline.harness' has no attribute {name!r}")
    value: object = getattr(import_module(f"loopline.harness.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
