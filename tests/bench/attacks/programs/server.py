"""A real server that strangers send to: half requests, foreign origins, forged tokens, odd names, others' routes."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import httpx2
import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from loopline import server
from loopline.models import Json
from tests.bench.attacks.programs.trial import Draw, Trial
from tests.doors.command import wait_for
from tests.server.test_who_may_ask import ANN, OTHERS, SECRET, protocol_routes, routes
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, serving
from tests.support.local_http import Answering, http_server

NO_READ = "a sender without the right key gets nothing of the conversation, and changes nothing"
NO_TOKEN = "a token that is not right in every claim lets nobody in"
NO_ORIGIN = "a page of another origin is refused, and nothing runs"
NO_LINE = "no control character of a request is in a line of the log, and no error is the server's"
CLOSED = "a connection that does not finish its request is closed within 60 s"
NO_ROOM = "a body for nobody is refused before 8 MB of it were read"
NO_FILE = "a URL opens a file only as it was signed"
REVOKED = "a revoked key opens nothing after 6 s"
HERE = "/conversations/acme/tea"
AUDIENCE = "loopline"
LATER = 4_000_000_000
MOST_SECONDS, MOST_BYTES, REVOKED_SECONDS = 60.0, 8_000_000, 6.0
PIECE = b"10000\r\n" + b" " * 65_536 + b"\r\n"


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    keys_file: Path
    keys: dict[str, str]

    def send(
        self, who: str, method: str, path: str, body: Json = None, **headers: str
    ) -> httpx2.Response:
        """Send a request with the key of that name, or with none."""
        if who in self.keys:
            headers["Authorization"] = f"Bearer {self.keys[who]}"
        with httpx2.Client(base_url=self.url, timeout=60) as client:
            written = {name.encode(): value.encode() for name, value in headers.items()}
            return client.request(method, path, json=body, headers=written)


@contextmanager
def served(folder: Path) -> Generator[Served]:
    file = folder / "keys.json"
    keys = {
        name: server.add_key(file, principal) for name, principal in {"ann": ANN, **OTHERS}.items()
    }
    keys["made up"] = keys["ann"][:-4] + "AAAA"
    keys["of another form"] = keys["ann"].replace("llk_", "LLK_")
    keys["with a space"] = keys["ann"] + " x"
    keys["revoked"] = server.add_key(file, ANN)
    server.revoke_key(file, keys["revoked"])
    application = server.app(
        SHOP,
        store=f"sqlite:///{folder}/talk.db",
        auth=server.ApiKeys.read(file),
        settings=server.ServerSettings(requests_per_minute=100_000),
        model=EchoModel(),
    )
    with serving(application) as url:
        opened = Served(url, file, keys)
        for text in (SECRET, "call shop.draw name=secret", "call shop.book name=tea"):
            opened.send("ann", "POST", f"{HERE}/c1/messages", {"text": text})
        yield opened


# Others' conversations


BODIES: Sequence[Json] = (None, {}, {"conversation_id": "c1"}, {"text": "x"})
"""Bodies for routes whose own bodies are not known."""


def all_routes(at: Served) -> Iterator[tuple[str, str, Json]]:
    """Yield every route of the server with names of ann, with bodies where they are known."""
    yield from routes("acme", "tea")
    yield from protocol_routes()
    document = at.send("ann", "GET", "/openapi.json").json()
    names = {"tenant": "acme", "project": "tea", "turn_id": "turn_1", "dialect": "plain"}
    for path, methods in document["paths"].items():
        if path in ("/health", "/ready", "/"):
            continue
        filled = path
        for part in path.split("{")[1:]:
            name = part.partition("}")[0]
            filled = filled.replace(f"{{{name}}}", names.get(name, "c1"))
        for method in methods:
            for body in BODIES:
                yield method.upper(), filled, body


async def read_of_others(draw: Draw, at: Served) -> AsyncIterator[Trial]:
    """Send each route with each wrong key."""
    before = at.send("ann", "GET", f"{HERE}/c1/export").text
    wrong = [name for name in at.keys if name != "ann"] + ["nobody"]
    tries = {
        f"{who}: {method} {path} {json.dumps(body)[:40]}": (who, method, path, body)
        for who in wrong
        for method, path, body in all_routes(at)
    }
    for name, (who, method, path, body) in draw.programs(tries):
        response = await asyncio.to_thread(send_briefly, at, who, method, path, body)
        shown = SECRET in response
        unknown = who not in OTHERS and not response.startswith("401") and path not in OPEN
        passed = response[:200] if shown or unknown else ""
        yield Trial(name, NO_READ, passed)
    after = at.send("ann", "GET", f"{HERE}/c1/export").text
    yield Trial("all of these", NO_READ, "" if after == before else "the conversation changed")


OPEN = {"/health", "/ready", "/", "/openapi.json", "/docs", "/redoc", "/files", "/favicon.ico"}
"""Routes without a sender; `/files` takes signed URLs."""


def send_briefly(at: Served, who: str, method: str, path: str, body: Json) -> str:
    """Send a request; return its status and the beginning of what was answered, of a stream too."""
    headers = {"Authorization": f"Bearer {at.keys[who]}"} if who in at.keys else {}
    status, text = "no answer", b""
    with (
        suppress(httpx2.TimeoutException),
        httpx2.Client(base_url=at.url, timeout=10) as client,
        client.stream(method, path, json=body, headers=headers) as response,
    ):
        status = f"{response.status_code}"
        for part in response.iter_bytes():
            text += part
    return f"{status} {text.decode(errors='replace')}"


# Tokens of an issuer


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer with keys for signing, for encryption, and of odd kinds."""

    url: str
    keys: Mapping[str, ec.EllipticCurvePrivateKey]

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Return the claims of ann, some of them changed; those that are None are left out."""
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ann",
            "exp": LATER,
            "tenant": "acme",
            "project": "tea",
            **changed,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, key: str = "sign", kid: str | None = None, **changed: Any) -> str:
        return self.signed(self.claims(**changed), {"kid": kid or key}, key)

    def signed(self, claims: Json | str, head: dict[str, Any], key: str = "sign") -> str:
        """Sign any claims with any header, as no library would."""
        algorithm = jwt.get_algorithm_by_name("ES256")
        body = claims if isinstance(claims, str) else json.dumps(claims)
        parts = [json.dumps({"alg": "ES256", "typ": "JWT", **head}), body]
        signed = ".".join(encode(part.encode()) for part in parts)
        return f"{signed}.{encode(algorithm.sign(signed.encode(), self.keys[key]))}"


def encode(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


USES: Mapping[str, dict[str, Json]] = {
    "sign": {"use": "sig", "alg": "ES256"},
    "encrypt": {"use": "enc"},
    "wrap": {"key_ops": ["wrapKey"]},
    "other algorithm": {"alg": "ES384"},
}


@contextmanager
def issuing() -> Generator[Issuer]:
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in [*USES, "unlisted"]}
    algorithm = jwt.get_algorithm_by_name("ES256")
    rows: list[Json] = [
        {**json.loads(algorithm.to_jwk(keys[name].public_key())), **use, "kid": name}
        for name, use in USES.items()
    ]
    documents: dict[str, Json] = {"/keys": {"keys": rows}}

    class Handler(Answering):
        def get(self) -> None:
            self.answer(json.dumps(documents.get(self.path)).encode())

    with http_server(Handler) as url:
        documents["/.well-known/openid-configuration"] = {"issuer": url, "jwks_uri": f"{url}/keys"}
        yield Issuer(url, keys)


def tokens(issuer: Issuer) -> Iterator[tuple[str, str]]:
    good = issuer.token()
    head, body, signature = good.split(".")
    none = encode(b'{"alg":"none","kid":"sign"}')
    for key in ("encrypt", "wrap", "other algorithm"):
        yield f"a key to {key}", issuer.token(key)
    yield "a key that is not listed", issuer.token("unlisted")
    yield "another key under its id", issuer.token("unlisted", kid="sign")
    yield "unsigned", f"{none}.{body}."
    yield "unsigned with a signature", f"{none}.{body}.{signature}"
    yield "without a signature", f"{head}.{body}."
    yield "with half a signature", good[:-20]
    yield "with a signature of zeros", f"{head}.{body}.{encode(bytes(64))}"
    yield "with a fourth part", f"{good}.x"
    yield (
        "with other claims",
        f"{head}.{encode(json.dumps(issuer.claims(sub='bob')).encode())}.{signature}",
    )
    values: dict[str, list[Any]] = {
        "exp": [f"{LATER}", True, [], {}, -1, 0, 1e400, "never", None, "", LATER * 1.0e300],
        "nbf": [LATER - 1, "tomorrow", True, {}],
        "iat": [LATER - 1, "today", {}],
        "iss": ["https://evil.example", f"{issuer.url}/", "", 5, [issuer.url], None],
        "aud": ["other", ["other"], "", 5, {}, [], None, "loopline2", "LOOPLINE"],
        "sub": ["", " ", "a\0b", "a\nb", "a\x1b[2J", 5, ["ann"], {}, None, "\ud800"],
        "tenant": ["", " ", "a\0b", "a\nb", 5, ["acme"], {}, None, True],
        "project": ["", "a\0b", "a\r\nb", 5, ["tea"], None],
    }
    for claim, wrong in values.items():
        for value in wrong:
            yield f"{claim} is {value!r}"[:60], issuer.token(**{claim: value})
    claims = json.dumps(issuer.claims())
    yield "claims that are a list", issuer.signed("[]", {"kid": "sign"})
    yield (
        "an expiry that is no number",
        issuer.signed(claims.replace(f"{LATER}", "NaN"), {"kid": "sign"}),
    )
    for name, value in {
        "crit": ["x"],
        "b64": False,
        "kid": None,
        "alg": "HS256",
    }.items():
        yield f"{name} in its head", issuer.signed(issuer.claims(), {"kid": "sign", name: value})
    row = json.loads(
        jwt.get_algorithm_by_name("ES256").to_jwk(issuer.keys["unlisted"].public_key())
    )
    for name, key in {"jwk": row, "jku": f"{issuer.url}/evil", "x5u": f"{issuer.url}/evil"}.items():
        yield (
            f"its own {name}",
            issuer.signed(issuer.claims(), {"kid": "sign", name: key}, "unlisted"),
        )
    public = json.dumps(row).encode()
    shared = encode(json.dumps({"alg": "HS256", "kid": "sign"}).encode()) + f".{body}"
    mac = hmac.new(public, shared.encode(), sha256).digest()
    yield "the public key as a shared secret", f"{shared}.{encode(mac)}"


async def forge_tokens(draw: Draw) -> AsyncIterator[Trial]:
    with issuing() as issuer:
        for name, token in draw.programs(dict(tokens(issuer))):
            users = server.TokenUsers(issuer.url, AUDIENCE)
            [outcome] = await asyncio.gather(users.authenticate(token), return_exceptions=True)
            match outcome:
                case server.Unauthenticated():
                    passed = ""
                case BaseException():
                    passed = f"an error of another kind: {outcome!r}"
                case principal:
                    passed = f"let in as {principal.user!r} of {principal.tenant!r}"
            yield Trial(f"a token, {name}", NO_TOKEN, passed)
        ann = await server.TokenUsers(issuer.url, AUDIENCE).authenticate(issuer.token())
        yield Trial(
            "the right token", "the right token lets ann in", "" if ann.user == "ann" else ann.user
        )


# Pages of other origins

ORIGINS = (
    *("https://evil.example", "null", "http://localhost:9", "http://127.0.0.1:9", "http://[::1]:9"),
    *(
        "http://localhost.evil.example",
        "http://127.0.0.1.nip.io",
        "file://",
        "chrome-extension://abc",
    ),
    *(
        "http://localhost",
        "https://localhost",
        "HTTP://EVIL.EXAMPLE",
        "http://evil.example@127.0.0.1",
    ),
    *("http://127.0.0.1:9 http://127.0.0.1", "http://0.0.0.0:9", "http://user@localhost:9"),
)
FORM = (
    '--x\r\nContent-Disposition: form-data; name="message"\r\n\r\n{"text": "forged"}\r\n--x--\r\n'
)
REQUESTS: Mapping[str, tuple[str, str, str, str]] = {
    "a message": ("POST", "/conversations/default/default/c1/messages", "application/json", '{"text": "forged"}'),
    "a message as text": ("POST", "/conversations/default/default/c1/messages", "text/plain", '{"text": "forged"}'),
    "a form": ("POST", "/conversations/default/default/c1/messages/multipart", "multipart/form-data; boundary=x", FORM),
    "AG-UI": ("POST", "/ag-ui", "text/plain", '{"threadId": "c1", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "forged"}]}'),
    "the AI SDK": ("POST", "/api/chat", "text/plain", '{"id": "c1", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "forged"}]}]}'),
    "OpenAI": ("POST", "/v1/chat/completions", "text/plain", '{"messages": [{"role": "user", "content": "forged"}]}'),
    "a list": ("GET", "/conversations/default/default", "", ""),
    "a socket": ("GET", "/socket.io/?EIO=4&transport=polling", "", ""),
    "asking before": ("OPTIONS", "/conversations/default/default/c1/messages", "", ""),
}  # fmt: skip


async def ask_from_pages(draw: Draw) -> AsyncIterator[Trial]:
    """Send each request from a page of each origin to a server without authentication."""
    local = server.app(SHOP, store="memory:", model=EchoModel())
    with serving(local) as url:
        port = urlsplit(url).port
        origins = {origin: {"Origin": origin} for origin in ORIGINS}
        origins["another name of this host"] = {"Host": f"evil.example:{port}"}
        origins["a name that leads here"] = {"Host": f"127.0.0.1.nip.io:{port}"}
        tries = {
            f"{name} from {origin}": (request, headers)
            for origin, headers in origins.items()
            for name, request in REQUESTS.items()
        }
        for name, ((method, path, mime, body), headers) in draw.programs(tries):
            sent = {**headers, **({"Content-Type": mime} if mime else {})}
            async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
                response = await client.request(method, path, content=body, headers=sent)
            allowed = response.headers.get("access-control-allow-origin", "")
            passed = f"{response.status_code} {response.text[:80]}" if response.is_success else ""
            yield Trial(name, NO_ORIGIN, f"allowed: {allowed}" if allowed else passed)


# Names with control characters

ODD = (
    "a\nb",
    "a\r\nforged: line",
    "a\x1b[2Jb",
    "a\0b",
    "a\x9bb",
    "a\u2028b",
    "a\u202eb",
    "a\x7fb",
    "\x85",
)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line, without what a traceback adds."""
        self.lines.append(f"{record.levelname} {record.name} {record.getMessage()}")


