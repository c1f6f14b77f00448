"""The project of a new bundle, which runs and has a test."""

from __future__ import annotations

import json
import keyword
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template
from unicodedata import normalize
from urllib.parse import unquote, urlsplit

from loopline.errors import BundleError
from loopline.models import Json

TEMPLATE = Path(__file__).parent / "template"
SUFFIX = ".tmpl"

_FOREIGN = re.compile(r"[^A-Za-z0-9]+")
_TAKEN = {"loopline", "test", "tests"}


def create(name: str, parent: Path, loopline: Installation) -> Path:
    """Write the project of a new bundle into the folder `<parent>/<name>`, and return that.

    The project depends on that Loopline, and its README says how its tests are run.

    Raises:
        BundleError: the folder exists, or a package cannot have that name; the message says what would
            work.
    """
    _check(name)
    project = parent / name
    if project.exists():
        raise BundleError(f"{project} exists: choose another name or folder, nothing was written")
    words = {"name": name, "workflow": _class_name(name), **_dependency(loopline)}
    for file in sorted(TEMPLATE.rglob(f"*{SUFFIX}")):
        target = project / _target(file.relative_to(TEMPLATE), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Template(file.read_text("utf-8")).substitute(words), "utf-8")
    return project


def _dependency(loopline: Installation) -> dict[str, str]:
    """Return the template's values that say where Loopline is installed from."""
    source = f"\n[tool.uv.sources]\nloopline = {loopline.source}\n" if loopline.source else ""
    return {
        "requirement": loopline.requirement,
        "source": source,
        "arguments": loopline.words,
        "place": loopline.location,
    }


def _check(name: str) -> None:
    if not name.isidentifier() or not name.isascii() or name.startswith("_"):
        raise BundleError(f"{name!r} cannot name a package: {_possible(name)!r} would work")
    reserved = keyword.iskeyword(name) or name in sys.stdlib_module_names or name in _TAKEN
    if reserved:
        raise BundleError(
            f"{name!r} is taken in Python: {_possible(f'{name}_bundle')!r} would work"
        )


def _possible(name: str) -> str:
    """Return a name like this one that a package can have."""
    letters = normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = _FOREIGN.sub("_", letters).strip("_").lower()
    if not plain or plain[0].isdigit():
        plain = f"bundle_{plain}".strip("_")
    is_taken = keyword.iskeyword(plain) or plain in sys.stdlib_module_names or plain in _TAKEN
    return f"{plain}_bundle" if is_taken else plain


def _class_name(name: str) -> str:
    """Return the name of the workflow's class: `TeaShop` for `tea_shop`."""
    joined = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    return f"{joined}Workflow" if joined in _NAMES_IN_USE else joined


def _target(file: Path, name: str) -> Path:
    parts = [part.removesuffix(SUFFIX).replace("package", name) for part in file.parts]
    return Path(*parts)


_NAMES_IN_USE = {"BaseWorkflow", "Bundle", "TurnPayload", "TurnResult"}


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
        """The requirement for a project's `dependencies`: this version or a newer one."""
        return f"loopline>={self.version}"

    @property
    def location(self) -> str:
        """The place that it was installed from, as Markdown."""
        if not self.arguments:
            return "your package index"
        return f"`{self.arguments[-1]}`, where it was installed from when this was written"

    @property
    def words(self) -> str:
        """The arguments quoted for a shell, with a space after each."""
        return "".join(f"{shlex.quote(argument)} " for argument in self.arguments)

    @classmethod
    def now(cls) -> Installation:
        """Return the installation of the Loopline that runs, as its installer recorded it."""
        from importlib.metadata import distribution

        ours = distribution("loopline")
        return installation_of(ours.version, ours.read_text("direct_url.json"))


def installation_of(version: str, record: str | None) -> Installation:
    """Return the installation of a direct URL's record (PEP 610); an index leaves no record."""
    origin: Json = json.loads(record) if record else None
    match origin:
        case {"url": str(url), "dir_info": {"editable": True}}:
            path = _url_path(url)
            return _installed_from(version, ("-e", path), f"path = {_toml(path)}, editable = true")
        case {"url": str(url), "vcs_info": {"vcs": "git", "commit_id": str(commit)}}:
            requirement = f"loopline @ git+{url}@{commit}"
            return _installed_from(
                version, (requirement,), f"git = {_toml(url)}, rev = {_toml(commit)}"
            )
        case {"url": str(url)} if url.startswith("file:"):
            path = _url_path(url)
            return _installed_from(version, (path,), f"path = {_toml(path)}")
        case {"url": str(url), "archive_info": _}:
            return _installed_from(version, (f"loopline @ {url}",), f"url = {_toml(url)}")
        case _:
            return Installation(version=version)


def _installed_from(version: str, arguments: tuple[str, ...], source: str) -> Installation:
    return Installation(version=version, arguments=arguments, source=f"{{ {source} }}")


def _url_path(url: str) -> str:
    return unquote(urlsplit(url).path)


def _toml(text: str) -> str:
    """Return the text as a basic string of TOML, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False)
