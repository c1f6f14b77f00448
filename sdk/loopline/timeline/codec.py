"""The stored form of bodies as JSON, and blocks as documents.

A body is stored as its type, the version of the type, and compact JSON without the type. A type or version from a newer
version of Loopline is decoded to `Unknown`, which encodes to the same JSON. Only `RoundStart` has a second version,
chosen by its field `version`. Documents have every field of a body by its name, in both versions.
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
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
from loopline.timeline.blocks import Block, stored_type
from loopline.timeline.bodies import Body, Unknown, UserPrompt
from loopline.timeline.prompt_blocks import CachePoint, Projection, RoundStart

_DIGEST_CHARACTERS = 64
_VERBATIM = "="
"""The first character of a text that is stored without packing; base64 never starts with it."""


class StartValues(Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The fields that almost every `RoundStart` sets, stored as an array in this order."""

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


class ShortStart(Struct, frozen=True, omit_defaults=True, gc=False):
    """A `RoundStart` in version 2: frequent fields in an array, to save their names, and the other fields by name."""

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
    settings: JsonObject = {}
    dropped_settings: dict[str, str] = {}

    @classmethod
    def of(cls, start: RoundStart) -> ShortStart:
        """Convert a `RoundStart` to its stored form, with its digests packed in base64.

        Raises:
            TypeError: `elapsed_ms` is a text.
        """
        return cls(
            StartValues(
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
                elapsed_ms=1.0 * start.elapsed_ms,  # raises TypeError for a text
            ),
            *_read_named_fields(start),
        )

    def read(self) -> RoundStart:
        """Convert the stored form back to the `RoundStart`.

        Raises:
            ValueError: a packed digest is not valid base64.
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
            settings=self.settings,
            dropped_settings=self.dropped_settings,
        )


# The fields after `start` have the same names in both forms; one getter is faster than an attribute for each.
_read_named_fields = attrgetter(*ShortStart.__struct_fields__[1:])


def _pack(digest: str) -> str:
    """Return a sha256 in hexadecimal as base64 without padding; any other text after a `=`, "" for ""."""
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


# The system text and the tools rarely change from round to round, so their digests are cached.
_pack_cached = lru_cache(maxsize=256)(_pack)
_unpack_cached = lru_cache(maxsize=256)(_unpack)


VERSION = 1
"""The first version of every body type, and the only one of most."""
SHORT = 2
"""The version of a `RoundStart` that is stored as a `ShortStart`."""
MAX_DEPTH = 200
"""The nesting limit for the JSON of a body, so that decoding does not exceed the recursion limit of the reader."""

DECODE_ERRORS = (ValueError, RecursionError, MsgspecError)
"""The errors of a decoder for JSON that is not a body of its type."""

_LARGE_FLOAT = 1e16
"""The smallest number that is written with an exponent."""
_ALIKE = 0.55
"""The similarity, from 0 to 1, from which a known type is suggested: `tool` suggests `react.tool`, `nosuch` nothing."""
_EXPONENT = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+"?)|(?<=\d)e(?=\d)', re.DOTALL)
_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|([\[{])|[\]}]', re.DOTALL)

S = TypeVar("S", bound=Struct)

_MAKING_DECODER = Lock()


def encode(body: Body) -> tuple[str, int, str]:
    """Return the body's stored type, version and JSON without checking that it decodes again; see `encode_checked`.

    Equal bodies have the same JSON.
    """
    if isinstance(body, Unknown):
        return body.stored_type, body.version, body.stored
    form = ShortStart.of(body) if is_short(body) else body
    return body.type, body_version(body), _encode_known(form, _plan(type(form))).decode()


def is_short(body: Body) -> TypeIs[RoundStart]:
    """Return whether the body is a `RoundStart` of version 2."""
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
    """Return the JSON of a body of a known type, the same bytes for equal bodies."""
    body = _as_read(body) if plan.defaults or plan.floats or plan.nested else body
    stored = _write(body)
    for get in plan.loose:
        value = get(body)
        if not value or type(value) in _NO_FLOATS:
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
    """Decode the JSON of a body, as text or in UTF-8; an unknown type or version gives an `Unknown`.

    Raises:
        ValueError: the JSON is not a body of that type, or is nested too deep; the message names the field if possible.
    """
    return _decode_with(body_reader(stored_type, version), stored)


def decode_full(stored_type: str, stored: str) -> Body:
    """Decode the JSON that `encode_full` made of a body of a known type.

    Raises:
        ValueError: the JSON is not a body of that type; the message names the field.
    """
    return _decode_with(_reader(stored_type), stored)


def _decode_with(read: Callable[[str | bytes], Body], stored: str | bytes) -> Body:
    """Call the reader; a RecursionError (nested too deep) or MsgspecError of the reader is raised as a ValueError."""
    try:
        return read(stored)
    except RecursionError as error:
        raise ValueError(f"its JSON is nested deeper than {MAX_DEPTH}") from error
    except MsgspecError as error:  # a ValueError only since msgspec 0.21
        raise ValueError(str(error)) from error


@cache
def body_types() -> dict[str, type[Body]]:
    """Return every known body class by its stored type."""
    return {kind.type: kind for kind in get_args(Body) if kind is not Unknown}


@cache
def _reader(stored_type: str) -> Callable[[str | bytes], Body]:
    """Return the decoder function of a type. It is made at the first use, since most readers need few types."""
    return _decoder(body_types()[stored_type]).decode


def _decoder(kind: type[S]) -> Decoder[S]:
    """Create a decoder of a type, in one thread at a time.

    msgspec caches its information about a struct before the information is complete. A second thread that created a
    decoder with the same struct would use the incomplete information, and the process would crash at the first decoding.
    """
    with _MAKING_DECODER:
        return Decoder(kind)


@lru_cache(maxsize=1024)
def body_reader(stored_type: str, version: int) -> Callable[[str | bytes], Body]:
    """Return the function that decodes a type and version; the function raises `DECODE_ERRORS`."""
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
    """Convert a value of a subclass of `str`, `float` or `int` to that type; raise a TypeError for other types."""
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
    """Return the JSON with 1e+16 instead of 1e16, as numbers were always stored: digests cover the text."""
    return _EXPONENT.sub(lambda match: match[1] or "e+", text)


_NO_FLOATS = frozenset({type(None), bool, int, str})
_SCALARS = _NO_FLOATS | {float}


def _has_large_float(values: list[object]) -> bool:
    """Return whether the values contain a float of at least ±1e16, at any depth. The list is used up."""
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
    """The fields of a type that need work before they are encoded, computed once for each type.

    msgspec leaves out a field only if its value is the same object as the default. `defaults` are the fields and
    defaults for which an equal value may be another object. `floats` are the fields that are decoded as a float but may
    hold an int. `nested` are the fields with structs that have such fields. `loose` are getters of the values that may
    contain a float, and `free` are the fields of arbitrary JSON, whose depth is not limited by their type.
    """

    defaults: tuple[tuple[str, object], ...]
    floats: tuple[str, ...]
    nested: tuple[str, ...]
    loose: tuple[Callable[[object], object], ...]
    free: tuple[str, ...]


@cache
def _plan(kind: type[Struct]) -> _Plan:
    """Compute the `_Plan` of a type from its type hints and defaults, and those of its nested structs; cached."""
    hints = get_type_hints(kind)
    defaults = [(field.name, field.default) for field in structs.fields(kind)]
    inner: dict[str, list[_Plan]] = {}
    for name, _ in defaults:
        inner[name] = list(map(_plan, _struct_types(hints[name])))
    is_array = (
        kind.__struct_config__.array_like
    )  # created by `ShortStart.of`, which converts to float
    return _Plan(
        defaults=tuple(
            (name, default)
            for name, default in defaults
            if isinstance(default, str | int | float | Struct) and not _is_unique(default)
        ),
        floats=() if is_array else tuple(name for name in inner if _is_float(hints[name])),
        nested=tuple(
            name
            for name, plans in inner.items()
            if any(plan.defaults or plan.floats for plan in plans)
        ),
        loose=tuple(map(attrgetter, _loose(kind))),
        free=tuple(
            name
            for name, plans in inner.items()
            if _mentions(hints[name], Any) or any(plan.free for plan in plans)
        ),
    )


@cache
def _loose(kind: type[Struct]) -> tuple[str, ...]:
    """Return the paths of values that may contain a float: `cost`, or `start.elapsed_ms` if `start` is always a struct."""
    paths: list[str] = []
    for name, hint in get_type_hints(kind).items():
        inner = list(filter(_loose, _struct_types(hint)))
        if [hint] == inner:
            paths += [f"{name}.{below}" for below in _loose(inner[0])]
        elif inner or _mentions(hint, float, Any):
            paths.append(name)
    return tuple(paths)


def _is_unique(default: object) -> bool:
    """Return whether the interpreter has only one object with this type and value, such as True, "" or a small int."""
    return isinstance(default, bool) or default == "" or (type(default) is int and default <= 256)


def _parts(hint: object) -> Iterator[object]:
    """Yield a type hint and all hints inside it, each before those inside it."""
    waiting = [hint]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += reversed(get_args(part))


def _struct_types(hint: object) -> list[type[Struct]]:
    return [part for part in _parts(hint) if isinstance(part, type) and issubclass(part, Struct)]


def _is_float(hint: object) -> bool:
    """Return whether a number in a field with this type hint is decoded as a float."""
    return hint is float or (float in get_args(hint) and int not in get_args(hint))


def _mentions(hint: object, *types: object) -> bool:
    return any(part in types for part in _parts(hint))


def _as_read(value: S) -> S:
    """Return the value as it will be decoded: ints in float fields as floats, and the default object for an equal value."""
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
    """Convert structs to dicts with every field and tuples to lists, recursively; return other values unchanged."""
    match value:
        case Struct():
            return {name: _every_field(getattr(value, name)) for name in value.__struct_fields__}
        case tuple():
            return [_every_field(item) for item in cast("tuple[object, ...]", value)]
        case _:
            return value


class UnsoundBody(LooplineError):
    """A body has a value that its type does not allow, so it cannot be stored; the message names the field."""


def encode_checked(body: Body) -> tuple[str, int, str]:
    """Encode the body and check that it decodes to the same body.

    Raises:
        UnsoundBody: a field has a value of the wrong type or a value that JSON cannot represent, or the JSON is nested
            deeper than `MAX_DEPTH`.
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
    """Encode a round start of version 2 for `encode_checked`; raise UnsoundBody if it does not decode to the same."""
    again = None
    try:
        form = ShortStart.of(body)
        stored = _encode_known(form, _plan(ShortStart))
        again = _short_decoder()(stored)
        if again == form:
            return body.type, SHORT, stored.decode()
    except (ValueError, TypeError, AttributeError, RecursionError, MsgspecError):
        pass  # the check below names the field
    encode_checked(structs.replace(body, version=VERSION))
    raise UnsoundBody(f"{body.type}: its JSON would decode to {again!r}")


