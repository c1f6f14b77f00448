"""The text of a tool's result for the model: truncated to its limit, with its sources, files and artifact."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256

from msgspec import Struct, structs

from loopline import timeline as tl
from loopline.models import ADDRESS_CHARACTERS, Json, dumps, one_line
from loopline.refs import FileRef
from loopline.tools import Outcome, ResultSection

_POSITION = re.compile(r"\[\[S:@([0-9]{1,6})\]\]")


def truncate_outcome(outcome: Outcome, limit_bytes: int) -> Outcome:
    """Return the outcome with at most `limit_bytes` UTF-8 bytes of text and sections; truncated texts get a line about it.

    The call has run, so a long result is truncated and is not an error.
    """
    # A character has at most four bytes in UTF-8, so most texts need not be encoded.
    if not outcome.sections and 4 * len(outcome.text) <= limit_bytes:
        return outcome
    text, remaining_bytes = _truncate(outcome.text, limit_bytes)
    sections: list[ResultSection] = []
    is_whole = text is outcome.text
    for section in outcome.sections:
        shown, remaining_bytes = _truncate(section.text, remaining_bytes)
        is_whole = is_whole and shown is section.text
        sections.append(structs.replace(section, text=shown))
    if is_whole:
        return outcome
    return structs.replace(outcome, text=text, sections=tuple(sections))


def _truncate(text: str, limit_bytes: int) -> tuple[str, int]:
    """Return the text with at most `limit_bytes` bytes, and the remaining bytes of the limit."""
    stored = text.encode("utf-8", "surrogatepass")
    if len(stored) <= limit_bytes:
        return text, limit_bytes - len(stored)
    note = f"[CUT] {len(stored):,} bytes came, and {limit_bytes:,} are kept: ask for less at once"
    return f"{stored[:limit_bytes].decode('utf-8', 'ignore')}\n{note}", 0


class _NumberedOutcome(Struct, frozen=True, kw_only=True):
    """An outcome with the pool's numbers (`sids`) for its sources, and the bodies that record new sources and texts.

    `shows` are the refs and the sha256 of the texts that the result shows.
    """

    outcome: Outcome
    sids: Sequence[int]
    added: Sequence[tl.SourceAdded]
    kept: Sequence[tl.TextKept]
    shows: tuple[tuple[str, str], ...]


def _with_file_sources(outcome: Outcome, files: Sequence[tl.FileBody], turn: int) -> Outcome:
    """Return the outcome with the files for the user added to its sources, if `cites_files` is set."""
    if not outcome.cites_files:
        return outcome
    sources = [
        tl.Source(url=str(_file_ref(file, turn)), title=file.path, source_type="file")
        for file in files
        if isinstance(file, tl.FileAdded)
        and file.area == "outputs"
        and file.visibility == "external"
    ]
    return structs.replace(outcome, sources=(*outcome.sources, *sources))


def _file_ref(file: tl.FileAdded, turn: int) -> FileRef:
    return FileRef(turn_id=f"turn_{turn}", area=file.area, path=file.path, version=file.version)


def _number_sources(outcome: Outcome, pool: tl.SourcePool) -> _NumberedOutcome:
    """Return the outcome with numbers of the pool for its sources; sources that a section cites are added to its list."""
    if not outcome.sections and not outcome.sources:
        return _NumberedOutcome(outcome=outcome, sids=(), added=(), kept=(), shows=outcome.shows)
    section_sources = [section.source for section in outcome.sections if section.source]
    cited = [source for section in outcome.sections for source in section.cites.values()]
    listed = [*outcome.sources, *cited]
    sids, added = pool.assign_numbers([*section_sources, *listed])
    numbers = iter(sids[len(section_sources) + len(outcome.sources) :])
    sections: list[ResultSection] = []
    kept: list[tl.TextKept] = []
    shows = list(outcome.shows)
    for section in outcome.sections:
        by_number = {number: next(numbers) for number in section.cites}
        text = tl.citations.bind(section.text, by_number)
        sections.append(structs.replace(section, text=text))
        shows += ((ref, sha256(text.encode()).hexdigest()) for ref in section.shown_as)
        if section.kept is not None:
            stored = tl.citations.bind(section.kept.text, by_number)
            kept.append(structs.replace(section.kept, text=stored))
    return _NumberedOutcome(
        outcome=structs.replace(outcome, sections=tuple(sections), sources=tuple(listed)),
        sids=sids,
        added=added,
        kept=kept,
        shows=tuple(shows),
    )


def _source_spans(
    numbered: _NumberedOutcome, pool: tl.SourcePool, text: str
) -> tuple[tl.SourceSpan, ...]:
    """Return the spans of a rendered result that show texts of its sources which the pool has not recorded."""
    if not numbered.sids:
        return ()
    recorded = {added.sid: added.source.text for added in numbered.added}
    outcome = numbered.outcome
    sections = [(section.source, section.text) for section in outcome.sections if section.source]
    shown = [*sections, *((source, "") for source in outcome.sources)]
    spans: dict[tl.SourceSpan, None] = {}
    for sid, (source, section) in zip(numbered.sids, shown, strict=True):
        recorded_text = recorded[sid] if sid in recorded else pool.sources[sid].text
        if source.text and source.text in recorded_text:
            continue
        part = source.text if source.text and source.text in text else section
        start = text.find(part)
        if part and start >= 0 and part not in recorded_text:
            spans[tl.SourceSpan(sid=sid, start=start, end=start + len(part))] = None
    return tuple(spans)


def _file_lines(files: Sequence[tl.FileBody], turn: int) -> list[str]:
    """Return a line for each file that a call wrote or removed, with the ref of a written file."""
    lines: list[str] = []
    for body in files:
        match body:
            case tl.FileAdded():
                lines.append(f"wrote {_file_ref(body, turn)} ({tl.workspace.describe_file(body)})")
            case tl.FileRemoved(area=area, path=path):
                lines.append(f"removed {area}/{path}")
            case tl.FilesPulled():
                pass  # the text of the tool lists them
    return lines


def _artifact_bodies(
    timeline: tl.Timeline, turn: int, call_id: str, artifact: Json
) -> tuple[str, list[tl.ArtifactKept]]:
    """Return the pinned ref of a call's artifact, and the body that stores it; both empty without an artifact."""
    if artifact is None:
        return "", []
    version = timeline.artifacts.get((turn, call_id), 0) + 1
    ref = f"ar:turn_{turn}.artifacts.{call_id}@{version}"
    body = tl.ArtifactKept(
        name=call_id, version=version, text=dumps(artifact), mime="application/json"
    )
    return ref, [body]


