"""Answers: sentences quoted with their sources, a statement that there is no answer, or a list of tools."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from loopline.models import ToolSpec, dumps
from loopline.models.schema_samples import sample_value
from loopline.offline.evidence import Candidate, Question, choose_quotes

NATURE = "offline — a deterministic reader, not a language model"
_STANDARD = re.compile(r":(pep|rfc):`(\d+)`")
_ROLE = re.compile(r":[\w+.-]{1,40}(?::[\w+.-]{1,40}){0,3}:`[!~]?([^`<]*)(?:<([^`>]*)>)?`")
_LINK = re.compile(r"`([^`<]+)<[^`>]+>`__?")
_MARKDOWN_LINK = re.compile(r"!?\[([^\]\[]+)\]\((?:[^()\s]|\([^()\s]*\))*(?:\s+\"[^\"]*\")?\)")
_LITERAL = re.compile(r"``(.+?)``")
_BOLD = re.compile(r"\*\*(?=\S)((?:[^*\n]|\*(?!\*))*+)(?<=\S)\*\*")


def quote_answer(question: Question, candidates: Sequence[Candidate]) -> str:
    """Return the best candidates in quotes with citations, a paragraph for each passage; there must be one."""
    paragraphs: dict[int, list[str]] = {}
    for quote in choose_quotes(question, candidates):
        text = f"“{remove_markup(quote.text)}” [[S:{quote.passage.sid}]]"
        paragraphs.setdefault(quote.passage.sid, []).append(text)
    return "\n\n".join(" ".join(sentences) for sentences in paragraphs.values())


def decline_answer(queries: Sequence[str]) -> str:
    """Return a text that says that the searches for these queries found no answer.

    Without queries it says that the rounds ran out before a search.
    """
    if not queries:
        return f"The rounds ran out before I could search for an answer. (I am {NATURE}.)"
    *first, last = [f"“{join_lines(query)}”" for query in queries]
    searched = f"{', '.join(first)} and {last}" if first else last
    return (
        f"I searched the knowledge space for {searched}. It holds no answer to this question that I "
        f"could quote. (I am {NATURE}.)"
    )


def remove_markup(text: str) -> str:
    """Return the sentence without inline markup of reStructuredText and Markdown, and without citations."""
    text = _STANDARD.sub(lambda match: f"{match[1].upper()} {match[2]}", text)
    text = _ROLE.sub(lambda match: f"`{match[1].strip() or (match[2] or '').strip()}`", text)
    text = _LINK.sub(lambda match: match[1].rstrip(), text)
    text = _LITERAL.sub(r"`\1`", _MARKDOWN_LINK.sub(r"\1", text))
    return join_lines(_BOLD.sub(r"\1", text))


def join_lines(text: str) -> str:
    """Return the text on one line. `[[` gets a space, because it would start a citation."""
    return " ".join(text.replace("[[", "[ [").split())


LANGUAGE_MODELS = (
    "A language model decides with `--model openai:gpt-5.5` and the variable OPENAI_API_KEY, or with "
    "`--model anthropic:claude-sonnet-5` and ANTHROPIC_API_KEY."
)


def list_tools(bundle: str, tools: Sequence[ToolSpec]) -> str:
    """Return an answer that lists the tools with a command for each, without those of Loopline itself."""
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
