"""Principals: the senders of requests, and the API keys that authenticate them."""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from secrets import token_hex, token_urlsafe
from typing import Literal, Protocol

from msgspec import DecodeError, Struct, json

from loopline import timeline
from loopline.clock import Clock, SystemClock
from loopline.errors import LooplineError
from loopline.names import nearest_hint
from loopline.reader import check_name
from loopline.shared_files import lock_file, replace_file

PRIVILEGED = "privileged"
"""The role that may read the conversations of all users of its tenant and project."""
APPROVER = "approver"
"""The role that may give the further approvals of calls which several people must approve, in conversations of other users."""
KEY_PREFIX = "llk"
_KEY = re.compile(rf"{KEY_PREFIX}_([0-9a-f]{{16}})_[A-Za-z0-9_-]{{43}}")
_log = logging.getLogger("loopline")
_NO_DIGEST = "0" * 64


class Unauthenticated(LooplineError):
    """A token is missing, wrong or expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The sender of a request. Every field comes from the token, never from a path or a body."""

    tenant: str = timeline.DEFAULT_TENANT
    project: str = timeline.DEFAULT_PROJECT
    user: str = timeline.DEFAULT_USER
    roles: frozenset[str] = frozenset()

    @property
    def is_privileged(self) -> bool:
        """Whether the sender may read conversations of other users."""
        return PRIVILEGED in self.roles

    def conversation(self, name: str) -> timeline.ConversationKey:
        """Return the key of a conversation of this user."""
        return timeline.ConversationKey(
            name=name, user=self.user, tenant=self.tenant, project=self.project
        )


class Authenticator(Protocol):
    """Authenticates the bearer token of a request."""

    async def authenticate(self, token: str) -> Principal:
        """Return the principal of the token. The token is empty if the request has none.

        Raises:
            Unauthenticated: the token is missing, wrong or expired. The message never contains the token.
        """
        ...


class LocalUser:
    """Authenticates every request as the user of this machine; only for a server that listens on loopback."""

    def __init__(self, principal: Principal | None = None) -> None:
        self.principal: Principal = principal or Principal()

    async def authenticate(self, token: str) -> Principal:
        """Return the user of this machine for any token."""
        del token
        return self.principal


class StoredKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stored API key: its id, the SHA-256 of the key, its owner, and the time with a zone when it expires; "" is never."""

    id: str
    sha256: str
    tenant: str
    project: str
    user: str
    roles: tuple[str, ...]
    expires: str

    def __post_init__(self) -> None:
        if self.expires and datetime.fromisoformat(self.expires).tzinfo is None:
            raise ValueError(f"expires {self.expires!r} has no time zone, such as Z")

    def __repr__(self) -> str:
        return f"StoredKey({self.id!r})"


_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]{1,100})`")


class _KeyFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The document in a file of API keys."""

    version: Literal[1]
    keys: tuple[StoredKey, ...]


class ApiKeys:
    """API keys. Only their SHA-256 is stored: a key has 256 random bits, so it cannot be found by trying.

    A file of keys is read again when it has changed, so a new or revoked key counts at once.
    """

    def __init__(self, keys: Sequence[StoredKey], clock: Clock | None = None) -> None:
        self._keys = {key.id: key for key in keys}
        self._clock = clock or SystemClock()
        self._path: Path | None = None
        self._stamp = (0, 0, 0)

    @classmethod
    def read(cls, path: Path, clock: Clock | None = None) -> ApiKeys:
        """Read the keys of a file that `add_key` wrote; a missing file has no keys.

        Raises:
            LooplineError: the file cannot be read, or is not a file of API keys.
        """
        stamp = _stamp(path)
        keys = cls(read_keys(path), clock)
        keys._path = path
        keys._stamp = stamp
        return keys

    def _read_changes(self) -> None:
        """Read the file again if it has changed. If it is missing or malformed, no key is valid.

        A file that cannot be read is tried again for each token.
        """
        if self._path is None or (stamp := _stamp(self._path)) == self._stamp:
            return
        try:
            self._keys = {key.id: key for key in read_keys(self._path)}
        except LooplineError as error:
            if self._keys:
                _log.error("all API keys are refused: %s", error)
            self._keys = {}
        else:
            self._stamp = stamp

    async def authenticate(self, token: str) -> Principal:
        """Return the owner of a key. If the file of keys has changed, it is read first.

        Raises:
            Unauthenticated: the key is missing, unknown or expired.
        """
        self._read_changes()
        match = _KEY.fullmatch(token)
        key = self._keys.get(match[1]) if match else None
        digest = sha256(token.encode(errors="surrogatepass")).hexdigest()
        # An unknown key costs the same comparison as a known one, so its time reveals nothing.
        is_right = hmac.compare_digest(digest, key.sha256 if key else _NO_DIGEST)
        if key is None or not is_right:
            raise Unauthenticated("the API key is missing or unknown")
        if key.expires and datetime.fromisoformat(key.expires) <= self._clock.now():
            raise Unauthenticated("the API key has expired: ask for a new one")
        return Principal(
            tenant=key.tenant, project=key.project, user=key.user, roles=frozenset(key.roles)
        )


