"""Cassettes: what models at a provider were asked over HTTP and what came, kept and served again."""

from loopline.adapters.wires.cassettes.recording import Recording
from loopline.adapters.wires.cassettes.replaying import Replay

__all__ = ["Recording", "Replay"]
