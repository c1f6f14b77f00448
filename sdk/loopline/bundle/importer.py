"""Imports the code of bundles under unique module names, and converts its errors to errors that name the line.

A bundle that is opened by path is imported as `<name>@<digest of its path>`, so that two folders with the same name do not
conflict. In its modules, relative imports work as usual. `from <name>.tools import x` works as well, because its modules
have an `__import__` that resolves the name of their package; other code in the process is not affected. For a bundle in one
file that `__import__` also finds the modules beside the file, as Python does for a script. A bundle is imported once in a
process, and no cache files are written to its folder.
"""

from __future__ import annotations

import builtins
import importlib
import re
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from loopline.errors import BundleError
from loopline.names import misspelt_for

MARK = "@"
"""A character that is part of every module name made here, and cannot be part of another module name."""

_DIGEST = 8
_OWN = re.compile(rf"{MARK}[0-9a-f]{{{_DIGEST}}}\b")
_FOREIGN = re.compile(r"\W")
_LEVEL = 3
"""The index of the level in the arguments of `__import__` after the name."""

_NO_PACKAGE = "attempted relative import with no known parent package"

_lock = RLock()


_files: dict[str, _File] = {}
"""The files of the packages and modules that are imported by path, by their names in `sys.modules`."""


@dataclass(frozen=True, slots=True)
class _File:
    """The file of a package or module. `folder` has its code, and `root` the modules beside it that it may import."""

    path: Path
    folder: Path
    root: Path | None


