"""The redactor of stored texts and the virus scanner of attachments that settings choose."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from loopline.bundle import Properties
from loopline.errors import AttachmentError, PropertyError
from loopline.files import AttachmentScanner
from loopline.models import Model, ModelRegistry
from loopline.names import nearest_hint
from loopline.redaction.redaction import RedactingModel, Redactor
from loopline.timeline import ConversationKey

PROPERTY = "privacy.redact"


def make_redactor(properties: Properties) -> Redactor | None:
    """Return the redactor for the kinds in `privacy.redact`, or None if the property is empty.

    This imports libraries, which blocks.

    Raises:
        PropertyError: a kind is unknown.
        LooplineError: the extra `redaction` is not installed.
    """
    setting = properties.at(PROPERTY)
    if not setting:
        return None
    names = [f"{kind}" for kind in setting] if isinstance(setting, list) else [f"{setting}"]
    return redactor_of(names)


def redactor_of(names: Sequence[str]) -> Redactor:
    """Return the redactor for these kinds, such as `secret` and `email`. This imports libraries, which blocks.

    Raises:
        PropertyError: a kind is unknown.
        LooplineError: the extra `redaction` is not installed.
    """
    from loopline.redaction.detectors import KINDS, LibraryRedactor

    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise PropertyError(f"{PROPERTY} has {unknown[0]!r}, {nearest_hint(unknown[0], KINDS)}")
    return LibraryRedactor(names)


@asynccontextmanager
async def redact_replies(
    redactor: Redactor, _: ConversationKey, models: ModelRegistry
) -> AsyncGenerator[ModelRegistry, None]:
    """Yield the models with redacted replies; models that the bundle's own code passes are wrapped too."""

    def redact(model: Model) -> Model:
        return RedactingModel(model, redactor)

    def redact_own(model: Model) -> Model:
        return redact(model if models.wrap is None else models.wrap(model))

    chains = {role: tuple(map(redact, chain)) for role, chain in models.roles.items()}
    yield ModelRegistry(chains, wrap=redact_own)


SCAN, TIMEOUT, ADDRESS = "APP_AV_SCAN", "APP_AV_TIMEOUT_S", "LOOPLINE_CLAMD"
USUAL_ADDRESS = "unix:/run/clamav/clamd.ctl"
USUAL_SECONDS = 3.0
_SECONDS = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,3})?", re.ASCII)
_ADDRESS = re.compile(r"unix:/.+|[^\s:]+:[1-9][0-9]{0,4}", re.ASCII)


def make_scanner(environment: Mapping[str, str]) -> AttachmentScanner | None:
    """Return the scanner that environment variables configure, or None if APP_AV_SCAN is not 1.

    Raises:
        AttachmentError: a variable has an invalid value, also if the scan is off.
    """
    setting = _value(environment, SCAN, "0")
    if setting not in ("0", "1"):
        raise AttachmentError(f"{SCAN} is {setting!r}: it must be 0 or 1")
    seconds = _value(environment, TIMEOUT, f"{USUAL_SECONDS}")
    if not _SECONDS.fullmatch(seconds) or not float(seconds):
        raise AttachmentError(f"{TIMEOUT} is {seconds!r}: it must be a number of seconds above 0")
    address = _value(environment, ADDRESS, USUAL_ADDRESS)
    if not _ADDRESS.fullmatch(address):
        raise AttachmentError(f"{ADDRESS} is {address!r}: write unix:/path or host:port")
    if setting == "0":
        return None
    from loopline.files.clamd import ClamdScanner

    return ClamdScanner(address, float(seconds))


def _value(environment: Mapping[str, str], name: str, default: str) -> str:
    stated = environment[name].strip() if name in environment else ""
    return stated or default
