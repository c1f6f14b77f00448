"""Where a bundle, a store and a model come together; the only place that picks adapters."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loopline.harness.cassette import Cassette
    from loopline.harness.conversation_names import ConversationNames
    from loopline.harness.executions import open_executions
    from loopline.harness.harness import Harness
    from loopline.harness.model_choice import ModelChoice
    from loopline.harness.provider_models import model
    from loopline.harness.read_only_store import ReadOnlyStore
    from loopline.harness.sandboxes import execution_features
    from loopline.harness.served_bundle import (
        ServedBundle,
        http_address,
        model_or_call,
        serve_mcp,
    )
    from loopline.harness.skill_search import skill_places
    from loopline.harness.stale_answers import StaleAnswer, find_stale_answers
    from loopline.harness.store import Store
    from loopline.harness.sync import run_sync
    from loopline.harness.user_data import forget_inactive
    from loopline.harness.webhook_senders import WebhookSender, webhook_sender

__all__ = [
    "Cassette",
    "ConversationNames",
    "Harness",
    "ModelChoice",
    "ReadOnlyStore",
    "ServedBundle",
    "ServerExchange",
    "ServerSession",
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
    "server_session",
    "skill_places",
    "token_checker",
    "webhook_sender",
]

_MODULES = {
    "Cassette": "cassette",
    "ConversationNames": "conversation_names",
    "Harness": "harness",
    "ModelChoice": "model_choice",
    "ReadOnlyStore": "read_only_store",
    "ServedBundle": "served_bundle",
    "StaleAnswer": "stale_answers",
    "Store": "store",
    "execution_features": "sandboxes",
    "open_executions": "executions",
    "find_stale_answers": "stale_answers",
    "model": "provider_models",
    "http_address": "served_bundle",
    "model_or_call": "served_bundle",
    "forget_inactive": "user_data",
    "run_sync": "sync",
    "token_checker": "token_issuers",
    "WebhookSender": "webhook_senders",
    "webhook_sender": "webhook_senders",
    "ServerExchange": "server_sessions",
    "ServerSession": "server_sessions",
    "server_session": "server_sessions",
    "serve_mcp": "served_bundle",
    "skill_places": "skill_search",
}


def __getattr__(name: str) -> object:
    """Return a name of this room when it is first asked for: who reads a store needs no loop."""
    if name not in _MODULES:
        raise AttributeError(f"module 'loopline.harness' has no attribute {name!r}")
    value: object = getattr(import_module(f"loopline.harness.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
