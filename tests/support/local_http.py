"""Small HTTP servers on this machine, each in a thread of the test."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from threading import Thread


class Answering(BaseHTTPRequestHandler):
    """Answers requests, and prints nothing."""

    def do_GET(self) -> None:
        self.get()

    def do_POST(self) -> None:
        self.post()

    def get(self) -> None:
        self.send_error(405)

    def post(self) -> None:
        self.send_error(405)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def answer(self, body: bytes, kind: str = "application/json", *, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        del code, size


@contextmanager
def at_work(server: BaseServer) -> Generator[None]:
    """Have a server answer until the context ends."""
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def http_server(handler: type[Answering]) -> Generator[str]:
    """Serve at a free port of this machine, and yield the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with at_work(server):
        yield f"http://127.0.0.1:{server.server_port}"