def odd_requests() -> Iterator[tuple[str, tuple[str, str, Json, dict[str, str]]]]:
    for name in ODD:
        written = quote(name, safe="")
        requests: Sequence[tuple[str, str, Json]] = (
            ("POST", f"{HERE}/{written}/messages", {"text": "Hello."}),
            ("GET", f"{HERE}/{written}/blocks", None),
            ("DELETE", f"{HERE}/{written}", None),
            ("GET", f"/conversations/{written}/tea/c1/blocks", None),
            ("GET", f"/conversations/acme/{written}/c1/blocks", None),
            ("GET", f"{HERE}/c1/turns/{written}", None),
            ("GET", f"{HERE}/c1/blocks?types={written}", None),
            ("GET", f"{HERE}/c1/export?user_id={written}", None),
            ("GET", f"/{written}", None),
            ("POST", f"{HERE}/c1/read", {"refs": [name]}),
            ("POST", "/by-rn", {"rn": name}),
            ("POST", f"{HERE}/c1/answers", {"values": {name: "yes"}}),
            ("POST", f"{HERE}/c1/turns/turn_1/feedback", {"reaction": name, "text": name}),
            ("POST", "/ag-ui", {"threadId": name, "runId": name, "messages": []}),
            ("POST", "/v1/chat/completions", {"model": name, "messages": []}),
            ("POST", "/api/chat", {"id": name, "messages": []}),
        )
        for method, path, body in requests:
            yield f"{name!r} in {method} {path}", (method, path, body, {})
        if name.isprintable() or name in ("a\x9bb", "\x85"):
            for header in ("X-Request-ID", "X-Forwarded-For", "Idempotency-Key", "Last-Event-ID"):
                yield f"{name!r} in {header}", ("GET", f"{HERE}/c1/blocks", None, {header: name})


