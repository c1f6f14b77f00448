"""Checks of an imported document: the order of its blocks, their numbers, names, digests and files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise

from loopline import timeline
from loopline.errors import LooplineError
from loopline.models import Json
from loopline.refs import FileRef, parse
from loopline.timeline.chain import digests
from loopline.timeline.workspace_paths import parse_path

LARGEST_NUMBER = 2**53
CalledBody = (
    timeline.ToolCalled
    | timeline.ToolStarted
    | timeline.ToolResult
    | timeline.RunChild
    | timeline.ProxiedBody
    | timeline.StepStarted
)
_CALLED = timeline.BodyUnion[CalledBody](CalledBody)
_FILES = timeline.BodyUnion[timeline.UserAttachment](timeline.UserAttachment)
_TREE = timeline.BodyUnion[timeline.FileBody](timeline.FileBody)
_HEADERS = timeline.BodyUnion[timeline.TurnHeader](timeline.TurnHeader)
CountedBody = (
    timeline.SourceAdded | timeline.Completion | timeline.ArtifactKept | timeline.FileAdded
)
NumberedBody = (
    timeline.UserRecalled
    | timeline.RoundStart
    | timeline.RangeSummary
    | timeline.Checkpoint
    | CountedBody
)
"""The bodies with numbers that refer to blocks, turns, sources or versions."""
_NUMBERED = timeline.BodyUnion[NumberedBody](NumberedBody)
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_FREE_FIELDS = {
    *("arguments", "ran_with", "value", "parts", "limits"),
    *("data", "settings", "schema", "parameters", "result", "form"),
}
"""Fields with values from tools, bundles, clients and providers, whose numbers are not checked."""

_PROJECTED_SEQS = (
    *("summary", "start", "reads_cleared", "results_cleared", "hides", "feedback"),
    *("unbound", "files_cleared"),
)
"""The fields of a projection that are seqs."""


class DocumentError(LooplineError):
    """A document cannot be imported; the message has the path in the document, such as `blocks[3].body`."""


def _at(block: timeline.Block) -> str:
    return f"blocks[{block.seq - 1}]"


def check_blocks(named: Sequence[tuple[timeline.Block, Json]], rows: Sequence[Json]) -> None:
    """Check the blocks of a document, each with the ref that the document gives it; `rows` are its block objects.

    Raises:
        DocumentError: a block is out of order, or a number, name, digest or file in it is wrong.
    """
    blocks = [block for block, _ in named]
    _check_turns(blocks)
    _check_order(blocks)
    _check_calls(blocks)
    _check_attachments(blocks)
    _check_files(blocks)
    _check_refs(named)
    _check_digests(blocks, rows)
    _check_commits(blocks)
    _check_numbers(blocks)


def _check_turns(blocks: Sequence[timeline.Block]) -> None:
    """Check that turns start one after the other, each with a prompt; raise a DocumentError otherwise."""
    newest = 0
    prompted = set[int]()
    for block in blocks:
        if block.turn > newest + 1:
            raise DocumentError(f"{_at(block)}: {block.turn_id} begins after turn_{newest}")
        newest = max(newest, block.turn)
        if isinstance(block.body, timeline.UserPrompt):
            prompted.add(block.turn)
        elif (
            block.turn not in prompted
            and block.term
            and not isinstance(block.body, timeline.Unknown)
        ):
            # A block of an unknown type, from a newer version of Loopline, may start a turn. A conversation may begin with
            # a scheduled message, and its user may change the mode or send a followup before the turn begins.
            raise DocumentError(f"{_at(block)}: {block.turn_id} begins without a user.prompt")


def _check_order(blocks: Sequence[timeline.Block]) -> None:
    """Check that `n` of each block numbers it by type and turn, and that terms never decrease.

    Raises:
        DocumentError: a number or a term is wrong.
    """
    counts = Counter[tuple[int, str]]()
    newest = 0
    for block in blocks:
        counts[block.turn, block.type] += 1
        if block.n != counts[block.turn, block.type]:
            raise DocumentError(f"{_at(block)}: n {block.n} does not number it in its turn")
        if block.term and block.term < newest:
            raise DocumentError(f"{_at(block)}: term {block.term} comes after {newest}")
        newest = max(newest, block.term)


def _check_calls(blocks: Sequence[timeline.Block]) -> None:
    """Check that starts, child runs and results follow their calls, with at most one start and one result for each call.

    A program's call must follow the call that runs the program and precede the result of that call.

    Raises:
        DocumentError: a block of a call is out of place.
    """
    turns = dict[str, int]()
    started = set[str]()
    finished = set[str]()
    for block, body in _CALLED.among(blocks):
        call_id = body.call_id
        is_valid = turns.get(call_id) == block.turn
        match body:
            case timeline.ToolCalled():
                is_valid = call_id not in turns
                turns.setdefault(call_id, block.turn)
            case timeline.ToolStarted():
                is_valid = is_valid and call_id not in started | finished
                started.add(call_id)
            case timeline.ToolResult():
                is_valid = is_valid and call_id not in finished
                finished.add(call_id)
            case timeline.ProxiedCall(parent=parent):
                is_open = turns.get(parent) == block.turn and parent not in finished
                is_valid = call_id not in turns and is_open
                turns.setdefault(call_id, block.turn)
            case timeline.ProxiedResult():
                is_valid = is_valid and call_id not in finished
                finished.add(call_id)
            case timeline.RunChild(conversation=name):
                is_valid = is_valid and timeline.is_child_of(name, call_id)
            case timeline.StepStarted():  # only a step that runs agents has a call id
                is_valid = call_id not in turns or not call_id
                turns.setdefault(call_id, block.turn)
        if not is_valid:
            raise DocumentError(f"{_at(block)}: {body.type} of {call_id!r} is out of place")


def _check_attachments(blocks: Sequence[timeline.Block]) -> None:
    """Check that every attached file belongs to an input of its turn, and that its content has its digest.

    Raises:
        DocumentError: an attached file is wrong.
    """
    for block, file in _FILES.among(blocks):
        seq = timeline.input_seq_of(block)
        message = blocks[seq - 1] if 1 <= seq <= len(blocks) else block
        is_input = isinstance(
            message.body, timeline.UserPrompt | timeline.UserFollowup | timeline.UserSteer
        )
        if message.turn != block.turn or not is_input:
            raise DocumentError(f"{_at(block)}: {file.name!r} does not belong to an input")
        try:
            digest = sha256(timeline.workspace.file_bytes(file)).hexdigest()
        except ValueError:
            digest = ""
        if digest != file.sha256:
            raise DocumentError(f"{_at(block)}: {file.name!r} does not match its sha256")


def _check_files(blocks: Sequence[timeline.Block]) -> None:
    """Check that every file has a valid path of a workspace, and that its content has its size and digest.

    Raises:
        DocumentError: a path, a ref of a pulled file, a size or a digest is wrong.
    """
    for block, body in _TREE.among(blocks):
        match body:
            case timeline.FileRemoved(area=area, path=path):
                _check_path(block, f"{area}/{path}")
            case timeline.FilesPulled(refs=refs):
                for ref in refs:
                    _check_pulled(block, ref)
            case timeline.FileAdded(area=area, path=path, size=size, sha256=digest):
                _check_path(block, f"{area}/{path}")
                try:
                    content = timeline.workspace.file_bytes(body)
                except ValueError:
                    content = b""
                if (len(content), sha256(content).hexdigest()) != (size, digest):
                    raise DocumentError(
                        f"{_at(block)}: {path!r} does not match its size and sha256"
                    )


def _check_path(block: timeline.Block, path: str) -> None:
    try:
        parse_path(path)
    except LooplineError as error:
        raise DocumentError(f"{_at(block)}.body.path: {error}") from error


def _check_pulled(block: timeline.Block, text: str) -> None:
    """Raise a DocumentError if `text` is not the ref of a file."""
    try:
        ref = parse(text)
    except LooplineError as error:
        raise DocumentError(f"{_at(block)}.body.refs: {error}") from error
    if not isinstance(ref, FileRef):
        raise DocumentError(f"{_at(block)}.body.refs: {text!r} is not the ref of a file")


def _check_refs(blocks: Sequence[tuple[timeline.Block, Json]]) -> None:
    """Check that each block has the ref that follows from its position and body.

    Raises:
        DocumentError: a ref differs, or the block cannot have a ref.
    """
    for block, ref in blocks:
        try:
            expected = block.ref
        except LooplineError as error:
            raise DocumentError(f"{_at(block)}: it cannot have a ref: {error}") from error
        if ref != expected:
            actual = repr(ref) if isinstance(ref, str) else "not a text"
            raise DocumentError(f"{_at(block)}: its ref is {actual}, and should be {expected!r}")


def _check_digests(blocks: Sequence[timeline.Block], rows: Sequence[Json]) -> None:
    """Check the digests of the rows that have one; raise a DocumentError at the first that differs."""
    for index, (digest, row) in enumerate(zip(digests(blocks), rows, strict=True)):
        match row:
            case {"digest": written} if written != digest.hex():
                raise DocumentError(
                    f"blocks[{index}]: it does not match its digest, so it or a block before it was "
                    "changed: run loopline audit --document for details"
                )
            case _:
                pass


def _check_commits(blocks: Sequence[timeline.Block]) -> None:
    """Check that every commit is a hexadecimal digest, so that a command cannot read it as an option.

    Raises:
        DocumentError: a commit is not.
    """
    for block, header in _HEADERS.among(blocks):
        for used in header.knowledge_commits:
            if not _COMMIT.fullmatch(used.commit):
                raise DocumentError(
                    f"{_at(block)}.body.knowledge.commit: {used.commit!r} is not a commit"
                )


@dataclass(slots=True)
class _Counts:
    """The counts of turns, sources, and versions of artifacts and files in the blocks before."""

    turn: int = 0
    sids: set[int] = field(default_factory=set[int])
    versions: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    files: dict[tuple[int, str, str], int] = field(default_factory=dict[tuple[int, str, str], int])


def _check_numbers(blocks: Sequence[timeline.Block]) -> None:
    """Check that numbers in bodies are not negative or huge, and refer to blocks, turns and sources that exist.

    Raises:
        DocumentError: a number is out of range; the message has its path.
    """
    counts = _Counts()
    for block in blocks:
        body = block.body
        counts.turn = max(counts.turn, block.turn)
        fields: Json = (
            None if isinstance(body, timeline.Unknown) else json.loads(timeline.encode_full(body))
        )
        for path, number in _numbers(fields, f"{_at(block)}.body"):
            if not 0 <= number <= LARGEST_NUMBER:
                raise DocumentError(f"{path}: {number} is not from 0 to {LARGEST_NUMBER}")
        if _NUMBERED.has(body):
            for fault in _find_faults(block, body, counts):
                raise DocumentError(f"{_at(block)}.{fault}")


def _numbers(value: Json, path: str) -> Iterator[tuple[str, int | float]]:
    """Yield every number of a body with its path, without numbers in free-form JSON."""
    match value:
        case dict():
            for name, item in value.items():
                if name not in _FREE_FIELDS:
                    yield from _numbers(item, f"{path}.{name}")
        case list():
            for index, item in enumerate(value):
                yield from _numbers(item, f"{path}[{index}]")
        case int() | float() if not isinstance(value, bool):
            yield path, value
        case bool() | int() | float() | str() | None:
            pass


def _find_faults(block: timeline.Block, body: NumberedBody, counts: _Counts) -> Iterator[str]:
    """Yield a message for each number that refers to a block, turn, source or version that does not exist."""
    before = block.seq - 1
    match body:
        case timeline.UserRecalled(said=seq):
            yield from _find_out_of_range("said", [seq], 1, before)
        case timeline.RoundStart(saw=saw, takes=takes, window=projection):
            yield from _find_out_of_range("saw", [saw], 0, before)
            yield from _find_out_of_range("takes", takes, 1, before)
            if projection is not None:
                yield from _find_projection_faults(projection, counts.turn, before)
        case timeline.RangeSummary(covers=covers, first_turn=first, last_turn=last):
            yield from _find_out_of_range("covers", [covers], 1, before)
            yield from _find_out_of_range("first_turn", [first], 1, counts.turn)
            yield from _find_out_of_range("last_turn", [last], first, counts.turn)
        case timeline.Checkpoint(covers=covers, carries=carries):
            yield from _find_out_of_range("covers", [covers], 1, before)
            yield from _find_out_of_range("carries", carries, 1, covers)
            if any(seq >= following for seq, following in pairwise(carries)):
                yield "body.carries: the numbers are not in order"
        case (
            timeline.SourceAdded()
            | timeline.Completion()
            | timeline.ArtifactKept()
            | timeline.FileAdded()
        ):
            yield from _find_count_faults(body, block.turn, counts)


def _find_projection_faults(
    projection: timeline.Projection, turn: int, before: int
) -> Iterator[str]:
    """Yield a message for each seq of a window after `before`, and for each turn number after `turn + 1`."""
    for name in _PROJECTED_SEQS:
        yield from _find_out_of_range(f"window.{name}", [getattr(projection, name)], 0, before)
    for name in ("old_before", "spent_before"):
        yield from _find_out_of_range(f"window.{name}", [getattr(projection, name)], 0, turn + 1)


def _find_count_faults(body: CountedBody, turn: int, counts: _Counts) -> Iterator[str]:
    """Yield a message for each unknown source, and each sid or version out of sequence; update `counts`."""
    match body:
        case timeline.SourceAdded(sid=sid):
            yield from _find_out_of_range("sid", [sid], 1, len(counts.sids) + 1)
            counts.sids.add(sid)
        case timeline.Completion(sources_used=used):
            for sid in used:
                if sid not in counts.sids:
                    yield f"body.sources_used: there is no source {sid}"
        case timeline.ArtifactKept(name=name, version=version):
            expected = counts.versions.get((turn, name), 0) + 1
            yield from _find_out_of_range("version", [version], expected, expected)
            counts.versions[turn, name] = version
        case timeline.FileAdded(area=area, path=path, version=version):
            expected = counts.files.get((turn, area, path), 0) + 1
            yield from _find_out_of_range("version", [version], expected, expected)
            counts.files[turn, area, path] = version


def _find_out_of_range(name: str, numbers: Iterable[int], first: int, last: int) -> Iterator[str]:
    for number in numbers:
        if not first <= number <= last:
            yield f"body.{name}: {number} is not from {first} to {last}"
