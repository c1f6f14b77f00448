"""Quoting: which sentences make the answer, and how they are set with their sources."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loopline.adapters.offline.english import stems
from loopline.adapters.offline.evidence import WANTED, Evidence, Passage, Scored, sentences_of
from loopline.adapters.offline.sentences import Sentence
from loopline.models import Json, JsonObject, ToolSpec, dumps

MOST_SENTENCES = 4
MOST_PASSAGES = 3
WORTH, WORTH_ELSEWHERE = 0.6, 0.7
MOST_LEADS = 2
REACH = 3
SAME = 0.7
LONGEST_QUOTE = 600

_LEANS = re.compile(
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

    passage: Passage
    place: int
    sentence: Sentence


def choose(evidence: Evidence) -> list[Quote]:
    """Two to four sentences, the best passage's first, in the order in which they stand there."""
    if not evidence.scored:
        return []
    best = evidence.scored[0]
    chosen = [*_with_leads(best), *_companion(evidence, best)]
    for scored in evidence.scored[1:]:
        if len(chosen) >= MOST_SENTENCES:
            break
        if (
            _worth(scored, best)
            and _fits(chosen, scored, best)
            and not _told(chosen, scored.sentence)
        ):
            chosen += [one for one in _with_leads(scored) if not _told(chosen, one.sentence)]
    if len(chosen) < 2:
        chosen += _beside(best)
    return _ordered(_once(chosen)[:MOST_SENTENCES])


def render(quotes: Sequence[Quote]) -> list[str]:
    """The pieces of the answer text: one for each sentence, a paragraph for each passage."""
    pieces: list[str] = []
    for number, quote in enumerate(quotes):
        new = number > 0 and quotes[number - 1].passage.sid != quote.passage.sid
        lead = "\n\n" if new else " " if number else ""
        pieces.append(f"{lead}“{clean(quote.sentence.text)}” [[S:{quote.passage.sid}]]")
    return pieces


def clean(text: str) -> str:
    """The sentence without inline markup around its words, safe to stand in an answer."""
    text = _STANDARD.sub(lambda match: f"{match[1].upper()} {match[2]}", text)
    text = _ROLE.sub(lambda match: f"`{match[1].strip() or (match[2] or '').strip()}`", text)
    text = _LINK.sub(lambda match: match[1].rstrip(), text)
    text = _MARKDOWN_LINK.sub(r"\1", text)
    text = _LITERAL.sub(r"`\1`", text)
    text = _NAMED_LINK.sub(r"\1", text) if _LINKS_BY_NAME.search(text) else text
    return harmless(_BOLD.sub(r"\1", text))


def harmless(text: str) -> str:
    """The text on one line, with nothing in it that reads as a citation."""
    return " ".join(_BRACKET.sub("[ ", text).split())


def _worth(scored: Scored, best: Scored) -> bool:
    """Whether a sentence is good enough beside the best one; one of another passage must be better."""
    same = scored.passage.sid == best.passage.sid
    return scored.score >= (WORTH if same else WORTH_ELSEWHERE) * best.score


def _fits(chosen: Sequence[Quote], scored: Scored, best: Scored) -> bool:
    """At most two sentences of the best passage, and one of each of two others."""
    sids = [quote.passage.sid for quote in chosen]
    if scored.passage.sid == best.passage.sid:
        return sids.count(scored.passage.sid) < 2
    return scored.passage.sid not in sids and len(set(sids)) < MOST_PASSAGES


def _with_leads(scored: Scored) -> list[Quote]:
    """The sentence, after those before it that it leans on."""
    parts = sentences_of(scored.passage)
    first = scored.place
    while first > 0 and scored.place - first < MOST_LEADS and _leans(parts[first]):
        before = parts[first - 1]
        if not _quotable(before) or (before.block != parts[first].block and before.form != "prose"):
            break
        first -= 1
    return [Quote(scored.passage, at, parts[at]) for at in range(first, scored.place + 1)]


def _companion(evidence: Evidence, best: Scored) -> list[Quote]:
    """The sentence near the best one that tells what is asked, else the next if it leans on it.

    Who asks how long or how many wants a number, which often stands in another sentence.
    """
    parts = sentences_of(best.passage)
    wanted = [WANTED[kind] for kind in evidence.question.kinds if kind in WANTED]
    lacking = not any(cue.search(best.sentence.text) for cue in wanted)
    for at in _nearest(best.place, len(parts)):
        text = parts[at].text
        if lacking and _quotable(parts[at]) and any(cue.search(text) for cue in wanted):
            return [Quote(best.passage, at, parts[at])]
    after = best.place + 1
    if after < len(parts) and _leans(parts[after]) and _quotable(parts[after]):
        return [] if parts[after].text.endswith(":") else [Quote(best.passage, after, parts[after])]
    return []


