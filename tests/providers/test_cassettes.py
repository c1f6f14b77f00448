"""A cassette on each wire: what was recorded comes again to the byte, and what was not is told."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from loopline.clock import SystemClock
from loopline.errors import CassetteError, ModelAccessError, ModelError, ModelTimedOut
from loopline.models import Prompt, TextDelta, Timeouts, UserMessage
from loopline.providers.cassettes import CassettePlayer, CassetteRecorder
from loopline.providers.cassettes.cassette_file import (
    CassetteHeader,
    RecordedRequest,
    RecordedResponse,
    encode_line,
    read_cassette,
)
from loopline.providers.http import HttpModel, create_http_client
from tests.providers.flat_request import KEY, WIRES
from tests.providers.local_model import PATIENT, PROMPT, asked, model_at, read_on
from tests.providers.test_faults import peer_of, waited
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.behaviors import Silence, Status
from tests.support.peers.http_server import Peer
from tests.support.peers.openai_like import openai_like

GREEN = "Green, with süßem 🍵."
FAULTS = ["429", "silent before the head", "silent in the middle", "reset in the middle"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the cassette is to be."""
    return tmp_path / "talk.jsonl"


def kept(file: Path) -> bytes:
    """What the file holds."""
    return file.read_bytes()


def keep(file: Path, content: bytes) -> None:
    """Have the file hold it."""
    file.write_bytes(content)


def about(text: str) -> Prompt:
    """The request, with this for a question."""
    return structs.replace(PROMPT, messages=(*PROMPT.messages, UserMessage(text=text)))


def peer_saying(wire: str) -> AbstractAsyncContextManager[Peer]:
    """A server of that wire that says something in pieces."""
    if wire == "messages":
        return anthropic_like(ant.Says(GREEN, pieces=9))
    return openai_like(oai.Says(GREEN, pieces=9))


@asynccontextmanager
async def recorded(
    peer: Peer, file: Path, wire: str = "chat", timeouts: Timeouts = PATIENT
) -> AsyncGenerator[HttpModel, None]:
    """The model at the server, on the record."""
    tape = CassetteRecorder(file, SystemClock(), [], {})
    await tape.begin()
    async with model_at(peer, wire, timeouts, lambda: tape.client(create_http_client())) as model:
        yield model
    await tape.close()


@asynccontextmanager
async def again(peer: Peer, file: Path, wire: str = "chat") -> AsyncGenerator[HttpModel, None]:
    """The same model, with the cassette in place of the server, which has gone."""
    async with model_at(peer, wire, make=CassettePlayer(file).client) as model:
        yield model


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_comes_again_when_its_server_has_gone(wire: str, file: Path) -> None:
    async with peer_saying(wire) as peer, recorded(peer, file, wire) as model:
        first = await asked(model)
    async with again(peer, file, wire) as model:
        assert await asked(model) == first
    assert first[1].text == GREEN
    (recorded_request,) = [
        item for item in read_cassette(file)[1] if isinstance(item, RecordedRequest)
    ]
    assert recorded_request.content == peer.requests[0].raw


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("wire", WIRES)
async def test_a_fault_comes_again_as_the_same_error(wire: str, fault: str, file: Path) -> None:
    timeouts = waited(fault)
    async with peer_of(wire, fault) as peer, recorded(peer, file, wire, timeouts) as model:
        with pytest.raises(ModelError) as first:
            await asked(model)
    async with again(peer, file, wire) as model:
        with pytest.raises(ModelError) as second:
            await asked(model)
    assert (type(second.value), str(second.value)) == (type(first.value), str(first.value))


async def test_a_server_that_was_not_there_is_not_there_again(file: Path) -> None:
    async with openai_like(oai.Says("Tea.")) as peer:
        pass
    errors = list[str]()
    for opened in (recorded, again):
        async with opened(peer, file) as model:
            with pytest.raises(ModelError, match="no connection") as raised:
                await asked(model)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