def import_path(path: Path, root: Path | None = None) -> ModuleType:
    """Import the package in a folder with an `__init__.py`, or the module in a file. A repeated call returns the same module.

    Code of the module may import the modules and packages in the folder `root` by their names.

    Raises:
        BundleError: the code fails; the message names file and line.
    """
    package = _register(path, root)
    folder = _files[package].folder
    # The first bundle registers the finder, so that importing Loopline has no side effects.
    if not any(isinstance(finder, _BundleFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BundleFinder())
    with _lock:
        importlib.invalidate_caches()
        try:
            with _undo_on_error(package):
                return importlib.import_module(package)
        except (Exception, SystemExit) as error:
            raise blame(error, root or folder) from error


def _register(path: Path, root: Path | None) -> str:
    """Register a package's folder or a module's file for import, and return its name in `sys.modules`.

    If the path is registered already, its first `root` is kept.
    """
    is_package = path.is_dir()
    file, folder = (path / "__init__.py", path) if is_package else (path, path.parent)
    location = folder if file.name == "__init__.py" else file
    digest = sha256(str(location.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[
        :_DIGEST
    ]
    name = folder.name if is_package else file.stem
    package = f"{_FOREIGN.sub('_', name)}{MARK}{digest}"
    _files.setdefault(package, _File(file.resolve(), folder.resolve(), root and root.resolve()))
    return package


def find_beside(name: str, root: Path) -> Path | None:
    """Return the file of a module, or the folder of a package, that `import name` loads from the folder `root`.

    Return None if neither exists, if the name is `loopline` or a module of the standard library, or if `root` is in
    `sys.path`, so that Python finds it without help.
    """
    if name in sys.stdlib_module_names or name == "loopline":
        return None
    file, folder = root / f"{name}.py", root / name
    if (folder / "__init__.py").is_file():
        found = folder
    elif file.is_file():
        found = file
    elif folder.is_dir() and any(folder.glob("*.py")) and PathFinder.find_spec(name) is None:
        found = folder
    else:
        return None
    return None if any(Path(entry).resolve() == root for entry in sys.path) else found


def import_name(name: str, folder: Path | None) -> ModuleType | None:
    """Import a module by its full name; return None if the module does not exist.

    Raises:
        BundleError: the code fails, or imports a missing module; the message names the file and line in `folder`.
    """
    with _lock:
        # The file may be newer than the cached listing of its folder.
        importlib.invalidate_caches()
        try:
            with _undo_on_error(name.partition(".")[0]):
                return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{name}.".startswith(f"{error.name}."):
                return None
            raise blame(error, folder) from error
        except (Exception, SystemExit) as error:
            raise blame(error, folder) from error


def blame(error: BaseException, folder: Path | None) -> BundleError:
    """Convert an error to a BundleError that names the innermost file and line in `folder`.

    The caller raises the result from the error. A BundleError is returned unchanged.
    """
    if isinstance(error, BundleError):
        return error
    location = _error_location(error, folder)
    # The text of a syntax error would repeat the location.
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    message = f"{location}: {type(error).__name__}: {_OWN.sub('', text)}"
    return BundleError(message.removesuffix(": ") + _hint(error, text))


def _hint(error: BaseException, text: str) -> str:
    """Return a hint for a missing `await`, a relative import in a single file, or a misspelt name; otherwise ""."""
    if isinstance(error, AttributeError | TypeError) and "'coroutine'" in text:
        return ": is `await` missing?"
    if isinstance(error, ImportError) and text == _NO_PACKAGE:
        return ": a bundle in one file is no package: leave out the dot, as in `from prices import price`"
    near = misspelt_for(error)
    return f": nearest is {near!r}" if near else ""


def is_raised_inside(error: BaseException, folder: Path | None) -> bool:
    """Return True if code in `folder` raised the error itself, not code that it called."""
    frames = traceback.extract_tb(error.__traceback__)
    return folder is not None and bool(frames) and _is_inside(frames[-1].filename, folder)


def public_name(module: str) -> str:
    """Remove the digest from a module name; the result is the name that the author uses."""
    return _OWN.sub("", module)


@contextmanager
def _undo_on_error(package: str) -> Generator[None, None, None]:
    """Remove the modules from `sys.modules` that were added in the block, if the block fails.

    They are those of the package, and those that were imported by path.
    """
    before = set(sys.modules)
    try:
        yield
    except BaseException:
        for name in set(sys.modules) - before:
            first = name.partition(".")[0]
            if first == package or first in _files:
                del sys.modules[name]
        raise


class _BundleLoader(SourceFileLoader):
    """A loader for modules of bundles. It never uses a bytecode cache, because that would be written to the folder."""

    def path_stats(self, path: str) -> Mapping[str, float]:
        raise OSError(f"no cache for {path}")

    def exec_module(self, module: ModuleType) -> None:
        package = module.__name__.partition(".")[0]
        own_builtins = {**vars(builtins), "__import__": _import_of(package)}
        vars(module)["__builtins__"] = own_builtins
        super().exec_module(module)


class _BundleFinder:
    """A finder for bundles that are imported by path, and for their submodules, so that they get the loader of bundles."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a bundle's module, with the loader of bundles; None for other or missing modules."""
        if MARK not in fullname:
            return None
        if path is None:
            return _top_spec(fullname)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _BundleLoader(fullname, spec.loader.path)
        return spec


def _top_spec(package: str) -> ModuleSpec | None:
    """Return the spec of a package or module that is registered by its path; None for other names."""
    registered = _files.get(package)
    if registered is None:
        return None
    file = registered.path
    is_package = file.name == "__init__.py"
    loader = _BundleLoader(package, str(file)) if file.exists() or not is_package else None
    spec = ModuleSpec(package, loader, origin=str(file), is_package=is_package)
    spec.has_location = loader is not None
    if is_package:
        spec.submodule_search_locations = [str(registered.folder)]
    return spec


def _import_of(package: str) -> Callable[..., ModuleType]:
    """Return an `__import__` for the modules of a package that also finds the package by its public name.

    It does not do so if the public name is `loopline` or a module of the standard library. If the package was
    imported with a `root`, it also finds the modules in that folder.
    """
    public = public_name(package)
    hidden = public in sys.stdlib_module_names or public == "loopline"
    registered = _files.get(package)
    root = registered.root if registered else None

    def find(name: str, *where: Any, **named: Any) -> ModuleType:
        """Import as Python does; an absolute import also finds the bundle by public name, and modules in `root`."""
        first, dot, submodule = name.partition(".")
        level = named.get("level", where[_LEVEL] if len(where) > _LEVEL else 0)
        own = ""
        if not level and first == public and not hidden:
            own = package
        elif not level and root is not None and (beside := find_beside(first, root)) is not None:
            own = _register(beside, root)
        full_name = f"{own}{dot}{submodule}" if own else name
        return builtins.__import__(full_name, *where, **named)

    return find


def _error_location(error: BaseException, folder: Path | None) -> str:
    """Return `file:line` of the innermost frame in `folder`, otherwise of any file, otherwise the folder.

    The position of a syntax error counts as the innermost frame. Installed packages do not count as code in `folder`.
    """
    locations = [
        (frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        locations.append((error.filename, error.lineno or 0))
    written = [(name, line) for name, line in locations if not name.startswith("<")]
    inside = [
        location for location in written if folder is not None and _is_inside(location[0], folder)
    ]
    if not inside and not written:
        return str(folder)
    return "{}:{}".format(*(inside or written)[-1])


def _is_inside(file: str, folder: Path) -> bool:
    path = Path(file).resolve()
    root = folder.resolve()
    return path.is_relative_to(root) and "site-packages" not in path.relative_to(root).parts