async def name_oddly(draw: Draw, at: Served) -> AsyncIterator[Trial]:
    """Send odd names, and read the log."""
    lines = Lines()
    loggers = [
        logging.getLogger(name) for name in ("loopline", "loopline.audit", "uvicorn", "asyncio")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(lines)
        logger.setLevel(logging.DEBUG)
    try:
        for name, (method, path, body, headers) in draw.programs(dict(odd_requests())):
            lines.lines.clear()
            response = await asyncio.to_thread(at.send, "ann", method, path, body, **headers)
            bad = [line for line in lines.lines if not line.isprintable()]
            passed = f"{response.status_code}" if response.status_code >= 500 else ""
            yield Trial(name, NO_LINE, repr(bad[0]) if bad else passed)
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(lines)
            logger.setLevel(level)


# Requests that never end

HEAD = f"POST {HERE}/c1/messages HTTP/1.1\r\nHost: localhost\r\n"
HALF: Mapping[str, tuple[str, str]] = {
    "nothing": ("", ""),
    "half a line": ("POST /conv", ""),
    "half of the headers": (HEAD, ""),
    "a header for each second": (HEAD, "X-A: b\r\n"),
    "a body that does not come": (f"{HEAD}Content-Type: application/json\r\nContent-Length: 99\r\n\r\n", ""),
    "a byte of a body for each second": (f"{HEAD}Content-Type: application/json\r\nContent-Length: 9999\r\n\r\n", " "),
    "a key, and a body that does not come": (f"{HEAD}Authorization: Bearer KEY\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n", ""),
    "a key, and a byte for each second": (f"{HEAD}Authorization: Bearer KEY\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n", " "),
    "a chunk that does not end": (f"{HEAD}Transfer-Encoding: chunked\r\n\r\nffff\r\n", " "),
    "a socket without its first packet": ("GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", ""),
}  # fmt: skip


async def hold(port: int, begin: str, more: str) -> float:
    """Send half a request, then a bit each second; return after how many seconds the server closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.monotonic()
    reading = asyncio.ensure_future(reader.read())
    try:
        writer.write(begin.encode())
        while time.monotonic() - began < MOST_SECONDS + 2 and not reading.done():
            await asyncio.wait([reading], timeout=1)
            with suppress(ConnectionError):
                writer.write(more.encode())
                await writer.drain()
    finally:
        reading.cancel()
        writer.transport.abort()
    return time.monotonic() - began


async def send_without_end(port: int, path: str, key: str) -> int:
    """Send a body in chunks that never ends; return how many bytes of it were taken."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    access = f"Authorization: Bearer {key}\r\n" if key else ""
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{access}Transfer-Encoding: chunked\r\n\r\n".encode()
    )
    taken = 0
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(20):
            while taken < 20 * MOST_BYTES:
                writer.write(PIECE)
                await writer.drain()
                taken += len(PIECE)
    writer.transport.abort()
    return taken


