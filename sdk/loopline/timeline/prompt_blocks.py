"""Bodies about prompts: the start of a round, changes of the model, and summaries and checkpoints of older blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from msgspec import Struct

from loopline.models import AnswerWay, AttachmentSupport, JsonObject, TailKind, Usage
from loopline.refs import DocumentRef


def turn_id(turn: int) -> str:
    """Return `turn_3` for 3."""
    return f"turn_{turn}"


RESULT_CHARACTERS = 64_000
"""The characters of a tool result in a prompt, if the projection has no other `result_limit`."""


class CachePoint(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A point in a prompt up to which the provider is asked to cache.

    `messages` is the number of messages before it; together with system text and tools they have about `tokens` tokens.
    """

    name: Literal["prev_turn", "pre_tail", "tail"]
    messages: int
    tokens: int


class Projection(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the prompts of an epoch show older blocks: in full, truncated, as a ref, or as a summary.

    The summary at the seq `summary` replaces all blocks up to `start`. Texts in turns before `old_before` are
    truncated by their type, and lookups in turns before `spent_before` are shown only as refs. Results of reads up to
    the seq `reads_cleared` and of all calls up to `results_cleared` are shown only as refs too. A result has at most
    `result_limit` characters and any other text at most `text_limit`. Hides up to the seq `hides` are applied, and
    feedback up to the seq `feedback` is shown in the turns that it is about. Up to the seq `unbound` thinking is not
    sent back and tails are not kept, because the text before them has changed. The model receives attached files as
    `carrying` allows. Files up to the seq `files_cleared`, and images in results up to the seq `images_cleared`, are
    shown only as refs.
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
    """The start of a round, with everything from which its prompt was made.

    `saw` is the last seq rendered; `takes` are the seqs of the user inputs that this round answers. Within an epoch
    prompts only grow. `opened_by` is the cause if this round opened an epoch, else empty; `window` is the epoch's
    projection, None if unchanged. `limit` is the number of decisions that the turn may take. Digests are sha256 in
    hexadecimal; `stable_sha256` covers the messages up to `saw`. `renderer` is the version of the rendering, 0 for a
    prompt that was not rendered from blocks, as in a structured call. `system` and `tools` are the texts if this is the
    conversation's first round with their digests, else empty. If `tail_kind` is "kept" or "cleared", the `tail` becomes
    a message once the model has replied; its growing part had at most `tail_room` tokens, 0 for no limit. `tokens` is
    the estimate of the full request and `file_tokens` the estimate of its files, both before calibration. A round that
    `shows` the trace of its turn instead of the context does not belong to an epoch. `elapsed_ms` is the running time
    of the turn so far, and `cache_ttl` the seconds for which the provider was expected to cache the prompt, both 0 if
    unknown. `answer_by` is the way in which the provider enforces the turn's output type, and `schema_sha256` the
    digest of the type's schema. `version` is the version of the stored form. `settings` are those of the request, with
    masked values of headers, and `dropped_settings` the names of those that the model does not support, with the reasons.
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
    settings: JsonObject = {}
    dropped_settings: dict[str, str] = {}
    type: ClassVar[Literal["react.round.start"]] = "react.round.start"


class SystemMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message from the runtime to the model about its context, for example after a summary."""

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

    If a summary is too long, lines with a low `rank` are dropped first.
    """

    ref: str
    words: str
    rank: Literal[0, 1, 2] = 2


SummaryHint = Literal["general", "react_iteration", "planner_input", "step_dependency"]


class RangeSummary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The summary that replaces the blocks from seq 1 to `covers` in prompts; the log still has them.

    It covers `first_turn` to `last_turn`, the last turn only in part if it is `split`. `text` is the text of the `model`;
    if it is empty, `why` has the reason. `carried` are blocks that later rounds refer to and that the text does not
    mention, `ledger` has a line for each block that can be read again, `notes` are the memory notes and `sources` the
    cited sources with their numbers. `dropped`, `dropped_notes` and `dropped_sources` count the lines that were dropped
    for lack of space; `older` is the ref of the previous summary if lines of it were dropped. The request to `model`
    (empty if there was none) took `elapsed_ms` and `usage`; `cost` is in US dollars, None if the price is unknown. The
    prompt had `messages_before` messages before the summary and has `messages_after` with it.
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


class Checkpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A position from which a conversation can be opened without reading the blocks from seq 1 to `covers`.

    `carries` are the seqs of earlier blocks that are still needed: newest plans, sources, stored texts, feedback that
    counts, pending input, and starts of background calls. `calls` counts the tool calls before this position, `plans`
    the plans started. `texts` are the sha256 of the stored system and tool texts, `types` the stored types, and
    `learned` the last ratios of reported to estimated usage by model. Every turn that started before this position has
    ended. `carries_background` is always True.
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
    """A model did not answer, so the next model of the chain receives the same request.

    After a "refusal" the next model serves the rest of the turn; if the model was "unavailable", only this request.
    `place` is the index of the next model in the chain, from 0. `text` is the refusal or the error; `usage` and `cost`
    are those of the failed attempt.
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

    `text` is the model's error. Until the turn ends, prompts are fitted to `window` tokens, and a reply to `output`
    tokens; `output` is 0 if a shorter reply is not enough, and the prompt must become smaller. `named` is the window
    that the error states, 0 if it states none or an impossible number, and `prompt` the server's count of the prompt.
    `assumed` is the window that the model was configured with.
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
    """Render the summary as text with a heading for each section; empty sections are left out."""
    return "\n".join(_lines(summary))


def _lines(summary: RangeSummary) -> Iterator[str]:
    """Yield the heading with the turns, the text, each non-empty section, and the counts of dropped lines."""
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