class FirstOf:
    """Tries several authenticators in order. The first that accepts the token decides."""

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = authenticators

    async def authenticate(self, token: str) -> Principal:
        """Return the principal from the first authenticator that accepts the token.

        Raises:
            Unauthenticated: all of them refuse; the message joins their reasons.
        """
        problems: list[str] = []
        for authenticator in self._authenticators:
            try:
                return await authenticator.authenticate(token)
            except Unauthenticated as error:
                problems.append(str(error))
        raise Unauthenticated("; ".join(problems) or "the server has no authenticator")


def read_keys(path: Path) -> Sequence[StoredKey]:
    """Read the keys of a file. A missing file has no keys.

    Raises:
        LooplineError: the file cannot be read, or is not a file of API keys.
    """
    try:
        return json.decode(path.read_bytes(), type=_KeyFile).keys
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise LooplineError(f"{path}: the file cannot be read: {error}") from error
    except (DecodeError, RecursionError) as error:
        unknown = _UNKNOWN_FIELD.search(f"{error}")
        names = [*_KeyFile.__struct_fields__, *StoredKey.__struct_fields__]
        hint = f"{unknown[1]!r}, {nearest_hint(unknown[1], names)}" if unknown else f"{error}"
        message = f"{path}: this is not a file of API keys, version 1: {hint}"
        raise LooplineError(message) from error


def new_key(principal: Principal, expires: datetime | None = None) -> tuple[str, StoredKey]:
    """Create a key. Return its text, which is not stored, and the stored key.

    Raises:
        LooplineError: a name of the principal is not valid.
    """
    for kind in ("tenant", "project", "user"):
        check_name(kind, getattr(principal, kind), is_in_url=True)
    key_id = token_hex(8)
    key = f"{KEY_PREFIX}_{key_id}_{token_urlsafe(32)}"
    stored = StoredKey(
        id=key_id,
        sha256=sha256(key.encode()).hexdigest(),
        tenant=principal.tenant,
        project=principal.project,
        user=principal.user,
        roles=tuple(sorted(principal.roles)),
        expires=timeline.iso_time(expires) if expires else "",
    )
    return key, stored


def add_key(path: Path, principal: Principal, expires: datetime | None = None) -> str:
    """Create a key, add it to a file that only its owner can read, and return the text of the key.

    Raises:
        LooplineError: a name of the principal is not valid, or the file cannot be read or written.
    """
    key, stored = new_key(principal, expires)
    _rewrite(path, lambda keys: [*keys, stored])
    return key


def revoke_key(path: Path, key_id: str) -> bool:
    """Remove the key of an id, or of the text of a key, from a file. Return whether the file had it.

    Raises:
        LooplineError: the file cannot be read or written.
    """
    match = _KEY.fullmatch(key_id)
    revoked = match[1] if match else key_id
    before = _rewrite(path, lambda keys: [key for key in keys if key.id != revoked])
    return any(key.id == revoked for key in before)


def _rewrite(
    path: Path, change: Callable[[Sequence[StoredKey]], Sequence[StoredKey]]
) -> Sequence[StoredKey]:
    """Replace the keys of the file by `change(keys)`, and return the earlier ones. Only the owner can read the new file.

    Processes wait for each other.

    Raises:
        LooplineError: the file cannot be read or written.
    """
    try:
        with lock_file(path.with_name(f".{path.name}.lock")):
            before = read_keys(path)
            document = _KeyFile(1, tuple(change(before)))
            replace_file(path, json.format(json.encode(document), indent=1), sync=True)
    except OSError as error:
        raise LooplineError(f"{path}: the file cannot be written: {error.strerror}") from error
    return before


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return the inode, modification time and size of a file; zeros if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return status.st_ino, status.st_mtime_ns, status.st_size
