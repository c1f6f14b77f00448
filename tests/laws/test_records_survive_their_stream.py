"""Any record is one event of a stream, whatever its data are, and ids sort as their places do."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import LooplineError
from loopline.events import Record, sse
from loopline.models import JsonObject
from tests.strategies import json_objects

counts = st.integers(1, 10**18 - 1)
names = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), min_size=1, max_size=20)


def fields(event: bytes) -> dict[str, str]:
    """The fields of an event, which ends with the one blank line it has."""
    *lines, end, rest = re.split("\r\n|\r|\n", event.decode())
    assert (end, rest) == ("", "")
    pairs = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


@given(names, json_objects, counts, counts)
def test_a_record_comes_out_as_it_went_in(name: str, data: JsonObject, seq: int, k: int) -> None:
    read = fields(sse.encode(Record(event=name, data=data, id=f"{seq}.{k}")))
    assert json.loads(read.pop("data")) == data
    assert read == {"id": f"{seq}.{k}", "event": name}


def test_a_record_without_an_id_has_no_such_field() -> None:
    record = Record(event="said", data={"text": "Grün\n"})
    assert sse.encode(record) == 'event: said\ndata: {"text":"Grün\\n"}\n\n'.encode()


def test_what_no_utf_8_or_json_can_hold_is_written_out() -> None:
    record = Record(event="x\ud800", data={"a": "\udfff", "b": float("inf")})
    assert sse.encode(record) == b'event: x\\ud800\ndata: {"a":"\\\\udfff","b":"inf"}\n\n'


@given(counts, counts, counts, counts)
def test_ids_sort_as_their_places_do(seq: int, k: int, other: int, n: int) -> None:
    first, second = sse.position(f"{seq}.{k}"), sse.position(f"{other}.{n}")
    assert (first < second) is ((seq, k) < (other, n))
    assert sse.START == sse.position("") < first


@pytest.mark.parametrize(
    "junk",
    [
        "1",
        "1.",
        ".1",
        "0.1",
        "1.0",
        "01.1",
        "1.1\n",
        " 1.1",
        "1.1\0",
        "-1.1",
        "\u0663.1",
        "9" * 30 + ".1",
    ],
)
def test_what_is_no_id_is_refused(junk: str) -> None:
    with pytest.raises(LooplineError, match=r"ids are <seq>\.<k>"):
        sse.position(junk)
    with pytest.raises(LooplineError, match="is not the id of a record"):
        sse.encode(Record(event="said", id=junk))


@pytest.mark.parametrize("name", ["a\nb", "a\r", "\r\n"])
def test_a_name_of_several_lines_is_refused(name: str) -> None:
    with pytest.raises(LooplineError, match="the name of an event must be one line"):
        sse.encode(Record(event=name))


def test_nobody_is_told_to_come_back_before_they_left() -> None:
    assert sse.retry(0) == b"retry: 0\n\n"
    with pytest.raises(LooplineError, match="retry must be 0 ms or more"):
        sse.retry(-1)
