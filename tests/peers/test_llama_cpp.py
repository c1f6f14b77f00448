"""llama.cpp's own server, and a model of random weights: what it says is anything, its form is not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import jsonschema
import pytest

import loopline
from loopline import Harness, TurnResult, models
from loopline.clock import SystemClock
from loopline.conversations import Conversation
from loopline.errors import ModelOverflow, ModelStreamBroken, ModelTimedOut, ModelUnreachable
from loopline.models.json_schema import json_form
from loopline.react.model_requests import RetryPolicy, request_reply
from loopline.testing import FakeClock
from loopline.timeline import Decision, ModelOverflowed, ToolCalled, ToolResult
from tests.peers.results import of_reply, ours, theirs
from tests.providers.local_model import PATIENT, asked, model_at
from tests.support.peers.gguf import write_model
from tests.support.peers.http_server import Peer
from tests.support.workbench import bodies, workbench

_SERVE = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_predict = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params.port, params.hostnames, params.ui = 0, ["127.0.0.1"], False
params.n_parallel, params.cpuparams.n_threads, params.n_threads_http = 1, 1, 4
params.warmup, params.verbosity, params.sampling.seed = False, 0, 2
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()  # it ends with whoever started it
"""


@dataclass(frozen=True, slots=True)
class Llama:
    peer: Peer
    process: subprocess.Popen[str]


@contextmanager
def llama(
    folder: Path, *, window: int = 16_384, most: int = 2_000, ends: bool = True
) -> Generator[Llama, None, None]:
    """Serve a model with that window, that writes at most so many tokens; a token is a byte."""
    model = folder / "model.gguf"
    write_model(model, ends=ends)
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(model), str(window), str(most)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield Llama(Peer(process.stdout.readline().strip()), process)


