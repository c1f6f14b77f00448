"""The virus scanner that variables of the environment choose."""

from __future__ import annotations

import re
from collections.abc import Mapping

from loopline.errors import AttachmentError
from loopline.files import AttachmentScanner

SCAN, TIMEOUT, ADDRESS = "APP_AV_SCAN", "APP_AV_TIMEOUT_S", "LOOPLINE_CLAMD"
USUAL_ADDRESS = "unix:/run/clamav/clamd.ctl"
USUAL_SECONDS = 3.0
_SECONDS = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,3})?", re.ASCII)
_ADDRESS = re.compile(r"unix:/.+|[^\s:]+:[1-9][0-9]{0,4}", re.ASCII)


def chosen_scanner(environment: Mapping[str, str]) -> AttachmentScanner | None:
    """Return the scanner that the environment asks for, None if it asks for none.

    Raises:
        AttachmentError: a variable has a value that it cannot have.
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
