"""Hypothesis strategies: any body, entry and conversation, and any JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import Struct

from loopline.models import Json, JsonObject
from loopline.timeline import (
    NEW_TURN,
    Body,
    ConversationKey,
    Entry,
    Feedback,
    Unknown,
    UserFollowup,
    UserPrompt,
    body_types,
)
from loopline.timeline.codec import SHORT

texts = st.text(max_size=40)
"""Any text that UTF-8 can hold."""
numbers = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(min_value=0, max_value=2**53)
moments = st.integers(0, 4 * 10**15).map(
    lambda microseconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
)
json_values: SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_objects: SearchStrategy[JsonObject] = st.dictionaries(texts, json_values, max_size=4)


def bodies_of(kind: type[Body]) -> SearchStrategy[Body]:
    """Any body of the type, each of its fields drawn by what it is annotated as."""
    return cast("SearchStrategy[Body]", _records(kind))


def known_bodies() -> SearchStrategy[Body]:
    """A body of any type that this loopline knows."""
    return st.sampled_from(list(body_types().values())).flatmap(bodies_of)


def unknown_bodies() -> SearchStrategy[Body]:
    """A body such as only a newer loopline knows: a later type, or a later version of one."""
    later = st.builds(
        Unknown, stored_type=texts.map(lambda text: f"later.{text}"), version=counts, stored=texts
    )
    changed = st.builds(
        Unknown,
        stored_type=st.sampled_from(sorted(body_types())),
        version=st.integers(SHORT + 1, 9),
        stored=texts,
    )
    return later | changed


def bodies() -> SearchStrategy[Body]:
    """Any body."""
    return known_bodies() | unknown_bodies()


def user_bodies() -> SearchStrategy[Body]:
    """What a user may say at any time."""
    return (
        st.builds(UserPrompt, text=texts)
        | st.builds(UserFollowup, text=texts)
        | st.builds(Feedback, reaction=st.sampled_from(["ok", "not_ok", "neutral", None]))
    )


def entries(of: SearchStrategy[Body], *, turns: int = 3) -> SearchStrategy[Entry]:
    """Entries of these bodies, in a new turn or in one of the first."""
    return st.builds(
        Entry, body=of, turn=st.just(NEW_TURN) | st.integers(1, turns), round=st.integers(0, 5)
    )


def conversations() -> SearchStrategy[ConversationKey]:
    """Conversations whose names, users, tenants and projects often coincide."""
    few = st.sampled_from(["a", "b", "ü"])
    return st.builds(ConversationKey, name=few, user=few, tenant=few, project=few)


def _records(kind: type[Struct]) -> SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: _values(hints[name]) for name in kind.__struct_fields__})


def _values(hint: Any) -> SearchStrategy[Any]:
    plain: dict[Any, SearchStrategy[Any]] = {
        str: texts,
        bool: st.booleans(),
        int: counts,
        float: numbers,
        datetime: moments,
        NoneType: st.none(),
        Any: json_values,
    }
    if hint in plain:
        return plain[hint]
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _records(hint)
    return _combined(get_origin(hint), get_args(hint))


def _combined(origin: Any, inner: tuple[Any, ...]) -> SearchStrategy[Any]:
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, UnionType):
        return st.one_of([_values(hint) for hint in inner])
    if origin is dict:
        return st.dictionaries(_values(inner[0]), _values(inner[1]), max_size=4)
    if inner[1:] == (...,):
        return st.lists(_values(inner[0]), max_size=4).map(tuple)
    return st.tuples(*[_values(hint) for hint in inner])
