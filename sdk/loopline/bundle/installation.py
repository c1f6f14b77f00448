"""Where the running Loopline was installed from, and how another project takes it from there."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from loopline.models import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A version of Loopline, and the place that it was installed from, if that is not an index.

    `arguments` are what `pip install` is given for that place, `source` is the entry of uv's
    `tool.uv.sources` as TOML. Both are empty for an index, where the name is enough.
    """

    version: str
    arguments: tuple[str, ...] = ()
    source: str = ""

    @property
    def requirement(self) -> str:
        """What a project's `dependencies` say: this version or a newer one."""
        return f"loopline>={self.version}"

    @property
    def place(self) -> str:
        """Where it is taken from, as a page of Markdown says it."""
        if not self.arguments:
            return "your package index"
        return f"`{self.arguments[-1]}`, where it was installed from when this was written"

    @property
    def words(self) -> str:
        """The arguments as a shell takes them, with a space behind each."""
        return "".join(f"{shlex.quote(argument)} " for argument in self.arguments)

    @classmethod
    def now(cls) -> Installation:
        """Read what the installer recorded of the Loopline that runs."""
        from importlib.metadata import distribution

        ours = distribution("loopline")
        return recorded(ours.version, ours.read_text("direct_url.json"))


def recorded(version: str, record: str | None) -> Installation:
    """Read the record of a direct URL that an installer leaves (PEP 610); an index leaves none."""
    origin: Json = json.loads(record) if record else None
    match origin:
        case {"url": str(url), "dir_info": {"editable": True}}:
            path = _path(url)
            return _taken(version, ("-e", path), f"path = {_toml(path)}, editable = true")
        case {"url": str(url), "vcs_info": {"vcs": "git", "commit_id": str(commit)}}:
            place = f"loopline @ git+{url}@{commit}"
            return _taken(version, (place,), f"git = {_toml(url)}, rev = {_toml(commit)}")
        case {"url": str(url)} if url.startswith("file:"):
            path = _path(url)
            return _taken(version, (path,), f"path = {_toml(path)}")
        case {"url": str(url), "archive_info": _}:
            return _taken(version, (f"loopline @ {url}",), f"url = {_toml(url)}")
        case _:
            return Installation(version=version)


def _taken(version: str, arguments: tuple[str, ...], source: str) -> Installation:
    return Installation(version=version, arguments=arguments, source=f"{{ {source} }}")


def _path(url: str) -> str:
    return unquote(urlsplit(url).path)


def _toml(text: str) -> str:
    """A basic string of TOML, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False)
