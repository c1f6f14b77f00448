"""Passages: what a search or a read gave back, cut at its header lines."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from loopline.adapters.offline.english import shares_root, stems
from loopline.adapters.offline.prompt_turn import Done
from loopline.adapters.offline.question import Kind, Question, Term
from loopline.adapters.offline.sentences import Form, Sentence, code_sentences, sentences

_HEADER = re.compile(r"^(?:\[\[S:(\d+)\]\] )?(?:(.*) — )?(ks:\S+)$")
_REF = re.compile(
    r"^ks:(?P<path>[^@#\s]+)(?P<commit>@[^#\s]+)?(?:#L(?P<first>\d+)(?:-L(?P<last>\d+))?)?$"
)
_CUT = re.compile(r"\n?^… [^\n]*\n*\Z", re.MULTILINE)
_PROSE = (".rst", ".txt", ".md", ".markdown", ".mdx", ".adoc", ".org", ".textile")
_TESTS = re.compile(r"(?:^|/)(?:tests?|testing|specs?|fixtures)/|(?:^|/)test_[^/]*$|_test\.\w+$")


@dataclass(frozen=True, slots=True)
class Passage:
    """Some lines of a file, word for word, citable under the number `sid`; `cut` when not all of it."""

    sid: int
    title: str
    ref: str
    text: str
    cut: bool = False

    @property
    def path(self) -> str:
        """The path inside the space, percent-encoded as it came."""
        match = _REF.match(self.ref)
        return match["path"] if match else self.ref.removeprefix("ks:")

    @property
    def lines(self) -> tuple[int, int] | None:
        """First and last line, counted from 1, or None when the ref names the whole."""
        match = _REF.match(self.ref)
        if match is None or match["first"] is None:
            return None
        return int(match["first"]), int(match["last"] or match["first"])

    @property
    def prose(self) -> bool:
        """Whether it is documentation rather than code, as far as its path tells."""
        return self.path.lower().endswith(_PROSE)

    @property
    def tests(self) -> bool:
        """Whether it belongs to tests."""
        return bool(_TESTS.search(self.path))


def passages(result: str) -> list[Passage]:
    """The citable passages of a result text, in the order they came."""
    found: list[Passage] = []
    header: re.Match[str] | None = None
    body: list[str] = []
    for line in result.split("\n"):
        match = _HEADER.match(line)
        if match is None or (match[1] is None and body and body[-1].strip()):
            body.append(line)
            continue
        found += _passage(header, body)
        header, body = match, []
    return found + _passage(header, body)


def _passage(header: re.Match[str] | None, body: list[str]) -> list[Passage]:
    """The passage below a header; none below one without a number, which cannot be cited."""
    if header is None or header[1] is None or len(header[1]) > 9:
        return []
    text = "\n".join(body)
    whole = _CUT.sub("", text)
    return [Passage(int(header[1]), header[2] or "", header[3], whole, cut=whole != text)]


def region(passage: Passage, *, around: int) -> str:
    """The ref of the passage with as many lines more on each side; unchanged when it names no lines."""
    if passage.lines is None:
        return passage.ref
    first, last = passage.lines
    pinned = passage.ref.partition("#")[0]
    return f"{pinned}#L{max(1, first - around)}-L{last + around}"


KIN = 0.5
ROOT = 0.8
PARTS = 0.8
# What a word is worth to a sentence that stands elsewhere than in the sentence itself.
HEADING, BESIDE, TITLE, NEAR, ANYWHERE = 0.75, 0.6, 0.45, 0.4, 0.25
OWN_SHARE = 0.5
NEAR_SENTENCES = 3
_IDENTIFIER = re.compile(r"\w_\w|[a-z][A-Z]|\w\(|\w\.\w")
_ASSIGNMENT = re.compile(r"\w[\w.]* \+?= ")
FORM_FACTOR: dict[Form, float] = {"prose": 1.0, "item": 1.0, "row": 0.8, "code": 0.55}
TESTS_FACTOR = 0.75
SOURCE_FACTOR = 0.95
SHORT, LONG, FAR_TOO_LONG = 30, 400, 700
PHRASE, MOST_PHRASES = 0.03, 3
CUE = 0.1
RANK = 0.12
COMMONEST = 0.5
LEAST_BACKGROUND = 4

_NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|hundred|thousand|"
    r"half|twice|once|zero|unlimited|no limit)\b",
    re.IGNORECASE,
)
_CUES: Mapping[Kind, re.Pattern[str]] = {
    "why": re.compile(r"\b(?:because|since|so that|reason|due to|in order to|to (?:avoid|prevent|make|ensure|reduce|protect|allow)|therefore|otherwise|if there are no|only if|unless|caused?|mitigat\w+)\b", re.I),
    "number": _NUMBER,
    "time": re.compile(r"\b(?:\d+|one|two|three|several)?\s*(?:milli)?(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?)\b|\b(?:before|after|until|once|every|immediately|at the end)\b", re.I),
    "steps": re.compile(r"\b(?:use|uses|using|set|call|add|pass|must|should|you can|can be|need to|set to|specify|configure|enable|override|define|run|create|replace)\b", re.I),
    "place": re.compile(r"\b(?:in|under|inside|at|directory|folder|file|located|stored|saved|written)\b|/", re.I),
    "outcome": re.compile(r"\b(?:raises?|raised|returns?|returned|will|error|exception|ignored|fails?|is|are|becomes?|results? in|added|appended|instead)\b", re.I),
    "which": re.compile(r"[`_]|[a-z][A-Z]|\(\)"),
    "negated": re.compile(r"\b(?:not|never|no|none|cannot|only|unless|without|except)\b|n['\u2019]t\b", re.I),
    "meaning": re.compile(r"\b(?:is|are) (?:a|an|the|used|called)\b|\b(?:means|refers to|represents|defines|describes|controls)\b", re.I),
}  # fmt: skip
# What must stand in the answer when the question is of the kind.
WANTED: Mapping[Kind, re.Pattern[str]] = {
    "number": _NUMBER,
    "time": re.compile(r"(?:(?<!\w)(?<!\d[,.])\d[\d,.]*+|\b(?:an?|one|two|three|four|five|six|ten|several)) (?:milli)?"
                       r"(?:second|minute|hour|day|week|month|year)s?\b", re.I),
}  # fmt: skip
FRAGMENT = 0.75


@dataclass(frozen=True, slots=True)
class Found:
    """A passage with what the searches said about it: `rank` is 1 for the best, near 0 for the last.

    `queries` are the searches that found it.
    """

    passage: Passage
    rank: float
    queries: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Scored:
    """A sentence with its place in a passage; `covered` is the weighed share of the words asked about.

    `rank` is the passage's among all that were found, 1 for the best.
    """

    passage: Passage
    rank: float
    place: int
    sentence: Sentence
    score: float
    covered: float
    own: frozenset[str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """All sentences of all passages, the best first, and the words that no passage holds.

    `tries` is how often it took to search for them.
    """

    question: Question
    scored: tuple[Scored, ...]
    missing: tuple[Term, ...]
    weights: Mapping[str, float]
    tries: int = 1

    @property
    def covered(self) -> float:
        """How much of the question the best place covers, from 0 to 1."""
        return max((each.covered for each in self.scored), default=0.0)


@dataclass(frozen=True, slots=True)
class _Held:
    """A passage taken apart: its sentences, the stems of each, of headings and of the title."""

    found: Found
    sentences: tuple[Sentence, ...]
    stems: tuple[Mapping[str, list[int]], ...]
    headings: tuple[Mapping[str, list[int]], ...]
    title: Mapping[str, list[int]]
    all: frozenset[str]


def sentences_of(passage: Passage) -> list[Sentence]:
    """The sentences of a passage, read as a document or as source code."""
    return sentences(passage.text) if passage.prose else code_sentences(passage.text)


def weigh(
    question: Question, found: Sequence[Found], queries: Mapping[str, int], *, tries: int = 1
) -> Evidence:
    """Every sentence weighed against the question; `queries` says how many passages each search gave."""
    held = [_held(each) for each in found]
    alike = {term.stem: _alike(term, held) for term in question.terms}
    weights = {
        term.stem: term.weight * _rarity(term, held, alike, queries) for term in question.terms
    }
    everything = [each for one in held for each in _scored(question, one, alike, weights)]
    # A question in words is not answered by a line of code, whatever words its strings hold.
    in_code = _IDENTIFIER.search(question.text) is not None
    scored = _once([each for each in everything if in_code or not _is_code(each.sentence)])
    missing = tuple(
        term
        for term in question.own
        if not any(
            _strength(term, alike[term.stem], each) >= KIN for one in held for each in (one.all,)
        )
    )
    return Evidence(question, tuple(scored), missing, weights, tries)


def _is_code(sentence: Sentence) -> bool:
    return sentence.form == "code" or _ASSIGNMENT.match(sentence.text) is not None


def _once(scored: Iterable[Scored]) -> list[Scored]:
    """Each sentence of a file once, the best first; of two passages that hold it the shorter one's."""
    best: dict[tuple[str, str], Scored] = {}
    for each in scored:
        key = (each.passage.path, each.sentence.text)
        held = best.get(key)
        if held is None or len(each.passage.text) < len(held.passage.text):
            score = max(each.score, held.score) if held else each.score
            best[key] = replace(each, score=score)
    return sorted(best.values(), key=lambda each: each.score, reverse=True)


