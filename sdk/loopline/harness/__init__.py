"""Where a bundle, a store and a model come together; the only place that picks adapters."""

from loopline.harness.cassettes import Cassette
from loopline.harness.harness import Harness
from loopline.harness.store import Store
from loopline.harness.sync import run_sync
from loopline.harness.wires import model

__all__ = ["Cassette", "Harness", "Store", "model", "run_sync"]
