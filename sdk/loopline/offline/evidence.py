"""Evidence: passages that searches found, and how well each of their sentences answers a question."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from loopline.offline.english import shares_root, stems
from loopline.offline.question import Kind, Question, QuestionTerm
from loopline.offline.sentences import Form, Sentence, code_sentences, sentences
from loopline.search import kind_of

_REF = re.compile(
    r"^ks:(?P<path>[^@#\s]+)(?P<commit>@[^#\s]+)?(?:#L(?P<first>\d+)(?:-L(?P<last>\d+))?)?$"
)

# How much of a word a stem holds that is its synonym, shares its root, or is one of its parts.
SYNONYM = 0.5
ROOT = 0.8
PARTS = 0.8
# The value of a word outside the sentence itself.
HEADING, ADJACENT, TITLE, NEAR, ANYWHERE = 0.75, 0.6, 0.45, 0.4, 0.25
OWN_SHARE = 0.5
NEAR_SENTENCES = 3
_IDENTIFIER = re.compile(r"\w_\w|[a-z][A-Z]|\w\(|\w\.\w")
_ASSIGNMENT = re.compile(r"\w[\w.]* \+?= ")
FORM_FACTOR: dict[Form, float] = {"prose": 1.0, "item": 1.0, "row": 0.8, "code": 0.55}
TESTS_FACTOR = 0.75
SOURCE_FACTOR = 0.95
FRAGMENT_FACTOR = 0.75
SHORT, LONG, FAR_TOO_LONG = 30, 400, 700
PHRASE, PHRASE_LIMIT = 0.03, 3
CUE = 0.1
RANK = 0.3
"""How much the rank of a passage adds: of sentences with as many words, that of the better passage answers more often."""
COMMONEST = 0.5
BACKGROUND_MINIMUM = 4

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
# A pattern that the answer to a question of this kind must match.
REQUIRED: Mapping[Kind, re.Pattern[str]] = {
    "number": _NUMBER,
    "time": re.compile(r"(?:(?<!\w)(?<!\d[,.])\d[\d,.]*+|\b(?:an?|one|two|three|four|five|six|ten|several)) (?:milli)?"
                       r"(?:second|minute|hour|day|week|month|year)s?\b", re.I),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CitablePassage:
    """Some lines of a file, word for word, citable under the number `sid`; `cut` if some are left out."""

    sid: int
    title: str
    ref: str
    text: str
    cut: bool = False

    @property
    def path(self) -> str:
        """Return the path inside the space, percent-encoded as it came."""
        match = _REF.match(self.ref)
        return match["path"] if match else self.ref.removeprefix("ks:")

    @property
    def lines(self) -> tuple[int, int] | None:
        """Return the first and last line, counted from 1, or None if the ref names the whole file."""
        match = _REF.match(self.ref)
        if match is None or match["first"] is None:
            return None
        return int(match["first"]), int(match["last"] or match["first"])

    @property
    def is_prose(self) -> bool:
        """Return whether the path is that of documentation rather than of code."""
        return kind_of(self.path) == "prose"

    @property
    def is_test(self) -> bool:
        """Return whether the path is that of a test."""
        return kind_of(self.path) == "tests"

    def contains(self, inner: CitablePassage) -> bool:
        """Return whether the lines of another passage are all in this one."""
        if self.path != inner.path or inner.lines is None:
            return False
        if self.lines is None:
            return True
        return self.lines[0] <= inner.lines[0] and inner.lines[1] <= self.lines[1]

    def widened(self, around: int) -> str:
        """Return the ref with that many more lines on each side; unchanged if it names no lines."""
        if self.lines is None:
            return self.ref
        first, last = self.lines
        return f"{self.ref.partition('#')[0]}#L{max(1, first - around)}-L{last + around}"


@dataclass(frozen=True, slots=True)
class RankedPassage:
    """A passage with its rank over all searches: 1 for the best, near 0 for the last.

    `queries` are the searches that returned it.
    """

    passage: CitablePassage
    rank: float
    queries: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ScoredSentence:
    """A sentence with its index in its passage, and its score.

    `rank` is that of its passage. `covered` is the weighted share of the question's words that the sentence and its
    surroundings have.
    """

    passage: CitablePassage
    rank: float
    index: int
    sentence: Sentence
    score: float
    covered: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """All sentences of all passages, the best first, and the question's terms that no passage has.

    `tries` is the number of rounds that searched for them. `is_doubted` says whether the search for the question itself
    found nothing that is likely to answer it.
    """

    question: Question
    scored: tuple[ScoredSentence, ...]
    missing: tuple[QuestionTerm, ...]
    tries: int = 1
    is_doubted: bool = False

    @property
    def covered(self) -> float:
        """Return how much of the question the best sentence covers, from 0 to 1."""
        return max((scored.covered for scored in self.scored), default=0.0)


@dataclass(frozen=True, slots=True)
class _PassageIndex:
    """A passage as its sentences, with the stems of each, of the headings and of the title."""

    ranked: RankedPassage
    sentences: tuple[Sentence, ...]
    stems: tuple[Mapping[str, list[int]], ...]
    headings: tuple[Mapping[str, list[int]], ...]
    title: Mapping[str, list[int]]
    all_stems: frozenset[str]


def sentences_of(passage: CitablePassage) -> list[Sentence]:
    """Return the sentences of a passage, read as a document or as source code."""
    return sentences(passage.text) if passage.is_prose else code_sentences(passage.text)


def weigh(
    question: Question,
    ranked: Sequence[RankedPassage],
    queries: Mapping[str, int],
    *,
    tries: int = 1,
) -> Evidence:
    """Return every sentence, scored by how well it answers the question.

    `queries` has the number of passages that each search returned.
    """
    indexes = [_index(passage) for passage in ranked]
    matches = {term.stem: _matching_stems(term, indexes) for term in question.terms}
    weights = {
        term.stem: term.weight * _rarity(term, indexes, matches, queries) for term in question.terms
    }
    scored = [item for index in indexes for item in _score(question, index, matches, weights)]
    # A line of code does not answer a question in words, whatever words its strings have.
    if not _IDENTIFIER.search(question.text):
        scored = [item for item in scored if not _is_code(item.sentence)]
    missing = tuple(
        term
        for term in question.own
        if not any(
            _strength(term, matches[term.stem], index.all_stems) >= SYNONYM for index in indexes
        )
    )
    return Evidence(question, tuple(_without_repeats(scored)), missing, tries)


def _is_code(sentence: Sentence) -> bool:
    return sentence.form == "code" or _ASSIGNMENT.match(sentence.text) is not None


def _without_repeats(scored: Iterable[ScoredSentence]) -> list[ScoredSentence]:
    """Return each sentence of a file once, the best first, with the shortest passage that has it."""
    best: dict[tuple[str, str], ScoredSentence] = {}
    for item in scored:
        key = (item.passage.path, item.sentence.text)
        existing = best.get(key)
        if existing is None or len(item.passage.text) < len(existing.passage.text):
            score = max(item.score, existing.score) if existing else item.score
            best[key] = replace(item, score=score)
    return sorted(best.values(), key=lambda item: item.score, reverse=True)


def _index(ranked: RankedPassage) -> _PassageIndex:
    parts = tuple(sentences_of(ranked.passage))
    title = stems(f"{ranked.passage.title} {ranked.passage.path}")
    own = tuple(stems(part.text) for part in parts)
    headings = tuple(stems(part.heading) for part in parts)
    return _PassageIndex(
        ranked, parts, own, headings, title, frozenset(title).union(*own, *headings)
    )


def _matching_stems(term: QuestionTerm, indexes: Iterable[_PassageIndex]) -> dict[str, float]:
    """Return the stems in the passages that stand for the term, with how well they do."""
    matches: dict[str, float] = {}
    for stem in frozenset[str]().union(*(index.all_stems for index in indexes)):
        if stem == term.stem:
            matches[stem] = 1.0
        elif not term.is_name and shares_root(stem, term.stem):
            matches[stem] = ROOT
        elif stem in term.synonyms:
            matches[stem] = SYNONYM
        elif stem in term.parts and len(stem) > 1:
            matches[stem] = PARTS / len(set(term.parts))
    return matches


def _rarity(
    term: QuestionTerm,
    indexes: Sequence[_PassageIndex],
    matches: Mapping[str, dict[str, float]],
    queries: Mapping[str, int],
) -> float:
    """Return less, the more often passages of searches without the term have it."""
    unrelated = {query for query in queries if term.stem not in stems(query)}
    background = [index for index in indexes if index.ranked.queries & unrelated]
    if len(background) < BACKGROUND_MINIMUM:
        return 1.0
    holding = sum(
        any(matches[term.stem].get(stem, 0) >= ROOT for stem in index.all_stems)
        for index in background
    )
    return 1.0 - COMMONEST * holding / len(background)


def _strength(term: QuestionTerm, matches: Mapping[str, float], stems: Container[str]) -> float:
    values = [(stem, value) for stem, value in matches.items() if stem in stems]
    best = max((value for _, value in values), default=0.0)
    if not term.parts:
        return best
    share = sum(value for stem, value in values if stem in term.parts) / PARTS
    return max(best if term.stem in stems else 0.0, PARTS * min(1.0, share) ** 2)


def _score(
    question: Question,
    index: _PassageIndex,
    matches: Mapping[str, dict[str, float]],
    weights: Mapping[str, float],
) -> Iterable[ScoredSentence]:
    """Yield the sentences of a passage that have at least one of the question's words."""
    terms, passage, rank = question.terms, index.ranked.passage, index.ranked.rank
    shares = [weights[term.stem] / (sum(weights.values()) or 1.0) for term in terms]

    def strengths(stems: Container[str], factor: float = 1.0) -> list[float]:
        return [factor * _strength(term, matches[term.stem], stems) for term in terms]

    own = [strengths(sentence_stems) for sentence_stems in index.stems]
    title = strengths(index.title, TITLE)
    anywhere = [ANYWHERE * strength for strength in _maxima(own, len(terms))]
    for number, sentence in enumerate(index.sentences):
        itself = _weighted(shares, own[number])
        if itself <= 0:
            continue
        heading = strengths(index.headings[number], HEADING)
        around = _strengths_around(index, own, number)
        rows = [own[number], heading, title, around, anywhere]
        covered = _weighted(shares, _maxima(rows, len(terms)))
        score = (1 - OWN_SHARE) * covered + OWN_SHARE * itself
        score += PHRASE * min(PHRASE_LIMIT, _phrases(question, matches, index.stems[number]))
        score += CUE * _cue_share(question, sentence.text) + RANK * rank
        score *= _factor(passage, sentence)
        yield ScoredSentence(passage, rank, number, sentence, score, covered)