async def never_end(draw: Draw, at: Served) -> AsyncIterator[Trial]:
    """Hold connections with half requests, all at once, and send bodies without an end."""
    port = urlsplit(at.url).port or 0
    paths = {
        f"an endless body to {path} {'with' if key else 'without'} a key": (path, key)
        for path in (
            "/no/such/route",
            f"{HERE}/c1/messages",
            "/ag-ui",
            "/health",
            "/by-rn",
            "/files",
        )
        for key in ("", "llk_wrong")
    }
    for name, (path, key) in draw.programs(paths):
        taken = await send_without_end(port, path, key)
        yield Trial(name, NO_ROOM, f"{taken:,} bytes" if taken > MOST_BYTES else "")
    if draw.most is None:  # it takes a minute
        held = await asyncio.gather(
            *(
                hold(port, begin.replace("KEY", at.keys["ann"]), more)
                for begin, more in HALF.values()
            )
        )
        for name, seconds in zip(HALF, held, strict=True):
            yield Trial(name, CLOSED, f"{seconds:.0f} s" if seconds > MOST_SECONDS else "")


# Files and keys


def changed_urls(url: str) -> Iterator[tuple[str, str]]:
    parts = urlsplit(url)
    fields = dict(parse_qsl(parts.query))
    changes: dict[str, Callable[[str], str]] = {
        "another letter at its end": lambda value: value[:-1] + ("0" if value[-1] != "0" else "1"),
        "nothing": lambda value: "",
        "more": lambda value: f"{value}0",
        "a null": lambda value: f"{value}\0",
        "a large number": lambda value: "9999999999",
        "a way up": lambda value: f"../{value}",
        "another user": lambda value: value.replace("ann", "bob"),
        "another version": lambda value: value.replace("1/", "2/"),
        "another file": lambda value: value.replace("secret.html", "own.txt"),
        "in capitals": str.upper,
    }
    for field, value in fields.items():
        for what, change in changes.items():
            if change(value) != value:
                query = urlencode({**fields, field: change(value)})
                yield f"{field}: {what}", f"{parts.path}?{query}"
        rest = {name: other for name, other in fields.items() if name != field}
        yield f"{field}: left out", f"{parts.path}?{urlencode(rest)}"
        yield f"{field}: twice", f"{parts.path}?{parts.query}&{field}=x"


