"""Blobs in a bucket of S3: what a busy, failing or killed server, a collection and a backup do to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from loopline import Bundle, Harness, Store
from loopline.errors import StoreError, StoreFailed
from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from loopline.store.s3_blobs import MULTIPART_BYTES, S3Blobs, S3Place, S3Timeouts, list_objects
from loopline.testing import Say, ScriptedModel
from tests.crashes.processes import HERE, prompt, url
from tests.support.s3_server import BUCKET, CREDENTIALS, S3Server, s3_server

DAY = timedelta(days=1)
HELLO = sha256(b"hello").hexdigest()
LARGE = prompt("é" * 30_000)


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def server(running: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The S3 of this file, with the credentials in the environment and no requests counted."""
    use_credentials(monkeypatch)
    running.requests()
    return running


def use_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


QUICK = S3Timeouts(request_seconds=1, retry_seconds=1, retries=1, abandoned_seconds=0.2)


def opened(
    server: S3Server, prefix: str, timeouts: S3Timeouts | None = None, **options: str
) -> S3Blobs:
    return S3Blobs(S3Place.parse(server.url(prefix, **options)), timeouts=timeouts)


def objects(server: S3Server, prefix: str) -> S3Store:
    """The objects under the prefix."""
    return S3Store(
        BUCKET,
        prefix=prefix,
        config={"endpoint": server.endpoint},
        client_options={"allow_http": True},
    )


def test_a_new_blob_is_one_conditional_upload_and_one_look_for_a_collection(
    server: S3Server,
) -> None:
    blobs = opened(server, "new")
    blobs.put(b"first")
    server.requests()
    blobs.put(b"second")
    assert [request.split()[0] for request in server.requests()] == ["PUT", "GET"]


def test_what_was_put_or_read_lately_is_not_fetched_again(server: S3Server) -> None:
    blobs = opened(server, "cached")
    name = blobs.put(b"hello")
    server.requests()
    assert blobs.get(name) == b"hello"
    assert server.requests() == []
    other = opened(server, "cached")
    assert (other.get(name), other.get(name)) == (b"hello", b"hello")
    assert len(server.requests()) == 1


def test_the_cache_has_no_more_bytes_than_its_limit(server: S3Server) -> None:
    blobs = opened(server, "bounded", cache_bytes="1000")
    names = [blobs.put(bytes([n]) * 400) for n in range(3)]
    large = blobs.put(b"x" * 1_001)
    server.requests()
    for name in (names[2], names[1]):
        blobs.get(name)
    assert server.requests() == []
    for name in (names[0], large):
        blobs.get(name)
    assert len(server.requests()) == 2