def _encode_unknown(body: Unknown) -> tuple[str, int, str]:
    """Encode an unknown body for `encode_checked`, as it was stored.

    Raises:
        UnsoundBody: its type and version are known, or its text is not valid UTF-8 or nested deeper than `MAX_DEPTH`.
    """
    encoded = kind, version, stored = encode(body)
    try:
        again = decode(kind, version, stored)
        f"{kind}{stored}".encode()  # raises if UTF-8 cannot represent it; known types were checked by msgspec
    except (ValueError, TypeError, RecursionError) as error:
        raise UnsoundBody(f"{body.type}: {_find_unsound_field(body)}{error}") from error
    if again != body:
        raise UnsoundBody(f"{body.type}: {_describe_changes(body, again)}")
    if _is_deep(stored):
        raise UnsoundBody(f"{body.type}: its JSON is nested deeper than {MAX_DEPTH}")
    return encoded


def _find_unsound_field(body: Body) -> str:
    """Return the name of the first field that cannot be encoded, followed by `: `; empty if all can."""
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
    return nesting_depth(stored) > MAX_DEPTH


def is_too_deep(value: Json) -> bool:
    """Return whether a value is nested too deeply to be stored as a field of a body; the work is that of one pass."""
    # The arguments of most calls have no lists or objects, which this finds faster than the loop.
    if isinstance(value, dict) and _SCALARS.issuperset(map(type, value.values())):
        return False
    inner: list[list[Json] | JsonObject] = [[value]]  # the body itself is the first level
    for _ in range(MAX_DEPTH):
        inner = [
            item
            for outer in inner
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
        if not inner:
            return False
    return True


def nesting_depth(text: str) -> int:
    """Return the greatest number of brackets outside of strings that are open at the same time.

    The text need not be JSON: a string without its closing quote reaches to the end of the text.
    """
    depth = deepest = 0
    for token in _BRACKET.finditer(text):
        if token[1]:
            depth += 1
            deepest = max(depth, deepest)
        elif not token[0].startswith('"'):
            depth -= 1
    return deepest


def warm_codec() -> None:
    """Create the decoders of all types, which takes some milliseconds the first time; call it from a thread."""
    for name in body_types():
        _reader(name)
    _short_decoder()
    encode_checked(UserPrompt(text=""))


def block_document(block: Block) -> JsonObject:
    """Return a block as a JSON object with its position, its ref, and its body with every field.

    A body of an unknown type also has its stored text in `stored`, if encoding the parsed JSON would give another text.
    If that text is not valid JSON, `body` is None.
    """
    stored = encode_full(block.body)
    body = _parse_json(stored)
    is_exact = not isinstance(block.body, Unknown) or dumps(body) == stored
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
        **({} if is_exact else {"stored": stored}),
    }