def _nearest(place: int, count: int) -> list[int]:
    """The places around one, the closest first."""
    around = [place + step * side for step in range(1, REACH + 1) for side in (1, -1)]
    return [at for at in around if 0 <= at < count]


def _beside(best: Scored) -> list[Quote]:
    """The sentence after the best one or the one before it, so that it does not stand alone."""
    parts = sentences_of(best.passage)
    for place in (best.place + 1, best.place - 1):
        if 0 <= place < len(parts) and _quotable(parts[place]):
            return [Quote(best.passage, place, parts[place])]
    return []


def _leans(sentence: Sentence) -> bool:
    """Whether a sentence needs the one before it: it points back, or begins in the middle."""
    fragment = sentence.form == "prose" and sentence.text[:1].islower()
    return fragment or bool(_LEANS.match(sentence.text))


def _quotable(sentence: Sentence) -> bool:
    return sentence.form in ("prose", "item") and 20 <= len(sentence.text) <= LONGEST_QUOTE


def _told(chosen: Iterable[Quote], sentence: Sentence) -> bool:
    """Whether a chosen sentence already says nearly the same."""
    mine = set(stems(sentence.text))
    for quote in chosen:
        theirs = set(stems(quote.sentence.text))
        if len(mine & theirs) >= SAME * min(len(mine), len(theirs)):
            return True
    return False


def _once(chosen: Iterable[Quote]) -> list[Quote]:
    return list({(quote.passage.sid, quote.place): quote for quote in chosen}.values())


def _ordered(chosen: Sequence[Quote]) -> list[Quote]:
    """Passages in the order they were chosen, the sentences of each as they stand in it."""
    order = list(dict.fromkeys(quote.passage.sid for quote in chosen))
    return sorted(chosen, key=lambda quote: (order.index(quote.passage.sid), quote.place))


NATURE = "offline — a deterministic reader, not a language model"
OTHERS = (
    "A language model decides with `--model openai:gpt-5.5` and the variable OPENAI_API_KEY, or with "
    "`--model anthropic:claude-sonnet-5` and ANTHROPIC_API_KEY."
)
"""How to have something else decide."""
_DEEPEST = 4
_SAMPLES: dict[str, Json] = {
    "string": "text", "integer": 1, "number": 1.5, "boolean": True, "null": None,
}  # fmt: skip
_FORMATS: dict[str, Json] = {
    "date": "2025-01-31", "date-time": "2025-01-31T12:00:00Z", "time": "12:00:00",
    "email": "ann@example.org", "uri": "https://example.org",
    "uuid": "00000000-0000-4000-8000-000000000000",
}  # fmt: skip


def catalogue(bundle: str, tools: Sequence[ToolSpec]) -> list[str]:
    """The pieces of an answer that lists the bundle's own tools."""
    own = [tool for tool in tools if not tool.name.startswith("react.")]
    name = bundle or "BUNDLE"
    if not own:
        return [
            f"I am {NATURE}, and {_called(bundle)} has neither a knowledge space to read nor tools.",
            f"\n\n{OTHERS}",
        ]
    lead = (
        f"I am {NATURE}, so I cannot decide which tool answers you, and there is no knowledge space "
        f"to read. These are the tools of {_called(bundle)}, each with a line to try:"
    )
    return [lead, *(f"\n\n{_entry(name, tool)}" for tool in own), f"\n\n{OTHERS}"]


def example(tool: ToolSpec) -> JsonObject:
    """Arguments the tool's schema would accept: what is required, and what has an example."""
    sample = _sample(tool.parameters, tool.parameters, "", 0)
    return sample if isinstance(sample, dict) else {}


def _called(bundle: str) -> str:
    return f"the bundle {harmless(bundle)}" if bundle else "this bundle"


def _entry(bundle: str, tool: ToolSpec) -> str:
    purpose = harmless(tool.description.strip().partition("\n\n")[0]) or "no description"
    line = " ".join(
        ("loopline tool", shlex.quote(bundle), shlex.quote(tool.name), _quoted(example(tool)))
    )
    return f"- `{tool.name}`: {purpose}\n\n      {line}"


def _quoted(arguments: JsonObject) -> str:
    return "'" + dumps(arguments).replace("'", "'\"'\"'") + "'"