def _weighted(shares: Sequence[float], strengths: Sequence[float]) -> float:
    return sum(share * strength for share, strength in zip(shares, strengths, strict=True))


def _maxima(rows: Sequence[Sequence[float]], width: int) -> list[float]:
    """Return the maximum of each column."""
    return [max((row[column] for row in rows), default=0.0) for column in range(width)]


def _strengths_around(
    index: _PassageIndex, own: Sequence[Sequence[float]], number: int
) -> list[float]:
    """Return the strength of each word in the sentences near by, the closest ones most."""
    best = [0.0] * len(own[number])
    block = index.sentences[number].block
    first, end = max(0, number - NEAR_SENTENCES), min(len(own), number + NEAR_SENTENCES + 1)
    for neighbour in range(first, end):
        adjacent = abs(neighbour - number) == 1 or index.sentences[neighbour].block == block
        factor = ADJACENT if adjacent else NEAR
        best = [max(old, factor * new) for old, new in zip(best, own[neighbour], strict=True)]
    return best


def _phrases(
    question: Question, matches: Mapping[str, dict[str, float]], stems: Mapping[str, list[int]]
) -> int:
    """Return how many neighbouring words of the question are close together in a sentence too."""
    count = 0
    for first, second in zip(question.own, question.own[1:], strict=False):
        starts = [at for stem in matches[first.stem] for at in stems.get(stem, ())]
        ends = [at for stem in matches[second.stem] for at in stems.get(stem, ())]
        count += any(0 < abs(a - b) <= 3 for a in starts for b in ends)
    return count


def _cue_share(question: Question, text: str) -> float:
    cues = [_CUES[kind] for kind in question.kinds if kind != "other"]
    return sum(bool(cue.search(text)) for cue in cues) / max(1.0, math.sqrt(len(cues)))


def _factor(passage: CitablePassage, sentence: Sentence) -> float:
    factor = FORM_FACTOR[sentence.form]
    if passage.is_test:
        factor *= TESTS_FACTOR
    elif not passage.is_prose:
        factor *= SOURCE_FACTOR
    if sentence.form == "prose" and sentence.text[:1].islower():
        factor *= FRAGMENT_FACTOR
    size = len(sentence.text)
    if size < SHORT:
        return factor * 0.6
    if size > LONG:
        return factor * (0.4 if size > FAR_TOO_LONG else 0.75)
    return factor
