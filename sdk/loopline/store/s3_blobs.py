"""Blobs in a bucket of S3, for stores that several machines use."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import md5, sha256
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Protocol, Self
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore import exceptions
from obstore.store import S3Store

from loopline.clock import Clock, SystemClock
from loopline.errors import StoreError, StoreFailed

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import S3Config

SCHEME = "s3"
CACHE_BYTES = 32 * 1024**2
"""How many bytes of blobs a process keeps in memory, unless the URL has another `cache_bytes`."""
MULTIPART_BYTES = 8 * 1024**2
"""A longer blob is uploaded in parts."""
FRESH = timedelta(hours=6)
"""A stored blob that is younger is not uploaded again. It must be shorter than the age of collected orphans."""
RECENT_SECONDS = 600.0
RECENT_BLOBS = 1_000
"""For how long, and for how many blobs, a process remembers that it has uploaded them."""
BATCH = 50
"""How many orphans are announced and removed at once."""
BATCH_SECONDS = 60.0
"""For how long a collection may remove the announced orphans; then it stops."""
WAIT_SECONDS = 0.05
ATTEMPTS = 10
_COLLECTION = "collection"
_HOSTED = "hosted/"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Timeouts:
    """How long a process waits for S3, and how often it tries a request that failed again.

    An announcement of a collection that has not changed for `abandoned_seconds` is that of a killed process.
    """

    request_seconds: float = 30.0
    retry_seconds: float = 20.0
    retries: int = 6
    abandoned_seconds: float = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Place:
    """The parts of a URL such as `s3://bucket/prefix?endpoint=http://127.0.0.1:9000&presigned=yes`."""

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    presigned: bool = False
    cache_bytes: int = CACHE_BYTES

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse the URL.

        Raises:
            StoreError: the URL does not name a bucket, or has an unknown option.
        """
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        size = options.pop("cache_bytes", f"{CACHE_BYTES}")
        presigned = options.pop("presigned", "no")
        endpoint, region = options.pop("endpoint", ""), options.pop("region", "")
        is_valid = size.isascii() and size.isdecimal() and presigned in ("yes", "no")
        if parts.scheme != SCHEME or not parts.netloc or parts.fragment or options or not is_valid:
            raise StoreError(
                f"no blobs at {url!r}: write s3://bucket/prefix, with the options endpoint=URL, region=NAME, "
                "presigned=yes and cache_bytes=NUMBER after a ?"
            )
        return cls(
            bucket=parts.netloc,
            prefix=parts.path.strip("/"),
            endpoint=endpoint,
            region=region,
            presigned=presigned == "yes",
            cache_bytes=int(size),
        )


@dataclass(frozen=True, slots=True)
class _Announcement:
    """The object `collection`: the orphans that a collection removes now, under an id that is new each time.

    It has no names when no collection runs. The id is empty if no collection has ever run.
    """

    id: str = ""
    names: frozenset[str] = frozenset()
    e_tag: str | None = None
    written: datetime | None = None


class ListedObjects(Protocol):
    """The objects of a bucket under a prefix. `obstore` leaves a part of this type open."""

    def list(self) -> Iterable[Sequence[ObjectMeta]]:
        """Return the objects in pages."""
        ...


def list_objects(bucket: ListedObjects) -> Iterable[Sequence[ObjectMeta]]:
    """Return the objects of a bucket in pages."""
    return bucket.list()


