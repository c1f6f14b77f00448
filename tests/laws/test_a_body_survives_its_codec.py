"""What is stored of a body is the body."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopline.timeline import Body, body_types, decode, encode
from tests.strategies import bodies_of, unknown_bodies

KINDS = [pytest.param(kind, id=word) for word, kind in body_types().items()]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=25)
def test_a_body_is_decoded_to_what_was_encoded(kind: type[Body], data: st.DataObject) -> None:
    body = data.draw(bodies_of(kind))
    assert decode(*encode(body)) == body


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=10)
def test_a_body_is_stored_as_a_json_object_without_its_type(
    kind: type[Body], data: st.DataObject
) -> None:
    word, _, stored = encode(data.draw(bodies_of(kind)))
    assert body_types()[word] is kind
    assert "type" not in json.loads(stored)


@given(unknown_bodies())
def test_a_body_from_a_newer_loopline_is_kept_as_it_is_stored(body: Body) -> None:
    assert decode(*encode(body)) == body
