"""Bodies to JSON and back, and blocks as documents: the one place that knows the stored form.

A stored body is its type, the version of that type, and compact JSON without the type. A type or version from a
newer version of Loopline is decoded to `Unknown`, which encodes to the same JSON again. Only the start of a round has a
second version, which its `version` chooses; documents have every field of either by its name.
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from operator import attrgetter
from sys import float_info
from threading import Lock
from typing import Any, Literal, TypeVar, cast, get_args, get_type_hints

from msgspec import MsgspecError, Struct, structs
from msgspec.json import Decoder, Encoder
from typing_extensions import TypeIs

from loopline.errors import LooplineError
from loopline.models import AnswerWay, Json, JsonObject, TailKind, dumps
from loopline.timeline.blocks import (
    Block,
    stored_type,
)
from loopline.timeline.bodies import (
    Body,
    Unknown,
    UserPrompt,
)
from loopline.timeline.prompt_blocks import CachePoint, Projection, RoundStart

_DIGEST_CHARACTERS = 64
_VERBATIM = "="
"""Begins a text that is no digest; base64 never begins with it."""


class StartValues(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What the start of every round has, in the order in which it is stored."""

    saw: int
    epoch: int
    model: str
    protocol: str
    renderer: int
    system: str
    tools: str
    stable: str
    tail: str
    tail_room: int
    limit: int
    tokens: int
    cache_ttl: int
    points: tuple[tuple[Literal["prev_turn", "pre_tail", "tail"], int, int], ...]
    elapsed_ms: float


