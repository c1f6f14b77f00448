"""A server of a few lines, without the SDK, that misbehaves as its first argument says.

It lists one tool, `work`, which reads, or those of the JSON file that the variable TOOLS names. Its other arguments are
files in which it notes what it was sent. A tool that works gives the JSON in the variable STRUCTURED.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

MODE, NOTES = sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None
FLOOD = 100_000_000
Message = dict[str, object]


def send(message: Message) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words: str) -> Message:
    return {"content": [{"type": "text", "text": words}]}


def answer_twice(number: object) -> None:
    send({"id": number, "result": text("first")})
    send({"id": number, "result": text("second")})


def answer_with_the_wrong_id(number: object) -> None:
    send({"id": 999_999, "result": text("whose?")})
    send({"id": f"{number}x", "result": text("whose?")})


def flood_in_one_line(number: object) -> None:
    del number
    piece = "x" * 1_000_000
    for _ in range(FLOOD // len(piece)):
        sys.stdout.write(piece)
    sys.stdout.flush()


def flood_with_notifications(number: object) -> None:
    del number
    line = json.dumps(
        {
            "jsonrpc": "2.0",
            "method": "notifications/message",
            "params": {"level": "info", "data": "x" * 100_000},
        }
    )
    for _ in range(FLOOD // len(line)):
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def answer_with_a_huge_text(number: object) -> None:
    send({"id": number, "result": text("x" * 3_000_000)})


def show_the_environment(number: object) -> None:
    sys.stderr.write(f"the token is {os.environ.get('API_TOKEN')}\n")
    send({"id": number, "result": text(json.dumps(dict(os.environ)))})


def fail_with_the_secret(number: object) -> None:
    problem = f"401 for {os.environ.get('API_TOKEN')}"
    send({"id": number, "error": {"code": -32000, "message": problem}})


def die_with_the_secret(number: object) -> None:
    del number
    sys.stderr.write(f"bad token {os.environ.get('API_TOKEN')}\n")
    sys.stderr.flush()
    os._exit(3)


def answer_after_garbage(number: object) -> None:
    sys.stdout.write("Traceback: {not json}\n\n[]\n")
    send({"id": number, "result": text("after the garbage")})


def die(number: object) -> None:
    del number
    os._exit(3)


changes: list[str] = []
"""What becomes of the next requests for the tools."""


def change_the_tools(number: object) -> None:
    """Announce other tools, and fail to list them once."""
    changes.extend(["fails", "later"])
    send({"method": "notifications/tools/list_changed"})
    send({"id": number, "result": text("changed")})


asking: list[object] = []


def ask_the_user(number: object) -> None:
    schema: Message = {"type": "object", "properties": {"kind": {"type": "string"}}}
    form = os.environ.get("FORM")
    question: Message = {
        "message": f"Which tea, {os.environ.get('API_TOKEN')}?",
        "requestedSchema": json.loads(form) if form else {**schema, "required": ["kind"]},
    }
    asking.append(number)
    send({"id": f"q{len(asking)}", "method": "elicitation/create", "params": question})


def work(number: object) -> None:
    given = os.environ.get("STRUCTURED")
    structured: Message = {"structuredContent": json.loads(given)} if given else {}
    send({"id": number, "result": {**text("worked"), **structured}})


CALLS: dict[str, Callable[[object], None]] = {
    "twice": answer_twice,
    "wrong_id": answer_with_the_wrong_id,
    "flood": flood_in_one_line,
    "notifications": flood_with_notifications,
    "huge": answer_with_a_huge_text,
    "environment": show_the_environment,
    "secret_error": fail_with_the_secret,
    "secret_death": die_with_the_secret,
    "dies": die,
    "hangs": lambda _: None,
    "no_result": lambda number: send({"id": number, "result": {"content": "no list"}}),
    "garbage": answer_after_garbage,
    "asks": ask_the_user,
    "changes": change_the_tools,
    "works": work,
}


def serve(message: Message) -> None:
    """Answer one message."""
    number = message.get("id")
    match message.get("method"):
        case "initialize":
            if MODE == "never_ready":
                time.sleep(3_600)
            capabilities: Message = {"tools": {"listChanged": True}}
            server = {"name": "plain", "version": "1"}
            send(
                {
                    "id": number,
                    "result": {
                        "protocolVersion": "2025-11-25",
                        "capabilities": capabilities,
                        "serverInfo": server,
                    },
                }
            )
        case "tools/list" if changes and changes[0] == "fails":
            changes.pop(0)
            send({"id": number, "error": {"code": -32000, "message": "not now"}})
        case "tools/list":
            schema: Message = {"type": "object", "properties": {}}
            tool: Message = {
                "name": "later" if changes else "work",
                "description": "Work.",
                "inputSchema": schema,
                "annotations": {"readOnlyHint": True},
            }
            file = os.environ.get("TOOLS")
            tools = json.loads(Path(file).read_text("utf-8")) if file else [tool]
            send({"id": number, "result": {"tools": tools}})
        case "tools/call":
            CALLS[MODE](number)
        case None if asking:
            outcome = message.get("result") or message.get("error")
            send({"id": asking.pop(0), "result": text(json.dumps(outcome))})
        case str() if number is not None:
            send({"id": number, "error": {"code": -32601, "message": "no such method"}})
        case _:
            pass


if MODE == "dead":
    sys.stderr.write(f"no licence for {os.environ.get('API_TOKEN')}\n")
    sys.exit(2)
for line in sys.stdin:
    if NOTES is not None:
        with NOTES.open("a") as notes:
            notes.write(line)
    serve(json.loads(line))
