"""Session files of Claude Code and Codex, and exported documents, are shown like conversations of a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from loopline import LooplineError
from loopline.harness import DocumentStore
from loopline.reader.session_files import START, read_session
from loopline.server import reading_app
from loopline.timeline import Block, ToolResult, TurnHeader, UserPrompt
from tests.support.live_server import serving

AT = "2026-05-01T10:00:0{}.123Z"


def claude(number: int, kind: str, **message: Any) -> str:
    row = {"type": kind, "timestamp": AT.format(number), "sessionId": "s", "message": message}
    return json.dumps(row)


CLAUDE = "\n".join(
    [
        json.dumps({"type": "summary", "summary": "Tea"}),
        claude(1, "user", role="user", content="How many teas are there?"),
        claude(
            2,
            "assistant",
            role="assistant",
            id="m1",
            model="claude-x",
            content=[{"type": "thinking", "thinking": "I count them."}],
            usage={"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 100},
        ),
        claude(
            3,
            "assistant",
            role="assistant",
            id="m1",
            model="claude-x",
            content=[{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}],
            usage={"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 100},
        ),
        claude(
            4,
            "user",
            role="user",
            content=[
                {"type": "tool_result", "tool_use_id": "t1", "content": "two", "is_error": True}
            ],
        ),
        claude(
            5,
            "assistant",
            role="assistant",
            id="m2",
            model="claude-x",
            content=[{"type": "text", "text": "There are two."}],
        ),
    ]
)


def codex(number: int, **payload: Any) -> str:
    row = {"timestamp": AT.format(number), "type": "response_item", "payload": payload}
    return json.dumps(row)


CODEX = "\n".join(
    [
        json.dumps({"type": "session_meta", "payload": {"id": "x"}}),
        json.dumps({"type": "turn_context", "payload": {"model": "gpt-x"}}),
        codex(
            1,
            type="message",
            role="user",
            content=[{"type": "input_text", "text": "How many teas are there?"}],
        ),
        codex(2, type="reasoning", summary=[{"type": "summary_text", "text": "I count them."}]),
        codex(2, type="function_call", name="shell", call_id="t1", arguments='{"command":["ls"]}'),
        codex(3, type="function_call_output", call_id="t1", output="two"),
        codex(
            4,
            type="message",
            role="assistant",
            content=[{"type": "output_text", "text": "There are two."}],
        ),
    ]
)
TYPES = [
    "user.prompt",
    "turn.header",
    "react.round.start",
    "react.decision",
    "react.thinking",
    "react.tool.call",
    "react.tool.result",
    "react.round.start",
    "react.decision",
    "assistant.completion",
    "react.exit",
]


@pytest.mark.parametrize(("text", "program"), [(CLAUDE, "claude-code"), (CODEX, "codex")])
def test_a_session_has_the_blocks_of_a_conversation(text: str, program: str) -> None:
    blocks = read_session(text)
    assert [block.type for block in blocks] == TYPES
    assert [block.seq for block in blocks] == list(range(1, len(TYPES) + 1))
    assert blocks[1].body == TurnHeader(bundle=program, model="", protocol="")
    assert blocks[0].ts.isoformat() == "2026-05-01T10:00:01.123000+00:00"


def results(blocks: list[Block]) -> list[tuple[str, str, str]]:
    bodies = [block.body for block in blocks if isinstance(block.body, ToolResult)]
    return [(body.tool, body.text, body.status) for body in bodies]


def test_a_result_has_the_name_of_its_tool_and_its_status() -> None:
    assert results(read_session(CLAUDE)) == [("Bash", "two", "error")]
    assert results(read_session(CODEX)) == [("shell", "two", "ok")]


@pytest.mark.parametrize(
    "text", ["", "{}", '{"type":"user"}', "[]\n1", '{"type":"user","message":{"content":3}}']
)
def test_a_file_without_a_message_is_refused(text: str) -> None:
    with pytest.raises(LooplineError, match="no message of a user"):
        read_session(text)


def test_a_line_that_is_not_json_is_named() -> None:
    with pytest.raises(LooplineError, match="line 2 of the session is not JSON"):
        read_session('{}\n{"type":')


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_text_may_have_the_line_separators_of_unicode(separator: str) -> None:
    text = f"one{separator}two"
    message = {"role": "user", "content": text}
    row = {"type": "user", "timestamp": AT.format(1), "message": message}
    blocks = read_session(json.dumps(row, ensure_ascii=False) + "\r\n")
    assert blocks[0].body == UserPrompt(text=text)


def test_a_time_that_utc_does_not_have_is_the_beginning_of_1970() -> None:
    row = json.loads(claude(1, "user", role="user", content="go"))
    blocks = read_session(json.dumps({**row, "timestamp": "0001-01-01T00:00:00+14:00"}))
    assert blocks[0].ts == START


def test_a_line_with_a_lone_surrogate_for_a_name_is_left_out() -> None:
    assert len(read_session(f'{CLAUDE}\n{{"\\ud800":1}}')) == len(TYPES)


@pytest.mark.parametrize("text", [CLAUDE, CODEX])
def test_a_session_is_served_with_its_outline(text: str, tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    file.write_text(text, encoding="utf-8")
    with serving(reading_app(DocumentStore(file))) as url:
        [item] = httpx2.get(f"{url}/stored").json()["items"]
        here = f"{url}/conversations/default/default/session"
        outline = httpx2.get(f"{here}/outline", params={"user_id": item["user"]}).json()
    [turn] = outline["turns"]
    assert (item["conversation"], turn["state"], len(turn["rounds"])) == ("session", "complete", 2)
    assert turn["title"] == "How many teas are there?"
    assert turn["rounds"][0]["calls"][0]["status"] in ("ok", "error")


def test_an_exported_conversation_is_served(tea_store: str, tmp_path: Path) -> None:
    file = tmp_path / "brewing.json"
    with serving(reading_app_of(tea_store)) as url:
        here = f"{url}/conversations/default/default/brewing"
        file.write_text(httpx2.get(f"{here}/export", params={"user_id": "local"}).text, "utf-8")
    with serving(reading_app(DocumentStore(file))) as url:
        here = f"{url}/conversations/default/default/brewing"
        prompt = httpx2.get(f"{here}/turns/turn_1/rounds/4/prompt", params={"user_id": "local"})
    assert prompt.json()["exact"] is True


def reading_app_of(store: str) -> Any:
    from loopline.harness import ReadOnlyStore

    return reading_app(ReadOnlyStore(store))
