"""Law 14: a document has every field of its schema, and an import refuses what it does not know."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from random import Random
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from loopline import Store
from loopline.models import Json, JsonObject
from loopline.reader import DocumentError, read_document
from loopline.timeline import Body, Timeline, encode, encode_full
from tests.strategies import known_bodies
from tests.support.damaged_documents import damaged
from tests.support.examples import examples
from tests.support.sample_document import lived

FREE = {
    "arguments", "ran_with", "value", "parts", "limits", "changes", "step_status", "learned", "settings", "dropped_settings",
}  # fmt: skip
"""Fields whose own fields tools, bundles and providers choose, or which are kept by number or name."""
SECONDS = 20

Rows = list[JsonObject]


def rows(document: JsonObject) -> Rows:
    return cast("Rows", document["blocks"])


def missing(value: object, written: Json, path: str) -> list[str]:
    if isinstance(value, Struct):
        assert isinstance(written, dict), path
        texts = [f"{path}.{name}" for name in value.__struct_fields__ if name not in written]
        for name in value.__struct_fields__:
            if name in written:
                texts += missing(getattr(value, name), written[name], f"{path}.{name}")
        return texts
    if isinstance(value, tuple):
        assert isinstance(written, list), path
        inner = zip(cast("tuple[object, ...]", value), written, strict=True)
        return [lost for item, text in inner for lost in missing(item, text, f"{path}[]")]
    return []


@given(known_bodies())
def test_every_field_of_a_body_is_written_whatever_its_default(body: Body) -> None:
    assert missing(body, json.loads(encode_full(body)), "body") == []


def test_a_document_is_imported_to_the_very_blocks_it_was_made_of() -> None:
    blocks, document = lived().blocks, deepcopy(lived().document)
    assert read_document(document) == blocks
    for row, block in zip(rows(document), blocks, strict=True):
        assert missing(block.body, row["body"], "body") == []
        if row["version"] == 1:  # as older versions exported it, which knew no other
            row["body"] = json.loads(encode(block.body)[2])
        del row["digest"]
    assert read_document(document) == blocks


def objects(value: Json, path: str) -> Iterator[tuple[str, JsonObject]]:
    """Every object in a body whose fields its type says, with its path."""
    if isinstance(value, dict):
        yield path, value
        for name, inner in value.items():
            if name not in FREE:
                yield from objects(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from objects(inner, f"{path}[{index}]")


@examples(40)
@given(st.data())
def test_a_field_that_nobody_knows_is_refused_with_its_path(data: st.DataObject) -> None:
    document = deepcopy(lived().document)
    index = data.draw(st.integers(0, len(rows(document)) - 1))
    at = f"blocks[{index}]"
    places = [(at, rows(document)[index]), *objects(rows(document)[index]["body"], f"{at}.body")]
    path, place = data.draw(st.sampled_from(places))
    place["later"] = 1
    with pytest.raises(DocumentError) as refused:
        read_document(document)
    assert str(refused.value).startswith(f"{path}.later: ")


def numbers(value: Json) -> Iterator[Callable[[Json], None]]:
    """For every number, what puts another value in its place."""
    match value:
        case dict():
            for name, item in value.items():
                if is_number(item):
                    yield partial(value.__setitem__, name)
                yield from numbers(item)
        case list():
            for index, item in enumerate(value):
                if is_number(item):
                    yield partial(value.__setitem__, index)
                yield from numbers(item)
        case _:
            pass


def is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


async def _used(document: JsonObject) -> None:
    """Import it, and do with it what only reads."""
    async with Store.open("memory:") as store:
        talk = await store.load(document, name="c")
        await talk.read([block.ref for block in await talk.blocks()])
        again = Timeline(await talk.blocks())
        assert again.seq == len(rows(document)) + 1


@examples(60)
@given(st.data(), st.sampled_from([2**53, 2**63, 10**30, -1, 0, 1e308, 0.5]))
def test_a_number_of_a_document_is_refused_or_does_no_harm(
    data: st.DataObject, number: int | float
) -> None:
    document = deepcopy(lived().document)
    for row in rows(document):
        del row["digest"]
    places = list(numbers(list(rows(document))))
    put = data.draw(st.sampled_from(places))
    put(number)
    with suppress(DocumentError):
        asyncio.run(asyncio.wait_for(_used(document), SECONDS))


@pytest.mark.parametrize("seed", range(100))
def test_a_broken_document_is_refused_by_name_or_does_no_harm(seed: int) -> None:
    document = damaged(lived().document, Random(seed))
    with suppress(DocumentError):
        asyncio.run(asyncio.wait_for(_used(document), SECONDS))
