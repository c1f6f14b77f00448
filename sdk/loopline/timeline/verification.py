"""Verification: how the cited sentences of an answer overlap the texts of their sources."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from loopline.timeline import citations
from loopline.timeline.blocks import Block, BodyUnion
from loopline.timeline.bodies import BackgroundResult, ProxiedResult, TextKept, ToolResult
from loopline.timeline.citations import Citation
from loopline.timeline.sources import Source, SourceAdded

Support = Literal["supported", "weak", "unsupported", "no text kept"]

SUPPORTED_SHARE = 0.6
SUPPORTED_RUN = 8
WEAK_SHARE = 0.3
WEAK_RUN = 5

ShowingBody = SourceAdded | TextKept | ToolResult | ProxiedResult | BackgroundResult
"""The bodies with texts of sources."""
_SHOWING = BodyUnion[ShowingBody](ShowingBody)

_END = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'\u201d\u2019»)\]*_]*+(?=\s++[^\sa-z]|\s*+\Z)|[\u3002\uff01\uff1f]++"
)
_BLOCK = re.compile(r"\n[ \t]*(?=\n|[-*+•#>|]|[0-9]{1,9}[.)])")
_LEAD = re.compile(r"\s*(?:(?:[-*+•>|]|#{1,6}|[0-9]{1,9}[.)])\s+)*")
_BEFORE_MARK = re.compile(r" (?=[.,;:!?…])")
_HEADING = re.compile(r"\s*#{1,6}\s")
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")
_NUMBER = re.compile(r"(?<![\w.,])[0-9]++(?:[.,][0-9]++)*+(?!\w)")
_COMMON = re.compile(
    "about|after|all|also|and|any|are|because|been|but|can|could|did|does|each|for|from|had|has|have|her|"
    "his|how|into|its|just|may|more|most|not|one|only|other|our|out|over|she|should|some|such|than|that|"
    "the|their|them|then|there|these|they|this|those|too|under|very|was|were|what|when|where|which|while|"
    "who|why|will|with|would|you|your"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The overlap of a sentence with a text.

    `share` is the share of its content words that are in the text, `run` the number of words of its longest
    passage that is in the text word for word, `missing_numbers` are its numbers that are not in the text.
    """

    share: float
    run: int
    missing_numbers: tuple[str, ...]
    support: Support


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedSentence:
    """A sentence, the existing sources it cites, and its overlap with each and with all of them."""

    text: str
    sids: tuple[int, ...]
    each: tuple[Overlap, ...]
    together: Overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The cited and the uncited sentences of an answer, and the cited numbers for which there is no source."""

    cited: tuple[CitedSentence, ...]
    uncited: tuple[str, ...]
    unknown: tuple[int, ...]

    @property
    def counts(self) -> dict[Support, int]:
        """The number of cited sentences with each kind of support."""
        supports = [sentence.together.support for sentence in self.cited]
        return {support: supports.count(support) for support in get_args(Support)}


def source_texts(blocks: Iterable[Block]) -> dict[int, list[str]]:
    """Return every text of each source in the blocks, by sid, the oldest text first."""
    texts = dict[int, list[str]]()
    by_url = dict[str, list[str]]()
    for _, body in _SHOWING.among(blocks):
        match body:
            case SourceAdded(sid=sid, source=source):
                own = texts.setdefault(sid, by_url.setdefault(source.url, []) if source.url else [])
                own.append(source.text)
            case TextKept(ref=ref, text=text):
                by_url.setdefault(ref, []).append(text)
            case (
                ToolResult(text=text, source_spans=spans)
                | ProxiedResult(text=text, source_spans=spans)
                | BackgroundResult(text=text, source_spans=spans)
            ):
                for span in spans:
                    texts.setdefault(span.sid, []).append(text[span.start : span.end])
    return texts


def verify(
    answer: str, sources: Mapping[int, Source], texts: Mapping[int, Sequence[str]]
) -> Verification:
    """Compare each cited sentence with the texts of its sources, which `source_texts` finds in the log.

    Content words are those of three letters or more, or with a digit, that are not among the most
    common English words; they are compared in lower case, without a possessive or plural `s`.
    A sentence is `supported` if 60 % of its content words or eight words in a row are found and none of its numbers
    is missing, `weak` with 30 % or five words in a row, `no text kept` if its sources have no text, else
    `unsupported`. A sentence without content words has a share of 0. Only words are compared: a sentence that says
    the opposite in the words of its source is `supported`, and one in a script without spaces is one word.
    """
    newest = max(sources, default=0)
    sentences = [*_sentences(answer, newest)]
    named = dict.fromkeys(sid for sentence in sentences for sid in sentence.sids)
    read = {sid: [*map(_Text.of, texts.get(sid, ()))] for sid in named if sid in sources}
    compared = [(sentence, _compare(sentence, read)) for sentence in sentences]
    return Verification(
        cited=tuple(result for _, result in compared if result.sids),
        uncited=tuple(
            sentence.text
            for sentence, result in compared
            if not result.sids and not sentence.heading
        ),
        unknown=tuple(sid for sid in named if sid not in sources),
    )


@dataclass(frozen=True, slots=True)
class _Sentence:
    text: str
    sids: tuple[int, ...]
    heading: bool


@dataclass(frozen=True, slots=True)
class _Text:
    """The words of a text, and its numbers without the commas between their digits."""

    words: tuple[str, ...]
    numbers: frozenset[str]

    @classmethod
    def of(cls, text: str) -> _Text:
        words = [match[0].replace("\u2019", "'").casefold() for match in _WORD.finditer(text)]
        numbers = [match[0].replace(",", "") for match in _NUMBER.finditer(text)]
        return cls(tuple(words), frozenset(numbers))


def _sentences(answer: str, newest: int) -> Iterator[_Sentence]:
    """Yield the sentences of the answer, in order and without citation tokens, each with the sids of its tokens.

    A token after the end of a sentence, on the same line, belongs to that sentence. Fenced code, and parts without a
    word, are left out.
    """
    prose = citations.prose(answer)
    tokens = citations.find(answer, newest=newest)
    blanks = ((token.start, token.end, " " * (token.end - token.start)) for token in tokens)
    bare = citations.replace_spans(
        prose, blanks
    )  # of the same length, so that indexes stay the same
    spans = [(start, end) for start, end in _spans(bare) if _WORD.search(bare, start, end)]
    sids = [list[int]() for _ in spans]
    for token in tokens:
        if spans:
            sids[_owner(token, spans, bare)] += token.sids
    for (start, end), named in zip(spans, sids, strict=True):
        lead = _LEAD.match(bare, start, end)
        text = " ".join(bare[lead.end() if lead else start : end].split())
        heading = _HEADING.match(bare, start, end) is not None
        yield _Sentence(_BEFORE_MARK.sub("", text), tuple(dict.fromkeys(named)), heading)


def _spans(bare: str) -> list[tuple[int, int]]:
    ends = {
        match.end() for match in _END.finditer(bare) if not _is_list_number(bare, match.start())
    }
    blocks = {match.start() for match in _BLOCK.finditer(bare)}
    return list(pairwise(sorted({0, *ends, *blocks, len(bare)})))


def _is_list_number(bare: str, dot: int) -> bool:
    """Return whether the dot at that index ends the number of a list item instead of a sentence."""
    _, line, before = ("\n" + bare[:dot] if dot < 12 else bare[dot - 12 : dot]).rpartition("\n")
    return line == "\n" and before.strip().isdecimal()


def _owner(token: Citation, spans: Sequence[tuple[int, int]], bare: str) -> int:
    """Return the index in `spans` of the sentence that a token belongs to; `bare` is the answer with blanked tokens.

    A token directly after the end of a sentence, on the same line, belongs to that sentence.
    """
    index = bisect_right(spans, (token.start, len(bare))) - 1
    if index < 0:
        return 0
    start, end = spans[index]
    led = bare[start : token.start]
    if index > 0 and token.start < end and not led.strip() and "\n" not in led:
        return index - 1
    return index


def _compare(sentence: _Sentence, texts: Mapping[int, Sequence[_Text]]) -> CitedSentence:
    """Return the overlap of a sentence with each source that it cites, and with all; unknown sids are left out."""
    sids = tuple(sid for sid in sentence.sids if sid in texts)
    read = _Text.of(sentence.text)
    return CitedSentence(
        text=sentence.text,
        sids=sids,
        each=tuple(_overlap(read, texts[sid]) for sid in sids),
        together=_overlap(read, [text for sid in sids for text in texts[sid]]),
    )


def _overlap(sentence: _Text, texts: Sequence[_Text]) -> Overlap:
    """Return the overlap of a sentence with all texts together: shared word stems, longest run, missing numbers.

    The support is `no text kept` if the texts have zero words. A sentence without content words has a share of 0.
    """
    content = {_stem(term) for term in sentence.words if _is_content(term)}
    terms = {_stem(term) for text in texts for term in text.words}
    share = len(content & terms) / len(content) if content else 0.0
    run = max((_longest_run(sentence.words, text.words) for text in texts), default=0)
    numbers = frozenset[str]().union(*(text.numbers for text in texts))
    missing = tuple(sorted(sentence.numbers - numbers))
    support = _support(share, run, missing) if terms else "no text kept"
    return Overlap(share=share, run=run, missing_numbers=missing, support=support)


def _support(share: float, run: int, missing: Sequence[str]) -> Support:
    if not missing and (share >= SUPPORTED_SHARE or run >= SUPPORTED_RUN):
        return "supported"
    return "weak" if share >= WEAK_SHARE or run >= WEAK_RUN else "unsupported"


def _longest_run(sentence: Sequence[str], text: Iterable[str]) -> int:
    """Return the number of words in the longest sequence of consecutive words that both texts contain, or 0."""
    positions: dict[str, list[int]] = {}
    for position, term in enumerate(sentence):
        positions.setdefault(term, []).append(position)
    longest = 0
    before = dict[int, int]()
    for term in text:
        lengths = {
            position: before.get(position - 1, 0) + 1 for position in positions.get(term, [])
        }
        longest = max(longest, max(lengths.values(), default=0))
        before = lengths
    return longest


def _is_content(term: str) -> bool:
    has_digit = any(char.isdigit() for char in term)
    return has_digit or (len(term) >= 3 and not _COMMON.fullmatch(term))


def _stem(term: str) -> str:
    bare = term.removesuffix("'s")
    return bare[:-1] if len(bare) > 3 and bare.endswith("s") and not bare.endswith("ss") else bare
