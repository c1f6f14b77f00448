"""Bodies about prompts: what a round was shown, which model was asked, and what stands for older blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from loopline.models import AnswerWay, AttachmentSupport, TailKind, Usage
from loopline.refs import DocumentRef


def turn_id(turn: int) -> str:
    """`turn_3` for 3."""
    return f"turn_{turn}"


RESULT_CHARACTERS = 64_000
"""So much of a result is shown, unless a window says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePoint:
    """A place in a prompt up to which a provider is asked to keep it.

    `messages` of the prompt stand before it; with system text and tools they cost about `tokens`.
    """

    name: Literal["prev_turn", "pre_tail", "tail"]
    messages: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """What the prompts of an epoch show of the blocks before it: whole, cut, named, or summed up.

    The summary at the seq `summary` stands for all blocks up to `start`. Turns before `old_before` are
    clipped by kind; what turns before `spent_before` looked up is only named. Results of reads up to
    the seq `reads_cleared`, and of every call up to `results_cleared`, are only named. No result is
    longer than `result_limit` characters and no other text than `text_limit`. Hides up to the seq
    `hides` are done; feedback up to the seq `feedback` stands in the turns it is about. Of what came up
    to the seq `unbound`, no thinking is sent back and no tail is kept, for what stood before has changed.
    The model is given attached files as `carrying` allows, but for those up to the seq `files_cleared`,
    which are only named.
    """

    summary: int = 0
    start: int = 0
    old_before: int = 0
    spent_before: int = 0
    reads_cleared: int = 0
    results_cleared: int = 0
    result_limit: int = RESULT_CHARACTERS
    text_limit: int | None = None
    hides: int = 0
    feedback: int = 0
    unbound: int = 0
    carrying: AttachmentSupport = field(default_factory=AttachmentSupport)
    files_cleared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStart:
    """A round begins, and what its prompt is made of.

    `saw` is the last seq rendered; `takes` are the seqs of the user inputs that this round answers
    to. An epoch is a stretch in which prompts only grow; `opened_by` says what began it, empty within
    one, and `window` what it shows of what was before, None for as before. `limit` is the number of
    decisions the turn may take. The digests are sha256 in hexadecimal; `stable_sha256` is that of the
    messages up to `saw`. `system` and `tools` are the texts themselves where this round is the first of
    its conversation with their digests. A `tail` whose `tail_kind` is "kept" or "cleared" is one of the
    messages once the model has replied; what grows in it had `tail_room` tokens, 0 for no bound. `tokens` is the estimate of the whole request, `file_tokens` that
    of the files in it, before any learning. One that `shows` the trace of its turn instead of the context
    has no part in any epoch. `elapsed_ms` is how long its turn had run until then, 0 where nobody noted it.
    The provider was taken to keep the prompt for `cache_ttl` seconds, 0 where nobody noted it. `answer_by` says
    in which way the answer is held to the turn's output type, and `schema_sha256` is the digest of that.
    """

    saw: int
    takes: tuple[int, ...]
    epoch: int
    opened_by: str
    model: str
    protocol: str
    renderer: int
    system_sha256: str
    tools_sha256: str
    stable_sha256: str
    tail: str = ""
    tail_kind: TailKind = "dropped"
    tail_room: int = 0
    limit: int = 0
    purpose: Literal["decision", "answer"] = "decision"
    shows: Literal["context", "trace"] = "context"
    tokens: int = 0
    file_tokens: int = 0
    cache_ttl: int = 0
    points: tuple[CachePoint, ...] = ()
    window: Projection | None = None
    system: str = ""
    tools: str = ""
    elapsed_ms: float = 0.0
    answer_by: AnswerWay | Literal[""] = ""
    schema_sha256: str = ""
    type: Literal["react.round.start"] = "react.round.start"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMessage:
    """The runtime tells the model what has become of the context, such as that it was summed up."""

    code: str
    text: str
    type: Literal["system.message"] = "system.message"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hide:
    """The model put something out of its sight: `replacement` is shown where `path`, a ref, was."""

    path: str
    replacement: str
    type: Literal["react.hide"] = "react.hide"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """One block that a summary stands for: its ref, and words that say what it is.

    Where there is no room for all lines, those of a low `rank` go first.
    """

    ref: str
    words: str
    rank: Literal[0, 1, 2] = 2


