"""What every test shares: a slow machine makes no test fail."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("loopline", deadline=None)
settings.load_profile("loopline")
