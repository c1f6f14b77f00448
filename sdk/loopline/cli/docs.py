"""`loopline docs`: serve the pages of the documentation from the package, without a network."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit
from zipfile import ZipFile

from loopline.cli.options import ANSWERED, Choices, UsageError, command, stop_on_signal
from loopline.cli.parameters import browser_options
from loopline.cli.terminal import Screen, open_browser

HOST = "127.0.0.1"
ARCHIVE = Path(__file__).with_name("pages.zip")
MISSING_PAGE = "404.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; worker-src 'self' blob:; frame-ancestors 'none'"
)
"""The Content-Security-Policy of each page: a browser sends no request to another host."""


@command
@browser_options
async def docs(_: Choices, screen: Screen, port: int, no_browser: bool) -> int:
    """Open the documentation, which is part of the package, in a browser.

    Raises:
        UsageError: this installation does not contain the pages, or the port is in use.
    """
    files = read_archive(ARCHIVE)
    try:
        server = ThreadingHTTPServer((HOST, port), make_handler(files))
    except OSError as error:
        raise UsageError(f"port {port} of {HOST}: {error.strerror}") from error
    server.daemon_threads = True
    address = f"http://{HOST}:{server.server_port}/"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    screen.note(f"the documentation is at {address}")
    if not no_browser:
        open_browser(address)
    stopped = asyncio.Event()

    async def stop() -> None:
        stopped.set()

    with stop_on_signal(screen, stop):
        await stopped.wait()
    server.shutdown()
    return ANSWERED


def read_archive(archive: Path) -> dict[str, bytes]:
    """Return the content of the files of the site by their paths.

    Raises:
        UsageError: the archive is missing, because the package was not built by a release.
    """
    if not archive.is_file():
        raise UsageError(
            "this installation does not contain the pages: read docs/README.md of the checkout, or run "
            "`python docs/site/build.py build/site --package` there"
        )
    with ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def make_handler(files: Mapping[str, bytes]) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers GET and HEAD requests with these files, and for other paths with `404.html`."""

    class PageHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def answer(self, *, with_body: bool) -> None:
            """Send a file, a redirect (301) from a folder to `FOLDER/`, or `404.html` with the status 404."""
            path = unquote(urlsplit(self.path).path).lstrip("/")
            if f"{path}/index.html" in files:  # relative links of a page need the last slash
                self.send_response(HTTPStatus.MOVED_PERMANENTLY)
                self.send_header("Location", f"/{path}/")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            name = f"{path}index.html" if not path or path.endswith("/") else path
            found = name in files
            shown = name if found else MISSING_PAGE
            body = files.get(shown, b"")
            self.send_response(HTTPStatus.OK if found else HTTPStatus.NOT_FOUND)
            kind = TYPES.get(PurePosixPath(shown).suffix, "application/octet-stream")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", POLICY)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Write no log: each page loads a dozen files."""
            del code, size

    return PageHandler
