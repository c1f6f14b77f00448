"""Everything loopline raises on purpose.

* LooplineError
  - RefError          the text is not a ref, or nothing answers to it
  - ToolError         a tool refused; the model reads the message and may try again
  - ModelError        the model could not be asked, or refused
  - KnowledgeError    a knowledge space could not be built or read
  - BundleError       a bundle is wrong: its author should look at the file and line named
  - PropertyError     a property or setting is unknown or has the wrong type
  - StoreError        the store could not do what was asked
      - StoreBusy     another process held the store for too long: try again
      - StoreFull     the disk is full: free some room, nothing acknowledged is lost
      - StoreVersion  the store was written by a newer loopline
      - ConflictError another writer moved the conversation on first
      - LeaseLost     another runner has taken this conversation over
"""

from __future__ import annotations


class LooplineError(Exception):
    """The root: catch this to catch everything loopline raises on purpose."""


class RefError(LooplineError):
    """The text is not a ref, or nothing answers to it."""


class ToolError(LooplineError):
    """A tool refused; the message is written for the model."""


class ModelError(LooplineError):
    """The model could not be asked, or did not answer."""


class KnowledgeError(LooplineError):
    """A knowledge space could not be built or read; the message says which setting to change."""


class BundleError(LooplineError):
    """A bundle is wrong; the message names the file and line its author should look at."""


class PropertyError(LooplineError):
    """A property or setting is unknown or has the wrong type; the message names the nearest."""


class StoreError(LooplineError):
    """The store could not do what was asked."""


class StoreBusy(StoreError):
    """Another process held the store for too long; trying again is safe."""


class StoreFull(StoreError):
    """The disk is full; nothing acknowledged is lost."""


class StoreVersion(StoreError):
    """The store was written by a newer loopline, which alone may write to it."""


class ConflictError(StoreError):
    """Another writer moved the conversation on first."""


class LeaseLost(StoreError):
    """Another runner has taken this conversation over; this one must stop."""
