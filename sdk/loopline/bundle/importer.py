"""Imports the code of bundles under unique module names, and converts its errors to errors that name the line.

A bundle that is opened by path is imported as `<name>@<digest of its path>`, so that two folders with the same name do not
conflict. In its modules, relative imports work as usual. `from <name>.tools import x` works as well, because its modules
have an `__import__` that resolves the name of their package; other code in the process is not affected. A bundle is
imported once in a process, and no cache files are written to its folder.
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
from loopline.names import misspelt_for

MARK = "@"
"""A character that is part of every module name made here, and cannot be part of another module name."""

_DIGEST = 8
_OWN = re.compile(rf"{MARK}[0-9a-f]{{{_DIGEST}}}\b")
_FOREIGN = re.compile(r"\W")
_LEVEL = 3
"""The index of the level in the arguments of `__import__` after the name."""

_lock = RLock()


def import_path(path: Path) -> ModuleType:
    """Import the package in a folder with an `__init__.py`, or the module in a file. A repeated call returns the same module.

    Raises:
        BundleError: the code fails; the message names file and line.
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
    """Import a module by its full name; return None if the module does not exist.

    Raises:
        BundleError: the code fails; the message names the file and line in `folder`.
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
    """Return the end of the message for a missing `await` or a misspelt name; "" for other errors."""
    if isinstance(error, AttributeError | TypeError) and "'coroutine'" in text:
        return ": is `await` missing?"
    near = misspelt_for(error)
    return f": nearest is {near!r}" if near else ""


def is_raised_inside(error: BaseException, folder: Path | None) -> bool:
    """Return True if code in `folder` raised the error itself, not code that it called."""
    frames = traceback.extract_tb(error.__traceback__)
    return folder is not None and bool(frames) and _is_inside(frames[-1].filename, folder)


def public_name(module: str) -> str:
    """Remove the digest from a module name; the result is the name that the author uses."""
    return _OWN.sub("", module)


def _execute(package: str, file: Path, folder: Path) -> None:
    # The first bundle registers the finder, so that importing Loopline has no side effects.
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
    """Remove the modules of the package from `sys.modules` that were added in the block, if the block fails."""
    before = set(sys.modules)
    try:
        yield
    except BaseException:
        for name in set(sys.modules) - before:
            if name == package or name.startswith(f"{package}."):
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
    """A finder for submodules of bundles, so that they get the loader of bundles."""

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
    """Return an `__import__` for the modules of a package that resolves the public name of the package to the package.

    It does not do so if the public name is that of Loopline or of a module in the standard library.
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


def _error_location(error: BaseException, folder: Path | None) -> str:
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
