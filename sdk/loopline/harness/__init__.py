"""Where a bundle, a store and a model come together; the only place that picks adapters."""

from loopline.harness.cassette import Cassette
from loopline.harness.harness import Harness
from loopline.harness.provider_models import model
from loopline.harness.store import Store
from loopline.harness.sync import run_sync

__all__ = ["Cassette", "Harness", "Store", "model", "run_sync"]
