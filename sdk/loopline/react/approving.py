"""Approving: what an answer to a call means, and what it is bound to."""

from __future__ import annotations

from hashlib import sha256

from loopline.errors import LooplineError
from loopline.models import Json, dumps
from loopline.timeline import ToolCalled, ToolPending

_YES = frozenset({"yes", "y", "true", "ok", "approve", "approved", "allow"})
_NO = frozenset({"no", "n", "false", "deny", "denied", "reject", "rejected"})


def digest_of(call: ToolCalled) -> str:
    """What is approved of: the tool with these very arguments, as sha256 in hexadecimal."""
    said = dumps([call.call_id, call.tool, call.arguments])
    return sha256(said.encode("utf-8", "surrogatepass")).hexdigest()


def approved(value: Json) -> bool:
    """Whether an answer lets a call run; whatever is no clear yes does not."""
    return value is True or (isinstance(value, str) and value.strip().casefold() in _YES)


def check_answer(pending: ToolPending, value: Json) -> None:
    """Refuse an answer that is none.

    Raises:
        LooplineError: the call waits for leave, and the value is neither yes nor no.
    """
    if pending.kind == "question":
        return
    said = value.strip().casefold() if isinstance(value, str) else value
    if not isinstance(said, bool) and said not in _YES | _NO:
        raise LooplineError(f"{pending.call_id} waits for leave to run: yes or no, not {value!r}")
