"""Principals: who sends a request, as the token says, and how tokens are checked."""

from __future__ import annotations

import fcntl
import hmac
import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from secrets import token_hex, token_urlsafe
from typing import Protocol

from loopline.clock import Clock, SystemClock
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject
from loopline.names import nearest_hint
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    DEFAULT_USER,
    ConversationKey,
    iso_time,
)

PRIVILEGED = "privileged"
"""The role that may read the conversations of other users of its tenant and project."""
KEY_PREFIX = "llk"
_KEY = re.compile(rf"{KEY_PREFIX}_([0-9a-f]{{16}})_[A-Za-z0-9_-]{{43}}")
_FIELDS = ("id", "sha256", "tenant", "project", "user", "roles", "expires")
_log = logging.getLogger("loopline")
_NO_DIGEST = "0" * 64


class Unauthenticated(LooplineError):
    """A token is missing, wrong or expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The sender of a request. All of it comes from the token, never from a path or a body."""

    tenant: str = DEFAULT_TENANT
    project: str = DEFAULT_PROJECT
    user: str = DEFAULT_USER
    roles: frozenset[str] = frozenset()

    @property
    def is_privileged(self) -> bool:
        """Return whether other users' conversations may be read."""
        return PRIVILEGED in self.roles

    def conversation(self, name: str) -> ConversationKey:
        """Return the key of a conversation of this user."""
        return ConversationKey(name=name, user=self.user, tenant=self.tenant, project=self.project)


class Authenticator(Protocol):
    """Checks the bearer token of a request."""

    async def authenticate(self, token: str) -> Principal:
        """Return the principal of the token, which is empty if the request has none.

        Raises:
            Unauthenticated: the token is missing, wrong or expired. The message never holds the token.
        """
        ...


class LocalUser:
    """Takes every request for one of the user of this machine; only for a server that listens on loopback."""

    def __init__(self, principal: Principal | None = None) -> None:
        self.principal: Principal = principal or Principal()

    async def authenticate(self, token: str) -> Principal:
        """Return the user of this machine."""
        del token
        return self.principal


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """An API key as it is stored: its digest, and whose it is. `expires` is None for never."""

    key_id: str
    digest: str = field(repr=False)
    principal: Principal
    expires: datetime | None = None


class ApiKeys:
    """API keys, of which only the SHA-256 is stored: they are 256 random bits, so nobody can search for one.

    A file of keys is read again when it has changed, so that a new or a revoked key counts at once.
    """

    def __init__(self, keys: Sequence[StoredKey], clock: Clock | None = None) -> None:
        self._keys = {key.key_id: key for key in keys}
        self._clock = clock or SystemClock()
        self._path: Path | None = None
        self._stamp = (0, 0, 0)

    @classmethod
    def read(cls, path: Path, clock: Clock | None = None) -> ApiKeys:
        """Read the keys of a file that `add_key` wrote.

        Raises:
            LooplineError: it cannot be read, or is no such file.
        """
        stamp = _stamp(path)
        keys = cls(read_keys(path), clock)
        keys._path, keys._stamp = path, stamp
        return keys

    def _read_changes(self) -> None:
        """Read the file again if it is another one; one that is gone or damaged has no keys.

        One that cannot be read has none either until it can: it is read again for each token.
        """
        if self._path is None or (stamp := _stamp(self._path)) == self._stamp:
            return
        try:
            self._keys = {key.key_id: key for key in read_keys(self._path)}
        except LooplineError as error:
            if self._keys:
                _log.error("nobody is let in: %s", error)
            self._keys = {}
        else:
            self._stamp = stamp

    async def authenticate(self, token: str) -> Principal:
        """Return the principal of a key."""
        self._read_changes()
        match = _KEY.fullmatch(token)
        key = self._keys.get(match[1]) if match else None
        digest = sha256(token.encode(errors="surrogatepass")).hexdigest()
        # A key that is unknown costs the same comparison as one that is known.
        is_right = hmac.compare_digest(digest, key.digest if key else _NO_DIGEST)
        if key is None or not is_right:
            raise Unauthenticated("the API key is missing or unknown")
        if key.expires is not None and key.expires <= self._clock.now():
            raise Unauthenticated("the API key has expired: ask for a new one")
        return key.principal