async def change_urls(draw: Draw, at: Served) -> AsyncIterator[Trial]:
    spoken: Json = {
        "role": "user",
        "parts": [{"type": "text", "text": "call shop.draw name=secret"}],
    }
    stream = at.send("ann", "POST", "/api/chat", {"id": "c2", "messages": [spoken]}).text
    urls = [
        json.loads(line.removeprefix("data: "))["data"]["url"]
        for line in stream.splitlines()
        if '"data-file"' in line
    ]
    url = next((url for url in urls if "secret" in url), "")
    opened = at.send("nobody", "GET", url) if url else None
    is_open = opened is not None and opened.is_success
    yield Trial("the URL as it was signed", "it opens the file", "" if is_open else stream[-300:])
    for name, changed in draw.programs(dict(changed_urls(url))):
        response = await asyncio.to_thread(at.send, "nobody", "GET", changed)
        passed = f"{response.status_code} {response.text[:60]}"
        yield Trial(
            name, NO_FILE, passed if response.is_success or response.status_code >= 500 else ""
        )


async def revoke(draw: Draw, at: Served) -> AsyncIterator[Trial]:
    key = await asyncio.to_thread(server.add_key, at.keys_file, ANN)
    late = Served(at.url, at.keys_file, {"late": key})
    await asyncio.to_thread(wait_for, lambda: late.send("late", "GET", "/me").is_success)
    await asyncio.to_thread(server.revoke_key, at.keys_file, key)
    await asyncio.sleep(REVOKED_SECONDS)
    tries = {
        f"{method} {path}": (method, path, body) for method, path, body in routes("acme", "tea")
    }
    for name, (method, path, body) in draw.programs(tries):
        status = (await asyncio.to_thread(late.send, "late", method, path, body)).status_code
        yield Trial(f"a revoked key: {name}", REVOKED, "" if status == 401 else f"{status}")


async def attack(draw: Draw) -> AsyncIterator[Trial]:
    with served(draw.subfolder("server")) as at:
        for part in (
            read_of_others(draw, at),
            forge_tokens(draw),
            ask_from_pages(draw),
            name_oddly(draw, at),
            change_urls(draw, at),
            revoke(draw, at),
            never_end(draw, at),
        ):
            async for trial in part:
                yield trial
