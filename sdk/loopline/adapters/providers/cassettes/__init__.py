"""Cassettes: what models at a provider were asked over HTTP and what came, kept and served again."""

from loopline.adapters.providers.cassettes.cassette_player import Replay
from loopline.adapters.providers.cassettes.cassette_recorder import Recording

__all__ = ["Recording", "Replay"]