def _sample(schema: Json, root: JsonObject, name: str, depth: int) -> Json:
    """A value the schema accepts, as far as types, enums, defaults and examples tell."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    for told in (schema.get("examples"), schema.get("enum")):
        if isinstance(told, list) and told:
            return told[0]
    for key in ("const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    return _made(schema, root, name, depth)


def _made(schema: JsonObject, root: JsonObject, name: str, depth: int) -> Json:
    if isinstance(ref := schema.get("$ref"), str):
        return _sample(_resolved(ref, root), root, name, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        options = schema.get(key)
        if isinstance(options, list) and options:
            return _sample(options[0], root, name, depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object" or "properties" in schema:
        return _object(schema, root, depth)
    if kind == "array":
        item = _sample(schema.get("items"), root, name, depth + 1)
        return [] if item is None else [item]
    return _scalar(schema, kind, name)


def _object(schema: JsonObject, root: JsonObject, depth: int) -> JsonObject:
    properties = schema.get("properties")
    required = schema.get("required")
    if not isinstance(properties, dict):
        return {}
    wanted = required if isinstance(required, list) else []
    names = [name for name in properties if name in wanted] or list(properties)[:1]
    return {name: _sample(properties[name], root, name, depth + 1) for name in names}


def _scalar(schema: JsonObject, kind: Json, name: str) -> Json:
    if isinstance(form := schema.get("format"), str) and form in _FORMATS:
        return _FORMATS[form]
    if kind in ("integer", "number") and isinstance(least := schema.get("minimum"), int | float):
        return least
    if kind == "string":
        return name or "text"
    return _SAMPLES.get(kind) if isinstance(kind, str) else name or "text"


def _resolved(ref: str, root: JsonObject) -> Json:
    at: Json = root
    for step in ref.removeprefix("#/").split("/"):
        at = at.get(step) if isinstance(at, dict) else None
    return at


ENOUGH, ENOUGH_LATER = 0.65, 0.72
PER_TERM = 0.02
MOST_TERMS = 14
NAME_MISSING = 0.15
AGREEMENT = 0.1
MOST_QUERIES = 3


def hopeful(evidence: Evidence) -> bool:
    """Whether the best place covers enough of what the question asks about to be an answer.

    The more is looked through, the more fits by chance, so what a second try finds must fit better.
    """
    return promise(evidence) >= (ENOUGH if evidence.tries <= 1 else ENOUGH_LATER)


def promise(evidence: Evidence) -> float:
    """How well the best sentence and its surroundings cover the question, about 0 to 1.

    It counts for something when the searches put the same passage first.

    A long question tells a story that no passage repeats, so each of its words lowers what is asked
    of them; a name that nothing found mentions is strong evidence that the space knows nothing of it.
    """
    if not evidence.scored:
        return 0.0
    best = evidence.scored[0]
    covered = (best.score + best.covered + evidence.covered) / 3
    missing = sum(term.named for term in evidence.missing)
    length = min(MOST_TERMS, len(evidence.question.own))
    return covered + PER_TERM * length + AGREEMENT * best.rank - NAME_MISSING * missing


def answer(
    evidences: Sequence[Evidence], queries: Sequence[str], failures: Sequence[str]
) -> list[str]:
    """The pieces of the answer, sentence by sentence; each question has its part."""
    pieces: list[str] = []
    for evidence in evidences:
        part = render(choose(evidence)) if hopeful(evidence) else [declined(evidence, queries)]
        if len(evidences) > 1:
            part[0] = f"On “{harmless(evidence.question.text)}”: {part[0]}"
        if pieces:
            part[0] = f"\n\n{part[0]}"
        pieces += part
    if failures:
        pieces.append("\n\n" + " ".join(f"({harmless(text)})" for text in failures))
    return pieces


def declined(evidence: Evidence, queries: Sequence[str]) -> str:
    """What was searched for, and that nothing answers; no source is named."""
    if not queries:
        return f"The rounds ran out before I could search for an answer. (I am {NATURE}.)"
    searched = _listed([harmless(query) for query in queries[:MOST_QUERIES]], "and")
    more = len(queries) - MOST_QUERIES
    searched += f", and in {more} other way{'' if more == 1 else 's'}" if more > 0 else ""
    missing = [harmless(term.written) for term in evidence.missing if term.weight >= 1.0]
    nothing = f" Nothing that was found mentions {_listed(missing, 'or')}." if missing else ""
    return (
        f"I searched the knowledge space for {searched}. It holds no answer to this question that I "
        f"could quote.{nothing} (I am {NATURE}.)"
    )


def _listed(texts: Sequence[str], last: str) -> str:
    quoted = [f"“{text}”" for text in texts]
    if len(quoted) < 2:
        return quoted[0] if quoted else "nothing"
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"