async def test_a_key_is_not_in_the_file_even_if_the_server_says_it(file: Path) -> None:
    echo = Status(401, body=b"this is no key: " + KEY.encode())
    async with openai_like(echo) as peer, recorded(peer, file) as model:
        with pytest.raises(ModelAccessError) as first:
            await asked(model)
    assert KEY.encode() not in kept(file)
    assert b"authorization" not in kept(file).lower()
    async with again(peer, file) as model:
        with pytest.raises(ModelAccessError) as second:
            await asked(model)
    assert str(second.value) == str(first.value)


SPELLINGS = {
    "upper case": KEY.upper(),
    "percent-encoded": quote(KEY, safe="").replace("-", "%2D"),
    "percent-encoded in part, in lower case": KEY.replace("-", "%2d", 1),
    "percent-encoded twice": KEY.replace("-", "%252D"),
    "escaped as JSON may be": KEY.replace("-", "\\u002d"),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
async def test_a_key_is_not_in_the_file_however_it_is_spelt(file: Path, spelling: str) -> None:
    echo = Status(401, body=b"this is no key: " + spelling.encode())
    async with openai_like(echo) as peer, recorded(peer, file) as model:
        with pytest.raises(ModelAccessError):
            await asked(model)
    assert b"secret" not in kept(file).lower()


async def test_a_refusal_that_is_compressed_is_read_again(file: Path) -> None:
    body = gzip.compress(b'{"error": {"message": "There is no tea."}}')
    refusal = Status(400, body=body, headers={"Content-Encoding": "gzip"})
    async with openai_like(refusal) as peer, recorded(peer, file) as model:
        with pytest.raises(ModelError, match="There is no tea"):
            await asked(model)
    async with again(peer, file) as model:
        with pytest.raises(ModelError, match="There is no tea"):
            await asked(model)


async def test_who_asks_the_same_again_is_answered_in_the_recorded_order_and_no_oftener(
    file: Path,
) -> None:
    counting = openai_like(oai.Says("One."), oai.Says("Two."))
    async with counting as peer, recorded(peer, file) as model:
        await asked(model)
        await asked(model)
    async with again(peer, file) as model:
        assert [(await asked(model))[1].text for _ in range(2)] == ["One.", "Two."]
        with pytest.raises(CassetteError, match="more often than it was recorded"):
            await asked(model)


async def test_requests_at_once_each_get_their_own_reply(file: Path) -> None:
    prompts = [about(f"Tea {n}?") for n in range(20)]
    echoing = oai.Says("Tea, in many pieces.", pieces=12)
    async with openai_like(echoing) as peer, recorded(peer, file) as model:
        first = await asyncio.gather(*(asked(model, prompt) for prompt in prompts))
    async with again(peer, file) as model:
        assert (
            await asyncio.gather(*(asked(model, prompt) for prompt in reversed(prompts))) == first
        )


async def test_a_request_that_is_not_recorded_is_told_with_the_nearest_and_the_difference(
    file: Path,
) -> None:
    async with openai_like(oai.Says("Tea.")) as peer, recorded(peer, file) as model:
        for text in ("With milk?", "With lemon, from far away, if there is any left?", "Black?"):
            await asked(model, about(text))
    async with again(peer, file) as model:
        with pytest.raises(CassetteError) as raised:
            await asked(model, about("With lemon, from far away, if there is some left?"))
    assert str(raised.value) == (
        f"{file} does not have this request; the most similar is number 2 of 3, and differs first at "
        'messages[2].content: recorded "…r away, if there is any left?", '
        'now "…r away, if there is some left?"'
    )


@pytest.mark.parametrize("place", ["model", "tools[0].function.name", "url", "messages[2]"])
async def test_a_miss_names_the_first_place_that_differs(place: str, file: Path) -> None:
    async with openai_like(oai.Says("Tea.")) as peer, recorded(peer, file) as model:
        await asked(model)
    prompt = PROMPT
    async with again(peer, file) as model:
        match place:
            case "model":
                model.model = "another"
            case "url":
                model.url = f"{model.url}/elsewhere"
            case "messages[2]":
                prompt = about("And coffee?")
            case _:
                prompt = structs.replace(PROMPT, tools=(replace(PROMPT.tools[0], name="shop.buy"),))
        with pytest.raises(CassetteError) as raised:
            await asked(model, prompt)
    assert f"differs first at {place}: " in str(raised.value)


async def test_a_reply_that_nobody_read_on_ends_there_again(file: Path) -> None:
    silent = openai_like(Silence(oai.Says(GREEN, pieces=9), after_chunks=8))
    async with silent as peer, recorded(peer, file) as model:
        first = [delta async for delta in _first(model, 3)]
    async with again(peer, file) as model:
        second = model.stream(PROMPT)
        assert [await anext(second) for _ in first] == first
        with pytest.raises(ModelTimedOut):
            await read_on(second)


async def _first(model: HttpModel, count: int) -> AsyncGenerator[TextDelta, None]:
    replies = model.stream(PROMPT)
    for _ in range(count):
        piece = await anext(replies)
        assert isinstance(piece, TextDelta)
        yield piece
    await read_on(replies, 0.05)


async def test_a_recording_that_was_cut_anywhere_is_good_up_to_there(file: Path) -> None:
    counting = openai_like(oai.Says("One."), oai.Says("Two."))
    async with counting as peer, recorded(peer, file) as model:
        await asked(model, about("First?"))
        await asked(model, about("Second?"))
    whole = kept(file)
    second = whole.rindex(b'{"type":"response"')
    for end in range(second, whole.rindex(b'{"type":"close"'), 97):
        keep(file, whole[:end])
        async with again(peer, file) as model:
            assert (await asked(model, about("First?")))[1].text == "One."
            with pytest.raises(CassetteError, match="cut off before the response to request 2"):
                await asked(model, about("Second?"))


HEAD = encode_line(CassetteHeader(at=datetime(2026, 1, 1, tzinfo=UTC)))
NEWER = json.dumps({**json.loads(HEAD), "version": 2}).encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1"),
        (HEAD[:-9], "line 1"),
        (b"\x00\xff\n", "line 1"),
        (b'{"http_interactions": []}\n', "line 1: this is not the first line of a cassette"),
        (NEWER, "version 2, and this loopline reads 1"),
        (HEAD + b"junk\n", "line 2"),
        (HEAD + b'{"type":"response","number":1}\n', "line 2: this is not a line of a cassette"),
    ],
    ids=["empty", "cut", "bytes", "another's", "newer", "junk", "a part"],
)
def test_a_file_that_is_no_cassette_is_told_with_the_line(
    content: bytes, message: str, file: Path
) -> None:
    file.write_bytes(content)
    with pytest.raises(CassetteError, match=message):
        CassettePlayer(file)


async def test_a_recording_takes_no_place_of_another(file: Path) -> None:
    keep(file, HEAD)
    with pytest.raises(CassetteError, match="exists: replay it"):
        await CassetteRecorder(file, SystemClock(), [], {}).begin()
    assert kept(file) == HEAD


def test_a_file_that_is_not_there_is_told(file: Path) -> None:
    with pytest.raises(CassetteError, match="cannot be replayed: No such file"):
        CassettePlayer(file)


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
CONTENTS: st.SearchStrategy[bytes] = st.binary() | JSONS.map(lambda one: json.dumps(one).encode())


@given(content=CONTENTS, pieces=st.lists(st.binary()))
def test_a_line_gives_every_byte_again(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, pieces: list[bytes]
) -> None:
    file = tmp_path_factory.getbasetemp() / "lines.jsonl"
    request = RecordedRequest(number=1, url="http://a.b", headers={}, content=content)
    response = RecordedResponse(number=1, status=200, pieces=tuple(pieces))
    file.write_bytes(HEAD + encode_line(request) + encode_line(response))
    assert read_cassette(file)[1] == [request, response]
