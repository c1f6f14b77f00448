"""Cassettes: what models at a provider were asked over HTTP and what came, kept and served again."""

from loopline.providers.cassettes.cassette_player import CassettePlayer
from loopline.providers.cassettes.cassette_recorder import CassetteRecorder

__all__ = ["CassettePlayer", "CassetteRecorder"]
