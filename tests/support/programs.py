"""A conversation in which the model runs programs, without isolation or in bubblewrap."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loopline import Bundle
from loopline.models import Json
from loopline.testing import Call
from loopline.testing.scripted import Entry


def bundle(*tools: Callable[..., object], **execution: Json) -> Bundle:
    """A bundle whose model may run programs; they have the rights of the tests, unless a mode is given."""
    local: dict[str, Json] = {"runtime": {"mode": "local"}, "allow_local": True, "shell": True}
    return Bundle(id="shop", tools=list(tools), configuration={"execution": {**local, **execution}})


def python(program: str, *filenames: str) -> Entry:
    """A call that runs the program, which is to make these files."""
    contract = [{"filename": name} for name in filenames]
    return Call("exec.python", contract=contract, program=program)


def lines(text: str) -> Sequence[str]:
    return [line.removeprefix("| ") for line in text.splitlines() if line.startswith("| ")]