class S3Blobs:
    """Blobs in a bucket, in objects `prefix/ab/cdef…` named after their sha256. The bucket must exist.

    Its methods block, so they are called from threads. Failed requests are retried for `retry_seconds`. The digest of
    every blob that is read is checked. A process keeps up to `cache_bytes` of the blobs that it used last in memory, not
    on disk, so that a forgotten conversation does not stay on the disks of other machines.

    S3 has no locks. So that a collection does not remove an orphan that is put at the same time, it first announces the
    names in the object `collection` and looks at their age afterwards. `put` reads that object after it has uploaded: if
    it has changed since the last look, an older upload may have been removed, and `put` looks whether the blob exists.
    """

    def __init__(
        self,
        place: S3Place,
        clock: Clock | None = None,
        timeouts: S3Timeouts | None = None,
    ) -> None:
        """Make a client; this sends no request.

        The credentials, and an endpoint and a region that `place` does not name, are those of the variables `AWS_*`, or
        come from the service of the machine that runs the process.

        Raises:
            StoreError: a variable is malformed.
        """
        self.is_presigned: bool = place.presigned
        self._where = f"s3://{'/'.join(filter(None, (place.bucket, place.prefix)))}"
        self._clock = clock or SystemClock()
        self._timeouts = timeouts = timeouts or S3Timeouts()
        self._cache = _ByteCache(place.cache_bytes)
        self._lock = Lock()
        self._recent: OrderedDict[str, float] = OrderedDict()
        self._announced: _Announcement | None = None
        config: S3Config = {}
        if place.endpoint:
            config["endpoint"] = place.endpoint
        if place.region:
            config["region"] = place.region
        try:
            self._store = S3Store(
                place.bucket,
                prefix=place.prefix or None,
                client_options={
                    "allow_http": True,  # the endpoint is the operator's choice
                    "timeout": timedelta(seconds=timeouts.request_seconds),
                },
                retry_config={
                    "max_retries": timeouts.retries,
                    "retry_timeout": timedelta(seconds=timeouts.retry_seconds),
                },
                config=config,
            )
        except exceptions.BaseError as error:
            raise _store_error(self._where, error) from error

    def put(self, data: bytes) -> str:
        """Store the bytes and return their name.

        A stored blob is uploaded again only if it is old or differs, so that no collection regards it as an orphan.

        Raises:
            StoreFailed: S3 cannot be reached, or failed; nothing was stored.
            StoreError: S3 refused the request.
        """
        name = sha256(data).hexdigest()
        with self._errors(_path(name)):
            if self._was_put_now(name) and self._is_stored(name, data):
                return name
            self._put(name, data)
        self._remember(name)
        self._cache.put(name, data)
        return name

    def get(self, name: str) -> bytes:
        """Return the bytes that were put under that name.

        Raises:
            StoreFailed: S3 cannot be reached, or failed.
            StoreError: the blob is missing or damaged; the message has its name.
        """
        cached = self._cache.get(name)
        if cached is not None:
            return cached
        path = _path(name)
        with self._errors(path):
            try:
                data = bytes(obstore.get(self._store, path).bytes())
            except FileNotFoundError as error:
                raise StoreError(
                    f"blob {self._where}/{path} is missing: put a backup in its place"
                ) from error
        if sha256(data).hexdigest() != name:
            raise StoreError(f"blob {self._where}/{path} is damaged: put a backup in its place")
        self._cache.put(name, data)
        return data

    def discard(self, names: Collection[str]) -> None:
        """Remove the blobs with these names regardless of their age; missing blobs are ignored."""
        if names:
            with self._errors(f"{len(names)} blobs"):
                self._delete_blobs(names)

    def collect(self, referenced: Callable[[], Collection[str]], older_than: datetime) -> int:
        """Remove unreferenced blobs, and copies of hosted files, that were last put before `older_than`.

        Return the number of removed blobs. `referenced` returns the names of all referenced blobs. A blob that is put
        during the collection stays. If another process collects at the same time, this one stops.

        Raises:
            StoreFailed: S3 cannot be reached, or failed.
        """
        with self._errors(_COLLECTION):
            old = [
                meta["path"]
                for page in list_objects(self._store)
                for meta in page
                if meta["last_modified"] < older_than
            ]
            self._delete([path for path in old if path.startswith(_HOSTED)])
            names = [path.replace("/", "") for path in old if _is_blob(path)]
            retained = set(referenced()) if names else set[str]()
            orphans = iter([name for name in names if name not in retained])
            removed = 0
            while batch := list(islice(orphans, BATCH)):
                if not self._announce(batch):
                    return removed
                removed += self._remove_old(batch, older_than)
                self._announce(())
            return removed

    def host(
        self, name: str, data: bytes, *, mime: str, disposition: str, valid_for: timedelta
    ) -> str:
        """Store a copy of a file for its user, and return a URL of S3 that anybody may read until `valid_for` has passed.

        `name` identifies the copy. It is removed by the first collection a day later.

        Raises:
            StoreError: S3 refused the request, or failed.
        """
        path = f"{_HOSTED}{sha256(name.encode(errors='surrogatepass')).hexdigest()}"
        with self._errors(path):
            attributes = {"Content-Type": mime, "Content-Disposition": disposition}
            obstore.put(self._store, path, data, attributes=attributes)
            return obstore.sign(self._store, "GET", path, valid_for)

    def _put(self, name: str, data: bytes) -> None:
        """Upload the blob if needed, and repeat this until it is certain that no collection has removed it.

        Raises:
            StoreError: collections removed it `ATTEMPTS` times.
        """
        announced = self._announced
        for _ in range(ATTEMPTS):
            self._upload(name, data)
            now = self._await_collection(name)
            self._announced = now
            is_certain = announced is not None and announced.id == now.id
            if is_certain or self._head(name) is not None:
                return
            announced = now
        raise StoreError(f"blob {self._where}/{_path(name)} was removed again and again: try later")

    def _upload(self, name: str, data: bytes) -> None:
        """Store the blob, unless an equal one is stored that is young."""
        path = _path(name)
        if len(data) > MULTIPART_BYTES:
            if not self._is_stored(name, data):
                obstore.put(self._store, path, data, use_multipart=True)
            return
        try:
            obstore.put(self._store, path, data, mode="create")
        except exceptions.AlreadyExistsError:
            if not self._is_stored(name, data):
                obstore.put(self._store, path, data, use_multipart=False)

    def _is_stored(self, name: str, data: bytes) -> bool:
        """Return whether the blob is stored, younger than `FRESH`, and intact by its size and its ETag."""
        stored = self._head(name)
        if stored is None or stored.last_modified < self._clock.now() - FRESH:
            return False
        if stored.size != len(data):
            return False
        is_md5 = stored.e_tag == md5(data, usedforsecurity=False).hexdigest()
        return is_md5 or "-" in stored.e_tag

    def _remember(self, name: str) -> None:
        with self._lock:
            self._recent.pop(name, None)
            self._recent[name] = time.monotonic()
            while len(self._recent) > RECENT_BLOBS:
                self._recent.popitem(last=False)

    def _was_put_now(self, name: str) -> bool:
        with self._lock:
            put_at = self._recent.get(name)
        return put_at is not None and time.monotonic() - put_at < RECENT_SECONDS

    def _head(self, name: str) -> _Stored | None:
        try:
            meta = obstore.head(self._store, _path(name))
        except FileNotFoundError:
            return None
        return _Stored(meta["last_modified"], meta["size"], (meta["e_tag"] or "").strip('"'))

    def _await_collection(self, name: str) -> _Announcement:
        """Return the announcement once it does not list the blob, or has not changed for `abandoned_seconds`."""
        started, current = time.monotonic(), self._announcement()
        while name in current.names:
            time.sleep(WAIT_SECONDS)
            again = self._announcement()
            if again.id != current.id:
                started, current = time.monotonic(), again
            elif time.monotonic() - started > self._timeouts.abandoned_seconds:
                break
        return current

    def _announcement(self) -> _Announcement:
        """Read the announcement of the running collection; return an empty one if there has been no collection."""
        try:
            stored_object = obstore.get(self._store, _COLLECTION)
            lines = bytes(stored_object.bytes()).decode(errors="replace").splitlines()
        except FileNotFoundError:
            return _Announcement()
        meta = stored_object.meta
        return _Announcement(
            lines[0] if lines else "", frozenset(lines[1:]), meta["e_tag"], meta["last_modified"]
        )

    def _announce(self, names: Sequence[str]) -> bool:
        """Announce that these orphans are removed now, or without names that none is.

        Return False if another process collects.
        """
        current = self._announcement()
        id = self._clock.new_id()
        if current.names and names and current.written is not None:
            age = self._clock.now() - current.written
            if age < timedelta(seconds=self._timeouts.abandoned_seconds):
                return False
        mode: PutMode = {"e_tag": current.e_tag} if current.e_tag else "create"
        try:
            obstore.put(self._store, _COLLECTION, "\n".join([id, *names]).encode(), mode=mode)
        except (exceptions.PreconditionError, exceptions.AlreadyExistsError):
            return False
        return True

    def _remove_old(self, names: Sequence[str], older_than: datetime) -> int:
        """Remove those of the announced orphans that are still old; return their number.

        Raises:
            StoreFailed: S3 was too slow. The announcement stays until another collection replaces it.
        """
        started = time.monotonic()
        stored = {name: self._head(name) for name in names}
        old = [
            name
            for name, stored_object in stored.items()
            if stored_object and stored_object.last_modified < older_than
        ]
        if time.monotonic() - started > BATCH_SECONDS:
            raise StoreFailed(
                f"{self._where} is too slow to collect its orphans: it is tried later"
            )
        self._delete_blobs(old)
        return len(old)

    def _delete_blobs(self, names: Collection[str]) -> None:
        for name in names:
            self._cache.remove(name)
            with self._lock:
                self._recent.pop(name, None)
        self._delete([_path(name) for name in names])

    def _delete(self, paths: Sequence[str]) -> None:
        if paths:
            obstore.delete(self._store, paths)

    @contextmanager
    def _errors(self, path: str) -> Generator[None]:
        """Raise errors of S3 as errors of the store."""
        try:
            yield
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise _store_error(f"{self._where}/{path}", error) from error


