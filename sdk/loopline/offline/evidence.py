"""Evidence: how well the sentences of passages answer a question, and which of them to quote."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

from loopline.offline.prompt_turn import CitablePassage
from loopline.offline.sentences import split_sentences
from loopline.search import STOP_WORDS, kind_of

# Words of questions about any subject: a sentence that answers seldom contains them.
_QUESTION_WORDS = """
able after again all along also another answer any anything ask become before behave being best better between both
bring call called cause come could did different during either end every exactly first get gets getting go goes good
happen happens help instead keep kept kind know left let like long made make makes many matter may means might more
most much must need new no normally now number often once one only other people possible problem put reason related
right same several since someone something soon specific still take taken than through time times told turn twice two
until up use used using usually want way whether within without work works wrong
"""
_IGNORED = STOP_WORDS.union(_QUESTION_WORDS.split())
# Words that refer to an earlier question, and to an earlier sentence if they are the first of a sentence.
_REFERENCES = """
this these it its that those they them their there such same former latter however otherwise therefore thus instead
also then here but and or both so
"""
_WORD = re.compile(r"\w+(?:['\u2019](?!s\b)\w+)*")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+|[^\W\d_A-Za-z]+")
_INFLECTION = re.compile(r"(?<=..)(?:ies|ied|ing|es|ed|e|y|(?<![su])s)$")
_DERIVATION = re.compile(r"(?<=....)(?:ation|ion|ment|er|or|ur|al|abl|ness|iv|anc|enc)$")
_DOUBLED = re.compile(r"([bdgmnprt])\1$")
_ASKS_NUMBER = re.compile(r"\bhow (?:long|often|soon|many|much|big|large|wide|far)\b", re.I)
_NUMBER = re.compile(r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|half)\b", re.I)
STEM_CHARACTERS = 7
QUERY_CHARACTERS = 300
NAME_WEIGHT = 1.6
BORROWED_WEIGHT = 0.6
FEW_WORDS = 3
WORD_LIMIT = 40
AROUND = 0.6
"""What a word counts that the sentence does not have, but the title or the two sentences before or after it."""
RANK_BONUS = 0.3
SOURCE_FACTOR = 0.8
UNUSUAL_FACTOR = 0.7
USUAL_LENGTH = range(30, 401)
QUOTE_LIMIT = 4
WORTH = 0.85
OVERLAP = 0.7


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """Return the beginning of a lower-case word that its other forms share, at most 7 characters.

    A word that has characters other than ASCII letters is returned unchanged.
    """
    if not (word.isascii() and word.isalpha()):
        return word
    root = _DOUBLED.sub(r"\1", _INFLECTION.sub("", word))
    return _DERIVATION.sub("", root)[:STEM_CHARACTERS]


def find_stems(text: str) -> frozenset[str]:
    """Return the stems of the words in a text, and of the parts of names such as `cache_page` and `CacheKey`."""
    return frozenset(stem(word.lower()) for word in (*_WORD.findall(text), *_PART.findall(text)))


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A question, the query to search for it, and the weights of its words and of those of the question before."""

    text: str
    query: str
    weights: dict[str, float]


def parse_question(text: str, previous: Question | None) -> Question:
    """Decode a question, with words of the `previous` question if it refers to an earlier one.

    A question refers to an earlier one if it has at most one word that is not general, or if it has at most three and a
    word such as `it`.
    """
    weights = {
        # A capital, a digit or an underscore makes a name; the capital of the first word does not.
        match[0]: 1.0 if match[0][match.start() == 0 :].islower() else NAME_WEIGHT
        for match in _WORD.finditer(text)
        if len(match[0]) > 1 or match[0].isdigit()
    }
    telling = [term for term in weights if term.lower() not in _IGNORED]
    refers_back = not set(_REFERENCES.split()).isdisjoint(text.lower().split())
    borrowed: list[str] = []
    if previous and (len(telling) <= 1 or (refers_back and len(telling) <= FEW_WORDS)):
        borrowed = [term for term in previous.weights if term not in weights][:WORD_LIMIT]
    own = {term: weights[term] for term in (telling or [*weights])[:WORD_LIMIT]}
    query = " ".join([*text[:QUERY_CHARACTERS].split(), *borrowed])
    return Question(text, query, own | dict.fromkeys(borrowed, BORROWED_WEIGHT))


_CODE = re.compile(r"`[^`\n]{0,200}+`|\b[^\W_]*+_\w*+")


def is_about(question: Question, best: Candidate, passages: Sequence[CitablePassage]) -> bool:
    """Return whether the passages are about the subject of the question, and not only about a similar subject.

    Each name in the question must be in a passage in the same form: "Windows" is not a window. If the question has only one
    telling word, the best sentence or its title must have it outside of code, where it may name anything.
    """
    text = " ".join(f"{passage.title} {passage.path} {passage.text}" for passage in passages)
    vocabulary = {term.lower() for term in (*_WORD.findall(text), *_PART.findall(text))}
    names = [term for term, weight in question.weights.items() if weight == NAME_WEIGHT]
    if not all(vocabulary.issuperset(_forms(name, vocabulary)) for name in names):
        return False
    if len(question.weights) > 1 or names:
        return True
    prose = _CODE.sub(" ", f"{best.passage.title}\n{best.text}")
    return bool(_weigh(question, find_stems(prose)))


