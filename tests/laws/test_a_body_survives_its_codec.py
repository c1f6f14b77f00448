"""What is stored of a body is the body."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import cast, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from loopline import timeline as tl
from loopline.models import Json, dumps
from loopline.timeline.codec import decode_full
from tests.strategies import bodies_of, unknown_bodies
from tests.support.examples import examples
from tests.support.round_starts import round_start
from tests.support.rows import each_row

KINDS = tl.body_types().values()


@each_row(KINDS)
@given(data=st.data())
@examples(25)
def test_a_body_is_decoded_to_what_was_encoded(kind: type[tl.Body], data: st.DataObject) -> None:
    body = data.draw(bodies_of(kind))
    assert tl.decode(*tl.encode(body)) == body


@each_row(KINDS)
@given(data=st.data())
@examples(10)
def test_a_body_is_stored_as_a_json_object_without_its_type(
    kind: type[tl.Body], data: st.DataObject
) -> None:
    word, _, stored = tl.encode(data.draw(bodies_of(kind)))
    assert tl.body_types()[word] is kind
    assert "type" not in json.loads(stored)


@given(unknown_bodies())
def test_a_body_from_a_newer_loopline_is_kept_as_it_is_stored(body: tl.Body) -> None:
    assert tl.decode(*tl.encode(body)) == body


@each_row(KINDS)
@given(data=st.data())
@examples(25)
def test_equal_bodies_have_the_same_json(kind: type[tl.Body], data: st.DataObject) -> None:
    """A document has every field; what is read from it is stored as the body was."""
    body = data.draw(bodies_of(kind))
    word, version, stored = tl.encode(body)
    again = decode_full(word, tl.encode_full(body))
    assert again == body
    assert tl.encode(again) == (word, version, stored)


@each_row(KINDS)
@given(data=st.data())
@examples(10)
def test_a_field_takes_no_value_of_another_type(kind: type[tl.Body], data: st.DataObject) -> None:
    body = data.draw(bodies_of(kind))
    hints = get_type_hints(kind)
    wrong = {str: 5, int: "5", float: "5", bool: 1}
    typed = [name for name in kind.__struct_fields__ if hints[name] in wrong]
    for name in typed:
        unsound = structs.replace(body, **{name: wrong[hints[name]]})
        with pytest.raises(tl.UnsoundBody, match=name):
            tl.encode_checked(unsound)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"text", id="bytes"),
        pytest.param((1, 2), id="a tuple"),
        pytest.param({1: "one"}, id="a key that is no text"),
        pytest.param([float("nan")], id="no number"),
        pytest.param([float("-inf")], id="infinity"),
        pytest.param({"a": "\ud800"}, id="half a character"),
        pytest.param({1, 2}, id="a set"),
        pytest.param(object(), id="an object"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_the_name_of_its_field(value: object) -> None:
    with pytest.raises(tl.UnsoundBody, match=r"user\.answer: .*value"):
        tl.encode_checked(tl.UserAnswer(call_id="c1", value=cast("Json", value)))


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (1e16, "1e+16"),
        (-2.5e300, "-2.5e+300"),
        (1e15, "1000000000000000.0"),
        (1e-7, "1e-7"),
        (2**70, "1180591620717411303424"),
    ],
)
def test_a_number_is_written_as_it_was_when_its_digest_was_made(
    number: float, written: str
) -> None:
    text = 'a text with "1e16" and :1e16'
    body = tl.UserAnswer(call_id="c1", value=[text, {"n": number}])
    _, _, stored = tl.encode_checked(body)
    assert stored == dumps({"call_id": "c1", "value": [text, {"n": 0}]}).replace(
        '"n":0', f'"n":{written}'
    )


@pytest.mark.parametrize(("depth", "is_sound"), [(150, True), (250, False)])
def test_json_is_stored_only_as_deep_as_any_reader_can_follow(depth: int, is_sound: bool) -> None:
    value: Json = "]" * 500
    for _ in range(depth):
        value = [value]
    body = tl.UserAnswer(call_id="c1", value=value)
    with nullcontext() if is_sound else pytest.raises(tl.UnsoundBody, match="nested deeper"):
        tl.encode_checked(body)


def test_a_value_of_a_subclass_is_stored_as_what_it_is() -> None:
    class Name(str):
        __slots__ = ()

    assert tl.encode_checked(tl.UserPrompt(text=Name("hello"))) == tl.encode(
        tl.UserPrompt(text="hello")
    )


@each_row(KINDS)
@given(data=st.data(), number=st.integers(-(10**20), 10**20))
@examples(10)
def test_a_whole_number_in_a_field_of_floats_is_stored_as_it_is_read_back(
    kind: type[tl.Body], data: st.DataObject, number: int
) -> None:
    """The digest of a block is made of its JSON: read back and written anew, it must be the same."""
    body, hints = data.draw(bodies_of(kind)), get_type_hints(kind)
    whole = int(float(number))
    for name in kind.__struct_fields__:
        if hints[name] in (float, float | None):
            stored = tl.encode_checked(structs.replace(body, **{name: whole}))
            assert tl.encode(tl.decode(*stored)) == stored


def test_a_whole_number_in_a_source_is_stored_as_it_is_read_back() -> None:
    source = tl.Source(url="https://tea.example", objective_relevance=1)
    stored = tl.encode_checked(tl.SourceAdded(sid=1, source=source))
    assert tl.encode(tl.decode(*stored)) == stored


def test_a_whole_number_in_the_json_of_a_user_stays_one() -> None:
    body = tl.UserAnswer(call_id="c1", value={"cups": 1, "litres": 1.0})
    assert tl.encode_checked(body)[2] == '{"call_id":"c1","value":{"cups":1,"litres":1.0}}'
    assert f"{tl.decode(*tl.encode(body))}" == f"{body}"


def test_a_whole_number_beyond_all_floats_is_refused() -> None:
    with pytest.raises(tl.UnsoundBody, match="confidence"):
        tl.encode_checked(tl.Feedback(reaction="ok", confidence=10**400))


@given(bodies_of(tl.RoundStart))
def test_the_start_of_a_round_is_stored_in_either_of_its_versions(start: tl.Body) -> None:
    assert isinstance(start, tl.RoundStart)
    for version in (1, 2):
        same = structs.replace(start, version=version)
        stored = tl.encode_checked(same)
        assert (stored[1], tl.decode(*stored)) == (version, same)


def test_a_start_in_its_second_version_is_told_which_field_is_wrong() -> None:
    start = round_start(saw=cast("int", "three"), version=2)
    with pytest.raises(tl.UnsoundBody, match="saw"):
        tl.encode_checked(start)
