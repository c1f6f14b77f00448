"""Opens bundles, stores and models together, and chooses the technologies for them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loopline.harness.document_store import DocumentStore as DocumentStore
    from loopline.harness.harness import Harness as Harness
    from loopline.harness.harness import run_sync as run_sync
    from loopline.harness.harness import skill_places as skill_places
    from loopline.harness.inspections import redactor_of as redactor_of
    from loopline.harness.live_store import announce_revoked_key as announce_revoked_key
    from loopline.harness.model_choice import Cassette as Cassette
    from loopline.harness.model_choice import ModelChoice as ModelChoice
    from loopline.harness.model_choice import hide_provider_details as hide_provider_details
    from loopline.harness.model_choice import model as model
    from loopline.harness.read_only_store import ConversationNames as ConversationNames
    from loopline.harness.read_only_store import ReadOnlyStore as ReadOnlyStore
    from loopline.harness.read_only_store import open_bucket as open_bucket
    from loopline.harness.read_only_store import parse_store_url as parse_store_url
    from loopline.harness.sandboxes import execution_features as execution_features
    from loopline.harness.sandboxes import features_for as features_for
    from loopline.harness.sandboxes import open_executions as open_executions
    from loopline.harness.served_bundle import ServedBundle as ServedBundle
    from loopline.harness.served_bundle import http_address as http_address
    from loopline.harness.served_bundle import model_or_call as model_or_call
    from loopline.harness.served_bundle import serve_mcp as serve_mcp
    from loopline.harness.stale_answers import StaleAnswer as StaleAnswer
    from loopline.harness.stale_answers import find_stale_answers as find_stale_answers
    from loopline.harness.store import Store as Store
    from loopline.harness.store import forget_inactive as forget_inactive
    from loopline.harness.store import move_store as move_store
    from loopline.harness.turn_list import OpenTurn as OpenTurn
    from loopline.harness.turn_list import TurnState as TurnState
    from loopline.harness.turn_list import WaitingApproval as WaitingApproval
    from loopline.harness.turn_list import open_turns as open_turns
    from loopline.harness.turn_list import waiting_approvals as waiting_approvals
    from loopline.harness.web_ports import WebhookSender as WebhookSender
    from loopline.harness.web_ports import webhook_sender as webhook_sender
    from loopline.harness.worker import Worker as Worker
    from loopline.harness.worker import WorkerLimits as WorkerLimits
    from loopline.harness.worker import open_worker as open_worker

_MODULES = {
    "document_store": ("DocumentStore",),
    "live_store": ("announce_revoked_key",),
    "harness": ("Harness", "run_sync", "skill_places"),
    "inspections": ("redactor_of",),
    "model_choice": ("Cassette", "ModelChoice", "hide_provider_details", "model"),
    "read_only_store": ("ConversationNames", "ReadOnlyStore", "open_bucket", "parse_store_url"),
    "sandboxes": ("execution_features", "features_for", "open_executions"),
    "served_bundle": ("ServedBundle", "http_address", "model_or_call", "serve_mcp"),
    "stale_answers": ("StaleAnswer", "find_stale_answers"),
    "store": ("Store", "forget_inactive", "move_store"),
    "worker": ("Worker", "WorkerLimits", "open_worker"),
    "turn_list": ("OpenTurn", "TurnState", "WaitingApproval", "open_turns", "waiting_approvals"),
    "web_ports": ("WebhookSender", "webhook_sender"),
}


def __getattr__(name: str) -> object:
    """Import a public name with its first use, as a process that reads a store does not need the loop.

    Raises:
        AttributeError: the name is not in _MODULES.
    """
    for module, names in _MODULES.items():
        if name in names:
            value: object = getattr(import_module(f"loopline.harness.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'loopline.harness' has no attribute {name!r}")