class FirstOf:
    """Asks several authenticators in their order; the first that knows the token decides."""

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = authenticators

    async def authenticate(self, token: str) -> Principal:
        """Return the principal of the token."""
        problems: list[str] = []
        for authenticator in self._authenticators:
            try:
                return await authenticator.authenticate(token)
            except Unauthenticated as error:
                problems.append(str(error))
        raise Unauthenticated("; ".join(problems) or "nobody can be authenticated here")


def read_keys(path: Path) -> list[StoredKey]:
    """Return the keys of a file; none if there is no file.

    Raises:
        LooplineError: it cannot be read, or is no file of keys.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise LooplineError(f"{path}: it cannot be read: {error}") from error
    try:
        document: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LooplineError(f"{path}: it is no JSON: {error}") from error
    match document:
        case {"version": 1, "keys": [*rows]}:
            return [_stored_key(row, path) for row in rows]
        case _:
            raise LooplineError(f"{path}: it is no file of API keys, version 1")


def _stored_key(row: Json, path: Path) -> StoredKey:
    for name in row if isinstance(row, dict) else ():
        if name not in _FIELDS:
            hint = nearest_hint(name, _FIELDS)
            raise LooplineError(f"{path}: a key has the unknown field {name!r}, {hint}")
    match row:
        case {
            "id": str(key_id),
            "sha256": str(digest),
            "tenant": str(tenant),
            "project": str(project),
            "user": str(user),
            "roles": [*roles],
            "expires": str(expires),
        }:
            names = frozenset(role for role in roles if isinstance(role, str))
            owner = Principal(tenant=tenant, project=project, user=user, roles=names)
            ends = datetime.fromisoformat(expires) if expires else None
            return StoredKey(key_id=key_id, digest=digest, principal=owner, expires=ends)
        case _:
            raise LooplineError(f"{path}: a key lacks a field, or has one of the wrong type")


def new_key(principal: Principal, expires: datetime | None = None) -> tuple[str, StoredKey]:
    """Return a new key, which is shown once, and what is stored of it."""
    key_id = token_hex(8)
    key = f"{KEY_PREFIX}_{key_id}_{token_urlsafe(32)}"
    digest = sha256(key.encode()).hexdigest()
    return key, StoredKey(key_id=key_id, digest=digest, principal=principal, expires=expires)


def add_key(path: Path, principal: Principal, expires: datetime | None = None) -> str:
    """Add a new key to a file, which only its owner can read, and return the key.

    Raises:
        LooplineError: the file cannot be read or written.
    """
    key, stored = new_key(principal, expires)
    _rewrite(path, lambda keys: [*keys, stored])
    return key


def revoke_key(path: Path, key_id: str) -> bool:
    """Remove the key of that id, or of that whole key, from a file; return whether it was there.

    Raises:
        LooplineError: the file cannot be read or written.
    """
    match = _KEY.fullmatch(key_id)
    revoked, removed = match[1] if match else key_id, list[StoredKey]()

    def without(keys: Sequence[StoredKey]) -> list[StoredKey]:
        removed.extend(key for key in keys if key.key_id == revoked)
        return [key for key in keys if key.key_id != revoked]

    _rewrite(path, without)
    return bool(removed)


def _rewrite(path: Path, change: Callable[[Sequence[StoredKey]], Sequence[StoredKey]]) -> None:
    """Replace the file by one with other keys, which only its owner can read; processes wait for each other.

    Raises:
        LooplineError: it cannot be read or written.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        with path.with_name(f".{path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            rows: list[Json] = [_row(key) for key in change(read_keys(path))]
            new.unlink(missing_ok=True)  # one that a killed process left may have other permissions
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"version": 1, "keys": rows}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
    except OSError as error:
        raise LooplineError(f"{path}: it cannot be written: {error.strerror}") from error


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return what changes with the file: its inode, its time and its size."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return status.st_ino, status.st_mtime_ns, status.st_size


def _row(key: StoredKey) -> JsonObject:
    owner = key.principal
    return {
        "id": key.key_id,
        "sha256": key.digest,
        "tenant": owner.tenant,
        "project": owner.project,
        "user": owner.user,
        "roles": list[Json](sorted(owner.roles)),
        "expires": iso_time(key.expires) if key.expires else "",
    }
