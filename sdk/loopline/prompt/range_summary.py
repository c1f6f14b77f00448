"""Summaries of a range of blocks: the instructions for a model, its text, and the ledger of facts added to it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from msgspec import structs

from loopline import timeline as tl
from loopline.models import Usage, dumps, one_line
from loopline.models.prompt import estimate, fitting
from loopline.prompt.rendering import CutPoint
from loopline.prompt.truncation import (
    LONG_ARGUMENTS,
    TEXT_LIMIT,
    is_strong,
    keywords,
    normalize_word,
    rarity,
    short_arguments,
)

Rank = Literal[0, 1, 2]

WIDTHS: tuple[tuple[int, Rank], ...] = (
    (160, 0),
    (120, 0),
    (90, 1),
    (70, 1),
    (60, 2),
    (50, 2),
    (42, 2),
    (36, 2),
)
"""The most characters of a line's words, and the lowest rank of a line, tried in this order until all lines fit."""


LedgerBody = (
    tl.InboxBody
    | tl.UserAttachment
    | tl.ToolCalled
    | tl.ToolResult
    | tl.Notes
    | tl.Completion
    | tl.Draft
    | tl.ArtifactKept
    | tl.Feedback
)
_LEDGER = tl.BodyUnion[LedgerBody](LedgerBody)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A block that a ledger must name.

    Rank 2: texts of users, and texts with new numbers, names or paths. Rank 1: other results. Rank 0: other texts of the
    model. `about` is the call of a result.
    """

    seq: int
    ref: str
    text: str
    rank: Rank = 2
    about: str = ""

    @property
    def full_text(self) -> str:
        """The text from which the words of a line are chosen."""
        return f"{self.about} {self.text}" if self.about else self.text


def ledger_entries(blocks: Iterable[tl.Block]) -> list[LedgerEntry]:
    """Return an entry for each block with enough words that earlier blocks of its turn do not have, in order.

    An entry with a new number, name or path gets rank 2. An entry of rank 0 is left out if a third of its words or less
    are new.
    """
    calls: dict[str, tl.ToolCalled] = {}
    known_words: set[str] = set()
    turn = 0
    entries: list[LedgerEntry] = []
    for block, body in _LEDGER.among(blocks):
        if block.turn != turn:
            turn = block.turn
            known_words = set()
        if isinstance(body, tl.ToolCalled):
            calls[body.call_id] = body
            arguments = body.arguments.items()
            values = " ".join(f"{name}={value} {value}" for name, value in arguments)
            known_words |= set(map(normalize_word, values.split()))
        entry = _entry(block, body, calls)
        words = entry.text.split()
        new = {normalize_word(token) for token in words} - known_words
        strong = any(
            normalize_word(token) in new and is_strong(token, first=index == 0)
            for index, token in enumerate(words)
        )
        if strong or entry.rank or 3 * len(new) > len(words):
            entries.append(replace(entry, rank=2) if strong else entry)
        known_words |= new
    return entries


def _entry(block: tl.Block, body: LedgerBody, calls: Mapping[str, tl.ToolCalled]) -> LedgerEntry:
    """Create the entry of a block; `calls` are the calls of earlier blocks by id.

    The entry of a call with short arguments has rank 0 and no text, so the caller drops it.
    """
    rank: Rank = 2
    text = about = ""
    match body:
        case tl.UserPrompt(text=text) | tl.UserFollowup(text=text) | tl.UserSteer(text=text):
            pass
        case tl.UserAttachment():
            text = f"{tl.attachments.describe(body)} {body.text[:TEXT_LIMIT]}"
        case tl.ArtifactKept(name=name):
            text = f"{name}: {body.text}"
        case tl.Feedback(reaction=reaction):
            text = f"feedback {reaction}: {body.text}"
        case tl.ToolCalled(tool=tool, arguments=arguments):
            if len(dumps(arguments)) > LONG_ARGUMENTS:
                values = " ".join(f"{name}={value}" for name, value in arguments.items())
                text = f"{tool} {values}"
            else:
                rank = 0
        case tl.ToolResult(call_id=call_id, tool=tool, text=text):
            call = calls.get(call_id)
            about = f"{tool}({short_arguments(call.arguments) if call else ''})"
            rank = 1
        case tl.Completion(text=text) | tl.Draft(text=text) | tl.BackgroundResult(text=text):
            rank = 1 if isinstance(body, tl.BackgroundResult) else 0
        case tl.Notes():
            text = _other_lines(body.text)
            rank = 0
    return LedgerEntry(block.seq, block.ref, text, rank, about)


def _other_lines(notes: str) -> str:
    """Return the lines without plan marks and memory notes, joined by spaces; those are stored separately."""
    lines = [line for line in notes.splitlines() if not tl.memory_notes.read(line)]
    return " ".join(line for line in lines if not tl.plan.read_mark(line)).strip()


@dataclass(frozen=True, slots=True)
class FittedLines:
    """The lines that fit, and the number of dropped lines."""

    lines: tuple[tl.LedgerLine, ...]
    dropped: int = 0


def fit_ledger(
    before: Sequence[tl.LedgerLine], new: Sequence[LedgerEntry], room: int
) -> FittedLines:
    """Return the lines of an earlier ledger and of new entries, shortened to fit `room` tokens.

    Lines get fewer words, and lines of a low rank are dropped, in the steps of `WIDTHS`. If they still do not fit, the lines
    with the most common words are dropped; `dropped` counts only these.
    """
    entries = [LedgerEntry(0, line.ref, line.words, line.rank) for line in before] + list(new)
    rare = rarity([entry.full_text for entry in entries])
    lines: list[tl.LedgerLine] = []
    for width, rank in WIDTHS:
        lines = [
            tl.LedgerLine(
                ref=entry.ref, words=keywords(entry.full_text, width, rare), rank=entry.rank
            )
            for entry in entries
            if entry.rank >= rank
        ]
        if cost(lines) <= room:
            return FittedLines(tuple(lines))
    retained = set(range(len(lines)))
    total = cost(lines)
    for index in sorted(retained, key=lambda index: (_novelty(lines[index].words, rare), index)):
        if total <= room:
            break
        retained.remove(index)
        total -= cost([lines[index]])
    return FittedLines(
        tuple(lines[index] for index in sorted(retained)), len(lines) - len(retained)
    )


def _novelty(words: str, rare: Mapping[str, float]) -> float:
    """Return the sum of the rarity of a line's words."""
    return sum(rare.get(token, 1.0) for token in set(map(normalize_word, words.split())))


