"""JSON is found in whatever a model wrote around it, and reading costs no more than the text is long."""

from __future__ import annotations

import json
import re
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline.models import BrokenJson, JsonObject, dumps, extract_json, parse_object_at, scan_json
from tests.strategies import json_objects, texts
from tests.support.examples import sampled

awkward = st.text('{}[]"`\\:, \na', max_size=20)
prose = (st.text(max_size=60) | awkward).filter(lambda text: not re.search(r'\{\s*["}]', text))
"""Words that begin no object: quotes, braces, fences and backslashes may be among them."""
fences = st.sampled_from(["", "```json\n", "```\n", "~~~\n", "Here:\n\n```jsonc\n"])


def written(value: JsonObject, indent: int | None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


@given(prose, fences, json_objects, st.none() | st.integers(0, 4), prose)
def test_an_object_among_words_and_fences_is_found_byte_for_byte(
    before: str, fence: str, value: JsonObject, indent: int | None, after: str
) -> None:
    found_value = extract_json(f"{before}{fence}{written(value, indent)}\n```{after}")
    assert found_value is not None
    assert dumps(found_value) == dumps(value)


@given(st.lists(json_objects, max_size=5), prose)
def test_all_objects_are_found_in_their_order(values: list[JsonObject], between: str) -> None:
    text = f" {between}\n".join(map(dumps, values))
    assert [dumps(item) for item in scan_json(text) if isinstance(item, dict)] == list(
        map(dumps, values)
    )


@given(json_objects, texts)
def test_an_object_is_read_where_it_begins_and_its_end_is_told(
    value: JsonObject, behind: str
) -> None:
    found = parse_object_at(f"ab{dumps(value)}{behind}", 2)
    assert not isinstance(found, BrokenJson)
    assert (dumps(found[0]), found[1]) == (dumps(value), 2 + len(dumps(value)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('Sure! {"a": 1} Anything else?', {"a": 1}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('Not {"b": 2} but\n```\n{"a": 1}\n```', {"a": 1}),
        ('Not {"b": 2} but\n```json\n{}\n```\n{"a": 1}', {}),
        ('```\n{"a": "```json\\n{}\\n```"}\n```', {"a": "```json\n{}\n```"}),
        ('```\nfirst\n```\n```json\n{"a": 1}\n```', {"a": 1}),
        ('[1, 2] and {"a": 1}', {"a": 1}),
        ('\n\n{"a":\n1\n}\n', {"a": 1}),
        ('use {braces}, {a: b} and { then {"a": 1}', {"a": 1}),
        ('{"a": "two\nlines\tand a tab"}', {"a": "two\nlines\tand a tab"}),
        (r'{"a": "\(x\) \alpha \d+ C:\dir"}', {"a": r"\(x\) \alpha \d+ C:\dir"}),
        (r'{"a": "\u00e9 \u12 \\ \""}', {"a": 'é \\u12 \\ "'}),
        ('[{"a": 1}, {"a": 2}]', {"a": 1}),
        ('{"a": "}{"}', {"a": "}{"}),
        ('{"a": {"b": {"c": []}}}', {"a": {"b": {"c": []}}}),
        ("[1, 2]", None),
        ('"a"', None),
        ("", None),
        ('{"a": 1', None),
        ('{"a": {"b": 1}', None),
        ("{'a': 1}", None),
    ],
)
def test_json_is_read_as_tolerantly_as_this_and_no_more(
    text: str, value: JsonObject | None
) -> None:
    assert extract_json(text) == value


def test_an_object_inside_a_broken_one_does_not_stand_alone() -> None:
    (found,) = scan_json('{"a": {"b": 1}, "c": {"d": 2},}')
    assert isinstance(found, BrokenJson)
    assert "line 1, column" in found.problem


HARD = [
    "{",
    '{"',
    '{"":',
    '{"":x',
    '{"\\"',
    '{"a":1,',
    "[",
    "\\",
    '{"a":"\\(',
    '"',
    '{"a":1}',
    "```",
    '{\n"a"\n',
    '{"a":"\\q"} ',
    '\\"',
]


@pytest.mark.parametrize("piece", sampled(HARD, 4))
@pytest.mark.parametrize("head", ["", "{", '{"a":', '{"a":"', '{"a":1'])
def test_two_hundred_kilobytes_of_anything_are_read(head: str, piece: str) -> None:
    text = head + piece * (200_000 // len(piece))
    assert isinstance(scan_json(text), list)
    assert parse_object_at(text, 0) is not None
    extract_json(text)


def test_a_number_of_any_length_is_read() -> None:
    assert extract_json('{"a": ' + "1" * 100_000 + "}") == {"a": float("inf")}


def test_a_broken_object_costs_the_same_wherever_it_stands() -> None:
    text = "\n" * 4_000_000 + r'{"a": "\d"}'
    began = thread_time()
    for _ in range(50):
        assert parse_object_at(text, 4_000_000) == ({"a": r"\d"}, len(text))
    assert thread_time() - began < 0.05


def test_of_broken_objects_in_a_long_text_fewer_are_read() -> None:
    short = '{"a": x} ' * 1_200
    assert len(scan_json(short)) == 1_000
    assert len(scan_json(short + '{"a": 1}')) == 1_000
    long = ('{"a": x}' + "\n" * 4_000) * 1_000
    assert 100 < len(scan_json(long)) < 200