def _parse_json(stored: str) -> Json:
    try:
        return cast("Json", json.loads(stored))
    except ValueError:
        return None


def to_utc(moment: datetime) -> datetime:
    """Return the time in UTC. A time without a time zone is taken as UTC."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


def iso_time(moment: datetime) -> str:
    """Format a time, which must be in UTC, to the millisecond (rounded down), such as `2026-03-21T10:00:00.000Z`."""
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def matches_types(kind: str, types: Sequence[str]) -> bool:
    """Return whether a stored type equals one of `types` or is below it, as `react.tool.call` is below `react.tool`."""
    return any(kind == prefix or kind.startswith(f"{prefix}.") for prefix in types)


def type_hint(kind: str) -> str:
    """Return the end of an error about an unknown type: the most similar known type, else the first parts of all types."""
    nearest = get_close_matches(kind, list_types(), n=1, cutoff=_ALIKE)
    if nearest:
        return f"nearest is {nearest[0]!r}"
    return f"types begin with {', '.join(name for name in list_types() if '.' not in name)}"


@cache
def list_types() -> tuple[str, ...]:
    """Return the types of blocks, and the first parts of their names, by which blocks are found too: sorted."""
    parts = [name.split(".") for name in body_types()]
    return tuple(
        sorted({".".join(names[:end]) for names in parts for end in range(1, len(names) + 1)})
    )