@dataclass(frozen=True, slots=True)
class _Stored:
    """What S3 says of a stored object; the ETag is the MD5 of its bytes unless it is encrypted or came in parts."""

    last_modified: datetime
    size: int
    e_tag: str


class _ByteCache:
    """The blobs that were used last, of at most `limit` bytes together; safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, name: str) -> bytes | None:
        """Return the blob, or None."""
        with self._lock:
            data = self._blobs.get(name)
            if data is not None:
                self._blobs.move_to_end(name)
            return data

    def put(self, name: str, data: bytes) -> None:
        """Keep a blob, and drop those that were not used for the longest time; one above the limit is not kept."""
        with self._lock:
            if len(data) > self._limit or name in self._blobs:
                return
            self._blobs[name] = data
            self._size += len(data)
            while self._size > self._limit:
                _, dropped = self._blobs.popitem(last=False)
                self._size -= len(dropped)

    def remove(self, name: str) -> None:
        """Drop a blob, if it is kept."""
        with self._lock:
            self._size -= len(self._blobs.pop(name, b""))


def _path(name: str) -> str:
    return f"{name[:2]}/{name[2:]}"


def _is_blob(path: str) -> bool:
    return len(path) == 65 and path[2] == "/"


def _store_error(where: str, error: Exception) -> StoreError:
    """Convert the error to StoreError if S3 refused access or a setting is invalid, to StoreFailed otherwise."""
    # The messages of the library can be long and may quote the answer of the server.
    reason = " ".join(str(error).partition("Debug source")[0].split())[:300]
    match error:
        case (
            exceptions.PermissionDeniedError()
            | exceptions.UnauthenticatedError()
            | PermissionError()
        ):
            return StoreError(
                f"S3 refused {where}: check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and their "
                f"rights to get, put, delete and list ({reason})"
            )
        case ValueError() | exceptions.UnknownConfigurationKeyError():
            return StoreError(f"{where} cannot be used: {reason}")
        case _:
            return StoreFailed(
                f"S3 failed for {where}: check that it is reachable and the bucket exists, then try again ({reason})"
            )
