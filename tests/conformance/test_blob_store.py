"""What the blobs of a store promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import pytest

from loopline.clock import Alarm, SystemClock
from loopline.errors import StoreError
from loopline.store.blobs import BlobStore, FileBlobs
from loopline.store.s3_blobs import S3Blobs, S3Place
from tests.support.s3_server import CREDENTIALS, S3Server, s3_server

DAY = timedelta(days=1)


class SetClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = datetime(2030, 1, 1, tzinfo=UTC)
        self.names = 0

    def advance(self, by: timedelta) -> None:
        """Let that time pass."""
        self.time += by

    def now(self) -> datetime:
        return self.time

    def elapsed(self) -> float:
        return self.time.timestamp()

    async def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        return SystemClock().alarm(seconds, ring)

    def new_id(self) -> str:
        self.names += 1
        return f"{self.names:032x}"


class BucketClock(SetClock):
    """The clock of blobs in a bucket, whose times are those of the server: its objects grow old, and now stays now."""

    def __init__(self, server: S3Server) -> None:
        super().__init__()
        self.time = datetime.now(UTC)
        self.server = server

    def advance(self, by: timedelta) -> None:
        self.server.age(by)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(params=["files", "s3"])
def clock(request: pytest.FixtureRequest) -> SetClock:
    if request.param == "files":
        return SetClock()
    return BucketClock(request.getfixturevalue("server"))


@pytest.fixture
def blobs(tmp_path: Path, clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> BlobStore:
    if not isinstance(clock, BucketClock):
        return FileBlobs(tmp_path / "b", clock)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return S3Blobs(S3Place.parse(clock.server.url(uuid4().hex)), clock)


@pytest.mark.parametrize("data", [b"", b"hello", b"\0\xff" * 100_000])
def test_what_was_put_is_got_back(blobs: BlobStore, data: bytes) -> None:
    assert blobs.get(blobs.put(data)) == data


def test_a_blob_is_named_by_its_sha256(blobs: BlobStore) -> None:
    assert blobs.put(b"hello") == sha256(b"hello").hexdigest()


def test_the_same_bytes_are_put_twice_and_kept_once(blobs: BlobStore) -> None:
    first, second = blobs.put(b"hello"), blobs.put(b"hello")
    blobs.discard([first])
    with pytest.raises(StoreError, match=second[2:]):
        blobs.get(second)


def test_a_missing_blob_is_named(blobs: BlobStore) -> None:
    blobs.put(b"other")
    missing = sha256(b"hello").hexdigest()
    with pytest.raises(StoreError, match=rf"{missing[2:]} is missing"):
        blobs.get(missing)


def test_discarding_what_is_not_there_changes_nothing(blobs: BlobStore) -> None:
    blobs.discard([sha256(b"hello").hexdigest()])
    kept = blobs.put(b"other")
    blobs.discard([sha256(b"hello").hexdigest()])
    assert blobs.get(kept) == b"other"


def test_only_old_blobs_that_nothing_refers_to_are_collected(
    blobs: BlobStore, clock: SetClock
) -> None:
    orphan, named = blobs.put(b"orphan"), blobs.put(b"named")
    clock.advance(2 * DAY)
    young = blobs.put(b"young")
    assert blobs.collect(lambda: {named}, clock.time - DAY) == 1
    assert (blobs.get(named), blobs.get(young)) == (b"named", b"young")
    with pytest.raises(StoreError, match="missing"):
        blobs.get(orphan)


def test_a_second_put_makes_an_old_blob_young(blobs: BlobStore, clock: SetClock) -> None:
    orphan = blobs.put(b"orphan")
    clock.advance(2 * DAY)
    blobs.put(b"orphan")
    assert blobs.collect(lambda: (), clock.time - DAY) == 0
    assert blobs.get(orphan) == b"orphan"


def test_an_old_orphan_put_while_the_references_are_read_is_not_collected(
    blobs: BlobStore, clock: SetClock
) -> None:
    orphan = blobs.put(b"orphan")
    clock.advance(2 * DAY)

    def referenced() -> set[str]:
        blobs.put(b"orphan")
        return set()

    assert blobs.collect(referenced, clock.time - DAY) == 0
    assert blobs.get(orphan) == b"orphan"


def test_nothing_is_collected_where_nothing_was_put(blobs: BlobStore, clock: SetClock) -> None:
    assert blobs.collect(lambda: (), clock.time) == 0


# What only files can suffer


@pytest.fixture
def files(tmp_path: Path) -> FileBlobs:
    return FileBlobs.for_store(tmp_path / "talk.db", SetClock())


def test_a_blob_lies_beside_its_store_by_its_name(tmp_path: Path, files: FileBlobs) -> None:
    name = files.put(b"hello")
    assert (tmp_path / "talk.db-blobs" / name[:2] / name[2:]).read_bytes() == b"hello"


@pytest.mark.parametrize("damage", [b"", b"hellO", b"hello and more"])
def test_a_damaged_blob_is_named_and_heals_when_put_again(
    tmp_path: Path, files: FileBlobs, damage: bytes
) -> None:
    name = files.put(b"hello")
    path = tmp_path / "talk.db-blobs" / name[:2] / name[2:]
    path.write_bytes(damage)
    with pytest.raises(StoreError, match=rf"{path} is damaged"):
        files.get(name)
    files.put(b"hello")
    assert files.get(name) == b"hello"


def test_what_a_killed_process_left_unfinished_is_collected(
    tmp_path: Path, files: FileBlobs
) -> None:
    name = files.put(b"hello")
    left = tmp_path / "talk.db-blobs" / name[:2] / f"{name[2:]}.0.unfinished"
    left.write_bytes(b"hel")
    assert files.collect(lambda: {name}, datetime.now(UTC) + DAY) == 1
    assert [path.name for path in left.parent.iterdir()] == [name[2:]]


def test_blobs_are_refused_where_no_folder_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="could not be used"):
        FileBlobs(tmp_path / "file" / "b", SetClock()).put(b"hello")
