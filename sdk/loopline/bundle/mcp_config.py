"""MCP servers as a standard `.mcp.json` declares them, and the tools that a bundle takes from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from loopline.errors import BundleError, ToolError
from loopline.models import Json, dumps
from loopline.models.safe_text import MIN_SECRET_CHARACTERS, secrets_in

MCP_FILE = ".mcp.json"
START_SECONDS = 20.0
"""Seconds that a server has to start and to list its tools."""
EVERYTHING = ("*",)
PORTS = 65_536

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*+)(?::-(?P<default>[^{}]*+))?\}")
_SECRET_NAME = re.compile(r"key|token|secret|password|auth|cookie|credential", re.IGNORECASE)
_INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "TMPDIR", "VIRTUAL_ENV")
"""The variables that every started server gets; others are named in its `env`."""
_REVISION = 2
"""Part of every digest: another number makes all kept tools stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSelection:
    """The tools of one server that a bundle offers under an alias; `tools` are names or patterns."""

    server_id: str
    alias: str
    tools: tuple[str, ...] = EVERYTHING
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpOAuthSettings:
    """What a server over HTTP is signed in to with, where it does not register clients: a client that it knows.

    `callback_port` is the port of this machine that the browser is sent to, 0 for any.
    """

    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    callback_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class McpConnectionSettings:
    """How a server is reached, with every variable filled in: a command, or an URL.

    `secrets` are the values that no text may show.
    """

    command: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: Path | None = None
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    oauth: McpOAuthSettings = field(default_factory=McpOAuthSettings)

    @property
    def signs_in(self) -> bool:
        """Return whether the server may ask for a sign-in: it is one over HTTP, and no header has a key for it."""
        return bool(self.url) and not any(name.lower() == "authorization" for name in self.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerFields:
    """The fields of a server as they are written, with the names that the standard gives them."""

    type: str = ""
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str = ""
    url: str = field(default="", repr=False)
    headers: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    oauth: dict[str, str | int] = field(default_factory=dict[str, str | int], repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerEntry:
    """A server as its file has it, before variables are filled in."""

    name: str
    file: Path
    fields: McpServerFields
    oauth: McpOAuthSettings = field(default_factory=McpOAuthSettings)

    @property
    def digest(self) -> str:
        """Return what changes when other tools may be behind the entry; no value of a variable is part of it."""
        fields = self.fields
        names = sorted({*fields.env, *fields.headers})
        parts = [fields.command, *fields.args, fields.cwd, fields.url, *names]
        return sha256(dumps([_REVISION, *parts]).encode()).hexdigest()[:32]

    def resolve(self, environment: Mapping[str, str]) -> McpConnectionSettings:
        """Fill in the variables.

        Raises:
            ToolError: a variable without a default is not set.
        """
        filled, fields = _FilledTexts(self, environment), self.fields
        command = tuple(filled.text(part) for part in (fields.command, *fields.args))
        env = {name: environment[name] for name in _INHERITED if name in environment}
        env |= {name: filled.value(name, text) for name, text in fields.env.items()}
        headers = {name: filled.value(name, text) for name, text in fields.headers.items()}
        url = filled.text(fields.url)
        filled.secrets.update(secrets_in(url))
        oauth = replace(
            self.oauth,
            client_id=filled.text(self.oauth.client_id),
            client_secret=filled.value("secret", self.oauth.client_secret),
        )
        return McpConnectionSettings(
            command=command if fields.command else (),
            env=env,
            cwd=self.file.parent / filled.text(fields.cwd),
            url=url,
            headers=headers,
            secrets=tuple(sorted(filled.secrets, key=len, reverse=True)),
            oauth=oauth,
        )


class _FilledTexts:
    """The texts of an entry with their variables filled in, and the secrets that were in them."""

    def __init__(self, entry: McpServerEntry, environment: Mapping[str, str]) -> None:
        self._entry = entry
        self._environment = environment
        self.secrets: set[str] = set()

    def text(self, text: str) -> str:
        return _VARIABLE.sub(self._of_variable, text)

    def value(self, name: str, text: str) -> str:
        """Return a header or a variable of the server; its name may say that it is secret."""
        filled = self.text(text)
        if _SECRET_NAME.search(name):
            self._hide(filled)
            self._hide(filled.removeprefix("Bearer ").strip())
        return filled

    def _of_variable(self, match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        value = self._environment.get(name)
        if value:
            self._hide(value)
            return value
        if default is None:
            entry = self._entry
            raise ToolError(
                f"the MCP server {entry.name!r} needs the variable {name}, which {entry.file} names: set it"
            )
        return str(default)

    def _hide(self, value: str) -> None:
        if len(value) >= MIN_SECRET_CHARACTERS:
            self.secrets.add(value)


def read_mcp_file(file: Path) -> dict[str, McpServerEntry]:
    """Return the servers of a `.mcp.json` by name; keys that are not known are left alone.

    Raises:
        BundleError: it is not such a file; the message names the server and the field.
    """
    from pydantic import ValidationError

    try:
        servers = _servers(json.loads(file.read_bytes()))
    except OSError as error:
        raise BundleError(f"{file}: it cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field_path = ".".join(map(str, ("mcpServers", *first["loc"])))
        raise BundleError(f"{file}: {field_path}: {first['msg']}") from None
    except ValueError as error:
        raise BundleError(f"{file}: {error}") from None
    return {name: _entry(name, file, fields) for name, fields in servers.items()}


def _servers(document: Json) -> dict[str, McpServerFields]:
    from pydantic import TypeAdapter

    match document:
        case {"mcpServers": servers}:
            return TypeAdapter(dict[str, McpServerFields]).validate_python(servers)
        case _:
            raise ValueError('write {"mcpServers": {"name": {"command": "…"}}}')


def _entry(name: str, file: Path, fields: McpServerFields) -> McpServerEntry:
    kind = fields.type or ("http" if fields.url else "stdio")
    if kind not in ("stdio", "http", "streamable-http"):
        raise BundleError(f"{file}: the server {name!r} has the type {kind!r}: use stdio or http")
    key, value = ("command", fields.command) if kind == "stdio" else ("url", fields.url)
    if not value:
        raise BundleError(f"{file}: the server {name!r} has no {key!r}")
    if fields.command and fields.url:
        raise BundleError(
            f"{file}: the server {name!r} has both a 'command' and a 'url': leave out one"
        )
    return McpServerEntry(name=name, file=file, fields=fields, oauth=_oauth(name, file, fields))


def _oauth(name: str, file: Path, fields: McpServerFields) -> McpOAuthSettings:
    match {"clientId": "", "clientSecret": "", "scope": "", "callbackPort": 0, **fields.oauth}:
        case {
            "clientId": str(client_id),
            "clientSecret": str(secret),
            "scope": str(scope),
            "callbackPort": int(port),
            **others,
        } if not others and 0 <= port < PORTS:
            return McpOAuthSettings(
                client_id=client_id, client_secret=secret, scope=scope, callback_port=port
            )
        case _:
            raise BundleError(
                f"{file}: oauth of the server {name!r} has other fields than clientId, clientSecret, scope "
                "and callbackPort, a number"
            )
