"""The bundle `coder` over the wire: a server on this machine answers its loop and the agent that works for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import pytest

from loopline import Harness
from loopline.timeline import FileAdded, RunChild
from tests.docs.pages import ROOT
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.call_replies import Call
from tests.support.peers.http_server import Peer
from tests.support.peers.openai_like import openai_like
from tests.support.workbench import bodies

SayT = TypeVar("SayT")
HANDED = "<handoff>\nsummary: It says hello.\nconfidence: high\n</handoff>"


def write(text: str, call_id: str) -> Call:
    return Call("react__write", json.dumps({"path": "files/app.py", "content": text}), call_id)


CALLS = (
    write("helo\n", "call_1"),
    Call("crew__delegate", json.dumps({"agent": "coder", "task": "Mend the word"}), "call_2"),
    write("hello\n", "call_3"),
)


def script(says: Callable[[str, tuple[Call, ...]], SayT]) -> list[SayT]:
    """The calls, the report of the agent, and the answer."""
    return [*(says("", (call,)) for call in CALLS), says(HANDED, ()), says("Done.", ())]


async def outcome_of(model: str, peer: Peer) -> None:
    """Run the bundle, and check what came of it."""
    async with Harness.open(ROOT / "bundles" / "coder", store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        result = await talk.say("Write app.py, and mend it.")
        files = await bodies(talk, FileAdded)
        links = await bodies(talk, RunChild)
    assert result.answer == "Done."
    assert [(file.version, file.text) for file in files] == [(1, "helo\n"), (2, "hello\n")]
    assert [(link.agent, link.reason) for link in links] == [("coder", ""), ("coder", "complete")]
    assert len(peer.requests) == 5
    assert b"It says hello." in peer.requests[4].raw
    assert b"Mend the word" in peer.requests[2].raw
    assert b"Write app.py" not in peer.requests[2].raw
    assert links[-1].usage.input_tokens
    assert result.usage.input_tokens == links[-1].usage.input_tokens // 2 * 5


async def test_a_bundle_with_agents_goes_over_the_wire_of_openai(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with openai_like(*script(oai.Says)) as peer:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{peer.url}/v1")
        await outcome_of("openai:some-model", peer)


async def test_a_bundle_with_agents_goes_over_the_wire_of_anthropic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with anthropic_like(*script(ant.Says)) as peer:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", peer.url)
        await outcome_of("anthropic:ours", peer)
