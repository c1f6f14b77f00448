"""Cassettes: recorded HTTP requests to models and their responses, which can be replayed."""

from loopline.providers.cassettes.cassette_player import CassettePlayer
from loopline.providers.cassettes.cassette_recorder import CassetteRecorder

__all__ = ["CassettePlayer", "CassetteRecorder"]