def cost(lines: Sequence[tl.LedgerLine]) -> int:
    """Estimate the tokens of these lines in a prompt."""
    return sum(estimate(f"{line.ref} {line.words}") + 1 for line in lines)


MAX_CARRIED_LINES = 24
"""The most lines for terms that a summary leaves out."""
_CONTEXT = 70
"""The characters before and after a term in its line."""

_TERM = re.compile(
    r"""
    (?<![\w.-])[\w.-]++(?:/[\w.-]++)++              # a path
  | (?<!\w)(?<!\w-)\w++(?:-\w++)*+\.[A-Za-z]\w{0,5}\b  # a file
  | \b(?<!\d[.,:])\d(?:\d|[.,:](?=\d))++\b          # a number of two digits or more
  | \b[A-Za-z]\w*_\w+\b                             # an identifier
  | \b[A-Z](?:(?![a-z])\w)*+[a-z](?:(?![A-Z])\w)*+[A-Z]\w*+  # a name in camel case
  | (?<=[a-z,;:] )[A-Z]\w+                          # a name within a sentence
    """,
    re.X,
)
_NO_NAME = re.compile(r"(?<![\w.-])[\w.-]{201,}+|-{2,}+")
"""Words that are too long for a name, and lines of dashes."""
_OWN_REFS = re.compile(r"turn_\d+.*|c\d+|sources_pool")


def terms(text: str) -> set[str]:
    """Return the paths, numbers and names in a text, except parts of our own refs."""
    candidates = _TERM.findall(_NO_NAME.sub(" ", text))
    return {term for term in candidates if not _OWN_REFS.fullmatch(term)}


def find_carried_lines(
    summary: str, covered: Sequence[LedgerEntry], later: Iterable[str]
) -> list[tl.LedgerLine]:
    """Return a line for each term that is in later text and in a covered block, but not in the summary.

    The line has the ref of the newest block with the term, and the words around the term there. There are at most
    `MAX_CARRIED_LINES` lines, those of the newest block first.
    """
    missing = set[str]().union(*(terms(text) for text in later))
    lines: list[tl.LedgerLine] = []
    for entry in reversed(covered):
        explained = missing & terms(entry.text)
        for term in sorted(explained):
            if term not in summary:
                lines.append(tl.LedgerLine(ref=entry.ref, words=_context(entry.text, term)))
        missing -= explained
        if not missing or len(lines) >= MAX_CARRIED_LINES:
            break
    return lines[:MAX_CARRIED_LINES]


