"""The embedded default model: a deterministic reader that answers with quoted sentences, or declines."""

from loopline.offline.offline_model import OfflineModel

__all__ = ["OfflineModel"]
