"""The configuration of MCP servers in a standard `.mcp.json`, and the selection of their tools in a bundle."""

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
"""The time in which a server must start and list its tools."""
EVERYTHING = ("*",)
PORTS = 65_536

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*+)(?::-(?P<default>[^{}]*+))?\}")
_SECRET_NAME = re.compile(r"key|token|secret|password|auth|cookie|credential", re.IGNORECASE)
_INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "TMPDIR", "VIRTUAL_ENV")
"""The environment variables that every started server inherits, in addition to those in its `env`."""
_REVISION = 2
"""Part of every digest. Incrementing it invalidates all stored lists of tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSelection:
    """The tools of one server that a bundle offers with an alias. `tools` are names or patterns."""

    server_id: str
    alias: str
    tools: tuple[str, ...] = EVERYTHING
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpOAuthSettings:
    """The OAuth client for a server over HTTP that does not register clients dynamically.

    `callback_port` is the port on this machine to which the browser is redirected, 0 for any free port.
    """

    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    callback_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class McpConnectionSettings:
    """The command or the URL of a server, with all variables replaced.

    `secrets` are the values that must not appear in texts.
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
        """True if the server may require a sign-in: it has a URL, and no `Authorization` header is configured."""
        return bool(self.url) and not any(name.lower() == "authorization" for name in self.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerFields:
    """The fields of a server with the names and values in the file."""

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
    """The entry of a server in its file, before variables are replaced.

    `problem` says why the server cannot be used, without the file, because users may read it; or is empty.
    """

    name: str
    file: Path
    fields: McpServerFields
    problem: str = ""
    oauth: McpOAuthSettings = field(default_factory=McpOAuthSettings)

    @property
    def digest(self) -> str:
        """A digest that changes if the entry may refer to another server. Values of variables are not part of it."""
        fields = self.fields
        names = sorted({*fields.env, *fields.headers})
        parts = [fields.command, *fields.args, fields.cwd, fields.url, *names]
        return sha256(dumps([_REVISION, *parts]).encode()).hexdigest()[:32]

    def resolve(self, environment: Mapping[str, str]) -> McpConnectionSettings:
        """Replace the variables by their values, and collect the secret values.

        The environment of the server is its `env` and a few variables such as `PATH`; its folder is relative to the file.

        Raises:
            ToolError: a variable without a default is not set.
        """
        fields = self.fields
        filled = _VariableReplacer(self, environment)
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


class _VariableReplacer:
    """Replaces the variables in the texts of an entry, and collects secret values."""

    def __init__(self, entry: McpServerEntry, environment: Mapping[str, str]) -> None:
        self._entry = entry
        self._environment = environment
        self.secrets: set[str] = set()

    def text(self, text: str) -> str:
        return _VARIABLE.sub(self._replace, text)

    def value(self, name: str, text: str) -> str:
        """Replace the variables in a text; if `name` suggests a secret, add the result to `secrets`."""
        filled = self.text(text)
        if _SECRET_NAME.search(name):
            self._hide(filled)
            self._hide(filled.removeprefix("Bearer ").strip())
        return filled

    def _replace(self, match: re.Match[str]) -> str:
        """Return the value of a variable, and add it to `secrets`; if it is empty or not set, return the default.

        Raises:
            ToolError: the variable does not have a default.
        """
        name = match["name"]
        default = match["default"]
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
    """Read the servers of a `.mcp.json` by name. Unknown keys are ignored; a server of an unknown type has a `problem`.

    Raises:
        BundleError: the file is missing or not valid; the message names the server and the field.
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
    """Return the fields of each server below `mcpServers`; raise a ValueError if the document has another form."""
    from pydantic import TypeAdapter

    match document:
        case {"mcpServers": servers}:
            return TypeAdapter(dict[str, McpServerFields]).validate_python(servers)
        case _:
            raise ValueError('write {"mcpServers": {"name": {"command": "…"}}}')


def _entry(name: str, file: Path, fields: McpServerFields) -> McpServerEntry:
    """Make the entry of a server. If `type` is missing, it is `http` for a server with a URL, otherwise `stdio`.

    An entry of an unknown type has a `problem`.

    Raises:
        BundleError: the command or the URL that the type needs is missing, both are set, or `oauth` is not valid.
    """
    kind = fields.type or ("http" if fields.url else "stdio")
    if kind not in ("stdio", "http", "streamable-http"):
        problem = f"the server {name!r} has the type {kind!r}: use stdio or http"
        return McpServerEntry(name=name, file=file, fields=fields, problem=problem)
    key, value = ("command", fields.command) if kind == "stdio" else ("url", fields.url)
    if not value:
        raise BundleError(f"{file}: the server {name!r} has no {key!r}")
    if fields.command and fields.url:
        raise BundleError(
            f"{file}: the server {name!r} has both a 'command' and a 'url': leave out one"
        )
    return McpServerEntry(name=name, file=file, fields=fields, oauth=_oauth(name, file, fields))


def _oauth(name: str, file: Path, fields: McpServerFields) -> McpOAuthSettings:
    """Return the OAuth settings of a server; raise a BundleError for an unknown field or an invalid value."""
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
                f"{file}: oauth of the server {name!r} may have the texts clientId, clientSecret and scope, "
                "and the number callbackPort, and no other fields"
            )
