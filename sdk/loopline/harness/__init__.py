"""Opens bundles, stores and models together, and chooses the technologies for them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loopline.harness.harness import Harness, run_sync, skill_places
    from loopline.harness.model_choice import Cassette, ModelChoice, model
    from loopline.harness.read_only_store import ConversationNames, ReadOnlyStore
    from loopline.harness.sandboxes import execution_features, open_executions
    from loopline.harness.served_bundle import (
        ServedBundle,
        http_address,
        model_or_call,
        serve_mcp,
    )
    from loopline.harness.stale_answers import StaleAnswer, find_stale_answers
    from loopline.harness.store import Store, forget_inactive
    from loopline.harness.web_ports import WebhookSender, webhook_sender

__all__ = [
    "Cassette",
    "ConversationNames",
    "Harness",
    "ModelChoice",
    "ReadOnlyStore",
    "ServedBundle",
    "StaleAnswer",
    "Store",
    "WebhookSender",
    "execution_features",
    "find_stale_answers",
    "forget_inactive",
    "http_address",
    "model",
    "model_or_call",
    "open_executions",
    "run_sync",
    "serve_mcp",
    "skill_places",
    "webhook_sender",
]

_MODULES = {
    "Cassette": "model_choice",
    "ConversationNames": "read_only_store",
    "Harness": "harness",
    "ModelChoice": "model_choice",
    "ReadOnlyStore": "read_only_store",
    "ServedBundle": "served_bundle",
    "StaleAnswer": "stale_answers",
    "Store": "store",
    "execution_features": "sandboxes",
    "open_executions": "sandboxes",
    "find_stale_answers": "stale_answers",
    "model": "model_choice",
    "http_address": "served_bundle",
    "model_or_call": "served_bundle",
    "forget_inactive": "store",
    "run_sync": "harness",
    "WebhookSender": "web_ports",
    "webhook_sender": "web_ports",
    "serve_mcp": "served_bundle",
    "skill_places": "harness",
}


def __getattr__(name: str) -> object:
    """Import a public name with its first use, as a process that reads a store does not need the loop."""
    if name not in _MODULES:
        raise AttributeError(f"module 'loopline.harness' has no attribute {name!r}")
    value: object = getattr(import_module(f"loopline.harness.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
