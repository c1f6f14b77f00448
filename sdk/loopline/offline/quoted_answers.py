"""Answers: sentences quoted with their sources, or the statement that the space has no answer.

For a bundle without a knowledge space the answer is a catalogue of its tools, each with a command to try.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from loopline.models import Json, JsonObject, ToolSpec, dumps
from loopline.offline.english import stems
from loopline.offline.evidence import (
    REQUIRED,
    CitablePassage,
    Evidence,
    ScoredSentence,
    sentences_of,
)
from loopline.offline.sentences import Sentence

SENTENCE_LIMIT = 4
PASSAGE_LIMIT = 3
WORTH, WORTH_ELSEWHERE = 0.6, 0.7
LEAD_LIMIT = 2
REACH = 3
OVERLAP = 0.7
QUOTE_CHARACTERS = 600

_REFERS_BACK = re.compile(
    r"^[`*\"“(]*(?:this|these|it|its|they|that|those|such|however|otherwise|therefore|thus|instead|"
    r"in (?:this|that|these|such) case|also|then|here|but|and|as a result|for this reason|both|"
    r"so|similarly|likewise|the (?:former|latter))\b",
    re.IGNORECASE,
)
_STANDARD = re.compile(r":(pep|rfc):`(\d+)`")
_ROLE = re.compile(r":[\w+.-]{1,40}(?::[\w+.-]{1,40}){0,3}:`[!~]?([^`<]*)(?:<([^`>]*)>)?`")
_LINK = re.compile(r"`([^`<]+)<[^`>]+>`__?")
_MARKDOWN_LINK = re.compile(r"!?\[([^\]\[]+)\]\((?:[^()\s]|\([^()\s]*\))*(?:\s+\"[^\"]*\")?\)")
_LITERAL = re.compile(r"``(.+?)``")
_BOLD = re.compile(r"\*\*(?=\S)((?:[^*\n]|\*(?!\*))*+)(?<=\S)\*\*")
_NAMED_LINK = re.compile(r"`([^`]+)`__?(?!\w)")
_LINKS_BY_NAME = re.compile(r"`__?(?!\w)")
_BRACKET = re.compile(r"\[(?=\[)")


@dataclass(frozen=True, slots=True)
class Quote:
    """A sentence of a passage that the answer quotes."""

    passage: CitablePassage
    index: int
    sentence: Sentence


def choose_quotes(evidence: Evidence) -> list[Quote]:
    """Return two to four sentences, the best passage's first, in the order of their passage."""
    best = evidence.scored[0]
    quotes = [*_with_leads(best), *_companion(evidence, best)]
    for scored in evidence.scored[1:]:
        if len(quotes) >= SENTENCE_LIMIT:
            break
        if _fits(quotes, scored, best) and not _repeats(quotes, scored.sentence):
            leads = _with_leads(scored)
            quotes += [quote for quote in leads if not _repeats(quotes, quote.sentence)]
    if len(quotes) < 2:
        quotes += islice(_quotes_near(best, 1), 1)
    unique = list({(quote.passage.sid, quote.index): quote for quote in quotes}.values())
    quotes = unique[:SENTENCE_LIMIT]
    order = list(dict.fromkeys(quote.passage.sid for quote in quotes))
    return sorted(quotes, key=lambda quote: (order.index(quote.passage.sid), quote.index))


def without_markup(text: str) -> str:
    """Return the sentence without inline markup around its words, safe in an answer."""
    text = _STANDARD.sub(lambda match: f"{match[1].upper()} {match[2]}", text)
    text = _ROLE.sub(lambda match: f"`{match[1].strip() or (match[2] or '').strip()}`", text)
    text = _LINK.sub(lambda match: match[1].rstrip(), text)
    text = _MARKDOWN_LINK.sub(r"\1", text)
    text = _LITERAL.sub(r"`\1`", text)
    text = _NAMED_LINK.sub(r"\1", text) if _LINKS_BY_NAME.search(text) else text
    return on_one_line(_BOLD.sub(r"\1", text))


def on_one_line(text: str) -> str:
    """Return the text on one line, with nothing in it that reads as a citation."""
    return " ".join(_BRACKET.sub("[ ", text).split())


def _fits(quotes: Sequence[Quote], scored: ScoredSentence, best: ScoredSentence) -> bool:
    """Return whether a sentence is good enough beside the best one, and there is room for it.

    There are at most two sentences of the best passage, and one of each of two other passages, which must be better.
    """
    sids = [quote.passage.sid for quote in quotes]
    sid = scored.passage.sid
    if sid == best.passage.sid:
        return scored.score >= WORTH * best.score and sids.count(sid) < 2
    is_new = sid not in sids and len(set(sids)) < PASSAGE_LIMIT
    return scored.score >= WORTH_ELSEWHERE * best.score and is_new


def _with_leads(scored: ScoredSentence) -> list[Quote]:
    """Return the sentence, after those before it that it depends on."""
    parts = sentences_of(scored.passage)
    first = scored.index
    while first > 0 and scored.index - first < LEAD_LIMIT and _depends(parts[first]):
        before = parts[first - 1]
        if not _quotable(before) or (before.block != parts[first].block and before.form != "prose"):
            break
        first -= 1
    return [Quote(scored.passage, at, parts[at]) for at in range(first, scored.index + 1)]


