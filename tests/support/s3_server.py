"""An S3 in a process of its own: moto's, with faults that a test can ask for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote
from urllib.request import urlopen

from tests.support.postgres_server import free_port
from tests.support.server_process import ServerProcess

BUCKET = "blobs"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
_CONTROL = "/-control"


@dataclass
class S3Server(ServerProcess):
    """A running S3 with an empty bucket."""

    port: int
    process: subprocess.Popen[Any] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str = "talk", **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}{more}"

    def age(self, by: timedelta) -> None:
        self._control(f"age?seconds={by.total_seconds()}")

    def fail(self, requests: int) -> None:
        """Answer the next requests with 503."""
        self._control(f"fail?requests={requests}")

    def fail_each(self, agent: str) -> None:
        """Answer the first request of each object with 503, if its user agent begins with `agent`."""
        self._control(f"fail_each?agent={agent}")

    def requests(self) -> list[str]:
        """The requests since the last call, as `PUT /blobs/talk/…`."""
        return self._control("requests").splitlines()

    def _control(self, request: str) -> str:
        with urlopen(f"{self.endpoint}{_CONTROL}/{request}", timeout=30) as answer:
            text: bytes = answer.read()
            return text.decode()


@contextmanager
def s3_server() -> Generator[S3Server]:
    """Start an S3 with an empty bucket; it ends with the context."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.support.s3_server", str(port)],
        env={**os.environ, **CREDENTIALS},
    )
    server = S3Server(port, process)
    try:
        server.await_port(port)
        yield server
    finally:
        server.resume()
        server.kill()


Wsgi = Callable[[dict[str, Any], Callable[..., object]], Iterable[bytes]]


class _Controlled:
    def __init__(self, inner: Wsgi, folder: Path | None = None) -> None:
        self.inner = inner
        self.folder = folder
        self.failures = 0
        self.agent = ""
        self.failed: set[str] = set()
        self.requests: list[str] = []

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., object]
    ) -> Iterable[bytes]:
        path = str(environ["PATH_INFO"])
        if path.startswith(_CONTROL):
            text = self.control(path.rpartition("/")[2], parse_qs(environ["QUERY_STRING"]))
            start_response("200 OK", [("Content-Length", str(len(text)))])
            return [text.encode()]
        self.requests.append(f"{environ['REQUEST_METHOD']} {path}")
        fails = str(environ.get("HTTP_USER_AGENT")).startswith(self.agent) if self.agent else False
        if self.failures or (fails and path not in self.failed):
            self.failures = max(self.failures - 1, 0)
            self.failed.add(path)
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        answer = self.inner(environ, start_response)
        if self.folder is not None and environ["REQUEST_METHOD"] in ("PUT", "DELETE"):
            self.keep(str(environ["PATH_INFO"]).removeprefix(f"/{BUCKET}/"))
        return answer

    def keep(self, key: str) -> None:
        """Keep the object in the folder, or remove it, before its request is answered."""
        assert self.folder is not None
        stored = _bucket().keys.get(key)
        path = self.folder / quote(key, safe="")
        if stored is None:
            path.unlink(missing_ok=True)
        else:
            new = path.with_name(f"-{threading.get_ident()}")
            new.write_bytes(stored.value)
            new.replace(path)

    def control(self, name: str, values: dict[str, list[str]]) -> str:
        if name == "requests":
            seen, self.requests = self.requests, []
            return "\n".join(seen)
        if name == "fail":
            self.failures = int(values["requests"][0])
            return ""
        if name == "fail_each":
            self.agent = values["agent"][0]
            return ""
        for key in _bucket().keys.values():
            key.last_modified -= timedelta(seconds=float(values["seconds"][0]))
        return ""


def _bucket() -> Any:
    return import_module("moto.s3.models").s3_backends["123456789012"]["aws"].buckets[BUCKET]


def main() -> None:
    """Serve at the port; with a folder, keep the objects there, and begin with those of an earlier process."""
    app = import_module("moto.moto_server.werkzeug_app")
    serving = import_module("werkzeug.serving")
    models = import_module("moto.s3.models")
    backend = models.s3_backends["123456789012"]["aws"]
    backend.create_bucket(BUCKET, "us-east-1")
    folder = Path(sys.argv[2]) if sys.argv[2:] else None
    for path in folder.iterdir() if folder else ():
        if not path.name.startswith("-"):
            backend.put_object(BUCKET, unquote(path.name), path.read_bytes())
    dispatcher = app.DomainDispatcherApplication(app.create_backend_app)
    serving.run_simple(
        "127.0.0.1", int(sys.argv[1]), _Controlled(dispatcher, folder), threaded=True
    )


if __name__ == "__main__":
    main()