def _context(text: str, term: str) -> str:
    at = text.index(term)
    return " ".join(text[max(at - _CONTEXT, 0) : at + len(term) + _CONTEXT].split())


TEXT_TOKENS = 800
"""The tokens of a model's text that are planned for; the text may have twice as many."""
LEDGER_SHARE = 0.75
"""The share of the tokens for messages that a summary may have, including the plan history."""
HISTORY_SHARE = 0.1
"""The share of a summary for the plan history."""
NOTES_SHARE = 0.2
"""The share of a summary for memory notes."""
SOURCES_SHARE = 0.1
"""The share of a summary for cited sources."""
CARRIED_SHARE = 0.15
"""The share of a summary for terms that later rounds use."""
NOTE_LIMIT = 400
"""The most characters of a memory note in a summary; its ref reads the complete note."""
_TOKENS_PER_LINE = 30

_ASK = """Everything above, up to here, is about to be replaced by your summary. Write it for whoever carries \
the work on with nothing else. Do not carry it on yourself and call no tool. {focus}
Use these headings: Goal; Constraints and preferences; Progress (done ✓, in progress …, not started □, blocked); \
Key decisions; Next steps; Critical context. Keep paths, names, numbers, error texts and refs such as \
tc:turn_1.c2.result exactly as they are. Leave out what later rounds will not need. At most 400 words."""

_FOCUS: Mapping[tl.SummaryHint, str] = {
    "general": "Keep what was asked, what was decided and why, and what is still to come.",
    "react_iteration": (
        "The work is in the middle of a turn: keep the request as it was made, what each round tried "
        "and found, what failed and why, and the reason for what was to come next."
    ),
    "planner_input": (
        "It will be read to make a plan: keep aims, limits, means at hand, options that were weighed, "
        "what depends on what, and open questions."
    ),
    "step_dependency": (
        "Later steps build on these results: for each keep what it is, its exact values, and the ref "
        "where it stands whole."
    ),
}

_HINTS: Mapping[str, tl.SummaryHint] = {hint: hint for hint in _FOCUS}


def summary_instructions(hint: tl.SummaryHint) -> str:
    """Return the instructions for a model that writes a summary."""
    return _ASK.format(focus=_FOCUS[hint])


def summary_hint(name: str) -> tl.SummaryHint:
    """Return the hint with this name; `general` if the name is unknown."""
    return _HINTS.get(name, "general")


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryReply:
    """A model's text for a summary, and its usage; `why` is the reason if there is no text.

    `model` is "" if no model was asked; `cost` is in US dollars, None if unknown.
    """

    text: str = ""
    model: str = ""
    elapsed_ms: float = 0.0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRange:
    """The range that a summary replaces: the blocks up to a cut point, and the previous summary, if there is one.

    `later` are the texts that remain after the range, `room` the tokens for all messages, and `history` the text about
    plans that is shown after the summary.
    """

    blocks: Sequence[tl.Block]
    cut: CutPoint
    previous: tl.RangeSummary | None
    previous_ref: str
    later: Sequence[str]
    room: int
    history: str = ""

    @property
    def limit(self) -> int:
        """The tokens that the summary may have, including the plan history."""
        return int(self.room * LEDGER_SHARE)


def summary_tokens(
    blocks: Sequence[tl.Block], before: tl.RangeSummary | None, room: int
) -> Callable[[CutPoint], int]:
    """Return a function that estimates the tokens of the summary of everything before a cut point.

    It counts a fixed number for the text, and one for each ledger line of `before`, the previous summary, and of the blocks
    up to the cut. The estimate is at most the summary's share of `room`, which is in tokens.
    """
    seqs = [entry.seq for entry in ledger_entries(blocks)]
    previous_lines = len(before.ledger) if before else 0

    def tokens(cut: CutPoint) -> int:
        lines = previous_lines + bisect_right(seqs, cut.seq)
        return min(int(room * LEDGER_SHARE), TEXT_TOKENS + _TOKENS_PER_LINE * lines)

    return tokens


