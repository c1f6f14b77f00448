"""The errors that users of Loopline catch."""

from __future__ import annotations


class LooplineError(Exception):
    """The base class of Loopline's errors."""


class RefError(LooplineError):
    """The text is not a ref, or the ref names nothing."""


class ToolError(LooplineError):
    """A tool refused a call; the message is written for the model."""


class ModelError(LooplineError):
    """The model could not be called, or did not answer."""


class ModelUnavailable(ModelError):
    """The model may answer later; `retry_after` is the wait in seconds, None if unknown."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelRateLimited(ModelUnavailable):
    """Too many requests, or too many tokens in them.

    `excess` is the number of tokens by which this request alone exceeds the limit of a period; 0 if it fits, or the
    server does not tell.
    """

    def __init__(self, message: str, *, retry_after: float | None = None, excess: int = 0) -> None:
        super().__init__(message, retry_after=retry_after)
        self.excess = excess


class ModelOverloaded(ModelUnavailable):
    """The model's server cannot take the request now."""


class ModelTimedOut(ModelUnavailable):
    """The model sent nothing for too long."""


class ModelUnreachable(ModelUnavailable):
    """No connection to the model's server could be made."""


class ModelStreamBroken(ModelUnavailable):
    """The reply ended in the middle, or could not be read."""


class ModelOverflow(ModelError):
    """The request is longer than the model's window.

    `window` is the size of the window and `prompt_tokens` that of the prompt, in tokens, as the server reported them, or
    None. With `in_bytes` the request exceeds a limit in bytes; reserving fewer tokens for the reply does not help then.
    """

    def __init__(
        self,
        message: str,
        *,
        window: int | None = None,
        prompt_tokens: int | None = None,
        in_bytes: bool = False,
    ) -> None:
        super().__init__(message)
        self.window = window
        self.prompt_tokens = prompt_tokens
        self.in_bytes = in_bytes


class ModelReplyTooLarge(ModelError):
    """The reply is longer than the limit; the message names the limit and its setting."""


class ModelRequestError(ModelError):
    """The model's server rejected the request; the message names the part."""


class ModelAccessError(ModelError):
    """The key is missing or refused, or may not use the model; the message names its variable."""


class AttachmentError(LooplineError):
    """A file cannot be attached; the message names it and the limit. Nothing was recorded."""


class CassetteError(LooplineError):
    """A cassette cannot be used, or lacks a reply to a request; the message names the difference."""


class KnowledgeError(LooplineError):
    """A knowledge space could not be built or read; the message says which setting to change."""


class BundleError(LooplineError):
    """A bundle is wrong; the message names the file and line. `problems` has a text for each error in the bundle."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems: tuple[str, ...] = problems


class StepFailed(LooplineError):
    """A step of a workflow failed, or was cancelled. It is raised again when the turn is resumed, and the step does not run again.

    `name` is the name of the step. The exception of its function is the `__cause__`, unless the turn was resumed since.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"the step {name!r} failed: {problem}")
        self.name = name


class StepInterrupted(StepFailed):
    """The process of a step died before the step ended; the step may have had an effect, so it is not started again."""


class WrongBundle(LooplineError):
    """The turn was sent through another bundle or a later version, or a tool of an open call has changed.

    The turn is not changed; it waits for the right bundle.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}: open the conversation with the right bundle; or run the turn with this one, by "
            "any_bundle=True or loopline run BUNDLE --any-bundle; or stop it"
        )


class PropertyError(LooplineError):
    """A property or setting is unknown or has the wrong type; the message names the most similar one."""


class StoreError(LooplineError):
    """The store refused or failed."""


class StoreBusy(StoreError):
    """Another process locked the store for too long, or too many files are open; trying again is safe."""


class StoreFull(StoreError):
    """The disk is full; nothing acknowledged is lost."""


class StoreFailed(StoreError):
    """The disk failed to read or write.

    If it failed to sync the log, messages are refused until the store is opened again. After any other failure nothing
    was stored, and the next message is stored once the disk works.
    """


class StoreVersion(StoreError):
    """The store was written by a newer version of Loopline, and only that version may write to it."""


class ConflictError(StoreError):
    """Another writer came first, or the name is taken."""


class LeaseLost(StoreError):
    """Another runner has taken over this conversation, or it was deleted; this runner must stop."""
