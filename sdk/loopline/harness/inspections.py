"""What is redacted before it is stored: the property `privacy.redact`, or a redactor of the caller."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from loopline.bundle import Properties
from loopline.errors import PropertyError
from loopline.harness.metered_models import OpenModels
from loopline.models import ModelRegistry
from loopline.names import nearest_hint
from loopline.redaction.redaction import RedactingModel, Redactor
from loopline.timeline import ConversationKey

PROPERTY = "privacy.redact"


def chosen_redactor(properties: Properties) -> Redactor | None:
    """Return the redactor that the property asks for; None if it names nothing. Importing the libraries blocks.

    Raises:
        PropertyError: it names a kind that there is not.
        LooplineError: the extra `redaction` is not installed.
    """
    setting = properties.at(PROPERTY)
    if not setting:
        return None
    from loopline.redaction.detectors import KINDS, LibraryRedactor

    names = [f"{kind}" for kind in setting] if isinstance(setting, list) else [f"{setting}"]
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        hint = f"{nearest_hint(unknown[0], KINDS)}: it may have {', '.join(KINDS)}"
        raise PropertyError(f"{PROPERTY} has {unknown[0]!r}, {hint}")
    return LibraryRedactor(names)


def redacted_models(models: OpenModels, redactor: Redactor | None) -> OpenModels:
    """Return what gives the models of a run, whose replies are redacted if there is a redactor."""
    if redactor is None:
        return models

    @asynccontextmanager
    async def redacting(conversation: ConversationKey) -> AsyncGenerator[ModelRegistry, None]:
        async with models(conversation) as registry:
            yield ModelRegistry(
                {
                    role: tuple(RedactingModel(model, redactor) for model in chain)
                    for role, chain in registry.roles.items()
                }
            )

    return redacting
