"""Everything loopline raises on purpose.

* LooplineError
  - RefError          the text is not a ref, or nothing answers to it
  - ToolError         a tool refused; the model reads the message and may try again
  - ModelError        the model could not be asked, or did not answer
      - ModelUnavailable  it may answer later, or another one now: rate limits, overload, silence
          - ModelRateLimited    too many requests; `retry_after` says for how long, where that is known
          - ModelOverloaded     its server cannot take the request now
          - ModelTimedOut       nothing came for too long
          - ModelUnreachable    no connection could be made
          - ModelStreamBroken   the reply ended in the middle
      - ModelOverflow     the request is longer than the model's window
      - ModelReplyTooLarge the reply holds more than is read of one
      - ModelRequestError the request is wrong: the message names the part
      - ModelAccessError  the key is missing or refused: the message names its variable
  - AttachmentError   a file cannot be attached: the message names it, its size and what is allowed
  - CassetteError     a cassette cannot be used, or holds no reply to a request
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


class ModelUnavailable(ModelError):
    """The model may answer later; `retry_after` is in seconds, None where nobody said when."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelRateLimited(ModelUnavailable):
    """Too many requests, or too many tokens of them."""


class ModelOverloaded(ModelUnavailable):
    """The model's server cannot take the request now."""


class ModelTimedOut(ModelUnavailable):
    """Nothing came from the model for too long."""


class ModelUnreachable(ModelUnavailable):
    """No connection to the model's server could be made."""


class ModelStreamBroken(ModelUnavailable):
    """The reply ended in the middle, or could not be read."""


class ModelOverflow(ModelError):
    """The request is longer than the model's window, of `window` tokens if the server said so."""

    def __init__(self, message: str, *, window: int | None = None) -> None:
        super().__init__(message)
        self.window = window


class ModelReplyTooLarge(ModelError):
    """The reply holds more than is read of one; the message says how much, and where to allow more."""


class ModelRequestError(ModelError):
    """The model's server finds the request wrong; the message names the part."""


class ModelAccessError(ModelError):
    """The key is missing or refused, or may not use the model; the message names its variable."""


class AttachmentError(LooplineError):
    """A file cannot be attached; the message names it, and says how large it may be. Nothing was recorded."""


class CassetteError(LooplineError):
    """A cassette cannot be used, or holds no reply to a request; the message names the difference."""


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
