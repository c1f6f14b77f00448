"""Answers: sentences quoted with their sources, or a statement that there is no answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from loopline.offline.evidence import Candidate, Question, choose_quotes

NATURE = "offline — a deterministic reader, not a language model"
_STANDARD = re.compile(r":(pep|rfc):`(\d+)`")
_ROLE = re.compile(r":[\w+.-]{1,40}(?::[\w+.-]{1,40}){0,3}:`[!~]?([^`<]*)(?:<([^`>]*)>)?`")
_LINK = re.compile(r"`([^`<]+)<[^`>]+>`__?")
_MARKDOWN_LINK = re.compile(r"!?\[([^\]\[]+)\]\((?:[^()\s]|\([^()\s]*\))*(?:\s+\"[^\"]*\")?\)")
_LITERAL = re.compile(r"``(.+?)``")
_BOLD = re.compile(r"\*\*(?=\S)((?:[^*\n]|\*(?!\*))*+)(?<=\S)\*\*")


def quote_answer(question: Question, candidates: Sequence[Candidate]) -> str:
    """Return the best sentences in quotes with their sources, those of each passage in a paragraph."""
    paragraphs: dict[int, list[str]] = {}
    for quote in choose_quotes(question, candidates):
        text = f"“{remove_markup(quote.text)}” [[S:{quote.passage.sid}]]"
        paragraphs.setdefault(quote.passage.sid, []).append(text)
    return "\n\n".join(" ".join(sentences) for sentences in paragraphs.values())


def decline_answer(queries: Sequence[str]) -> str:
    """Return a text that says that the searches for these queries found no answer."""
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
