"""Bodies about prompts: what a round was shown, which model was asked, and what stands for older blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from msgspec import Struct

from loopline.models import AnswerWay, AttachmentSupport, TailKind, Usage
from loopline.refs import DocumentRef


def turn_id(turn: int) -> str:
    """Return `turn_3` for 3."""
    return f"turn_{turn}"


RESULT_CHARACTERS = 64_000
"""How much of a result is shown, unless a projection says otherwise."""


class CachePoint(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A point in a prompt; the provider is asked to cache everything before it.

    `messages` is the number of messages before it; with system text and tools they have about `tokens` tokens.
    """

    name: Literal["prev_turn", "pre_tail", "tail"]
    messages: int
    tokens: int


class Projection(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the prompts of an epoch show older blocks: in full, truncated, as a ref, or as a summary.

    The summary at the seq `summary` replaces all blocks up to `start`. Texts in turns before `old_before` are
    truncated by their type, and lookups in turns before `spent_before` appear only as refs. So do the results of
    reads up to the seq `reads_cleared` and of all calls up to `results_cleared`. A result has at most
    `result_limit` characters and any other text at most `text_limit`. Hides up to the seq `hides` are applied, and
    feedback up to the seq `feedback` stands in the turns it is about. Up to the seq `unbound` no thinking is
    sent back and no tail is kept, because the text before it has changed. The model gets attached files as
    `carrying` allows; those up to the seq `files_cleared` appear only as refs, and so do images that results up to the
    seq `images_cleared` show.
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
    carrying: AttachmentSupport = AttachmentSupport()
    files_cleared: int = 0
    images_cleared: int = 0


class RoundStart(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A round starts; the block records what its prompt is made of.

    `saw` is the last seq rendered; `takes` are the seqs of the user inputs that this round answers. Within an epoch
    prompts only grow. `opened_by` says why this round opened an epoch and is empty if it did not; `window` is the
    epoch's projection, None if unchanged. `limit` is the number of decisions the turn may take. Digests are sha256
    in hexadecimal; `stable_sha256` covers the messages up to `saw`. `renderer` is the version of the rendering, 0 if the
    prompt was not rendered from blocks, as that of a structured call. `system` and `tools` are the texts themselves if
    this round is the first of its conversation with their digests. A `tail` whose `tail_kind` is "kept" or
    "cleared" becomes a message once the model has replied; its growing part had `tail_room` tokens, 0 for no bound.
    `tokens` is the estimate of the full request and `file_tokens` that of its files, before any calibration. A round
    that `shows` the trace of its turn instead of the context is part of no epoch. `elapsed_ms` is how long the turn
    had run, and `cache_ttl` the seconds for which the provider was expected to keep the prompt; 0 if unknown.
    `answer_by` is the way in which the answer is held to the turn's output type, `schema_sha256` that type's digest.
    `version` is that of its stored form.
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
    version: Literal[1, 2] = 1
    type: ClassVar[Literal["react.round.start"]] = "react.round.start"


class SystemMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message from the runtime to the model about its context, for example that it was summarized."""

    code: str
    text: str
    type: ClassVar[Literal["system.message"]] = "system.message"


class Hide(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model hid a block: `replacement` is shown in place of the ref `path`."""

    path: str
    replacement: str
    type: ClassVar[Literal["react.hide"]] = "react.hide"


class LedgerLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One block that a summary replaces: its ref and a few words about it.

    If there is no room for all lines, those of a low `rank` are dropped first.
    """

    ref: str
    words: str
    rank: Literal[0, 1, 2] = 2


SummaryHint = Literal["general", "react_iteration", "planner_input", "step_dependency"]


class RangeSummary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The summary that replaces the blocks from seq 1 to `covers` in prompts; the log still has them.

    It covers `first_turn` to `last_turn`, the last one in part if it is `split`. `text` was written by a model, or is
    empty, and `why` says why. `carried` are lines that later rounds refer to and the text leaves out, `ledger` has a
    line for each block that can be read again, `notes` are the memory notes and `sources` the cited sources with
    their numbers. `dropped`, `dropped_notes` and `dropped_sources` count what had no room; `older` is the ref of
    the previous summary if lines of it were dropped. `model` was asked for the text, empty if none was, which took
    `elapsed_ms` and `usage`; `cost` is in US dollars, None if the price is unknown. The prompt had
    `messages_before` messages and now has `messages_after`.
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
    usage: Usage = Usage()
    cost: float | None = None
    why: str = ""
    messages_before: int = 0
    messages_after: int = 0
    type: ClassVar[Literal["conv.range.summary"]] = "conv.range.summary"

    @property
    def covered_turn_ids(self) -> list[str]:
        """Return the ids of the turns that it covers, fully or in part."""
        return [turn_id(number) for number in range(self.first_turn, self.last_turn + 1)]


class Checkpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A position from which a conversation can be opened without reading the blocks from seq 1 to `covers`.

    `carries` are the seqs of earlier blocks that still matter: newest plans, sources, stored texts, feedback in
    force, input that no round has taken, and calls that go on in the background (always, so `carries_background` is
    True). `calls` counts the tool calls, `texts` are the sha256 of the stored system and tool texts, `types` are the stored types, and `learned` holds each model's last ratios of reported to
    estimated usage. `plans` counts the plans started. Every turn that had started before this position has ended.
    """

    covers: int = 0
    carries: tuple[int, ...] = ()
    calls: int = 0
    texts: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    plans: int = 0
    learned: dict[str, tuple[float, ...]] = {}
    carries_background: bool = False
    type: ClassVar[Literal["conv.checkpoint"]] = "conv.checkpoint"


SwitchCause = Literal["refusal", "unavailable"]


class ModelSwitched(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model gave no answer, so the next model of the chain gets the same request.

    After a "refusal" the next model serves the rest of the turn; if the model was "unavailable", only this request.
    `place` is the next model's index in the chain, from 0. `text` is the model's reply or its error; `usage` and
    `cost` are those of the failed attempt.
    """

    model: str
    to: str
    why: SwitchCause
    place: int
    text: str = ""
    usage: Usage = Usage()
    cost: float | None = None
    type: ClassVar[Literal["react.model"]] = "react.model"


class ModelOverflowed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model rejected a request with a prompt of about `tokens` as too long.

    `text` is the model's error. Until the turn ends, the model's window is taken to be `window`, and the reply gets at
    most `output`; 0 if a shorter reply is not enough, so that the prompt must become smaller. `named` is the window
    that the error names, 0 if it names none that can be true, and `prompt` the server's count of the prompt. `assumed`
    is the window that the model was said to have.
    """

    model: str
    tokens: int
    window: int
    text: str = ""
    named: int = 0
    prompt: int = 0
    output: int = 0
    assumed: int = 0
    type: ClassVar[Literal["react.overflow"]] = "react.overflow"


def summary_text(summary: RangeSummary) -> str:
    """Return the summary as text, section by section; empty sections are left out."""
    return "\n".join(_lines(summary))


def _lines(summary: RangeSummary) -> Iterator[str]:
    end = ", in part" if summary.split else ""
    first = turn_id(summary.first_turn)
    last = turn_id(summary.last_turn)
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
