"""The errors that the users of a service see: plain texts with an id, under which the details are logged."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from secrets import token_hex

from loopline import errors
from loopline.models import Prompt, Reply, TextDelta, WrappedModel
from loopline.react.model_requests import OutOfBudget

logger: logging.Logger = logging.getLogger("loopline")

_PLAIN_ERRORS: tuple[tuple[type[errors.LooplineError], str], ...] = (
    (errors.ModelRateLimited, "the model gets too many requests at the moment: try again later"),
    (errors.ModelOverloaded, "the model is overloaded at the moment: try again later"),
    (errors.ModelTimedOut, "the model did not answer in time: try again later"),
    (errors.ModelUnreachable, "the model cannot be reached at the moment: try again later"),
    (errors.ModelStreamBroken, "the model's answer broke off: try again"),
    (errors.ModelUnavailable, "the model is not available at the moment: try again later"),
    (errors.ModelOverflow, "the request is too long for the model: begin a new conversation"),
    (errors.ModelReplyTooLarge, "the model's answer was too long: ask for less at once"),
    (errors.ModelRequestError, "the model refused the request"),
    (errors.ModelAccessError, "the model may not be used"),
    (errors.ModelError, "the model failed"),
    (errors.BundleError, "the bundle failed"),
    (errors.PropertyError, "the bundle failed"),
    (errors.KnowledgeError, "the knowledge of the bundle cannot be used"),
)
"""The texts of errors for the users of a service, from the most specific class to the most general one."""


class PrivateErrors(WrappedModel, frozen=True):
    """A model whose errors have plain texts without details of the provider, for a service with users of its own.

    An error has the class and the values of the original one, and a text such as `the model may not be used (error
    1f2e3d4c)`. The original text is logged under the same id.
    """

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Stream the reply.

        CassetteError, OutOfBudget and StoreError are raised unchanged.

        Raises:
            ModelError: the request failed; also for other errors of the model's code. The original error is logged.
        """
        pieces = self.model.stream(prompt)
        try:
            async for piece in pieces:
                yield piece
        except (errors.CassetteError, OutOfBudget, errors.StoreError):
            raise
        except Exception as error:
            failure = error if isinstance(error, errors.ModelError) else errors.ModelError()
            raise _plain_error(failure, error, f"the model {self.name}") from error
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()


def hide_details(error: Exception) -> Exception:
    """Convert an error that ends a turn to the error that the users of a service see.

    An error of the bundle, its properties or its knowledge gets a plain text with an id, and an error that is not a
    LooplineError becomes a RuntimeError with such a text. The original text, which may name the author's files, is logged
    under the same id. Other errors are returned unchanged.
    """
    if isinstance(error, errors.BundleError | errors.PropertyError | errors.KnowledgeError):
        return _plain_error(error, error, "the bundle")
    if not isinstance(error, errors.LooplineError):
        return RuntimeError(_log_details("the turn failed", error, "the turn"))
    return error


def _plain_error(kind: errors.LooplineError, error: Exception, origin: str) -> errors.LooplineError:
    """Return an error like `kind` with a plain text, and log the text of `error`."""
    plain_kind, text = next(row for row in _PLAIN_ERRORS if isinstance(kind, row[0]))
    plain = plain_kind(_log_details(text, error, origin))
    plain.__dict__.update(kind.__dict__)  # such as the seconds to wait
    return plain


def _log_details(text: str, error: Exception, origin: str) -> str:
    """Log the error under a new id, and return the text with the id."""
    number = token_hex(4)
    logger.error("error %s of %s: %s: %s", number, origin, type(error).__name__, error)
    return f"{text} (error {number})"
