"""A server of chat completions whose replies come piece by piece, whenever the test yields the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from loopline.models import JsonObject, ToolCall, dumps

Pieces = Callable[[], Iterator[str | ToolCall]]
"""What a reply is made of; each piece is sent as soon as it is yielded, in a thread of the server."""


class PacedServer:
    """Answers the n-th request with the n-th reply; it goes on when a client leaves in the middle."""

    def __init__(self, replies: Sequence[Pieces]) -> None:
        waiting = iter(replies)

        class Answering(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    self._answer(next(waiting))
                except (BrokenPipeError, ConnectionResetError):  # a steer has cut it off
                    self.close_connection = True

            def log_request(self, code: object = "-", size: object = "-") -> None:
                """Log nothing."""

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

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"


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