def _held(found: Found) -> _Held:
    parts = tuple(sentences_of(found.passage))
    title = stems(f"{found.passage.title} {found.passage.path}")
    own = tuple(stems(part.text) for part in parts)
    headings = tuple(stems(part.heading) for part in parts)
    everything = frozenset(title).union(*own, *headings)
    return _Held(found, parts, own, headings, title, everything)


def _alike(term: Term, held: Iterable[_Held]) -> dict[str, float]:
    """The stems in the passages that stand for the term, with how well they do."""
    found: dict[str, float] = {}
    for stem in frozenset[str]().union(*(each.all for each in held)):
        if stem == term.stem:
            found[stem] = 1.0
        elif not term.named and shares_root(stem, term.stem):
            found[stem] = ROOT
        elif stem in term.kin:
            found[stem] = KIN
        elif stem in term.parts and len(stem) > 1:
            found[stem] = PARTS / len(set(term.parts))
    return found


def _rarity(
    term: Term,
    held: Sequence[_Held],
    alike: Mapping[str, dict[str, float]],
    queries: Mapping[str, int],
) -> float:
    """Less the more often the word stands in passages found by searches that did not ask for it."""
    elsewhere = {query for query in queries if term.stem not in stems(query)}
    background = [each for each in held if each.found.queries & elsewhere]
    if len(background) < LEAST_BACKGROUND:
        return 1.0
    holding = sum(
        any(alike[term.stem].get(stem, 0) >= ROOT for stem in each.all) for each in background
    )
    return 1.0 - COMMONEST * holding / len(background)