def _companion(evidence: Evidence, best: ScoredSentence) -> list[Quote]:
    """Return a sentence near the best one that has what the question wants, else a next one that depends on it.

    A question of how long or how many wants a number, which is often in another sentence.
    """
    required = [REQUIRED[kind] for kind in evidence.question.kinds if kind in REQUIRED]
    if not any(pattern.search(best.sentence.text) for pattern in required):
        for quote in _quotes_near(best, REACH):
            if any(pattern.search(quote.sentence.text) for pattern in required):
                return [quote]
    for quote in _quotes_near(best, 1):
        if quote.index > best.index and _depends(quote.sentence):
            return [] if quote.sentence.text.endswith(":") else [quote]
    return []


def _quotes_near(best: ScoredSentence, reach: int) -> Iterator[Quote]:
    """Yield the sentences around the best one, the closest first, and of two the one after it."""
    parts = sentences_of(best.passage)
    for step in range(1, reach + 1):
        for index in (best.index + step, best.index - step):
            if 0 <= index < len(parts) and _quotable(parts[index]):
                yield Quote(best.passage, index, parts[index])


def _depends(sentence: Sentence) -> bool:
    """Return whether a sentence needs the one before it: it refers back, or begins in the middle."""
    fragment = sentence.form == "prose" and sentence.text[:1].islower()
    return fragment or bool(_REFERS_BACK.match(sentence.text))


def _quotable(sentence: Sentence) -> bool:
    return sentence.form in ("prose", "item") and 20 <= len(sentence.text) <= QUOTE_CHARACTERS


def _repeats(quotes: Iterable[Quote], sentence: Sentence) -> bool:
    """Return whether a quote already says nearly the same."""
    own = set(stems(sentence.text))
    for quote in quotes:
        quoted = set(stems(quote.sentence.text))
        if len(own & quoted) >= OVERLAP * min(len(own), len(quoted)):
            return True
    return False


ENOUGH, ENOUGH_LATER = 0.64, 0.71
PER_TERM = 0.02
TERM_LIMIT = 14
NAME_MISSING = 0.15
QUERY_LIMIT = 3

NATURE = "offline — a deterministic reader, not a language model"
LANGUAGE_MODELS = (
    "A language model decides with `--model openai:gpt-5.5` and the variable OPENAI_API_KEY, or with "
    "`--model anthropic:claude-sonnet-5` and ANTHROPIC_API_KEY."
)
_SCHEMA_DEPTH = 4
_SAMPLES: dict[str, Json] = {
    "string": "text", "integer": 1, "number": 1.5, "boolean": True, "null": None,
}  # fmt: skip
_FORMATS: dict[str, Json] = {
    "date": "2025-01-31", "date-time": "2025-01-31T12:00:00Z", "time": "12:00:00",
    "email": "ann@example.org", "uri": "https://example.org",
    "uuid": "00000000-0000-4000-8000-000000000000",
}  # fmt: skip


def is_answerable(evidence: Evidence) -> bool:
    """Return whether the space may hold an answer, and the best sentence covers enough of the question to be it.

    The more passages were searched, the more match by chance, so a later round must find a better match.
    """
    enough = ENOUGH if evidence.tries <= 1 else ENOUGH_LATER
    return not evidence.is_doubted and _confidence(evidence) >= enough


def _confidence(evidence: Evidence) -> float:
    """Return how well the best sentence and its surroundings cover the question, about 0 to 1.

    The rank of the passage is part of the score. A long question has words that no passage repeats, so each of
    its words lowers what they must cover. A name that no passage has is strong evidence that the space has no answer.
    """
    if not evidence.scored:
        return 0.0
    best = evidence.scored[0]
    covered = (best.score + best.covered + evidence.covered) / 3
    missing = sum(term.is_name for term in evidence.missing)
    length = min(TERM_LIMIT, len(evidence.question.own))
    return covered + PER_TERM * length - NAME_MISSING * missing


def answer(
    evidences: Sequence[Evidence], queries: Sequence[str], failures: Sequence[str]
) -> list[str]:
    """Return the pieces of the answer, sentence by sentence, with a part for each question."""
    pieces: list[str] = []
    for evidence in evidences:
        if is_answerable(evidence):
            part = _rendered(choose_quotes(evidence))
        else:
            part = [_declined(evidence, queries)]
        if len(evidences) > 1:
            part[0] = f"On “{on_one_line(evidence.question.text)}”: {part[0]}"
        if pieces:
            part[0] = f"\n\n{part[0]}"
        pieces += part
    if failures:
        pieces.append("\n\n" + " ".join(f"({on_one_line(text)})" for text in failures))
    return pieces


