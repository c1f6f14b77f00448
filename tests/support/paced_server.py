"""A server of chat completions whose replies come piece by piece, whenever the test yields the next one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from loopline.models import JsonObject, ToolCall, dumps
from tests.support.local_http import Answering, http_server

Pieces = Callable[[], Iterator[str | ToolCall]]
"""What a reply is made of; each piece is sent as soon as it is yielded, in a thread of the server."""


@contextmanager
def paced_server(replies: Sequence[Pieces]) -> Generator[str]:
    """Answer the n-th request with the n-th reply, and yield the URL; it goes on when a client leaves in the middle."""
    waiting = iter(replies)

    class Handler(Answering):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def post(self) -> None:
            self.body()
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                self._answer(next(waiting))
            except (BrokenPipeError, ConnectionResetError):  # a steer has cut it off
                self.close_connection = True

        def _answer(self, pieces: Pieces) -> None:
            reason = "stop"
            for piece in pieces():
                if isinstance(piece, ToolCall):
                    reason = "tool_calls"
                self._send(_delta(piece))
            self._send({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
            self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

        def _send(self, chunk: JsonObject) -> None:
            line = f"data: {dumps(chunk)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    with http_server(Handler) as url:
        yield f"{url}/v1"


def _delta(piece: str | ToolCall) -> JsonObject:
    """A chunk of a completion with this piece of its text, or with this call."""
    delta: JsonObject = (
        {"content": piece} if isinstance(piece, str) else {"tool_calls": [_call(piece)]}
    )
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def _call(call: ToolCall) -> JsonObject:
    function: JsonObject = {
        "name": call.name.replace(".", "__"),
        "arguments": dumps(call.arguments),
    }
    return {"index": 0, "id": "call_1", "type": "function", "function": function}
