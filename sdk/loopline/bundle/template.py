"""Creates the files of a new bundle, which can be run and tested at once."""

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


def create(name: str, parent: Path, loopline: Installation, *, package: bool = False) -> Path:
    """Write a new bundle into the folder `<parent>/<name>`, and return the folder.

    It is one module, with a test and a README. With `package` it is a project with a package, descriptors, a skill and
    tests, which depends on the given installation of Loopline. The README says how to run the tests.

    Raises:
        BundleError: the folder exists, or the name cannot be that of a package; the message suggests a name.
    """
    _check(name)
    project = parent / name
    if project.exists():
        raise BundleError(f"{project} exists: choose another name or folder, nothing was written")
    source = f"\n[tool.uv.sources]\nloopline = {loopline.source}\n" if loopline.source else ""
    words = {
        "name": name,
        "workflow": _class_name(name),
        "requirement": loopline.requirement,
        "source": source,
        "arguments": loopline.words,
        "packages": loopline.words or "loopline ",
        "with_loopline": loopline.with_words,
        "place": loopline.location,
    }
    layout = "package" if package else "module"
    for file in sorted((TEMPLATE / layout).rglob(f"*{SUFFIX}")):
        parts = file.relative_to(TEMPLATE / layout).parts
        target = project.joinpath(
            *(part.removesuffix(SUFFIX).replace(layout, name) for part in parts)
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Template(file.read_text("utf-8")).substitute(words), "utf-8")
    return project


def _check(name: str) -> None:
    if not name.isidentifier() or not name.isascii() or name.startswith("_"):
        raise BundleError(f"{name!r} cannot be the name of a package: use {_suggest_name(name)!r}")
    reserved = keyword.iskeyword(name) or name in sys.stdlib_module_names or name in _TAKEN
    if reserved:
        raise BundleError(f"{name!r} is taken in Python: use {_suggest_name(f'{name}_bundle')!r}")


def _suggest_name(name: str) -> str:
    """Return a similar name that a package can have."""
    letters = normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = _FOREIGN.sub("_", letters).strip("_").lower()
    if not plain or plain[0].isdigit():
        plain = f"bundle_{plain}".strip("_")
    is_taken = keyword.iskeyword(plain) or plain in sys.stdlib_module_names or plain in _TAKEN
    return f"{plain}_bundle" if is_taken else plain


def _class_name(name: str) -> str:
    """Return the class name of the workflow: `TeaShop` for `tea_shop`."""
    joined = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    return f"{joined}Workflow" if joined in _NAMES_IN_USE else joined


_NAMES_IN_USE = {"BaseWorkflow", "Bundle", "TurnPayload", "TurnResult"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A version of Loopline, and the source from which it was installed.

    `arguments` are the arguments of `pip install` for the source, and `source` is its entry in `tool.uv.sources` of uv, as
    TOML. Both are empty for a package index.
    """

    version: str
    arguments: tuple[str, ...] = ()
    source: str = ""

    @property
    def requirement(self) -> str:
        """The requirement for the `dependencies` of a project: this version or a newer one."""
        return f"loopline>={self.version}"

    @property
    def location(self) -> str:
        """The source of the installation, as Markdown."""
        if not self.arguments:
            return "your package index"
        return f"`{self.arguments[-1]}`, where it was installed from when this was written"

    @property
    def words(self) -> str:
        """The arguments of `pip install`, quoted for a shell, with a space after each."""
        return "".join(f"{shlex.quote(argument)} " for argument in self.arguments)

    @property
    def with_words(self) -> str:
        """The options of `uv run` that add Loopline from its source, quoted for a shell, with a space at the end."""
        match self.arguments:
            case ("-e", path):
                return f"--with-editable {shlex.quote(path)} "
            case (source,):
                return f"--with {shlex.quote(source)} "
            case _:
                return "--with loopline "

    @classmethod
    def now(cls) -> Installation:
        """Return the installation of the running Loopline, as the installer recorded it."""
        from importlib.metadata import distribution

        ours = distribution("loopline")
        return installation_of(ours.version, ours.read_text("direct_url.json"))


def installation_of(version: str, record: str | None) -> Installation:
    """Return the installation from the content of `direct_url.json` (PEP 610); None means a package index."""
    origin: Json = json.loads(record) if record else None
    match origin:
        case {"url": str(url), "dir_info": {"editable": True}}:
            path = _url_path(url)
            return _make_installation(
                version, ("-e", path), f"path = {_toml(path)}, editable = true"
            )
        case {"url": str(url), "vcs_info": {"vcs": "git", "commit_id": str(commit)}}:
            requirement = f"loopline @ git+{url}@{commit}"
            return _make_installation(
                version, (requirement,), f"git = {_toml(url)}, rev = {_toml(commit)}"
            )
        case {"url": str(url)} if url.startswith("file:"):
            path = _url_path(url)
            return _make_installation(version, (path,), f"path = {_toml(path)}")
        case {"url": str(url), "archive_info": _}:
            return _make_installation(version, (f"loopline @ {url}",), f"url = {_toml(url)}")
        case _:
            return Installation(version=version)


def _make_installation(version: str, arguments: tuple[str, ...], source: str) -> Installation:
    return Installation(version=version, arguments=arguments, source=f"{{ {source} }}")


def _url_path(url: str) -> str:
    return unquote(urlsplit(url).path)


def _toml(text: str) -> str:
    """Quote the text as a basic string of TOML, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)