def _replace_positions(text: str, sids: Sequence[int]) -> str:
    """Return the text with the positions of sources, such as `[[S:@1]]`, replaced by their numbers in the pool."""

    def replace(match: re.Match[str]) -> str:
        position = int(match[1])
        return f"[[S:{sids[position - 1]}]]" if 0 < position <= len(sids) else ""

    return _POSITION.sub(replace, text)


def _render_outcome(
    outcome: Outcome, sids: Sequence[int], artifact: str, files: Sequence[str]
) -> str:
    """Render an outcome for the model: its text, its sections, its sources with their numbers, its files and artifact."""
    numbers = iter(sids)
    parts = [_replace_positions(outcome.text, sids) if outcome.cites else outcome.text]
    for section in outcome.sections:
        mark = f"[[S:{next(numbers)}]] " if section.source else ""
        heading = one_line(section.heading, ADDRESS_CHARACTERS)
        parts.append(f"{mark}{heading}\n{section.text}{section.note}")
    if outcome.sources:
        listed = [
            f"[[S:{sid}]] {one_line(source.title or source.url)} — {one_line(source.url, ADDRESS_CHARACTERS)}"
            for sid, source in zip(numbers, outcome.sources, strict=True)
        ]
        parts.append("\n".join(["sources:", *dict.fromkeys(listed)]))
    if files:
        parts.append("\n".join(files))
    if artifact:
        parts.append(f"the whole is kept: {artifact}")
    return "\n\n".join(filter(None, parts))


class RenderedResult(Struct, frozen=True, kw_only=True):
    """The result of a call as it is recorded: its text, and the texts of its sections.

    `artifact` is the ref of its artifact. `shows` are the refs and the sha256 of the texts that it shows, `source_spans` the
    parts of the text that show unrecorded texts of sources. `bodies` are recorded together with the result.
    """

    text: str
    sections: Sequence[str]
    artifact: str
    shows: tuple[tuple[str, str], ...]
    source_spans: tuple[tl.SourceSpan, ...]
    bodies: Sequence[tl.Body]


def render_result(
    outcome: Outcome,
    timeline: tl.Timeline,
    turn: int,
    call_id: str,
    files: Sequence[tl.FileBody],
    *,
    before: str = "",
    after: str = "",
) -> RenderedResult:
    """Render the outcome of a call of the turn, with the numbers of its sources and the refs of its `files` and artifact.

    `before` and `after` are texts around it.
    """
    artifact, kept = _artifact_bodies(timeline, turn, call_id, outcome.artifact)
    lines = _file_lines(files, turn) if files else ()
    cited = _with_file_sources(outcome, files, turn) if files else outcome
    numbered = _number_sources(cited, timeline.pool)
    outcome_text = _render_outcome(numbered.outcome, numbered.sids, artifact, lines)
    text = f"{before}{outcome_text}{after}" if before or after else outcome_text  # no copy
    return RenderedResult(
        text=text,
        sections=[section.text for section in numbered.outcome.sections],
        artifact=artifact,
        shows=numbered.shows,
        source_spans=_source_spans(numbered, timeline.pool, text),
        bodies=[*numbered.added, *outcome.bodies, *numbered.kept, *kept, *files],
    )
