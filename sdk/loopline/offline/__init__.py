"""The embedded default model: a deterministic reader that quotes what it finds, or declines."""

from loopline.offline.offline_model import OfflineModel

__all__ = ["OfflineModel"]
