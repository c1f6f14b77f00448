"""`loopline docs` serves the files of the archive in the package, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Generator
from http.server import ThreadingHTTPServer
from pathlib import Path
from zipfile import ZipFile

import httpx2
import pytest

from loopline.cli.docs import HOST, make_handler, read_archive
from loopline.cli.options import UsageError

FILES = {
    "index.html": "<h1>Loopline</h1>",
    "404.html": "<h1>Not found</h1>",
    "start/tutorial/index.html": "<h1>Tutorial</h1>",
    "search.json": "{}",
    "site.css": "h1 {}",
}


@pytest.fixture
def pages(tmp_path: Path) -> Generator[httpx2.Client]:
    """A client of a server of a small archive."""
    archive = tmp_path / "pages.zip"
    with ZipFile(archive, "w") as target:
        for name, text in FILES.items():
            target.writestr(name, text)
    with ThreadingHTTPServer((HOST, 0), make_handler(read_archive(archive))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with httpx2.Client(base_url=f"http://{HOST}:{server.server_port}") as client:
            yield client
        server.shutdown()


@pytest.mark.parametrize(
    ("path", "name", "kind"),
    [
        ("/", "index.html", "text/html; charset=utf-8"),
        ("/start/tutorial/", "start/tutorial/index.html", "text/html; charset=utf-8"),
        ("/search.json?v=1", "search.json", "application/json"),
        ("/site.css", "site.css", "text/css; charset=utf-8"),
    ],
)
def test_a_file_has_the_type_of_its_name(
    pages: httpx2.Client, path: str, name: str, kind: str
) -> None:
    response = pages.get(path)
    assert (response.status_code, response.text) == (200, FILES[name])
    assert response.headers["content-type"] == kind
    assert response.headers["x-content-type-options"] == "nosniff"
    head = pages.head(path)
    assert (head.text, head.headers["content-length"]) == ("", str(len(FILES[name])))


def test_a_page_is_also_found_without_the_slash_at_its_end(pages: httpx2.Client) -> None:
    response = pages.get("/start/tutorial")
    assert (response.status_code, response.headers["location"]) == (301, "/start/tutorial/")


@pytest.mark.parametrize("path", ["/nothing", "/../../etc/passwd", "/%2e%2e/secret", "/start/"])
def test_a_path_without_a_file_answers_404_with_a_page(pages: httpx2.Client, path: str) -> None:
    response = pages.get(path)
    assert (response.status_code, response.text) == (404, FILES["404.html"])


def test_a_page_may_load_nothing_from_another_host(pages: httpx2.Client) -> None:
    policy = pages.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "http" not in policy


def test_an_installation_without_pages_says_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not contain the pages: read docs/README\.md"):
        read_archive(tmp_path / "pages.zip")
