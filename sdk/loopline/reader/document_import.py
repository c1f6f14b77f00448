"""A document `artifact:conv.timeline.v1` as the blocks it was made of, or where it is damaged."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from hashlib import sha256

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, dumps, well_formed
from loopline.reader.conversation_documents import VERSION
from loopline.reader.document_checks import MOST, number_fault
from loopline.timeline import (
    Block,
    Body,
    Imported,
    ImportedAction,
    KnowledgeCommit,
    RunChild,
    Timeline,
    ToolCalled,
    ToolResult,
    ToolStarted,
    Turn,
    TurnHeader,
    Unknown,
    UserAttachment,
    UserFollowup,
    UserPrompt,
    UserSteer,
    attachments,
    body_types,
    child_action,
    decode,
    encode_full,
    input_seq_of,
    is_child_of,
    parent_name,
    repository_action,
    turn_id,
)
from loopline.timeline.chain import digests
from loopline.timeline.codec import VERSION as BODY_VERSION

_DOCUMENT = {
    "version",
    "conversation_id",
    "conversation_title",
    "conversation_started_at",
    "last_activity_at",
    "turn_ids",
    "children_not_included",
    "blocks",
}
_TURN_ID = re.compile(r"turn_([1-9][0-9]{0,9})")
_STORED = {"stored", "digest"}
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


class DocumentError(LooplineError):
    """A document cannot be imported; the message names the place in it."""


def read_document(document: JsonObject) -> list[Block]:
    """The blocks of a document, checked: nothing is missing, damaged, doubled or left over.

    Raises:
        DocumentError: it is of another version, or damaged; the message names the place.
    """
    rows = rows_of(document)
    read = [block_at(row, place) for place, row in enumerate(rows, start=1)]
    blocks = [block for block, _ in read]
    _check_turns(blocks)
    _check_numbers(blocks)
    _check_calls(blocks)
    _check_attachments(blocks)
    _check_names(read)
    _check_digests(blocks, rows)
    _check_commits(blocks)
    fault = number_fault(blocks)
    if fault is not None:
        raise DocumentError(f"blocks[{fault[0]}].{fault[1]}")
    return blocks


def rows_of(document: JsonObject) -> list[Json]:
    """Return the blocks of a document as they are written.

    Raises:
        DocumentError: it is none, or one of another version.
    """
    match document.get("version"):
        case 1:
            pass
        case int(version) if 0 <= version <= MOST:
            raise DocumentError(f"version {version}: only {VERSION} can be imported")
        case _:
            raise DocumentError(f"version: it is no number; only {VERSION} can be imported")
    for name in sorted({str(name) for name in document} - _DOCUMENT):
        raise DocumentError(f"{name}: a document has no such field")
    rows = document.get("blocks")
    if not isinstance(rows, list) or not rows:
        raise DocumentError("blocks: there are none")
    return rows


def block_at(row: Json, place: int) -> tuple[Block, Json]:
    """Return the block at a place, from 1, and what it is called there.

    Raises:
        DocumentError: it is no block, or stands at another place.
    """
    at = f"blocks[{place - 1}]"
    match row:
        case {
            "seq": int(seq),
            "type": str(kind),
            "version": int(version),
            "turn_id": str(turn),
            "round": int(round_),
            "n": int(n),
            "ts": str(ts),
            "term": int(term),
            "body": body,
            "ref": ref,
            **rest,
        } if not any(isinstance(number, bool) for number in (seq, version, round_, n, term)):
            pass
        case _:
            raise DocumentError(f"{at}: a field of the block is missing or has the wrong type")
    if not all(0 <= number <= MOST for number in (seq, version, round_, n, term)):
        raise DocumentError(f"{at}: seq, version, round, n and term are from 0 to {MOST}")
    if seq != place:
        raise DocumentError(
            f"{at}: seq {seq} stands at place {place}: a block is missing or doubled"
        )
    try:
        block = Block(
            seq=seq,
            turn=_turn(turn, at),
            round=round_,
            n=n,
            ts=_moment(ts, at),
            term=term,
            body=_body(kind, version, body, rest.get("stored")),
        )
        _check_fields(block.body, body, at)
    except (ValueError, TypeError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise DocumentError(f"{at}: it is no {kind}: {said}") from error
    known = _STORED if isinstance(block.body, Unknown) else {"digest"}
    extra = sorted({str(name) for name in rest} - known)
    if extra:
        raise DocumentError(f"{at}.{extra[0]}: a {kind} has no such field")
    return block, ref


def _check_fields(body: Body, given: Json, at: str) -> None:
    """Check that nothing is given of which the body has taken no note."""
    if not isinstance(body, Unknown):
        whole: Json = json.loads(encode_full(body))
        path = _unknown_field(given, whole, f"{at}.body")
        if path:
            raise DocumentError(f"{path}: a {body.type} has no such field")


def _unknown_field(given: Json, whole: Json, path: str) -> str:
    """Return the path of the first field that the whole does not have; empty when it has all."""
    match given, whole:
        case dict(), dict():
            pairs = [(f"{path}.{name}", one, whole.get(name)) for name, one in given.items()]
            missing = [f"{path}.{name}" for name in given if name not in whole]
        case list(), list():
            pairs = [
                (f"{path}[{n}]", *both) for n, both in enumerate(zip(given, whole, strict=False))
            ]
            missing = list[str]()
        case _:
            return ""
    inner = (_unknown_field(one, other, where) for where, one, other in pairs)
    return next(filter(None, [*missing, *inner]), "")


def _turn(written: str, at: str) -> int:
    found = _TURN_ID.fullmatch(written)
    if found is None:
        raise DocumentError(f"{at}: {written!r} is no turn")
    return int(found[1])


def _moment(written: str, at: str) -> datetime:
    """The time of a block: UTC, in whole milliseconds."""
    moment = datetime.fromisoformat(written)
    if moment.utcoffset() != timedelta(0) or moment.microsecond % 1000:
        raise DocumentError(f"{at}: {written} is no time in UTC to the millisecond")
    return moment


def _body(kind: str, version: int, body: Json, stored: object) -> Body:
    """The body; one that nobody here knows is as it was stored.

    Raises:
        ValueError: it is no body of that type.
    """
    if kind in body_types() and version <= BODY_VERSION:
        return decode(kind, version, dumps(body))
    exact = stored if isinstance(stored, str) else dumps(body)
    if well_formed(f"{kind}{exact}") != f"{kind}{exact}":
        raise ValueError("it holds what no text can hold")
    return Unknown(stored_type=kind, version=version, stored=exact)


def _check_names(read: Sequence[tuple[Block, Json]]) -> None:
    """A block is called what its place and body say."""
    for place, (block, ref) in enumerate(read):
        try:
            name = block.ref
        except LooplineError as error:
            raise DocumentError(f"blocks[{place}]: it cannot be named: {error}") from error
        if ref != name:
            called = repr(ref) if isinstance(ref, str) else "by no ref"
            raise DocumentError(f"blocks[{place}]: it is called {called}, and should be {name!r}")


def _check_digests(blocks: Sequence[Block], rows: Sequence[Json]) -> None:
    """Check the digests that are given; documents of older versions have none."""
    for place, (digest, row) in enumerate(zip(digests(blocks), rows, strict=True)):
        match row:
            case {"digest": given} if given != digest.hex():
                raise DocumentError(
                    f"blocks[{place}]: it is not what its digest says, so it or one before it was "
                    "changed: loopline audit --document says more"
                )
            case _:
                pass


def _check_commits(blocks: Sequence[Block]) -> None:
    """A commit is named by its digest alone, never by what a command could take for something else."""
    for place, block in enumerate(blocks):
        match block.body:
            case TurnHeader(knowledge=KnowledgeCommit(commit=commit)):
                if not _COMMIT.fullmatch(commit):
                    raise DocumentError(
                        f"blocks[{place}].body.knowledge.commit: {commit!r} is no commit"
                    )
            case _:
                pass


def _check_turns(blocks: Sequence[Block]) -> None:
    """Turns begin one after the other, each with what the user said."""
    begun, prompted = 0, set[int]()
    for place, block in enumerate(blocks):
        if block.turn > begun + 1:
            raise DocumentError(f"blocks[{place}]: {block.turn_id} begins after turn_{begun}")
        begun = max(begun, block.turn)
        match block.body:
            case UserPrompt():
                prompted.add(block.turn)
            case Unknown():
                pass  # a newer loopline may begin a turn otherwise
            case _ if block.turn not in prompted:
                raise DocumentError(
                    f"blocks[{place}]: {block.turn_id} begins without a user.prompt"
                )
            case _:
                pass


def _check_numbers(blocks: Sequence[Block]) -> None:
    """Each block is the n-th of its type in its turn, and the terms of runners never fall."""
    counts, newest = Counter[tuple[int, str]](), 0
    for place, block in enumerate(blocks):
        counts[block.turn, block.type] += 1
        if block.n != counts[block.turn, block.type]:
            raise DocumentError(f"blocks[{place}]: n {block.n} does not number it in its turn")
        if block.term and block.term < newest:
            raise DocumentError(f"blocks[{place}]: term {block.term} comes after {newest}")
        newest = max(newest, block.term)


def _check_calls(blocks: Sequence[Block]) -> None:
    """Every start, child and result follows its call, which has only one start and one result."""
    called, begun, settled = dict[str, int](), set[str](), set[str]()
    for place, block in enumerate(blocks):
        match block.body:
            case ToolCalled(call_id=call_id):
                known = call_id not in called
                called.setdefault(call_id, block.turn)
            case ToolStarted(call_id=call_id):
                known = called.get(call_id) == block.turn and call_id not in begun | settled
                begun.add(call_id)
            case ToolResult(call_id=call_id):
                known = called.get(call_id) == block.turn and call_id not in settled
                settled.add(call_id)
            case RunChild(call_id=call_id, conversation=name):
                known = called.get(call_id) == block.turn and is_child_of(name, call_id)
            case _:
                continue
        if not known:
            raise DocumentError(f"blocks[{place}]: {block.type} of {call_id!r} is out of place")


def _check_attachments(blocks: Sequence[Block]) -> None:
    """Every attached file came with an input of its turn, and has the bytes that its digest is of."""
    for place, block in enumerate(blocks):
        match block.body:
            case UserAttachment() as file:
                said = input_seq_of(block)
                if not _is_input(blocks, said, block.turn):
                    raise DocumentError(f"blocks[{place}]: {file.name!r} came with no input")
                if _digest(file) != file.sha256:
                    raise DocumentError(
                        f"blocks[{place}]: {file.name!r} is not what its sha256 says"
                    )
            case _:
                pass


def _is_input(blocks: Sequence[Block], seq: int, turn: int) -> bool:
    if not 1 <= seq <= len(blocks):
        return False
    said = blocks[seq - 1]
    return said.turn == turn and isinstance(said.body, UserPrompt | UserFollowup | UserSteer)


def _digest(file: UserAttachment) -> str:
    try:
        return sha256(attachments.content(file)).hexdigest()
    except ValueError:
        return ""


_SHOWN_CHARACTERS = 200


def import_actions(blocks: Sequence[Block], name: str) -> list[ImportedAction]:
    """Return what in the blocks would act if they were imported under that name and confirmed."""
    timeline = Timeline(blocks)
    parent = parent_name(name)
    children = (
        [
            ImportedAction(
                name=child_action(name), text=f"its answer is taken by a call of {parent!r}"
            )
        ]
        if parent is not None
        else []
    )
    turns = [*timeline.resumable, *timeline.queued]
    return [*children, *map(_turn_action, turns), *_repository_actions(timeline)]


def import_mark(blocks: Sequence[Block], confirmed: Sequence[str], now: datetime) -> Block:
    """Return the block that stands behind imported blocks, with what of them is confirmed."""
    turn = max(block.turn for block in blocks)
    before = [b for b in blocks if b.turn == turn and isinstance(b.body, Imported)]
    return Block(
        seq=len(blocks) + 1,
        turn=turn,
        round=0,
        n=len(before) + 1,
        ts=now,
        term=max(block.term for block in blocks),
        body=Imported(confirmed=tuple(dict.fromkeys(confirmed))),
    )


def _turn_action(turn: Turn) -> ImportedAction:
    name = turn_id(turn.number)
    if turn.header is None:
        return ImportedAction(name=name, text="its prompt is answered before the next one")
    calls = [_call(turn, call_id) for call_id in turn.open_calls]
    said = "; ".join(["it is carried on", *calls])
    return ImportedAction(name=name, text=said)


def _call(turn: Turn, call_id: str) -> str:
    call, answer = turn.open_calls[call_id], turn.answers.get(call_id)
    shown = f"{call_id} runs {call.tool} {_shortened(dumps(call.arguments))}"
    return shown if answer is None else f"{shown} with the answer {_shortened(dumps(answer.value))}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def _repository_actions(timeline: Timeline) -> Iterator[ImportedAction]:
    for repository in dict.fromkeys(used.repository for used in timeline.knowledge):
        yield ImportedAction(
            name=repository_action(repository), text="refs of this document are read from it"
        )