def test_a_long_blob_is_uploaded_in_parts(server: S3Server) -> None:
    data = b"0123456789abcdef" * (MULTIPART_BYTES // 16 + 1)
    name = opened(server, "parts").put(data)
    assert sum(request.startswith("PUT ") for request in server.requests()) > 1
    assert opened(server, "parts").get(name) == data
    opened(server, "parts").put(data)
    assert not any(request.startswith("PUT ") for request in server.requests())


@pytest.mark.parametrize("damage", [b"", b"hellO", b"hello and more"])
def test_a_damaged_blob_is_refused_and_heals_when_put_again(
    server: S3Server, damage: bytes
) -> None:
    prefix = f"damaged{len(damage)}"
    opened(server, prefix).put(b"hello")
    obstore.put(objects(server, prefix), f"{HELLO[:2]}/{HELLO[2:]}", damage)
    with pytest.raises(StoreError, match=rf"{HELLO[2:]} is damaged"):
        opened(server, prefix).get(HELLO)
    opened(server, prefix).put(b"hello")
    assert opened(server, prefix).get(HELLO) == b"hello"


def test_a_busy_server_is_asked_again(server: S3Server) -> None:
    server.fail(3)
    assert opened(server, "busy").put(b"hello") == HELLO
    assert opened(server, "busy").get(HELLO) == b"hello"


def test_a_blob_that_a_collection_removes_while_it_is_put_is_uploaded_again(
    server: S3Server,
) -> None:
    """The collection has looked at the age of the orphan before it was put, and removes it after."""
    prefix = "raced"
    opened(server, prefix).put(b"hello")
    server.age(2 * DAY)
    bucket = objects(server, prefix)
    obstore.put(bucket, "collection", f"c1\n{HELLO}".encode())
    writer = opened(server, prefix)
    writing = threading.Thread(target=writer.put, args=(b"hello",))
    writing.start()
    while not any(request.startswith("GET ") for request in server.requests()):
        assert writing.is_alive()
    obstore.delete(bucket, f"{HELLO[:2]}/{HELLO[2:]}")
    assert writing.is_alive()  # it waits for the collection that announced its blob
    obstore.put(bucket, "collection", b"c2")
    writing.join()
    assert opened(server, prefix).get(HELLO) == b"hello"


def test_the_announcement_of_a_killed_collection_stops_nobody_for_long(
    server: S3Server,
) -> None:
    prefix = "killed"
    obstore.put(objects(server, prefix), "collection", f"c1\n{HELLO}".encode())
    assert opened(server, prefix, QUICK).put(b"hello") == HELLO
    server.age(2 * DAY)
    assert opened(server, prefix).collect(lambda: (), datetime.now(UTC) - DAY) == 1


def test_of_two_collections_at_once_one_stops(server: S3Server) -> None:
    prefix = "two"
    opened(server, prefix).put(b"hello")
    server.age(2 * DAY)
    bucket = objects(server, prefix)

    def begin_another() -> set[str]:
        obstore.put(bucket, "collection", f"other\n{HELLO}".encode())
        return set()

    assert opened(server, prefix).collect(begin_another, datetime.now(UTC) - DAY) == 0
    assert opened(server, prefix).get(HELLO) == b"hello"


def test_a_server_that_does_not_answer_or_has_gone_is_an_error_that_stores_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_credentials(monkeypatch)
    with s3_server() as server:
        blobs = opened(server, "gone", QUICK, cache_bytes="0")
        blobs.put(b"hello")
        server.pause()
        with pytest.raises(StoreFailed, match=r"S3 failed for s3://blobs/gone/.*reachable"):
            blobs.put(b"other")
        server.resume()
        assert blobs.put(b"other")
        server.kill()
        for use in (lambda: blobs.put(b"third"), lambda: blobs.get(HELLO)):
            with pytest.raises(StoreFailed, match="S3 failed"):
                use()


def test_a_bucket_that_does_not_exist_is_named(server: S3Server) -> None:
    absent = S3Place.parse(f"s3://absent/x?endpoint={server.endpoint}")
    with pytest.raises(StoreFailed, match=r"s3://absent/x/.*the bucket exists"):
        S3Blobs(absent).put(b"hello")


@pytest.mark.parametrize(
    "wrong",
    [
        "s3://",
        "s3:bucket",
        "http://bucket/x",
        "s3://b?presigned=1",
        "s3://b?cache_bytes=-1",
        "s3://b?x=1",
    ],
)
async def test_a_wrong_url_says_how_it_is_written(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(StoreError, match=r"write s3://bucket/prefix"):
        async with Store.open(f"sqlite:///{tmp_path}/talk.db", blobs=wrong):
            pass


async def test_a_store_keeps_its_large_bodies_in_the_bucket_through_a_restart_and_a_backup(
    server: S3Server, tmp_path: Path
) -> None:
    store, bucket = f"sqlite:///{tmp_path}/talk.db", server.url("store")
    bundle = Bundle(id="guide", instructions="You help.")
    text = "long " * 20_000
    model = ScriptedModel([Say("Yes.")])
    async with Harness.open(bundle, store=store, blobs=bucket, model=model) as harness:
        assert (await harness.conversation("c1").say(text)).answer == "Yes."
    assert not (tmp_path / "talk.db-blobs").exists()
    async with Store.open(store, blobs=bucket) as opened_store:
        assert text in str(await opened_store.conversation("c1").blocks())
        await opened_store.backup(tmp_path / "copy.db")
    async with Store.open(f"sqlite:///{tmp_path}/copy.db") as copy:
        assert text in str(await copy.conversation("c1").blocks())


async def test_a_forgotten_conversation_leaves_nothing_in_the_bucket(
    server: S3Server, tmp_path: Path
) -> None:
    path = tmp_path / "talk.db"
    async with await SqlLog.open(url(path), blobs=opened(server, "forget")) as log:
        await log.append(HERE, [LARGE], seen=0)
        [kept] = [meta["path"] for page in list_objects(objects(server, "forget")) for meta in page]
        await log.forget(HERE)
        with pytest.raises(FileNotFoundError):
            obstore.head(objects(server, "forget"), kept)


async def test_a_body_is_not_acknowledged_while_the_bucket_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_credentials(monkeypatch)
    with s3_server() as server:
        path = tmp_path / "talk.db"
        async with await SqlLog.open(url(path), blobs=opened(server, "acknowledged", QUICK)) as log:
            await log.append(HERE, [prompt("small")], seen=0)
            server.kill()
            with pytest.raises(StoreFailed):
                await log.append(HERE, [LARGE], seen=1)
            assert len(await log.read(HERE)) == 1
            await log.append(HERE, [prompt("small again")], seen=1)


def test_files_and_a_bucket_give_a_blob_the_same_name(server: S3Server, tmp_path: Path) -> None:
    assert FileBlobs(tmp_path).put(b"hello") == opened(server, "names").put(b"hello")