def summarize(
    covered: SummaryRange, written: SummaryReply, hint: tl.SummaryHint, timeline: tl.Timeline
) -> tl.RangeSummary:
    """Build the summary: the model's text if it is usable, with memory notes, cited sources and a ledger.

    If the text is empty, or longer than its share or than the range itself, the previous summary's text is used instead;
    the text is "" if there is none, or if it has more than half of the summary's tokens. Terms that
    later rounds use and the text leaves out get lines with their context.
    """
    before = covered.previous
    new = ledger_entries(covered.blocks)
    text = written.text.strip()
    why = written.why
    notes = _notes(covered)
    sources = _sources(covered, timeline)
    reserved = cost(notes.lines) + cost(sources.lines) + estimate(covered.history)
    limit = min(
        2 * TEXT_TOKENS, sum(estimate(entry.text) for entry in new), covered.limit - reserved
    )
    if text and estimate(text) > limit:
        text = ""
        why = f"the model's summary was longer than {limit} tokens"
    if not text and before and 2 * estimate(before.text) <= covered.limit:
        text = before.text
    first = before.first_turn if before else covered.blocks[0].turn
    split = not covered.cut.opens_turn
    summary = tl.RangeSummary(
        covers=covered.cut.seq,
        first_turn=first,
        last_turn=covered.cut.turn if split else max(covered.cut.turn - 1, first),
        split=split,
        hint=hint,
        text=text,
        notes=notes.lines,
        sources=sources.lines,
        dropped_notes=notes.dropped + (before.dropped_notes if before else 0),
        dropped_sources=sources.dropped + (before.dropped_sources if before else 0),
        model=written.model,
        elapsed_ms=written.elapsed_ms,
        usage=written.usage,
        cost=written.cost,
        why=why,
    )
    plain = tl.summary_text(summary)
    old = (*before.carried, *before.ledger) if before else ()
    room = covered.limit - estimate(plain) - estimate(covered.history)
    lines = fit_ledger(_merge_by_ref(old), new, max(room, 0))
    older = before.older if before else ""
    if lines.dropped:
        older = covered.previous_ref
    full_text = f"{plain}\n" + "\n".join(line.words for line in lines.lines)
    carried = find_carried_lines(full_text, new, covered.later)
    return structs.replace(
        summary,
        carried=tuple(carried[: _count_fitting(carried, covered.limit * CARRIED_SHARE)]),
        ledger=lines.lines,
        dropped=lines.dropped + (before.dropped if before else 0),
        older=older,
    )


def _merge_by_ref(lines: Sequence[tl.LedgerLine]) -> list[tl.LedgerLine]:
    """Return the longest line of each ref, in the order in which the refs first appear."""
    longest: dict[str, tl.LedgerLine] = {}
    for line in lines:
        existing = longest.get(line.ref)
        if existing is None or len(line.words) > len(existing.words):
            longest[line.ref] = line
    return list(longest.values())


def _count_fitting(lines: Iterable[tl.LedgerLine], limit: float) -> int:
    """Count the lines, from the first, that have at most `limit` tokens together."""
    return len(fitting([f"{line.ref} {line.words}" for line in lines], int(limit)))


def _newest(lines: Sequence[tl.LedgerLine], limit: float) -> FittedLines:
    """Return the last lines that have at most `limit` tokens together, in order, and the number of dropped ones."""
    dropped = len(lines) - _count_fitting(reversed(lines), limit)
    return FittedLines(tuple(lines[dropped:]), dropped)


def _notes(covered: SummaryRange) -> FittedLines:
    """Return the newest memory notes of the range and the previous summary that fit, each once, the newest last."""
    notes = {line.words: line for line in covered.previous.notes} if covered.previous else {}
    for note in tl.memory_notes.fold(covered.blocks):
        line = note.line()
        words = line if len(line) <= NOTE_LIMIT else f"{line[:NOTE_LIMIT]}…"
        notes[words] = notes.pop(words, tl.LedgerLine(ref=note.ref, words=words))
    return _newest(list(notes.values()), covered.limit * NOTES_SHARE)


def _sources(covered: SummaryRange, timeline: tl.Timeline) -> FittedLines:
    """Return the sources that answers cited and that fit, each once, the last cited one last."""
    lines = {line.ref: line for line in covered.previous.sources} if covered.previous else {}
    answers = [block.body for block in covered.blocks if isinstance(block.body, tl.Completion)]
    for sid in [sid for answer in answers for sid in answer.sources_used]:
        source = timeline.pool.sources[sid]
        ref = f"so:sources_pool[{sid}]"
        words = f"[[S:{sid}]] {one_line(source.title or source.url)}"
        lines.pop(ref, None)
        lines[ref] = tl.LedgerLine(ref=ref, words=words[:160])
    return _newest(list(lines.values()), covered.limit * SOURCES_SHARE)
