"""The answer for a bundle without a knowledge space: its tools, each with a command to try."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from loopline.models import ToolSpec, dumps
from loopline.models.schema_samples import sample_value
from loopline.offline.answers import NATURE, join_lines

LANGUAGE_MODELS = (
    "A language model decides with `--model openai:gpt-5.5` and the variable OPENAI_API_KEY, or with "
    "`--model anthropic:claude-sonnet-5` and ANTHROPIC_API_KEY."
)


def list_tools(bundle: str, tools: Sequence[ToolSpec]) -> str:
    """Return an answer that lists the tools of the bundle, without those of Loopline itself."""
    own = [tool for tool in tools if not tool.name.startswith(("react.", "crew."))]
    subject = f"the bundle {join_lines(bundle)}" if bundle else "this bundle"
    if own:
        lead = (
            f"I am {NATURE}, so I cannot decide which tool answers you, and there is no knowledge space "
            f"to read. These are the tools of {subject}, each with a line to try:"
        )
    else:
        lead = f"I am {NATURE}, and {subject} has neither a knowledge space to read nor tools."
    entries = [_entry(bundle or "BUNDLE", tool) for tool in own]
    return "\n\n".join([lead, *entries, LANGUAGE_MODELS])


def _entry(bundle: str, tool: ToolSpec) -> str:
    purpose = join_lines(tool.description.strip().partition("\n\n")[0]) or "no description"
    sample = sample_value(tool.parameters)
    arguments = dumps(sample if isinstance(sample, dict) else {}).replace("'", "'\"'\"'")
    command = f"loopline tool {shlex.quote(bundle)} {shlex.quote(tool.name)} '{arguments}'"
    return f"- `{tool.name}`: {purpose}\n\n      {command}"
