"""Replies in the forms of many providers: read as they are meant, cut anywhere, and broken in every way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from loopline.errors import ModelError, ModelOverflow
from loopline.models import AssistantMessage, Capabilities, Json, Reply, dumps
from loopline.providers.http import HttpModel, HttpTransport
from tests.providers.flat_request import WIRES, account_of
from tests.providers.local_model import PROMPT
from tests.providers.recorded import FORMS, HERE, Form, Recorded, recorded, replaying

NAMES = sorted(FORMS)


async def came_of(
    response: Recorded, pieces: Sequence[bytes] | None = None
) -> tuple[Reply | ModelError, dict[str, str]]:
    """The reply or the error that comes of a response, and what was heard on the way by channel."""
    http = replaying(response, pieces)
    record = {"answer": "", "thinking": ""}
    try:
        async for piece in _model(response.wire, http).stream(PROMPT):
            if isinstance(piece, Reply):
                return piece, record
            record[piece.channel] += piece.text
    except ModelError as error:
        return error, record
    finally:
        await http.close()
    raise AssertionError("no reply came, and no error")


def _model(wire: str, http: HttpTransport) -> HttpModel:
    account = account_of(wire)
    return WIRES[wire](
        f"{wire}:m",
        model="m",
        url="http://model",
        credentials=account,
        capabilities=Capabilities(),
        http=http,
    )


def _expected(form: Form, reply: Reply) -> dict[str, object]:
    """What there is of a reply, under the names by which a form asks for it."""
    parts = () if reply.echo is None else reply.echo.parts
    details = cast("list[Json]", parts[0].get("reasoning_details", [])) if parts else []
    record: dict[str, object] = {
        "text": reply.text,
        "thinking": reply.thinking,
        "stop_reason": reply.stop_reason,
        "called": [call.name for call in reply.calls],
        "repaired": reply.problem.startswith("The call cannot be read: Failed to call"),
        "bound": reply.echo is not None and reply.echo.bound,
        "details": len(details),
        "extra": next((part["extra_content"] for part in parts if "extra_content" in part), None),
        "unreported": reply.usage.unreported,
        "reasoning_tokens": reply.usage.reasoning_tokens,
    }
    return {name: record[name] for name in form.gives}


@pytest.mark.parametrize("name", NAMES)
async def test_a_form_is_read_as_it_is_meant(name: str) -> None:
    form = FORMS[name]
    came, heard = await came_of(recorded(name))
    if form.fails is not None:
        assert type(came) is form.fails
        assert form.window is None or cast("ModelOverflow", came).window == form.window
        return
    assert isinstance(came, Reply)
    assert _expected(form, came) == form.gives
    assert (came.text, came.thinking) == (heard["answer"], heard["thinking"])


def test_every_file_has_a_form_that_says_what_is_to_come_of_it() -> None:
    assert sorted(path.stem for path in HERE.iterdir()) == NAMES


def _goes_back(wire: str, reply: Reply) -> None:
    """The reply can be stored, and be part of the next request."""
    wire_of_echo = reply.echo.wire if reply.echo else ""
    calls = tuple(
        structs.replace(call, call_id="c1", echoed_on=wire_of_echo) for call in reply.calls
    )
    message = AssistantMessage(text=reply.text, calls=calls, echo=reply.echo)
    http = replaying(recorded("proxy-document"))
    json.loads(
        _model(wire, http).body(structs.replace(PROMPT, messages=(*PROMPT.messages, message)))
    )


def _told(came: Reply | ModelError) -> object:
    return came if isinstance(came, Reply) else (type(came), str(came))


@given(data=st.data())
def test_where_the_bytes_are_cut_makes_no_difference(data: st.DataObject) -> None:
    response = recorded(data.draw(st.sampled_from(NAMES)))
    lists = st.lists(st.integers(0, len(response.body)), max_size=12)
    cuts = [0, *sorted(data.draw(lists)), len(response.body)]
    pieces = [response.body[a:b] for a, b in pairwise(cuts)]

    async def both() -> None:
        whole, cut = await came_of(response), await came_of(response, pieces)
        assert (_told(cut[0]), cut[1]) == (_told(whole[0]), whole[1])

    asyncio.run(both())


ODD: tuple[Json, ...] = (None, True, 0, -1, 2**60, 1.5, "", "x", [], [[]], {}, {"a": 1}, [None, {}])


def spoiled(value: Json, drawn: Random, share: float) -> Json:
    """The value with fields missing, doubled, or of another type."""
    if drawn.random() < share:
        return drawn.choice(ODD)
    match value:
        case dict():
            kept = {name: item for name, item in value.items() if drawn.random() >= share}
            return {name: spoiled(item, drawn, share) for name, item in kept.items()}
        case list():
            twice = [item for item in value for _ in range(1 + (drawn.random() < share))]
            return [spoiled(item, drawn, share) for item in twice]
        case _:
            return value


def broken(response: Recorded, drawn: Random) -> Recorded:
    """The response with some of it spoiled, left out, doubled, or cut off."""
    share = drawn.choice([0.02, 0.1, 0.3])
    lines = list[str]()
    for line in response.body.decode().splitlines():
        head, colon, data = (
            line.partition("data: ") if line.startswith("data: ") else ("", "", line)
        )
        if data.startswith(("{", "[{")):
            line = head + colon + dumps(spoiled(json.loads(data), drawn, share))
        lines += [line] * (drawn.random() >= share / 3) * (1 + (drawn.random() < share / 3))
    body = "\n".join([*lines, "", ""]).encode()
    return replace(response, body=body[: drawn.choice([len(body), drawn.randrange(len(body) + 1)])])


@given(seed=st.integers(0, 2**32), name=st.sampled_from(NAMES))
def test_of_a_response_that_is_broken_comes_a_reply_or_an_error_of_the_tree(
    seed: int, name: str
) -> None:
    drawn = Random(seed)

    async def each() -> None:
        for _ in range(10):
            came, heard = await came_of(broken(recorded(name), drawn))
            if isinstance(came, Reply):
                assert (came.text, came.thinking) == (heard["answer"], heard["thinking"])
                _goes_back(recorded(name).wire, came)

    asyncio.run(each())


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "data", ["[" * 100_000, '{"a":' * 100_000, "{" + " " * 100_000, '"\ud800"']
)
async def test_what_cannot_be_read_is_an_error_of_the_tree(wire: str, data: str) -> None:
    body = f"data: {data}\n\n".encode("utf-8", "surrogatepass")
    for kind in ("text/event-stream", "application/json"):
        came, _ = await came_of(Recorded(wire, 200, kind, body))
        assert isinstance(came, ModelError)