def _forms(name: str, vocabulary: Collection[str]) -> Collection[str]:
    """Return the words that a text about the name has: the name if `vocabulary` has it, otherwise its parts."""
    return (
        [name.lower()]
        if name.lower() in vocabulary
        else [part.lower() for part in _PART.findall(name)]
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sentence that an answer may quote, by its index in the sentences of its passage.

    `covered` is the share of the question's words that the sentence and its surroundings have, from 0 to 1.
    """

    passage: CitablePassage
    sentences: tuple[str, ...]
    index: int
    score: float
    covered: float

    @property
    def text(self) -> str:
        """The sentence itself."""
        return self.sentences[self.index]


def find_candidates(question: Question, passages: Sequence[CitablePassage]) -> list[Candidate]:
    """Return the sentences of the passages that have a word of the question, the best first."""
    candidates = chain.from_iterable(_score_sentences(question, passage) for passage in passages)
    return sorted(candidates, key=lambda candidate: candidate.score, reverse=True)


def _score_sentences(question: Question, passage: CitablePassage) -> Iterator[Candidate]:
    """Yield each sentence of a passage that has a word of the question, in order, with its score."""
    is_source = kind_of(passage.path) != "prose"
    sentences = tuple(split_sentences(passage.text, is_source=is_source))
    stems = [find_stems(sentence) for sentence in sentences]
    title = find_stems(f"{passage.title} {passage.path}")
    total = sum(question.weights.values())
    for index, sentence in enumerate(sentences):
        own = _weigh(question, stems[index])
        if not own:
            continue
        around = _weigh(question, title.union(*stems[max(0, index - 2) : index + 3]))
        covered = (own + AROUND * (around - own)) / total
        score = (own / total + covered) / 2 + RANK_BONUS * passage.rank
        if is_source:
            score *= SOURCE_FACTOR
        if len(sentence) not in USUAL_LENGTH or sentence[0].islower():
            score *= UNUSUAL_FACTOR
        yield Candidate(passage, sentences, index, score, covered)


def _weigh(question: Question, stems: frozenset[str]) -> float:
    """Return the sum of the weights of the question's words of which the stem or all parts are in `stems`."""
    weight = 0.0
    for term, term_weight in question.weights.items():
        parts = [stem(part.lower()) for part in _PART.findall(term)]
        if stem(term.lower()) in stems or (len(parts) > 1 and stems.issuperset(parts)):
            weight += term_weight
    return weight


def choose_quotes(question: Question, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return one to four sentences to quote; `candidates` are sorted and not empty.

    Those of the best passage come first, each passage in its own order. If two sentences of a file are chosen, its other
    candidates are skipped.

    If a sentence refers to the sentence before it, that one is quoted too. A sentence with most words of an earlier quote
    is left out.
    """
    best = candidates[0]
    quotes = _add_lead(best)
    if _ASKS_NUMBER.search(question.text) and not _NUMBER.search(best.text):
        quotes += [quote for quote in _near(best) if _NUMBER.search(quote.text)][:1]
    for candidate in candidates[1:]:
        paths = [quote.passage.path for quote in quotes]
        fits = candidate.score >= WORTH * best.score and paths.count(candidate.passage.path) < 2
        if fits and not any(_repeats(quote.text, candidate.text) for quote in quotes):
            quotes += _add_lead(candidate)
    if len(quotes) == 1:
        quotes += _near(best)[:1]
    quotes = quotes[:QUOTE_LIMIT]
    order = list(dict.fromkeys(quote.passage.sid for quote in quotes))
    return sorted(quotes, key=lambda quote: (order.index(quote.passage.sid), quote.index))


def _add_lead(candidate: Candidate) -> list[Candidate]:
    """Return the sentence, preceded by the previous sentence if it refers back or begins in lower case."""
    first = _WORD.findall(candidate.text)[:1]
    refers_back = candidate.text[0].islower() or first[0].lower() in _REFERENCES.split()
    lead = (
        [replace(candidate, index=candidate.index - 1)] if candidate.index and refers_back else []
    )
    return [*lead, candidate]


def _near(best: Candidate) -> list[Candidate]:
    """Return the sentences of usual length at most three sentences away from the best one, the closest first."""
    indexes = sorted(range(len(best.sentences)), key=lambda index: abs(index - best.index))[1:7]
    quotes = [replace(best, index=index) for index in indexes]
    return [quote for quote in quotes if len(quote.text) in USUAL_LENGTH]


def _repeats(quote: str, sentence: str) -> bool:
    """Return whether the two sentences share 70 % of the words of the shorter one."""
    quoted = find_stems(quote)
    offered = find_stems(sentence)
    return len(quoted & offered) >= OVERLAP * min(len(quoted), len(offered))
