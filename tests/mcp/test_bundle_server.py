"""A bundle served to a client of the official SDK: over stdio, and over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import socket
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    INTERNAL_ERROR,
    BlobResourceContents,
    CallToolResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ImageContent,
    InputRequiredResult,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)

from loopline import LooplineError
from loopline.harness import http_address
from tests.authoring.bundle_files import write
from tests.doors.command import Loopline
from tests.mcp.served import sdk
from tests.support.warm_programs import warm_program

BUNDLE = '''
    import asyncio

    from loopline import BaseWorkflow, Bundle, Output, OutputFile, ToolContext, tool
    from loopline.guards import ask_before
    from loopline.react import Allow, Deny

    @tool(effect="read")
    def steep(kind: str, context: ToolContext) -> str:
        """Say how long a tea is steeped."""
        context.progress(f"asking about {kind}")
        return f"{kind}: 3 minutes"

    @tool
    def burn(pot: str) -> str:
        """Burn it."""
        return f"{pot} is gone"

    @tool(effect="write")
    def draw() -> Output:
        """Draw a pot."""
        return Output(files=[OutputFile("pot.bin", b"\\x00pot", mime="image/x-pot")])

    @tool(effect="read")
    def choose(context: ToolContext) -> str:
        """Ask for a tea."""
        context.ask_user("Which tea?")

    @tool(effect="read")
    async def wait() -> str:
        """Wait for ever."""
        await asyncio.sleep(3600)
        return "waited"

    class NoFire:
        async def before(self, call):
            return Deny("nothing is burnt here") if call.tool.endswith("burn") else Allow()

        async def after(self, call, text):
            return text

    class Tea(BaseWorkflow):
        guards = [NoFire(), ask_before(["tea.order"])]

    @tool(effect="write", key="order")
    def order(kind: str) -> str:
        """Order tea."""
        return f"{kind} ordered"

    bundle = Bundle(id="tea", workflow=Tea, tools=[steep, burn, draw, choose, wait, order], skills=["skills/pot", "skills/water"])
'''
MAIN = "from loopline.cli import main; main()"
SKILL = """\
    ---
    name: pot
    description: Warm a pot.
    imports: [internal.water]
    ---
    Pour hot water into it [[S:1]].
"""
WATER = """\
    ---
    name: water
    description: Heat water.
    namespace: internal
    ---
    Boil it.
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    skills = {"tea/skills/pot/SKILL.md": SKILL, "tea/skills/water/SKILL.md": WATER}
    return write(tmp_path, {"tea/__init__.py": BUNDLE, **skills}) / "tea"


def command(bundle: Path, store: Path | None = None) -> list[str]:
    file = store or bundle.parent / "talk.db"
    return ["mcp", str(bundle), "--store", f"sqlite:///{file}", "--model", "offline"]


