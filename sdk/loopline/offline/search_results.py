"""The passages in the results of a turn's searches and reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from loopline.offline.evidence import CitablePassage, Evidence, RankedPassage
from loopline.offline.prompt_turn import PromptCall
from loopline.tools import NO_ANSWER

_HEADER = re.compile(r"^(?:\[\[S:(\d+)\]\] )?(?:(.*) — )?(ks:\S+)$")
_CUT_NOTICE = re.compile(r"\n?^… [^\n]*\n*\Z", re.MULTILINE)
RANK_SMOOTHING = 6.0
PASSAGES_READ = 3
LINES_AROUND = 12


def parse_passages(result: str) -> list[CitablePassage]:
    """Return the citable passages of a result text in order."""
    passages: list[CitablePassage] = []
    header: re.Match[str] | None = None
    body: list[str] = []
    for line in result.split("\n"):
        match = _HEADER.match(line)
        if match is None or (match[1] is None and body and body[-1].strip()):
            body.append(line)
            continue
        passages += _passage(header, body)
        header, body = match, []
    return passages + _passage(header, body)


def _passage(header: re.Match[str] | None, body: list[str]) -> list[CitablePassage]:
    """Return the passage below a header; none if the header has no number to cite it by."""
    if header is None or header[1] is None or len(header[1]) > 9:
        return []
    text = "\n".join(body)
    content = _CUT_NOTICE.sub("", text)
    return [
        CitablePassage(int(header[1]), header[2] or "", header[3], content, cut=content != text)
    ]


def doubted_queries(searches: Sequence[PromptCall]) -> frozenset[str]:
    """Return the queries that the space says it probably holds no answer to."""
    return frozenset(
        search.query for search in searches if NO_ANSWER in search.text.partition("\n")[0]
    )


def rank_passages(
    searches: Sequence[PromptCall], reads: Sequence[PromptCall]
) -> tuple[list[RankedPassage], dict[str, int]]:
    """Return the passages ranked over all searches, and how many passages each search returned."""
    by_sid: dict[int, RankedPassage] = {}
    queries: dict[str, int] = {}
    for search in searches:
        passages = parse_passages(search.text) if search.ok else []
        queries[search.query] = len(passages)
        for index, passage in enumerate(passages):
            known = by_sid.get(passage.sid, RankedPassage(passage, 0.0))
            rank = known.rank + 1.0 / (RANK_SMOOTHING + index)
            found_by = known.queries | {search.query}
            by_sid[passage.sid] = RankedPassage(known.passage, rank, found_by)
    for read in reads:
        for passage in parse_passages(read.text) if read.ok else []:
            _rank_read(by_sid, passage)
    best = max((ranked.rank for ranked in by_sid.values()), default=0.0) or 1.0
    return [replace(ranked, rank=ranked.rank / best) for ranked in by_sid.values()], queries


def _rank_read(by_sid: dict[int, RankedPassage], passage: CitablePassage) -> None:
    """Rank a passage that was read as high as the best passage inside it."""
    inside = [ranked.rank for ranked in by_sid.values() if passage.contains(ranked.passage)]
    known = by_sid.get(passage.sid)
    if known is None or known.passage.cut or not known.passage.text:
        rank = max(*inside, 0.0, known.rank if known else 0.0)
        by_sid[passage.sid] = RankedPassage(passage, rank)


def refs_to_read(evidences: Sequence[Evidence]) -> list[str]:
    """Return the refs of the best passages of each question, with the lines around them."""
    passages: dict[str, CitablePassage] = {}
    for evidence in evidences:
        best: list[CitablePassage] = []
        for scored in evidence.scored:
            if len(best) >= PASSAGES_READ:
                break
            if scored.passage not in best:
                best.append(scored.passage)
        passages.update({passage.ref: passage for passage in best})
    return list(dict.fromkeys(passage.widened(LINES_AROUND) for passage in passages.values()))