class ShortStart(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A `RoundStart` as it is stored in version 2; fields that few rounds need keep their names."""

    start: StartValues
    takes: tuple[int, ...] = ()
    opened_by: str = ""
    tail_kind: TailKind = "dropped"
    purpose: Literal["decision", "answer"] = "decision"
    shows: Literal["context", "trace"] = "context"
    file_tokens: int = 0
    window: Projection | None = None
    system: str = ""
    tools: str = ""
    answer_by: AnswerWay | Literal[""] = ""
    schema_sha256: str = ""

    @classmethod
    def of(cls, start: RoundStart) -> ShortStart:
        """Return the stored form of a start."""
        return cls(
            start=StartValues(
                saw=start.saw,
                epoch=start.epoch,
                model=start.model,
                protocol=start.protocol,
                renderer=start.renderer,
                system=_pack_cached(start.system_sha256),
                tools=_pack_cached(start.tools_sha256),
                stable=_pack(start.stable_sha256),
                tail=start.tail,
                tail_room=start.tail_room,
                limit=start.limit,
                tokens=start.tokens,
                cache_ttl=start.cache_ttl,
                points=tuple(
                    [(point.name, point.messages, point.tokens) for point in start.points]
                ),
                elapsed_ms=1.0 * start.elapsed_ms,  # a text is no number
            ),
            takes=start.takes,
            opened_by=start.opened_by,
            tail_kind=start.tail_kind,
            purpose=start.purpose,
            shows=start.shows,
            file_tokens=start.file_tokens,
            window=start.window,
            system=start.system,
            tools=start.tools,
            answer_by=start.answer_by,
            schema_sha256=start.schema_sha256,
        )

    def read(self) -> RoundStart:
        """Return the start.

        Raises:
            ValueError: a digest is damaged.
        """
        start = self.start
        return RoundStart(
            saw=start.saw,
            takes=self.takes,
            epoch=start.epoch,
            opened_by=self.opened_by,
            model=start.model,
            protocol=start.protocol,
            renderer=start.renderer,
            system_sha256=_unpack_cached(start.system),
            tools_sha256=_unpack_cached(start.tools),
            stable_sha256=_unpack(start.stable),
            tail=start.tail,
            tail_kind=self.tail_kind,
            tail_room=start.tail_room,
            limit=start.limit,
            purpose=self.purpose,
            shows=self.shows,
            tokens=start.tokens,
            file_tokens=self.file_tokens,
            cache_ttl=start.cache_ttl,
            points=tuple(
                [
                    CachePoint(name=name, messages=messages, tokens=tokens)
                    for name, messages, tokens in start.points
                ]
            ),
            window=self.window,
            system=self.system,
            tools=self.tools,
            elapsed_ms=start.elapsed_ms,
            answer_by=self.answer_by,
            schema_sha256=self.schema_sha256,
            version=2,
        )


def _pack(digest: str) -> str:
    """Return a sha256 in hexadecimal as base64 without padding; another text is kept as it is."""
    if len(digest) == _DIGEST_CHARACTERS:
        try:
            data = bytes.fromhex(digest)
        except ValueError:
            data = b""
        if data.hex() == digest:
            return b2a_base64(data, newline=False).decode()[:-1]
    return digest and _VERBATIM + digest


def _unpack(text: str) -> str:
    if not text or text.startswith(_VERBATIM):
        return text[1:]
    return a2b_base64(f"{text}=", strict_mode=True).hex()


# The texts of system and tools are mostly those of the round before.
_pack_cached = lru_cache(maxsize=256)(_pack)
_unpack_cached = lru_cache(maxsize=256)(_unpack)


VERSION = 1
"""The first version of every body type, and the only one of most."""
SHORT = 2
"""The version of a round's start that is stored as a `ShortStart`."""
MAX_DEPTH = 200
"""How deep the JSON of a body may be nested, so that it can be read however deep the reader's own calls are."""

DECODE_ERRORS = (ValueError, RecursionError, MsgspecError)
"""What is raised for JSON that is not a body of its type."""

_LARGE_FLOAT = 1e16
"""The least number that is written with an exponent."""
_ALIKE = 0.55
"""How much two names of types must share to be alike: `tool` is like `react.tool`, and `nosuch` like no type."""
_EXPONENT = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+"?)|(?<=\d)e(?=\d)', re.DOTALL)
_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|([\[{])|[\]}]', re.DOTALL)

S = TypeVar("S", bound=Struct)

_MAKING_DECODER = Lock()


def encode(body: Body) -> tuple[str, int, str]:
    """Return the body's stored type, version and JSON; equal bodies have the same JSON."""
    if isinstance(body, Unknown):
        return body.stored_type, body.version, body.stored
    form = ShortStart.of(body) if is_short(body) else body
    return body.type, body_version(body), _encode_known(form, _plan(type(form))).decode()


def is_short(body: Body) -> TypeIs[RoundStart]:
    """Return whether the body is the start of a round that is stored as a `ShortStart`."""
    return type(body) is RoundStart and body.version == SHORT


def body_version(body: Body) -> int:
    """Return the version in which the body is stored."""
    if isinstance(body, Unknown):
        return body.version
    return SHORT if is_short(body) else VERSION


def is_known_version(stored_type: str, version: int) -> bool:
    """Return whether bodies of that type and version can be decoded."""
    newest = SHORT if stored_type == RoundStart.type else VERSION
    return stored_type in body_types() and version <= newest


def _encode_known(body: Struct, plan: _Plan) -> bytes:
    """Return the JSON of a body of a known type."""
    body = _as_read(body) if plan.defaults or plan.floats or plan.nested else body
    stored = _write(body)
    for get in plan.loose:
        value = get(body)
        if type(value) in _NO_FLOATS:
            continue
        if isinstance(value, float):
            is_large = abs(value) >= _LARGE_FLOAT
        else:
            is_large = _has_large_float([value])
        if is_large:
            return _add_exponent_signs(stored.decode()).encode()
    return stored


def encode_full(body: Body) -> str:
    """Return the body's JSON with every field, including those that have their default value."""
    if isinstance(body, Unknown):
        return body.stored
    text = _write(_every_field(body)).decode()
    return _add_exponent_signs(text) if _has_large_float([body]) else text


def decode(stored_type: str, version: int, stored: str | bytes) -> Body:
    """Return the body that `encode` was given, of its JSON as text or in UTF-8.

    Raises:
        ValueError: the JSON is not a body of that type; the message names the field.
    """
    return _decode_with(body_reader(stored_type, version), stored)


def decode_full(stored_type: str, stored: str) -> Body:
    """Return the body of a known type that `encode_full` was given.

    Raises:
        ValueError: the JSON is not a body of that type; the message names the field.
    """
    return _decode_with(_reader(stored_type), stored)


def _decode_with(read: Callable[[str | bytes], Body], stored: str | bytes) -> Body:
    try:
        return read(stored)
    except RecursionError as error:
        raise ValueError(f"its JSON is nested deeper than {MAX_DEPTH}") from error
    except MsgspecError as error:  # before msgspec 0.21 no ValueError
        raise ValueError(str(error)) from error


@cache
def body_types() -> dict[str, type[Body]]:
    """Return every known type by its stored name."""
    return {kind.type: kind for kind in get_args(Body) if kind is not Unknown}


@cache
def _reader(stored_type: str) -> Callable[[str | bytes], Body]:
    """Return what decodes a type, made when it is first met: most readers meet few types."""
    return _decoder(body_types()[stored_type]).decode


def _decoder(kind: type[S]) -> Decoder[S]:
    """Return a decoder of a type.

    msgspec keeps what it knows of each struct from the moment it begins to find it out. If another thread makes a decoder
    meanwhile that has the same struct, it uses the half of it, and the process dies at the first decoding.
    """
    with _MAKING_DECODER:
        return Decoder(kind)


@lru_cache(maxsize=1024)
def body_reader(stored_type: str, version: int) -> Callable[[str | bytes], Body]:
    """Return what decodes a type and version; it raises `DECODE_ERRORS`."""
    if is_known_version(stored_type, version):
        return _read_short if version == SHORT else _reader(stored_type)
    return partial(_unknown, stored_type, version)


def _unknown(stored_type: str, version: int, stored: str | bytes) -> Unknown:
    text = stored if isinstance(stored, str) else stored.decode()
    return Unknown(stored_type=stored_type, version=version, stored=text)


@cache
def _short_decoder() -> Callable[[str | bytes], ShortStart]:
    return _decoder(ShortStart).decode


def _read_short(stored: str | bytes) -> RoundStart:
    return _short_decoder()(stored).read()


def _plain(value: object) -> object:
    """Return a value of a subclass, such as a `numpy.float64`, as what it is in JSON."""
    match value:
        case str():
            return str.__str__(value)
        case float():
            return float(value)
        case int():
            return int(value)
        case _:
            raise TypeError(f"JSON has no {type(value).__name__}")


_write = Encoder(enc_hook=_plain).encode


def _add_exponent_signs(text: str) -> str:
    """Return the JSON with 1e+16 for 1e16: so numbers have always been stored, and digests are made of the text."""
    return _EXPONENT.sub(lambda match: match[1] or "e+", text)


_NO_FLOATS = frozenset({type(None), bool, int, str})


def _has_large_float(values: list[object]) -> bool:
    """Return whether there is one among the values or within them; the list is used up."""
    while values:
        value = values.pop()
        if type(value) in _NO_FLOATS:
            continue
        match value:
            case float():
                if abs(value) >= _LARGE_FLOAT:
                    return True
            case dict():
                values += cast("dict[str, object]", value).values()
            case list() | tuple():
                values += cast("Sequence[object]", value)
            case Struct():
                values += [get(value) for get in _plan(type(value)).loose]
            case _:
                pass
    return False


class _Plan(Struct, frozen=True):
    """What to look at in the values of a type before they are encoded.

    A field is left out if it holds the very object that is its default. `defaults` are those that another object can
    be equal to, `floats` the fields that are read as a float though they may hold an int, `nested` the fields with values
    that have either. `loose` get what may hold a float, `free` are the fields that may hold any JSON, however deep.
    """

    defaults: tuple[tuple[str, object], ...]
    floats: tuple[str, ...]
    nested: tuple[str, ...]
    loose: tuple[Callable[[object], object], ...]
    free: tuple[str, ...]


@cache
def _plan(kind: type[Struct]) -> _Plan:
    hints = get_type_hints(kind)
    defaults = [(field.name, field.default) for field in structs.fields(kind)]
    inner = {name: list(_struct_types(hints[name])) for name, _ in defaults}
    is_array = kind.__struct_config__.array_like  # made from a body, with its floats
    return _Plan(
        defaults=tuple(
            (name, default)
            for name, default in defaults
            if isinstance(default, str | int | float | Struct) and not _is_unique(default)
        ),
        floats=() if is_array else tuple(name for name in inner if _is_float(hints[name])),
        nested=tuple(
            name
            for name in inner
            if any(_plan(item).defaults or _plan(item).floats for item in inner[name])
        ),
        loose=tuple(map(attrgetter, _loose(kind))),
        free=tuple(
            name
            for name in inner
            if _mentions(hints[name], Any) or any(_plan(item).free for item in inner[name])
        ),
    )


def _loose(kind: type[Struct]) -> Iterator[str]:
    """Yield the names of what may hold a float: fields, and such as `start.elapsed_ms` of a field that is always a struct."""
    for name, hint in get_type_hints(kind).items():
        inner = [item for item in _struct_types(hint) if any(_loose(item))]
        if [hint] == inner:
            yield from (f"{name}.{below}" for below in _loose(hint))
        elif inner or _mentions(hint, float, Any):
            yield name


def _is_unique(default: object) -> bool:
    """Return whether the interpreter has only one object that is equal to this one and of its type."""
    return isinstance(default, bool) or default == "" or (type(default) is int and default <= 256)


def _struct_types(hint: object) -> Iterator[type[Struct]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
    for inner in get_args(hint):
        yield from _struct_types(inner)


def _is_float(hint: object) -> bool:
    """Return whether a number in a field with this hint is read as a float."""
    return hint is float or (float in get_args(hint) and int not in get_args(hint))


def _mentions(hint: object, *types: object) -> bool:
    return hint in types or any(_mentions(inner, *types) for inner in get_args(hint))


def _as_read(value: S) -> S:
    """Return the value as it is read back: with floats, and the very object that is the default where a field is equal."""
    plan = _plan(type(value))
    changes: dict[str, object] = {}
    for name, default in plan.defaults:
        field = getattr(value, name)
        if field is not default and field == default:
            changes[name] = default
    for name in plan.floats:
        field = getattr(value, name)
        if type(field) is int and field.bit_length() < float_info.max_exp:
            changes.setdefault(name, float(field))
    for name in plan.nested:
        field = getattr(value, name)
        if isinstance(field, Struct) and (same := _as_read(field)) is not field:
            changes[name] = same
    return structs.replace(value, **changes) if changes else value


def _every_field(value: object) -> object:
    match value:
        case Struct():
            return {name: _every_field(getattr(value, name)) for name in value.__struct_fields__}
        case tuple():
            return [_every_field(item) for item in cast("tuple[object, ...]", value)]
        case _:
            return value


class UnsoundBody(LooplineError):
    """A body has a value that its type does not allow; the message names the field."""


def encode_checked(body: Body) -> tuple[str, int, str]:
    """Encode the body and check that it decodes to the same body.

    Raises:
        UnsoundBody: one of its fields has a value of the wrong type, or one that JSON cannot hold.
    """
    if type(body) is RoundStart and body.version == SHORT:
        return _encode_short(body)
    if type(body) is Unknown:
        return _encode_unknown(body)
    kind = body.type
    plan = _plan(type(body))
    try:
        stored = _encode_known(body, plan)
        again = _reader(kind)(stored)
    except (ValueError, TypeError, RecursionError, MsgspecError) as error:
        raise UnsoundBody(f"{kind}: {_find_unsound_field(body)}{error}") from error
    if again != body:
        raise UnsoundBody(f"{kind}: {_describe_changes(body, again)}")
    text = stored.decode()
    for name in plan.free:
        if getattr(body, name) and _is_deep(text):
            raise UnsoundBody(f"{kind}: its JSON is nested deeper than {MAX_DEPTH}")
    return kind, VERSION, text


def _encode_short(body: RoundStart) -> tuple[str, int, str]:
    again = None
    try:
        form = ShortStart.of(body)
        stored = _encode_known(form, _plan(ShortStart))
        again = _short_decoder()(stored)
        if again == form:
            return body.type, SHORT, stored.decode()
    except (ValueError, TypeError, AttributeError, RecursionError, MsgspecError):
        pass  # what follows names the field
    encode_checked(structs.replace(body, version=VERSION))
    raise UnsoundBody(f"{body.type}: it would be read back as {again!r}")


def _encode_unknown(body: Unknown) -> tuple[str, int, str]:
    encoded = kind, version, stored = encode(body)
    try:
        again = decode(kind, version, stored)
        f"{kind}{stored}".encode()  # of the others the codec has made sure
    except (ValueError, TypeError, RecursionError) as error:
        raise UnsoundBody(f"{body.type}: {_find_unsound_field(body)}{error}") from error
    if again != body:
        raise UnsoundBody(f"{body.type}: {_describe_changes(body, again)}")
    if _is_deep(stored):
        raise UnsoundBody(f"{body.type}: its JSON is nested deeper than {MAX_DEPTH}")
    return encoded


def _find_unsound_field(body: Body) -> str:
    """Return the name of the first field that has no JSON, with a colon, else an empty text."""
    for name in body.__struct_fields__:
        try:
            _write(getattr(body, name))
        except (ValueError, TypeError, RecursionError):
            return f"{name}: "
    return ""


def _describe_changes(body: Body, again: Body) -> str:
    if type(again) is not type(body):
        return f"its JSON would decode to {again!r}"
    names = [name for name in body.__struct_fields__ if getattr(body, name) != getattr(again, name)]
    fields = ", ".join(f"{name} to {getattr(again, name)!r}" for name in names)
    return f"its JSON would decode {fields}"


def _is_deep(stored: str) -> bool:
    """Return whether the JSON is nested deeper than `MAX_DEPTH`."""
    if len(stored) <= 2 * MAX_DEPTH or stored.count("[") + stored.count("{") <= MAX_DEPTH:
        return False
    depth = deepest = 0
    for token in _BRACKET.finditer(stored):
        if token[1]:
            depth += 1
            deepest = max(depth, deepest)
        elif not token[0].startswith('"'):
            depth -= 1
    return deepest > MAX_DEPTH


def warm_codec() -> None:
    """Prepare the codec for every type, which takes a moment the first time; it blocks."""
    for name in body_types():
        _reader(name)
    _short_decoder()
    encode_checked(UserPrompt(text=""))


def block_document(block: Block) -> JsonObject:
    """Return a block as a JSON object with its position, its ref and its body with every field.

    If the JSON of an unknown type would not be written exactly as it is stored, `stored` holds that text.
    """
    stored = encode_full(block.body)
    body = _parse_json(stored)
    exact: JsonObject = {} if dumps(body) == stored else {"stored": stored}
    return {
        "seq": block.seq,
        "type": stored_type(block.body),
        "version": body_version(block.body),
        "turn_id": block.turn_id,
        "round": block.round,
        "n": block.n,
        "ts": iso_time(block.ts),
        "term": block.term,
        "ref": block.ref,
        "body": body,
        **(exact if isinstance(block.body, Unknown) else {}),
    }


def _parse_json(stored: str) -> Json:
    try:
        return cast("Json", json.loads(stored))
    except ValueError:
        return None


def iso_time(moment: datetime) -> str:
    """Return the time in UTC to the millisecond, such as `2026-03-21T10:00:00.000Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def matches_types(kind: str, types: Sequence[str]) -> bool:
    """Return whether a stored type is one of these or below one, as `react.tool.call` is below `react.tool`."""
    return any(kind == prefix or kind.startswith(f"{prefix}.") for prefix in types)


def is_known_type(kind: str) -> bool:
    """Return whether there is such a type, or types below it."""
    return kind in _list_types()


def type_hint(kind: str) -> str:
    """Return which known type, or prefix of types, is spelled like this one, or else with what types begin."""
    nearest = get_close_matches(kind, _list_types(), n=1, cutoff=_ALIKE)
    if nearest:
        return f"nearest is {nearest[0]!r}"
    return f"types begin with {', '.join(name for name in _list_types() if '.' not in name)}"


@cache
def _list_types() -> tuple[str, ...]:
    parts = [name.split(".") for name in body_types()]
    return tuple(
        sorted({".".join(names[:end]) for names in parts for end in range(1, len(names) + 1)})
    )