T = TypeVar("T")
WINDOW = 16_384
SCHEMA: models.JsonObject = {
    "type": "object",
    "properties": {"kind": {"enum": ["green", "black"]}, "hot": {"type": "boolean"}},
    "required": ["kind", "hot"],
    "additionalProperties": False,
}
PICK = models.ToolSpec(name="pick", description="Pick a tea.", parameters=SCHEMA)
ENDS = {"complete", "max_iterations", "stagnation"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    with llama(tmp_path_factory.mktemp("llama"), window=WINDOW) as running:
        yield running


def asking(
    text: str, *tools: models.ToolSpec, options: models.Options | None = None
) -> models.Prompt:
    messages = (models.UserMessage(text=text),)
    return models.Prompt(
        system="You keep a shop.",
        tools=tools,
        messages=messages,
        options=options or models.Options(),
    )


async def told(served: Llama, *prompts: models.Prompt) -> list[models.Reply]:
    """What it says, asked again where it closes a connection that was idle just then."""
    patience = RetryPolicy(clock=SystemClock(), retries=3)
    async with model_at(served.peer, "chat") as model:
        return [await request_reply(model, prompt, lambda _: None, patience) for prompt in prompts]


async def until(talk: Conversation, kind: type[T], text: str) -> tuple[TurnResult, list[T]]:
    """Say it until the conversation has such a block: the last result, and these blocks."""
    while True:
        result = await talk.say(text, max_iterations=3)
        if found := await bodies(talk, kind):
            return result, found


async def test_text_comes_in_pieces_is_counted_and_ends_where_it_is_limited(tmp_path: Path) -> None:
    prompt = asking("Tea?", options=models.Options(output_limit=50))
    with llama(tmp_path, ends=False) as served:
        async with model_at(served.peer, "chat") as model:
            deltas, reply = await asked(model, prompt)
    assert 1 < len(deltas) <= 50
    assert "".join(delta.text for delta in deltas) == reply.text
    assert (reply.stop_reason, reply.usage.output_tokens) == ("length", 50)
    assert reply.usage.input_tokens > len("You keep a shop.Tea?")


async def test_a_text_that_is_over_says_so(served: Llama) -> None:
    (reply,) = await told(served, asking("Tea?"))
    assert reply.stop_reason == "stop"


async def test_whatever_it_calls_has_the_arguments_of_the_schema(served: Llama) -> None:
    replies = await told(served, *(asking("Tea? " * number, PICK) for number in range(1, 9)))
    calls = [call for reply in replies for call in reply.calls]
    assert calls
    for call in calls:
        assert (call.name, bool(call.provider_id)) == ("pick", True)
        jsonschema.validate(call.arguments, SCHEMA)
    assert {reply.stop_reason for reply in replies if reply.calls} <= {"tool_use", "length"}
    assert {reply.problem for reply in replies} == {""}


async def test_where_calls_are_not_allowed_there_are_none(served: Llama) -> None:
    (reply,) = await told(served, asking("Tea?", PICK, options=models.Options(allow_calls=False)))
    assert (reply.calls, bool(reply.text)) == ((), True)


async def test_one_json_object_is_one_json_object(served: Llama) -> None:
    options = models.Options(json_object=True)
    asked_for = [asking(f"Tea {number}?", options=options) for number in range(8)]
    replies = await told(served, *asked_for)
    whole_replies = [reply for reply in replies if reply.stop_reason == "stop"]
    assert whole_replies
    assert all(isinstance(json.loads(reply.text), dict) for reply in whole_replies)


async def test_the_vendors_client_reads_the_same(served: Llama) -> None:
    for prompt in (asking("Tea?"), asking("Tea?", PICK)):
        await ours(served.peer, "chat", prompt)  # from now on the server has read the prompt
        assert of_reply(await ours(served.peer, "chat", prompt)) == await theirs(
            served.peer, "chat", prompt
        )


async def test_a_text_is_held_to_a_form(served: Llama) -> None:
    options = models.Options(json_form=json_form("tea", SCHEMA))
    (reply,) = await told(served, asking("Tea?", options=options))
    jsonschema.validate(json.loads(reply.text), SCHEMA)


async def test_a_structured_call_fits_at_once(served: Llama) -> None:
    facts = models.ModelFacts(json_schema=True)
    model = loopline.model(
        "openai:m", base_url=f"{served.peer.url}/v1", facts=facts, timeouts=PATIENT
    )
    result = await models.structured_llm_call(model, asking("Tea?"), SCHEMA)
    assert isinstance(model, models.ClosingModel)
    await model.close(failed=False)
    jsonschema.validate(result.required(), SCHEMA)
    assert [(attempt.level, attempt.problem) for attempt in result.attempts] == [("json_mode", "")]


async def test_a_prompt_that_is_too_long_names_the_window(served: Llama) -> None:
    with pytest.raises(ModelOverflow, match="exceeds the available context size") as raised:
        await told(served, asking("Tea? " * 5_000))
    assert raised.value.window == WINDOW


async def test_a_turn_makes_its_calls_reads_from_the_cache_and_ends(
    served: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{served.peer.url}/v1")
    bundle = workbench(tools=["w.count"])
    opened = Harness.open(bundle, store="memory:", model="openai:m", clock=FakeClock())
    async with opened as harness:
        talk = harness.conversation("c")
        result, calls = await until(talk, ToolCalled, "Count.")
        results = await bodies(talk, ToolResult)
        decisions = await bodies(talk, Decision)
    assert (result.exit_reason in ENDS, bool(result.answer)) == (True, True)
    assert {item.call_id for item in results} == {call.call_id for call in calls}
    assert all(decision.usage.cache_read_tokens > 1_000 for decision in decisions[1:])


async def test_no_text_that_a_random_model_writes_into_its_calls_breaks_a_turn(
    served: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{served.peer.url}/v1")
    opened = Harness.open(workbench(), store="memory:", model="openai:m", clock=FakeClock())
    async with opened as harness:
        talk = harness.conversation("c")
        results = [await talk.say(f"Work {n}.", max_iterations=3) for n in range(3)]
        calls = await bodies(talk, ToolCalled)
        ended_results = await bodies(talk, ToolResult)
    assert all(result.exit_reason in {*ENDS, "error"} for result in results)
    assert {item.call_id for item in ended_results} == {call.call_id for call in calls}


@pytest.mark.campaign
async def test_a_turn_that_does_not_fit_is_made_smaller_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with llama(tmp_path, window=WINDOW, most=100) as served:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{served.peer.url}/v1")
        bundle = workbench(tools=["w.count"])
        opened = Harness.open(bundle, store="memory:", model="openai:m", clock=FakeClock())
        async with opened as harness:
            talk = harness.conversation("c")
            result, learned = await until(talk, ModelOverflowed, "tea " * 900)
            decisions = await bodies(talk, Decision)
    assert result.exit_reason in ENDS
    assert [item.window for item in learned] == [WINDOW]
    assert "exceeds the available context size" in learned[0].text
    assert decisions[-1].usage.input_tokens < WINDOW < learned[0].tokens


async def test_a_server_that_is_killed_breaks_the_stream_and_is_then_unreachable(
    tmp_path: Path,
) -> None:
    with llama(tmp_path, window=2**17, most=-1, ends=False) as served:
        async with model_at(served.peer, "chat") as model:
            stream = model.stream(asking("Tea?"))
            await anext(stream)
            served.process.kill()
            with pytest.raises(ModelStreamBroken):
                await _emptied(stream)
            served.process.wait()
            with pytest.raises(ModelUnreachable):
                await asked(model, asking("Tea?"))


async def test_a_server_that_stands_still_is_given_up(tmp_path: Path) -> None:
    with llama(tmp_path, window=2**17, most=-1, ends=False) as served:
        async with model_at(served.peer, "chat", replace(PATIENT, read=1.0)) as model:
            stream = model.stream(asking("Tea?"))
            await anext(stream)
            served.process.send_signal(signal.SIGSTOP)
            try:
                with pytest.raises(ModelTimedOut):
                    await _emptied(stream)
            finally:
                served.process.kill()


async def _emptied(stream: AsyncIterator[object]) -> None:
    async for _ in stream:
        pass
