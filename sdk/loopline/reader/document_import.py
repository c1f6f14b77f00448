"""Import and audit of a document `artifact:conv.timeline.v1`, and saved heads of conversations."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct, ValidationError, convert, to_builtins

from loopline import timeline as tl
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, dumps, well_formed
from loopline.reader.conversation_documents import VERSION
from loopline.reader.document_checks import LARGEST_NUMBER, DocumentError, check_blocks
from loopline.timeline.chain import Audit, Fault, Head, Link, audit, block_link
from loopline.timeline.codec import body_version, decode_full, is_known_version

_DOCUMENT_FIELDS = {
    "version",
    "conversation_id",
    "conversation_title",
    "conversation_started_at",
    "last_activity_at",
    "turn_ids",
    "children_not_included",
    "blocks",
}
_ACTION_CHARACTERS = 200


def read_document(document: JsonObject) -> list[tl.Block]:
    """Check a document and return its blocks.

    Raises:
        DocumentError: the document has another version, or a block is missing, damaged or repeated; the message has its
            path.
    """
    rows = rows_of(document)
    named = [block_at(row, seq) for seq, row in enumerate(rows, start=1)]
    blocks = [block for block, _ in named]
    check_blocks(named, rows)
    turns: list[Json] = [tl.turn_id(number) for number in sorted({block.turn for block in blocks})]
    match document:
        case {"turn_ids": written} if written != turns:
            raise DocumentError(f"turn_ids: the turns of the blocks are {turns[0]} to {turns[-1]}")
        case _:
            return blocks


def rows_of(document: JsonObject) -> list[Json]:
    """Return the block objects of a document, after a check of the other fields.

    Raises:
        DocumentError: it has another version or an unknown field, or its blocks are missing or empty.
    """
    match document:
        case {"version": 1}:
            pass
        case {"version": int(version)} if 0 <= version <= LARGEST_NUMBER:
            raise DocumentError(f"version {version}: only {VERSION} can be imported")
        case _:
            raise DocumentError(f"version: it is not a number; only {VERSION} can be imported")
    for name in sorted({str(name) for name in document} - _DOCUMENT_FIELDS):
        raise DocumentError(f"{name}: a document does not have this field")
    match document:
        case {"blocks": [_, *_] as rows}:
            return rows
        case _:
            raise DocumentError("blocks: the document has none")


_Number = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]


class _Row(Struct):
    """The fields of a block object. Only a block of an unknown type has `stored`, its body as an exact text."""

    seq: _Number
    type: str
    version: _Number
    turn_id: str
    round: _Number
    n: _Number
    ts: str
    term: _Number
    body: Any
    ref: Any
    stored: str | None = None


_OWN_FIELDS = frozenset(_Row.__struct_fields__) | {"digest"}


def block_at(row: Json, expected_seq: int) -> tuple[tl.Block, Json]:
    """Parse a block object with that seq; return the block and the value of its field `ref`, which is not checked.

    Raises:
        DocumentError: it is not a valid block, or has another seq.
    """
    at = f"blocks[{expected_seq - 1}]"
    try:
        fields = convert(row, _Row)
    except ValidationError as error:
        raise DocumentError(f"{at}: {error}") from error
    except UnicodeEncodeError as error:
        raise DocumentError(f"{at}: it has characters that are not valid Unicode") from error
    if fields.seq != expected_seq:
        raise DocumentError(
            f"{at}: seq {fields.seq} is at position {expected_seq}: a block is missing or repeated"
        )
    try:
        block = tl.Block(
            seq=fields.seq,
            turn=_turn(fields.turn_id, at),
            round=fields.round,
            n=fields.n,
            ts=_time(fields.ts, at),
            term=fields.term,
            body=_body(fields),
        )
        _check_fields(block.body, fields.body, at)
    except (ValueError, TypeError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise DocumentError(f"{at}: it is not a valid {fields.type}: {problem}") from error
    unknown = set(cast("JsonObject", row)) - _OWN_FIELDS
    if fields.stored is not None and not isinstance(block.body, tl.Unknown):
        unknown.add("stored")
    for name in sorted(unknown):
        raise DocumentError(f"{at}.{name}: a {fields.type} does not have this field")
    return block, fields.ref


def _turn(text: str, at: str) -> int:
    number = tl.turn_number(text)
    if not number:
        raise DocumentError(f"{at}: {text!r} is not a turn")
    return number


def _time(text: str, at: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.utcoffset() != timedelta(0) or time.microsecond % 1000:
        raise DocumentError(f"{at}: {text} is not a time in UTC to the millisecond")
    return time


def _body(row: _Row) -> tl.Body:
    """Parse the body of a block; a body of an unknown type becomes an `Unknown` with its stored text.

    Raises:
        ValueError: it is not a body of its type and version.
    """
    if is_known_version(row.type, row.version):
        read = decode_full(row.type, dumps(row.body))
        if body_version(read) != max(row.version, 1):
            raise ValueError(f"its body is of version {body_version(read)}, not {row.version}")
        return read
    exact = dumps(row.body) if row.stored is None else row.stored
    if well_formed(f"{row.type}{exact}") != f"{row.type}{exact}":
        raise ValueError("it has characters that are not valid Unicode")
    return tl.Unknown(stored_type=row.type, version=row.version, stored=exact)


def _check_fields(body: tl.Body, written: Json, at: str) -> None:
    """Check that the written body has only fields of its type."""
    if not isinstance(body, tl.Unknown):
        path = _unknown_field(written, json.loads(tl.encode_full(body)), f"{at}.body")
        if path:
            raise DocumentError(f"{path}: a {body.type} does not have this field")


def _unknown_field(written: Json, fields: Json, path: str) -> str:
    """Return the path of the first field in `written` that is not in `fields`, or an empty text."""
    match written, fields:
        case dict(), dict():
            pairs = [(f"{path}.{name}", item, fields.get(name)) for name, item in written.items()]
            unknown = [f"{path}.{name}" for name in written if name not in fields]
        case list(), list():
            items = enumerate(zip(written, fields, strict=False))
            pairs = [(f"{path}[{index}]", *item) for index, item in items]
            unknown = list[str]()
        case _:
            return ""
    inner = (_unknown_field(item, field, inner_path) for inner_path, item, field in pairs)
    return next(filter(None, [*unknown, *inner]), "")


def import_actions(blocks: Sequence[tl.Block], name: str) -> list[tl.ImportedAction]:
    """Return the actions that require confirmation when the blocks are imported under that name.

    The actions are a child run of that name, each open turn, and each repository that the turns used.
    """
    timeline = tl.Timeline(blocks)
    actions = list[tl.ImportedAction]()
    parent = tl.parent_name(name)
    if parent is not None:
        text = f"its answer becomes the result of a call of {parent!r}"
        actions.append(tl.ImportedAction(name=tl.child_action(name), text=text))
    actions += map(_turn_action, timeline.open_turns)
    for repository in dict.fromkeys(commit.repository for commit in timeline.knowledge):
        text = "refs of this document are read from the repository"
        actions.append(tl.ImportedAction(name=tl.repository_action(repository), text=text))
    return actions


def import_mark(blocks: Sequence[tl.Block], confirmed: Sequence[str], now: datetime) -> tl.Block:
    """Return the block that marks the end of imported blocks and names their confirmed actions."""
    turn = max(block.turn for block in blocks)
    n = sum(block.turn == turn and isinstance(block.body, tl.Imported) for block in blocks) + 1
    return tl.Block(
        seq=len(blocks) + 1,
        turn=turn,
        round=0,
        n=n,
        ts=now,
        term=max(block.term for block in blocks),
        body=tl.Imported(confirmed=tuple(dict.fromkeys(confirmed))),
    )


def _turn_action(turn: tl.Turn) -> tl.ImportedAction:
    """Return the action for an open turn: its prompt is answered, or it continues with its open calls."""
    name = tl.turn_id(turn.number)
    if turn.header is None:
        return tl.ImportedAction(name=name, text="its prompt is answered before the next prompt")
    return tl.ImportedAction(
        name=name, text="; ".join(["it is continued", *_describe_open_calls(turn)])
    )


def _describe_open_calls(turn: tl.Turn) -> Iterator[str]:
    for call_id, call in turn.open_calls.items():
        answer = turn.answers.get(call_id)
        answer_text = f" with the answer {_shorten(dumps(answer.value))}" if answer else ""
        yield f"{call_id} runs {call.tool} {_shorten(dumps(call.arguments))}{answer_text}"


def _shorten(text: str) -> str:
    return text if len(text) <= _ACTION_CHARACTERS else f"{text[: _ACTION_CHARACTERS - 1]}…"


_DIGEST = re.compile(r"[0-9a-f]{64}")


class HeadsError(LooplineError):
    """A text with saved heads cannot be used; the message says why."""


class _SavedHead(Struct):
    """The head of a conversation as it is saved and signed."""

    conversation: str
    user: str
    project: str
    tenant: str
    seq: Annotated[int, Meta(ge=1)]
    digest: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class _SavedHeads(Struct, omit_defaults=True):
    version: Literal[1]
    heads: list[_SavedHead]
    hmac_sha256: str = ""


def heads_text(heads: Mapping[tl.ConversationKey, Head], key: bytes = b"") -> str:
    """Return the heads as JSON text; with a `key` the text has their HMAC-SHA256."""
    rows = [
        _SavedHead(c.name, c.user, c.project, c.tenant, head.seq, head.digest.hex())
        for c, head in heads.items()
    ]
    saved = _SavedHeads(1, rows, _signature(rows, key) if key else "")
    return json.dumps(to_builtins(saved), ensure_ascii=False, indent=1)


def read_heads(text: str, key: bytes = b"") -> dict[tl.ConversationKey, Head]:
    """Parse heads that `heads_text` wrote; with a `key` check their signature.

    Raises:
        HeadsError: the text is not valid, or was not signed with the key.
    """
    try:
        saved = convert(json.loads(text), _SavedHeads)
    except (ValueError, RecursionError) as error:
        raise HeadsError(
            f"the heads were not written by loopline audit --save, version 1: {error}"
        ) from error
    for row in saved.heads:
        names = f"{row.conversation}{row.user}{row.project}{row.tenant}"
        if well_formed(names) != names:
            raise HeadsError("the heads have a name that is not valid Unicode")
    # compare_digest accepts only ASCII texts, so bytes are compared; the text may have lone surrogates.
    if key and not hmac.compare_digest(
        saved.hmac_sha256.encode(errors="surrogatepass"), _signature(saved.heads, key).encode()
    ):
        raise HeadsError("the heads were not signed with this key, or were changed after signing")
    return {
        tl.ConversationKey(
            name=row.conversation, user=row.user, project=row.project, tenant=row.tenant
        ): Head(seq=row.seq, digest=bytes.fromhex(row.digest))
        for row in saved.heads
    }


def _signature(rows: list[_SavedHead], key: bytes) -> str:
    return hmac.new(key, dumps(to_builtins(rows)).encode(), sha256).hexdigest()


def audit_document(
    document: JsonObject, heads: Mapping[tl.ConversationKey, Head], key: tl.ConversationKey
) -> Audit:
    """Audit a document against its digests, and against the saved head of the conversation `key`, if `heads` has it.

    Raises:
        DocumentError: it is not a document, or its blocks do not have digests.
    """
    rows = rows_of(document)
    links = [_link(row, seq) for seq, row in enumerate(rows, start=1)]
    if not any(link.digest for link in links):
        raise DocumentError("its blocks do not have digests, so it cannot be audited")
    result = audit(key, links, heads.get(key))
    return result if result.faults else replace(result, faults=tuple(_find_wrong_seqs(rows)))


def _link(row: Json, seq: int) -> Link:
    """Convert a block object to the link at that position; an invalid block becomes a link that matches no digest."""
    match row:
        case {"seq": int(written_seq), "digest": str(written)} if _DIGEST.fullmatch(written):
            digest = bytes.fromhex(written)
        case _:
            written_seq = 0
            digest = b""
    try:
        link = block_link(block_at(row, written_seq)[0], digest)
    except DocumentError:
        return Link(seq=seq, position=b"", body=b"", digest=digest)
    return replace(link, seq=seq)


def _find_wrong_seqs(rows: Sequence[Json]) -> Iterator[Fault]:
    """Yield a fault for each block object with a wrong `seq`, which its digest does not cover."""
    for expected, row in enumerate(rows, start=1):
        match row:
            case {"seq": int(seq)} if seq != expected:
                text = f"block {expected} says that it is block {seq}"
                yield Fault(seq=expected, kind="changed", text=text)
            case _:
                pass
