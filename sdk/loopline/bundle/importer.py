"""Imports of a bundle's code under a module name of its own, and errors that name the failing line.

A bundle opened by path is imported as `<name>@<digest of its path>`, so two folders with the same name
do not meet. Inside it, relative imports work as ever, and so does `from <name>.tools import x`: its
modules are given an `__import__` that knows their own package, and nothing else in the process is
changed. A bundle is imported once in a process; nothing is written beside it.
"""

from __future__ import annotations

import builtins
import importlib
import re
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from loopline.errors import BundleError

MARK = "@"
"""A character that no importable name has, and every name made here has."""

_DIGEST = 8
_OWN = re.compile(rf"{MARK}[0-9a-f]{{{_DIGEST}}}\b")
_FOREIGN = re.compile(r"\W")
_LEVEL = 3
"""The position of the level among the arguments of `__import__`, after the name."""

_lock = RLock()


def import_path(path: Path) -> ModuleType:
    """Return the package in a folder with an `__init__.py`, or the module in a single file.

    Raises:
        BundleError: its code fails; the message names file and line.
    """
    is_package = path.is_dir()
    file, folder = (path / "__init__.py", path) if is_package else (path, path.parent)
    location = folder if file.name == "__init__.py" else file
    digest = sha256(str(location.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[
        :_DIGEST
    ]
    name = folder.name if is_package else file.stem
    package = f"{_FOREIGN.sub('_', name)}{MARK}{digest}"
    with _lock:
        if package not in sys.modules:
            _execute(package, file.resolve(), folder.resolve())
        return sys.modules[package]


def import_name(name: str, folder: Path | None) -> ModuleType | None:
    """Return the module of that full name, None if there is no such module.

    Raises:
        BundleError: its code fails; the message names the file and line in `folder`.
    """
    with _lock:
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
    """Return the error as a BundleError, with the innermost file and line in `folder`.

    Raise it from the error. A BundleError is returned unchanged, since it names its line.
    """
    if isinstance(error, BundleError):
        return error
    location = _error_place(error, folder)
    # A syntax error says its place too, and less well.
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    message = f"{location}: {type(error).__name__}: {_OWN.sub('', text)}"
    return BundleError(message.removesuffix(": "))


def raised_inside(error: BaseException, folder: Path | None) -> bool:
    """Return whether the bundle's own code raised the error, not code that it called."""
    frames = traceback.extract_tb(error.__traceback__)
    return folder is not None and bool(frames) and _is_inside(frames[-1].filename, folder)


def public_name(module: str) -> str:
    """Return the module's name as its author writes it."""
    return _OWN.sub("", module)


def _execute(package: str, file: Path, folder: Path) -> None:
    if not any(isinstance(finder, _BundleFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BundleFinder())
    importlib.invalidate_caches()
    loader = _BundleLoader(package, str(file))
    within = [str(folder)] if file.name == "__init__.py" else None
    spec = spec_from_file_location(package, file, loader=loader, submodule_search_locations=within)
    if spec is None:
        raise BundleError(f"{file}: not a Python file")
    module = module_from_spec(spec)
    try:
        with _undo_on_error(package):
            sys.modules[package] = module
            loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise blame(error, folder) from error


@contextmanager
def _undo_on_error(package: str) -> Generator[None, None, None]:
    """Remove the package's modules that were imported here if the import fails."""
    before = set(sys.modules)
    try:
        yield
    except BaseException:
        for name in set(sys.modules) - before:
            if name == package or name.startswith(f"{package}."):
                del sys.modules[name]
        raise


class _BundleLoader(SourceFileLoader):
    """A loader for a bundle's modules. It compiles anew each time, since a cache would be written beside them."""

    def path_stats(self, path: str) -> Mapping[str, float]:
        raise OSError(f"no cache for {path}")

    def exec_module(self, module: ModuleType) -> None:
        package = module.__name__.partition(".")[0]
        own_builtins = {**vars(builtins), "__import__": _import_of(package)}
        vars(module)["__builtins__"] = own_builtins
        super().exec_module(module)


class _BundleFinder:
    """A finder for the modules inside the bundles' packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or MARK not in fullname:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _BundleLoader(fullname, spec.loader.path)
        return spec


def _import_of(package: str) -> Callable[..., ModuleType]:
    """Return an `__import__` for the modules of a package that also knows the package's public name.

    A package called like one of the standard library does not hide that.
    """
    public = public_name(package)
    hidden = public in sys.stdlib_module_names or public == "loopline"

    def find(name: str, *where: Any, **named: Any) -> ModuleType:
        first, dot, submodule = name.partition(".")
        level = named.get("level", where[_LEVEL] if len(where) > _LEVEL else 0)
        is_own = first == public and not level and not hidden
        full_name = f"{package}{dot}{submodule}" if is_own else name
        return builtins.__import__(full_name, *where, **named)

    return find


def _error_place(error: BaseException, folder: Path | None) -> str:
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
    path, root = Path(file).resolve(), folder.resolve()
    return path.is_relative_to(root) and "site-packages" not in path.relative_to(root).parts