def stdio(bundle: Path) -> StdioServerParameters:
    python, *arguments = warm_program("-c", MAIN, *command(bundle))
    return StdioServerParameters(command=python, args=arguments)


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_lists_and_calls_the_tools_of_a_bundle(bundle: Path, mode: str) -> None:
    heard = list[str | None]()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with Client(stdio(bundle), mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        steeped = await client.call_tool("tea.steep", {"kind": "green"}, progress_callback=hear)
        wrong = await client.call_tool("tea.steep", {"kid": 1})
        denied = await client.call_tool("tea.burn", {"pot": "mine"})
        missing = await client.call_tool("tea.stir", {})
    assert set(tools) == {
        "ask",
        *(f"tea.{name}" for name in ("steep", "burn", "draw", "choose", "wait", "order")),
    }
    hints = tools["tea.steep"].annotations
    assert hints is not None
    assert hints.read_only_hint
    assert (text_of(steeped), steeped.is_error) == ("green: 3 minutes", False)
    assert "asking about green" in heard
    assert wrong.is_error
    assert "kid" in text_of(wrong)
    assert (text_of(denied), denied.is_error) == ("nothing is burnt here", True)
    assert text_of(missing).startswith("no tool 'tea.stir'")


async def test_a_question_is_a_turn_that_goes_on_in_its_conversation(bundle: Path) -> None:
    async with Client(stdio(bundle)) as client:
        first = await client.call_tool("ask", {"text": "How long is green tea steeped?"})
        name = text_of(first).rpartition("conversation: ")[2]
        await client.call_tool("ask", {"text": "And black?", "conversation": name})
        nothing = await client.call_tool("ask", {"text": " "})
        listed = [resource.uri for resource in (await client.list_resources()).resources]
        read = await client.read_resource(f"timeline:{name}")
        with pytest.raises(MCPError, match="there is no conversation 'nobody'"):
            await client.read_resource("timeline:nobody")
    [contents] = read.contents
    assert isinstance(contents, TextResourceContents)
    assert json.loads(contents.text)["turn_ids"] == ["turn_1", "turn_2"]
    assert f"timeline:{name}" in listed
    assert nothing.is_error


async def test_a_call_that_waits_for_approval_prints_the_command_that_approves_it(
    bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with Client(stdio(bundle)) as client:
        waiting = await client.call_tool("tea.order", {"kind": "green"})
    assert waiting.is_error
    printed = text_of(waiting).partition("A person answers it with: ")[2].splitlines()[0]
    words = shlex.split(printed)
    run = words[words.index("run") :]
    assert run[:4] == ["run", str(bundle), "--answer", "c1=yes"]
    loopline = Loopline(tmp_path_factory.mktemp("elsewhere"))
    ran = loopline(*run)
    conversation, store = (run[run.index(option) + 1] for option in ("-c", "--store"))
    blocks = loopline("timeline", conversation, "--json", "--store", store).value["blocks"]
    results = [block["body"] for block in blocks if block["type"] == "react.tool.result"]
    assert [(result["text"], result["status"]) for result in results] == [
        ("green ordered", "ok")
    ], ran.err


async def test_a_file_that_a_call_makes_is_in_its_result_and_can_be_read(bundle: Path) -> None:
    async with Client(stdio(bundle)) as client:
        drawn = await client.call_tool("draw", {})
        images = [block for block in drawn.content if isinstance(block, ImageContent)]
        listed = [resource.uri for resource in (await client.list_resources()).resources]
        name = listed[0].removeprefix("timeline:")
        read = await client.read_resource(f"cv:{name}/fi:turn_1.outputs/pot.bin@1")
        reference = ResourceTemplateReference(uri="timeline:{conversation}")
        completed = await client.complete(reference, {"name": "conversation", "value": name[:8]})
    assert [(image.mime_type, b64decode(image.data)) for image in images] == [
        ("image/x-pot", b"\0pot")
    ]
    [contents] = read.contents
    assert isinstance(contents, BlobResourceContents)
    assert b64decode(contents.blob) == b"\0pot"
    assert completed.completion.values == [name]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_question_of_a_tool_is_asked_through_the_client(bundle: Path, mode: str) -> None:
    questions = list[str]()

    async def answer(context: object, params: ElicitRequestParams) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={"answer": "green"})

    async with Client(stdio(bundle), mode=mode, elicitation_callback=answer) as client:
        chosen = await client.call_tool("tea.choose", {})
    async with Client(stdio(bundle), mode=mode) as client:
        unanswered = await client.call_tool("tea.choose", {})
    assert (text_of(chosen), chosen.is_error, questions) == ("green", False, ["Which tea?"])
    assert unanswered.is_error
    assert "Which tea?" in text_of(unanswered)


async def test_a_paused_turn_is_the_result_if_the_client_answers_with_an_error(
    bundle: Path,
) -> None:
    async def fail(context: object, params: ElicitRequestParams) -> ErrorData:
        return ErrorData(code=INTERNAL_ERROR, message="no window")

    async with Client(stdio(bundle), mode="legacy", elicitation_callback=fail) as client:
        unanswered = await client.call_tool("tea.choose", {})
    assert unanswered.is_error
    assert "Which tea?" in text_of(unanswered)
    assert "conversation: " in text_of(unanswered)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_what_a_server_of_the_bundle_asks_goes_to_the_client_while_its_call_stays_open(
    bundle: Path, mode: str
) -> None:
    (bundle / ".mcp.json").write_text(json.dumps({"mcpServers": {"calc": sdk()}}), "utf-8")
    asked = list[ElicitRequestParams]()
    replies = [
        ElicitResult(action="accept", content={"kind": "green"}),
        ElicitResult(action="decline"),
    ]

    async def answer(context: object, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params)
        return replies[len(asked) - 1]

    async with Client(stdio(bundle), mode=mode, elicitation_callback=answer) as client:
        texts = [text_of(await client.call_tool("mcp.calc.choose", {})) for _ in replies]
        added = await client.call_tool("mcp.calc.add", {"a": 1, "b": 2})
    async with Client(stdio(bundle), mode=mode) as client:
        texts.append(text_of(await client.call_tool("mcp.calc.choose", {})))
    assert texts == ["accept: green", "decline: ", "decline: "]
    assert text_of(added) == "3"
    for params in asked:
        assert isinstance(params, ElicitRequestFormParams)
        assert params.message.startswith("calc asks: Which tea")
        assert "kind" in params.requested_schema["properties"]


async def test_an_answer_to_a_call_that_does_not_wait_is_an_error_and_the_question_stays_open(
    bundle: Path,
) -> None:
    (bundle / ".mcp.json").write_text(json.dumps({"mcpServers": {"calc": sdk()}}), "utf-8")

    async def leave(context: object, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="cancel")

    async with Client(stdio(bundle), elicitation_callback=leave) as client:
        session, tool = client.session, "mcp.calc.choose"
        asked = await session.call_tool(tool, {}, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        [call] = asked.input_requests or {}
        green = ElicitResult(action="accept", content={"kind": "green"})
        results = [
            await session.call_tool(
                tool, {}, input_responses={name: green}, request_state=asked.request_state
            )
            for name in (f"{call}0", call)
        ]
    assert [(result.is_error, text_of(result)) for result in results] == [
        (True, "no call waits for the answer 'c10'"),
        (False, "accept: green"),
    ]


async def test_a_call_that_the_client_gives_up_stops_its_turn(bundle: Path) -> None:
    async with Client(stdio(bundle)) as client:
        await client.call_tool("tea.steep", {"kind": "green"})  # the modules are loaded by now
        with pytest.raises(MCPError):
            await client.call_tool("tea.wait", {}, read_timeout_seconds=1.0)
        waited = ""
        while '"reason":"stopped"' not in waited:  # the server hears of it while we read
            names = [resource.uri for resource in (await client.list_resources()).resources]
            documents = [await client.read_resource(name) for name in names]
            texts = [str(contents.model_dump()) for read in documents for contents in read.contents]
            [waited] = [text for text in texts if "Call tea.wait" in text]
            await asyncio.sleep(0.05)


async def test_skills_are_prompts(bundle: Path) -> None:
    async with Client(stdio(bundle)) as client:
        [listed] = (await client.list_prompts()).prompts
        [message] = (await client.get_prompt(listed.name)).messages
    assert listed.description == "Warm a pot."
    assert isinstance(message.content, TextContent)
    assert message.content.text.startswith("Pour hot water into it")
    assert message.content.text.endswith("\n\n# Imported: internal.water\n\nBoil it.")


@asynccontextmanager
async def over_http(bundle: Path, store: Path | None = None, key: str = "") -> AsyncGenerator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *warm_program("-c", MAIN, *command(bundle, store), "--port", str(port)),
        env={**os.environ, "LOOPLINE_MCP_KEY": key},
    )
    try:
        for _ in range(300):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        await process.wait()


async def test_a_bundle_is_served_over_http_to_several_clients(bundle: Path) -> None:
    async with over_http(bundle) as url, Client(url) as one, Client(url, mode="legacy") as two:
        calls = [
            client.call_tool("tea.steep", {"kind": kind})
            for client in (one, two)
            for kind in ("green", "black")
        ]
        results = await asyncio.gather(*calls)
    assert [text_of(result) for result in results] == ["green: 3 minutes", "black: 3 minutes"] * 2


async def status(url: str, **headers: str) -> int:
    """Return what a request with these headers gets."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    sent = {"Accept": "application/json, text/event-stream", **headers}
    async with httpx2.AsyncClient() as client:
        return (await client.post(url, json=body, headers=sent)).status_code


async def test_over_http_a_key_a_host_and_an_origin_are_checked(bundle: Path) -> None:
    key = "a-key-of-many-letters"
    async with over_http(bundle, key=key) as url:
        right = {"Authorization": f"Bearer {key}"}
        missing = await status(url)
        wrong = [
            await status(url, Authorization=value)
            for value in ("Bearer", "Bearer wrong", f"Basic {key}", key, f"Bearer {key}x")
        ]
        foreign_host = await status(url, Host="evil.example:80", **right)
        foreign_page = await status(url, Origin="http://evil.example", **right)
        own_page = await status(url, Origin="http://localhost:3000", **right)
        async with (
            httpx2.AsyncClient(headers=right) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            steeped = await client.call_tool("tea.steep", {"kind": "green"})
    assert (missing, wrong) == (401, [401] * 5)
    assert (foreign_host, foreign_page) == (421, 403)
    assert own_page not in (401, 403, 421)
    assert text_of(steeped) == "green: 3 minutes"


@pytest.mark.parametrize(
    ("host", "key", "refusal"),
    [
        ("0.0.0.0", "", "other machines can reach 0.0.0.0: set LOOPLINE_MCP_KEY"),
        ("::", "", "other machines can reach"),
        ("tea.example", "", "other machines can reach"),
        ("127.0.0.1", "short", "must have 16 characters or more"),
        ("127.0.0.1", "", ""),
        ("127.1.2.3", "", ""),
        ("localhost", "", ""),
        ("::1", "", ""),
        ("0.0.0.0", "a-key-of-many-letters", ""),
    ],
)
def test_who_is_reached_by_other_machines_needs_a_key(host: str, key: str, refusal: str) -> None:
    environment = {"LOOPLINE_MCP_KEY": key}
    if refusal:
        with pytest.raises(LooplineError, match=re.escape(refusal)):
            http_address(host, 8_000, (), environment)
        return
    address = http_address(host, 8_000, (), environment)
    assert key == "" or key not in repr(address)
    assert bool(address.key_sha256) == bool(key)