def _strength(term: Term, alike: Mapping[str, float], stems: Container[str]) -> float:
    values = [(stem, value) for stem, value in alike.items() if stem in stems]
    best = max((value for _, value in values), default=0.0)
    if not term.parts:
        return best
    share = sum(value for stem, value in values if stem in term.parts) / PARTS
    return max(best if term.stem in stems else 0.0, PARTS * min(1.0, share) ** 2)


def _scored(
    question: Question,
    held: _Held,
    alike: Mapping[str, dict[str, float]],
    weights: Mapping[str, float],
) -> Iterable[Scored]:
    """The sentences of a passage that hold at least one of the question's words."""
    terms = question.terms
    shares = [weights[term.stem] / (sum(weights.values()) or 1.0) for term in terms]

    def strengths(stems: Container[str]) -> list[float]:
        return [_strength(term, alike[term.stem], stems) for term in terms]

    own = [strengths(each) for each in held.stems]
    title = _dimmed(TITLE, strengths(held.title))
    anywhere = _dimmed(ANYWHERE, _most(own, len(terms)))
    for place, sentence in enumerate(held.sentences):
        heading = _dimmed(HEADING, strengths(held.headings[place]))
        around = _around(held, own, place)
        reach = _most([own[place], heading, title, around, anywhere], len(terms))
        itself = _weighed(shares, own[place])
        covered = _weighed(shares, reach)
        if itself <= 0:
            continue
        score = (1 - OWN_SHARE) * covered + OWN_SHARE * itself
        score += PHRASE * min(MOST_PHRASES, _phrases(question, alike, held.stems[place]))
        score += CUE * _cued(question, sentence.text) + RANK * held.found.rank
        score *= _factor(held.found.passage, sentence)
        said = frozenset(t.stem for t, value in zip(terms, own[place], strict=True) if value >= KIN)
        yield Scored(held.found.passage, held.found.rank, place, sentence, score, covered, said)


def _weighed(shares: Sequence[float], strengths: Sequence[float]) -> float:
    return sum(share * strength for share, strength in zip(shares, strengths, strict=True))


def _dimmed(worth: float, strengths: Sequence[float]) -> list[float]:
    return [worth * strength for strength in strengths]


