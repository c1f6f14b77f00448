"""A new bundle: a project that runs, is tested, and can be changed from there."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from string import Template
from unicodedata import normalize

from loopline.bundle.installation import Installation
from loopline.errors import BundleError

TEMPLATE = Path(__file__).parent / "template"
SUFFIX = ".tmpl"

_FOREIGN = re.compile(r"[^A-Za-z0-9]+")
_TAKEN = {"loopline", "test", "tests"}


def create(name: str, parent: Path, loopline: Installation) -> Path:
    """Write the project of a new bundle into the folder `<parent>/<name>`, which is returned.

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
    """The words of the template that say where Loopline is taken from."""
    source = f"\n[tool.uv.sources]\nloopline = {loopline.source}\n" if loopline.source else ""
    return {
        "requirement": loopline.requirement,
        "source": source,
        "arguments": loopline.words,
        "place": loopline.place,
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
    """A name like this one that a package can have."""
    letters = normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = _FOREIGN.sub("_", letters).strip("_").lower()
    if not plain or plain[0].isdigit():
        plain = f"bundle_{plain}".strip("_")
    taken = keyword.iskeyword(plain) or plain in sys.stdlib_module_names or plain in _TAKEN
    return f"{plain}_bundle" if taken else plain


def _class_name(name: str) -> str:
    """The workflow's class: `TeaShop` for `tea_shop`."""
    joined = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    return f"{joined}Workflow" if joined in _NAMES_IN_USE else joined


def _target(file: Path, name: str) -> Path:
    parts = [part.removesuffix(SUFFIX).replace("package", name) for part in file.parts]
    return Path(*parts)


_NAMES_IN_USE = {"BaseWorkflow", "Bundle", "TurnPayload", "TurnResult"}