def _declined(evidence: Evidence, queries: Sequence[str]) -> str:
    """Return what was searched for, and that nothing answers; it names no source."""
    if not queries:
        return f"The rounds ran out before I could search for an answer. (I am {NATURE}.)"
    searched = _enumerated([on_one_line(query) for query in queries[:QUERY_LIMIT]], "and")
    further = len(queries) - QUERY_LIMIT
    searched += f", and in {further} other way{'' if further == 1 else 's'}" if further > 0 else ""
    missing = [on_one_line(term.written) for term in evidence.missing if term.weight >= 1.0]
    nothing = f" Nothing that was found mentions {_enumerated(missing, 'or')}." if missing else ""
    return (
        f"I searched the knowledge space for {searched}. It holds no answer to this question that I "
        f"could quote.{nothing} (I am {NATURE}.)"
    )


def _enumerated(texts: Sequence[str], conjunction: str) -> str:
    quoted = [f"“{text}”" for text in texts]
    if len(quoted) < 2:
        return quoted[0] if quoted else "nothing"
    return f"{', '.join(quoted[:-1])} {conjunction} {quoted[-1]}"


def _rendered(quotes: Sequence[Quote]) -> list[str]:
    """Return the pieces of the answer: one for each sentence, a paragraph for each passage."""
    pieces: list[str] = []
    for number, quote in enumerate(quotes):
        new = number > 0 and quotes[number - 1].passage.sid != quote.passage.sid
        lead = "\n\n" if new else " " if number else ""
        pieces.append(f"{lead}“{without_markup(quote.sentence.text)}” [[S:{quote.passage.sid}]]")
    return pieces


def catalogue(bundle: str, tools: Sequence[ToolSpec]) -> list[str]:
    """Return the pieces of an answer that lists the bundle's own tools."""
    own = [tool for tool in tools if not tool.name.startswith(("react.", "crew."))]
    subject = f"the bundle {on_one_line(bundle)}" if bundle else "this bundle"
    if not own:
        return [
            f"I am {NATURE}, and {subject} has neither a knowledge space to read nor tools.",
            f"\n\n{LANGUAGE_MODELS}",
        ]
    lead = (
        f"I am {NATURE}, so I cannot decide which tool answers you, and there is no knowledge space "
        f"to read. These are the tools of {subject}, each with a line to try:"
    )
    entries = [f"\n\n{_entry(bundle or 'BUNDLE', tool)}" for tool in own]
    return [lead, *entries, f"\n\n{LANGUAGE_MODELS}"]


def _entry(bundle: str, tool: ToolSpec) -> str:
    purpose = on_one_line(tool.description.strip().partition("\n\n")[0]) or "no description"
    sample = _sample(tool.parameters, tool.parameters, "", 0)
    arguments = dumps(sample if isinstance(sample, dict) else {}).replace("'", "'\"'\"'")
    command = f"loopline tool {shlex.quote(bundle)} {shlex.quote(tool.name)} '{arguments}'"
    return f"- `{tool.name}`: {purpose}\n\n      {command}"


def _sample(schema: Json, root: JsonObject, name: str, depth: int) -> Json:
    """Return a value that the schema accepts, as far as types, enums, defaults and examples say."""
    if depth > _SCHEMA_DEPTH:
        return None
    match schema:
        case {"examples": [value, *_]} | {"enum": [value, *_]}:
            return value
        case {"const": value} if value is not None:
            return value
        case {"default": value} if value is not None:
            return value
        case {"$ref": str(ref)}:
            return _sample(_definition(ref, root), root, name, depth + 1)
        case {"anyOf": [option, *_]} | {"oneOf": [option, *_]} | {"allOf": [option, *_]}:
            return _sample(option, root, name, depth + 1)
        case dict():
            return _sample_by_type(schema, root, name, depth)
        case _:
            return None


def _sample_by_type(schema: JsonObject, root: JsonObject, name: str, depth: int) -> Json:
    match schema:
        case {"type": "object" | ["object", *_]} | {"properties": _}:
            return _sample_object(schema, root, depth)
        case {"type": "array" | ["array", *_], "items": items}:
            item = _sample(items, root, name, depth + 1)
            return [] if item is None else [item]
        case {"type": "array" | ["array", *_]}:
            return []
        case {"format": str(form)} if form in _FORMATS:
            return _FORMATS[form]
        case {
            "type": "integer" | "number" | ["integer" | "number", *_],
            "minimum": int() | float() as minimum,
        }:
            return minimum
        case {"type": "string" | ["string", *_]}:
            return name or "text"
        case {"type": str(kind) | [str(kind), *_]}:
            return _SAMPLES.get(kind)
        case _:
            return name or "text"


def _sample_object(schema: JsonObject, root: JsonObject, depth: int) -> JsonObject:
    match schema:
        case {"properties": dict() as properties, "required": [*required]}:
            names = [name for name in properties if name in required] or list(properties)[:1]
        case {"properties": dict() as properties}:
            names = list(properties)[:1]
        case _:
            return {}
    return {name: _sample(properties[name], root, name, depth + 1) for name in names}


def _definition(ref: str, root: JsonObject) -> Json:
    value: Json = root
    for step in ref.removeprefix("#/").split("/"):
        value = value.get(step) if isinstance(value, dict) else None
    return value
