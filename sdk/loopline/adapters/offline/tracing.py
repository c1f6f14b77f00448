"""A trace of the work, when the answer alone is asked for: the draft stands, else what was found is named."""

from __future__ import annotations

import re
from collections.abc import Iterator

from loopline.models import Prompt, UserMessage

_DRAFT = "[DRAFT] "
_RESULT = re.compile(r"\A\[RESULT (\S+)\] ([\w.-]+)\(.*?\): (\w+)\n(.*)\Z", re.DOTALL)
_LONGEST = 160


def traced(prompt: Prompt) -> str:
    """The answer that a trace holds; empty when the prompt shows none."""
    told = [message.text for message in prompt.messages if isinstance(message, UserMessage)]
    drafts = [text.removeprefix(_DRAFT) for text in told if text.startswith(_DRAFT)]
    if drafts:
        return drafts[-1]
    found = [line for text in told for line in _found(text)]
    return (
        "\n".join(["The work ended before there was an answer. It gave:", *found]) if found else ""
    )


def _found(text: str) -> Iterator[str]:
    result = _RESULT.match(text)
    if result is not None:
        ref, tool, status, said = result.groups()
        first = next((line.strip() for line in said.splitlines() if line.strip()), "nothing")
        yield f"- {tool} ({status}): {first[:_LONGEST]} — {ref}"