SummaryHint = Literal["general", "react_iteration", "planner_input", "step_dependency"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSummary:
    """What stands in prompts for the blocks from seq 1 to `covers`, which the log still holds.

    `first_turn` to `last_turn` are covered, the last one in part when it is `split`. `text` was written
    by a model, or is empty. `carried` are the lines that later rounds refer to and the text left out,
    `ledger` a line for each block that can be read again, `notes` the memory notes, `sources` the
    numbers of those that were cited, each with its name. `dropped` counts the blocks for which the
    ledger had no room, `older` is the ref of the summary before, if lines of it are among them; `dropped_notes`
    and `dropped_sources` count the older notes and sources that had no room. `model` was
    asked for the text, empty when none was, which took `elapsed_ms` and that `usage`; `cost` is in US dollars,
    None while nobody knows a price. `why` says why there is no text. The prompt had `messages_before`, and
    has `messages_after`.
    """

    covers: int
    first_turn: int
    last_turn: int
    split: bool = False
    hint: SummaryHint = "general"
    text: str = ""
    carried: tuple[LedgerLine, ...] = ()
    ledger: tuple[LedgerLine, ...] = ()
    notes: tuple[LedgerLine, ...] = ()
    sources: tuple[LedgerLine, ...] = ()
    dropped: int = 0
    dropped_notes: int = 0
    dropped_sources: int = 0
    older: str = ""
    model: str = ""
    elapsed_ms: float = 0.0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    why: str = ""
    messages_before: int = 0
    messages_after: int = 0
    type: Literal["conv.range.summary"] = "conv.range.summary"

    @property
    def covered_turn_ids(self) -> list[str]:
        """The turns that it covers, wholly or in part."""
        return [turn_id(number) for number in range(self.first_turn, self.last_turn + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """From where a conversation can be opened: what is needed of the blocks from seq 1 to `covers`.

    `carries` are the seqs of those that still matter: newest plans, sources, texts that were kept,
    feedback in force, and input that no round had taken there. `calls` counts the tool calls, `texts` are
    the sha256 of the system and tool texts that are kept, `types` the stored types, and `learned` holds,
    for a model, its last reports of usage over what was estimated. `plans` counts the plans that had begun,
    0 where it was not counted and every plan is carried. No turn had begun and not ended there.
    """

    covers: int = 0
    carries: tuple[int, ...] = ()
    calls: int = 0
    texts: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    plans: int = 0
    learned: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    type: Literal["conv.checkpoint"] = "conv.checkpoint"


SwitchCause = Literal["refusal", "unavailable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSwitched:
    """A model gave no answer, and the next one of the chain is asked the same.

    After a "refusal" it is asked for the rest of the turn, of one that was "unavailable" for this request.
    That one stands at the `place` of the chain, from 0. `text` is what the model or its error said;
    `usage` and `cost` are what the attempt used.
    """

    model: str
    to: str
    why: SwitchCause
    place: int
    text: str = ""
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    type: Literal["react.model"] = "react.model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOverflowed:
    """A model found a request too long, of `tokens` by our estimate; it is taken to have this `window`.

    `text` is what it said.
    """

    model: str
    tokens: int
    window: int
    text: str = ""
    type: Literal["react.overflow"] = "react.overflow"


def summary_text(summary: RangeSummary) -> str:
    """Everything the summary says, section by section; a section without lines is left out."""
    return "\n".join(_lines(summary))


def _lines(summary: RangeSummary) -> Iterator[str]:
    end = ", in part" if summary.split else ""
    first, last = turn_id(summary.first_turn), turn_id(summary.last_turn)
    yield f"[SUMMARY] of {first} to {last}{end}. react.read gives what any ref below names, whole."
    if summary.text:
        yield summary.text
    yield from _section("[MEMORY NOTES]", summary.notes)
    if summary.dropped_notes:
        yield f"{summary.dropped_notes} older memory notes: {DocumentRef(name='conv:notes')}"
    yield from _section("[REFERRED TO LATER]", summary.carried)
    yield from _section("[SOURCES CITED]", summary.sources)
    if summary.dropped_sources:
        yield f"{summary.dropped_sources} older sources: {DocumentRef(name='conv:sources_pool')}"
    yield from _section("[BLOCKS]", summary.ledger)
    if summary.dropped:
        older = f", and {summary.older} has lines for some" if summary.older else ""
        yield (
            f"{summary.dropped} blocks that say little had no room: "
            f"artifact:conv.timeline.v1 has every block{older}."
        )


def _section(heading: str, lines: Sequence[LedgerLine]) -> Iterator[str]:
    if lines:
        yield heading
        yield from (f"{line.ref} {line.words}" for line in lines)