def _most(rows: Sequence[Sequence[float]], width: int) -> list[float]:
    """The greatest of each column."""
    return [max((row[column] for row in rows), default=0.0) for column in range(width)]


def _around(held: _Held, own: Sequence[Sequence[float]], place: int) -> list[float]:
    """What the sentences near by say of each word, the closest ones most."""
    best = [0.0] * len(own[place])
    block = held.sentences[place].block
    for other in range(max(0, place - NEAR_SENTENCES), min(len(own), place + NEAR_SENTENCES + 1)):
        beside = abs(other - place) == 1 or held.sentences[other].block == block
        worth = BESIDE if beside else NEAR
        best = [max(old, worth * new) for old, new in zip(best, own[other], strict=True)]
    return best


def _phrases(
    question: Question, alike: Mapping[str, dict[str, float]], held: Mapping[str, list[int]]
) -> int:
    """How many neighbouring words of the question stand close together here too."""
    count = 0
    for one, other in zip(question.own, question.own[1:], strict=False):
        here = [at for stem in alike[one.stem] for at in held.get(stem, ())]
        there = [at for stem in alike[other.stem] for at in held.get(stem, ())]
        count += any(0 < abs(a - b) <= 3 for a in here for b in there)
    return count


def _cued(question: Question, text: str) -> float:
    cues = [_CUES[kind] for kind in question.kinds if kind != "other"]
    return sum(bool(cue.search(text)) for cue in cues) / max(1.0, math.sqrt(len(cues)))


def _factor(passage: Passage, sentence: Sentence) -> float:
    factor = FORM_FACTOR[sentence.form]
    if passage.tests:
        factor *= TESTS_FACTOR
    elif not passage.prose:
        factor *= SOURCE_FACTOR
    if sentence.form == "prose" and sentence.text[:1].islower():
        factor *= FRAGMENT
    size = len(sentence.text)
    if size < SHORT:
        return factor * 0.6
    if size > LONG:
        return factor * (0.4 if size > FAR_TOO_LONG else 0.75)
    return factor


SMOOTHING = 6.0
MOST_READ = 3
AROUND = 12


@dataclass(slots=True)
class _Tally:
    passage: Passage
    points: float = 0.0
    queries: set[str] = field(default_factory=set[str])


def gather(searches: Sequence[Done], reads: Sequence[Done]) -> tuple[list[Found], dict[str, int]]:
    """The passages found, ranked by all searches together, and how many each search gave."""
    tallies: dict[int, _Tally] = {}
    queries: dict[str, int] = {}
    for done in searches:
        query = str(done.call.arguments.get("query", ""))
        given = passages(done.text) if done.ok else []
        queries[query] = len(given)
        for place, passage in enumerate(given):
            tally = tallies.setdefault(passage.sid, _Tally(passage))
            tally.points += 1.0 / (SMOOTHING + place)
            tally.queries.add(query)
    for done in reads:
        for passage in passages(done.text) if done.ok else []:
            _take_read(tallies, passage)
    most = max((tally.points for tally in tallies.values()), default=0.0) or 1.0
    found = [
        Found(tally.passage, tally.points / most, frozenset(tally.queries))
        for tally in tallies.values()
    ]
    return found, queries


def _take_read(tallies: dict[int, _Tally], passage: Passage) -> None:
    """A read passage counts as much as the best that it contains."""
    inside = [tally for tally in tallies.values() if _contains(passage, tally.passage)]
    points = max((tally.points for tally in inside), default=0.0)
    held = tallies.get(passage.sid)
    if held is None or held.passage.cut or not held.passage.text:
        tallies[passage.sid] = _Tally(passage, max(points, held.points if held else 0.0))


def _contains(outer: Passage, inner: Passage) -> bool:
    if outer.path != inner.path or inner.lines is None:
        return False
    if outer.lines is None:
        return True
    return outer.lines[0] <= inner.lines[0] and inner.lines[1] <= outer.lines[1]


def readable(evidences: Sequence[Evidence]) -> list[str]:
    """The refs to read: the regions around the best passages of each question."""
    best: dict[str, Passage] = {}
    for evidence in evidences:
        chosen: list[Passage] = []
        for scored in evidence.scored:
            if len(chosen) >= MOST_READ:
                break
            if scored.passage not in chosen:
                chosen.append(scored.passage)
        best.update({passage.ref: passage for passage in chosen})
    return list(dict.fromkeys(region(passage, around=AROUND) for passage in best.values()))
