"""Loads bundles by path, by name or from a value, and reads the calls of `build_react` in their code."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from hashlib import sha256
from importlib.util import resolve_name
from modulefinder import ModuleFinder
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Literal, cast

from typing_extensions import TypeIs

from loopline.bundle import importer, loop_checks
from loopline.bundle.bundle import Bundle
from loopline.bundle.properties import Properties, Setting, merged
from loopline.bundle.workflow import BaseWorkflow
from loopline.crew import AGENTS_FOLDER, Agents, load_agents
from loopline.errors import BundleError, LooplineError
from loopline.names import parse_module
from loopline.react import Limits, named_preset
from loopline.tools import ToolPattern

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


GROUP = "loopline.bundles"
"""The entry point group of installed bundles."""

VERSION_CHARACTERS = 16
"""The characters of a version that is a digest."""
TEXT_FILES = (".md", ".txt", ".toml", ".yaml", ".yml", ".json")
TEXT_BYTES = 256 * 1024
"""The size up to which a text file is part of a version."""
INSTALLED = frozenset({"site-packages", "dist-packages"})
"""The names of the folders into which packages are installed."""
COMPILED_FILES = 64
"""The number of files whose imports are cached, because each opening of a bundle needs them."""
LOCATED_FILES = 1_024
"""The number of files whose location is cached, because each opening of a bundle asks for those of the standard library."""
LOOPLINE = Path(__file__).resolve().parent.parent

BUNDLES_FOLDER = "bundles"
"""The subfolder of the current folder that contains bundles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBundle:
    """A bundle and the location of its code.

    `package` is the name of the loaded package or module in `sys.modules`, and `name` is the name that the author uses
    for it. `folder` is the folder of the code, None for a bundle that was created without a file, such as at a prompt.
    `file` is the file of a bundle in a single module, None for a package.
    """

    bundle: Bundle[Any]
    folder: Path | None
    package: str
    name: str
    file: Path | None = None

    @property
    def code(self) -> Iterator[Path]:
        """The file of a single module, or the files of all modules of a package."""
        if self.file is not None:
            yield self.file
        elif self.folder is not None:
            yield from _package_files(self.folder)

    def version(self) -> str:
        """Return the version of the author, otherwise a digest of the files as they are now; empty without a folder.

        The files are those of `_version_files`.
        """
        if self.bundle.version or self.folder is None:
            return self.bundle.version
        digest = sha256()
        for file in sorted(self._version_files(self.folder)):
            data = file.read_bytes()
            # The length separates the content from the next name, so that different files have different digests.
            digest.update(f"{file.relative_to(self.folder)}\n{len(data)}\n".encode() + data)
        return digest.hexdigest()[:VERSION_CHARACTERS]

    def properties(self, overrides: Mapping[str, Setting]) -> Properties:
        """Merge the defaults of the bundle, its files and `overrides`, whose keys are dotted names.

        Raises:
            PropertyError: a key is unknown, or a value has the wrong type.
        """
        return merged(
            self.bundle.defaults,
            folder=self.folder,
            overrides=overrides,
            location=self.bundle.location,
        )

    def _version_files(self, folder: Path) -> Iterable[Path]:
        """Return the files whose content decides the version.

        For a package these are its modules and text files, for a single module its file and the files below the folder
        that it imports.
        """
        if self.file is None:
            return [*_package_files(folder), *_text_files(folder)]
        if not self.file.is_file():  # the code was entered at a prompt
            return []
        return _find_imported_files(self.file, self.package, folder)

    def resolve_module(self, name: str) -> ModuleType:
        """Import a module by name. If the first part is the name of the bundle, the module is inside the bundle.

        Raises:
            BundleError: the module does not exist, or its code fails; the message names similar modules, or file and
                line.
        """
        first, dot, submodule = name.partition(".")
        full = f"{self.package}{dot}{submodule}" if first == self.name else name
        module = importer.import_name(full, self.folder)
        if module is None:
            named = [*_named_modules(self, "tools"), *_named_modules(self, "skills")]
            origin = next(
                (path for module, path in named if module == name), self.folder or self.name
            )
            raise BundleError(
                f"{origin}: no module {importer.public_name(name)!r}: {self._module_hint(name)}"
            )
        return module

    def resolve_file(self, ref: str) -> ModuleType:
        """Import a Python file, given its path relative to the folder of the bundle.

        Raises:
            BundleError: the file does not exist or is outside the folder, or its code fails.
        """
        if self.folder is None:
            raise BundleError(f"{ref!r}: the bundle {self.bundle.id!r} has no folder: use a module")
        root = self.folder.resolve()
        file = (root / ref).resolve()
        if not file.is_relative_to(root) or file.suffix != ".py":
            raise BundleError(f"{ref!r} must be the path of a .py file inside {root}")
        if not file.is_file():
            raise BundleError(f"no file {ref!r} in {root}: {_nearest(ref, _files(root))}")
        package = sys.modules.get(self.package)
        if package is not None and str(file) == getattr(package, "__file__", None):
            return package
        parts = file.relative_to(root).with_suffix("").parts
        inside = str(root) in getattr(package, "__path__", ())
        full = ".".join((self.package, *parts)).removesuffix(".__init__")
        if not inside:
            return importer.import_path(file, root)
        return importer.import_name(full, root) or importer.import_path(file)

    def holds(self, module: str) -> bool:
        """Return True if the package has a module with this name in its folder, such as `tools_descriptor`."""
        if self.folder is None or self.file is not None:
            return False
        return (self.folder / f"{module}.py").is_file()

    def _module_hint(self, name: str) -> str:
        """Return the hint of an error message: similar modules, or that the bundle is a single module."""
        files = _files(self.folder) if self.folder else []
        stems = [file.removesuffix(".py").replace("/", ".") for file in files]
        modules = [f"{self.name}.{stem}" for stem in stems if not stem.endswith("__init__")]
        if not modules or not hasattr(sys.modules.get(self.package), "__path__"):
            return "it cannot be imported, and the bundle is a single module"
        return _nearest(importer.public_name(name), modules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """A bundle that can be opened by name. `location` is its folder, or the value of its entry point."""

    name: str
    location: str


@dataclass(frozen=True, slots=True)
class _Site:
    """The location of a bundle: the folder of a package or a file, and the name of the Bundle in the module."""

    path: Path
    attribute: str = "bundle"


def load(source: str | Path | Bundle[Any]) -> LoadedBundle:
    """Load a bundle from a path or a name, or wrap a Bundle value with the location of its code.

    A path is the folder of a package, a .py file, a folder with a .py file of the same name, or the folder of a project with
    an entry point for a bundle. A text
    without a slash and without the suffix `.py` is a name. It is looked up first as such a folder in the current folder,
    then as an installed entry point, and then as a folder in `bundles`.

    Raises:
        BundleError: no bundle or several bundles were found, or the code fails; the message says where was searched, or
            names file and line.
    """
    if isinstance(source, Bundle):
        return _from_value(source)
    if not _is_name(source):
        return _from_site(_site(Path(source).expanduser()))
    name = str(source)
    if not name:
        raise BundleError("a bundle has a path or a name: the one given is empty")
    if _is_site(Path(name)):
        return _from_site(_site(Path(name)))
    if installed := [point for point in _entry_points() if point.name == name]:
        return _from_entry_point(name, installed)
    if (Path(BUNDLES_FOLDER) / name).is_dir():
        return _from_site(_site(Path(BUNDLES_FOLDER) / name))
    names = [bundle.name for bundle in available()]
    raise BundleError(
        f"no bundle {name!r}: no folder of that name here or in {BUNDLES_FOLDER}/ is a bundle, and no installed "
        f"package has an entry point of that name in the group {GROUP!r}; "
        f"{_nearest(name, names) if names else 'loopline new NAME creates one'}"
    )


def available(folder: Path | None = None) -> list[Available]:
    """List the bundles that can be opened by name, without importing them: installed ones, then those in `bundles`.

    `folder` is the folder that contains `bundles`, by default the current folder.
    """
    installed = [Available(name=e.name, location=e.value) for e in _entry_points()]
    bundles_folder = (Path() if folder is None else folder) / BUNDLES_FOLDER
    inside = sorted(bundles_folder.iterdir()) if bundles_folder.is_dir() else []
    sites = [Available(name=path.name, location=str(path)) for path in inside if _is_site(path)]
    return [*sorted(installed, key=lambda bundle: bundle.name), *sites]


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return list(entry_points(group=GROUP))


def _is_name(source: str | Path) -> bool:
    """Return True if the source is a name: a text without a slash, a leading `.` or `~`, or a final `.py`."""
    text = str(source)
    marks = ("/", os.sep)
    return not (
        isinstance(source, Path)
        or any(mark in text for mark in marks)
        or text.startswith((".", "~"))
        or text.endswith(".py")
    )


def _is_site(path: Path) -> bool:
    """Return True if the folder is a package, has a module of its name, or is a project whose pyproject.toml mentions the entry point group."""
    if (path / "__init__.py").is_file() or _module_of_folder(path).is_file():
        return True
    project = path / "pyproject.toml"
    return project.is_file() and GROUP in project.read_text("utf-8", "replace")


def _module_of_folder(path: Path) -> Path:
    """Return the module with the name of its folder, such as `tea/tea.py`, which may not exist."""
    return path / f"{path.resolve().name}.py"


def _site(path: Path) -> _Site:
    """Find the bundle at a path: a .py file, a package, a folder with a module of its name, or a project.

    Raises:
        BundleError: the path does not exist or is not a bundle, or it has several; the message has similar or inner names.
    """
    if path.is_file() and path.suffix == ".py":
        return _Site(path.parent if path.name == "__init__.py" else path)
    if not path.is_dir():
        problem = "no such file" if path.suffix == ".py" else "no such folder"
        if path.exists():
            problem = "not a folder or a .py file"
        names = [inner.name for inner in (*_folders(path.parent), *path.parent.glob("*.py"))]
        folder = path.resolve().parent
        nearest = _nearest(path.name, names) if names else f"{folder} has no bundle"
        raise BundleError(f"{path}: {problem}; {nearest}")
    if (path / "__init__.py").is_file():
        return _Site(path)
    if _module_of_folder(path).is_file():
        return _Site(_module_of_folder(path))
    sites = [_project_site(path, value) for value in _entries(path).values()]
    if len(sites) == 1:
        return sites[0]
    inner = [str(site.path) for site in sites] or [str(folder) for folder in _folders(path)]
    looked = f"no __init__.py, and no pyproject.toml with an entry point in the group {GROUP!r}"
    if len(inner) > 1:
        raise BundleError(f"{path}: several bundles: open one of {inner}")
    hint = f"there is one at {inner[0]}" if inner else "none inside"
    raise BundleError(f"{path}: {looked}; {hint}")


def _folders(path: Path) -> Iterator[Path]:
    """Yield the direct subfolders that are packages or projects with bundles."""
    if path.is_dir():
        yield from (inner for inner in sorted(path.iterdir()) if _is_site(inner))


def _entries(project: Path) -> dict[str, str]:
    """Read the entry points for bundles from the pyproject.toml of a project, by name; empty without a file or a table.

    Raises:
        BundleError: the file is not valid TOML in UTF-8.
    """
    file = project / "pyproject.toml"
    if not file.is_file():
        return {}
    import tomllib

    try:
        content: object = tomllib.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise BundleError(f"{file}: {error}") from error
    for key in ("project", "entry-points", GROUP):
        table = cast("dict[str, object]", content) if isinstance(content, dict) else {}
        content = table.get(key)
    points = cast("dict[str, object]", content) if isinstance(content, dict) else {}
    return {name: str(value) for name, value in points.items()}


def _project_site(project: Path, value: str) -> _Site:
    """Find the module of an entry point in a project or its `src`; raise a BundleError if it does not exist."""
    module, _, attribute = value.partition(":")
    inner = Path(*module.strip().split("."))
    for root in (project, project / "src"):
        for path in (root / inner, (root / inner).with_suffix(".py")):
            if path.is_file() or (path / "__init__.py").is_file():
                return _Site(path, attribute.strip() or "bundle")
    raise BundleError(
        f"{project / 'pyproject.toml'}: the module of the entry point {value!r} does not exist: "
        f"no {inner}/__init__.py in {project}"
    )


def _from_site(site: _Site) -> LoadedBundle:
    """Import the code at a location, and load the bundle in it.

    Raises:
        BundleError: the code fails, or the attribute is missing or not a Bundle.
    """
    is_package = site.path.is_dir() or site.path.name == "__init__.py"
    module = importer.import_path(site.path, None if is_package else site.path.parent)
    folder = site.path if site.path.is_dir() else site.path.parent
    return LoadedBundle(
        bundle=_bundle_in(module, site.attribute),
        folder=folder.resolve(),
        package=module.__name__,
        name=importer.public_name(module.__name__),
        file=None if site.path.is_dir() else site.path.resolve(),
    )


def _from_entry_point(name: str, points: list[EntryPoint]) -> LoadedBundle:
    """Import the module of an installed entry point, and load the bundle in it.

    Raises:
        BundleError: entry points of that name have different values, or the module is missing, fails or lacks the Bundle.
    """
    if len({point.value for point in points}) > 1:
        values = sorted(point.value for point in points)
        raise BundleError(f"several installed bundles are called {name!r}: open {values} by path")
    point = points[0]
    module = importer.import_name(point.module, None)
    if module is None:
        raise BundleError(
            f"the entry point {name!r} names {point.module!r}, which is not installed"
        )
    file = module.__file__
    return LoadedBundle(
        bundle=_bundle_in(module, point.attr or "bundle"),
        folder=Path(file).resolve().parent if file else None,
        package=module.__name__,
        name=module.__name__,
        file=None if hasattr(module, "__path__") or not file else Path(file).resolve(),
    )


def _bundle_in(module: ModuleType, attribute: str) -> Bundle[Any]:
    """Return the Bundle in the attribute of a module; raise a BundleError if it is missing or not a Bundle."""
    value: object = getattr(module, attribute, None)
    if _is_bundle(value):
        return value
    file = module.__file__
    if value is not None:
        raise BundleError(f"{file}: {attribute!r} is not a Bundle(…) but {value!r}")
    bundle_names = [name for name, member in vars(module).items() if isinstance(member, Bundle)]
    hint = f"rename one of {bundle_names}" if bundle_names else "write `bundle = Bundle(id=…, …)`"
    raise BundleError(f"{file}: no {attribute!r} in it: {hint}")


def _is_bundle(value: object) -> TypeIs[Bundle[Any]]:
    return isinstance(value, Bundle)


def _from_value(bundle: Bundle[Any]) -> LoadedBundle:
    """Return the bundle with the location of its code: the module of its workflow class, or the creating module.

    If a package exposes the bundle as `bundle`, the outermost such package is the location. `folder` is None without a file.
    """
    name = bundle.workflow.__module__
    if (
        bundle.workflow is BaseWorkflow
    ):  # so the code of the bundle is in the module that created it
        name = bundle.module
    module = sys.modules.get(name)
    if module is None:
        return LoadedBundle(
            bundle=bundle, folder=None, package=name, name=importer.public_name(name)
        )
    home = _home_module(bundle, module)
    is_package = hasattr(home, "__path__")
    package = home.__name__ if is_package else home.__package__ or home.__name__
    source = _file_of(home)
    file = Path(source).resolve() if source else None
    return LoadedBundle(
        bundle=bundle,
        folder=file.parent if file else None,
        package=package,
        name=importer.public_name(package),
        file=None if is_package else file,
    )


def _home_module(bundle: Bundle[Any], module: ModuleType) -> ModuleType:
    """Return the outermost package that exposes the bundle as `bundle`, or the given module if none does."""
    parts = module.__name__.split(".")
    around = (sys.modules.get(".".join(parts[:end])) for end in range(1, len(parts)))
    offering = (package for package in around if getattr(package, "bundle", None) is bundle)
    return next((package for package in offering if package is not None), module)


def _package_files(folder: Path) -> Iterator[Path]:
    """Yield the files of the modules of a package and of its subpackages."""
    yield from sorted(folder.glob("*.py"))
    for inner in sorted(folder.iterdir()):
        if (inner / "__init__.py").is_file():
            yield from _package_files(inner)


def _text_files(root: Path) -> Iterator[Path]:
    """Yield the text files of at most `TEXT_BYTES` below a folder, but not those in hidden and `__` folders."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        files = (Path(folder, name) for name in names if name.endswith(TEXT_FILES))
        yield from (file for file in files if file.stat().st_size <= TEXT_BYTES)


def _find_imported_files(file: Path, package: str, folder: Path) -> set[Path]:
    """Return the file and the files below the folder that it imports, directly or indirectly.

    Import statements inside functions count as well, so the result does not depend on which of them have run. Installed
    packages and Loopline are left out.
    """
    files: set[Path] = set()
    unread = [(file, package)]
    while unread:
        path, around = unread.pop()
        if path in files:
            continue
        files.add(path)
        for name in _read_imports(path.read_bytes(), around):
            imported = _find_module_file(name, folder)
            if imported is not None and _is_own_module(imported, folder):
                is_package = imported.name == "__init__.py"
                unread.append((imported, name if is_package else name.rpartition(".")[0]))
    return files


@lru_cache(LOCATED_FILES)
def _is_own_module(file: Path, folder: Path) -> bool:
    if INSTALLED.intersection(file.parts) or file.is_relative_to(LOOPLINE):
        return False
    return file.is_relative_to(folder)


@lru_cache(COMPILED_FILES)
def _read_imports(source: bytes, package: str) -> frozenset[str]:
    """Return the full names of the modules that a module of the package imports, and of their parent packages.

    For `from a import b` they are `a` and `a.b`, which is not necessarily a module. The result is empty if the code does
    not compile.
    """
    # Compiled and not parsed with `ast`, which Python 3.11 does not support in several threads at once.
    try:
        code = compile(source, "<bundle>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return frozenset()
    names: set[str] = set()
    for level, module, members in _import_statements(code):
        try:
            base = resolve_name("." * level + module, package)
        except ImportError:  # it leads above the top package
            continue
        names.update(f"{base}.{member}" for member in members)
        while base:
            names.add(base)
            base, _, _ = base.rpartition(".")
    return frozenset(names)


def _import_statements(code: CodeType) -> Iterator[tuple[int, str, Sequence[str]]]:
    """Yield the level (number of dots), the module and the imported members of each import, also inside functions."""
    for kind, values in ModuleFinder().scan_opcodes(code):
        match kind, values:
            case "absolute_import", (members, module):
                yield 0, module, members or ()
            case "relative_import", (level, members, module):
                yield level, module, members or ()
            case _:
                pass
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _import_statements(constant)


def _find_module_file(name: str, folder: Path) -> Path | None:
    """Return the Python file of a module without importing anything; None if it is not found."""
    package, _, last = name.rpartition(".")
    loaded = sys.modules.get(name)
    if loaded is not None and (package or importer.find_beside(name, folder) is None):
        # This saves two reads of the disk for each entry of `sys.path`; a bundle imports mostly what is loaded.
        loaded_file = _file_of(loaded)
        return _resolve_loaded(loaded_file) if loaded_file else None
    for location in _search_locations(package, name, folder):
        for file in (Path(location, last, "__init__.py"), Path(location, f"{last}.py")):
            if file.is_file():
                return file.resolve()
    return None


@lru_cache(LOCATED_FILES)
def _resolve_loaded(file: str) -> Path:
    """Return the path of a loaded module without symbolic links, as it was when it was first asked for."""
    return Path(file).resolve()


def _search_locations(package: str, name: str, folder: Path) -> list[str]:
    """Return the folders in which the module `name` of a package is searched.

    If `package` is empty, these are `sys.path`, after the folder of the bundle if the module is imported from it.
    """
    if not package:
        return [str(folder), *sys.path] if importer.find_beside(name, folder) else sys.path
    module = sys.modules.get(package)
    if module is not None:
        return list(getattr(module, "__path__", ()))
    parent, _, last = package.rpartition(".")
    return [str(Path(location, last)) for location in _search_locations(parent, package, folder)]


def _files(root: Path) -> list[str]:
    """Return the relative paths of Python files in a folder and its direct subfolders, except hidden ones."""
    files = (
        file.relative_to(root) for pattern in ("*.py", "*/*.py") for file in root.glob(pattern)
    )
    return sorted(file.as_posix() for file in files if not file.parts[0].startswith((".", "__")))


def _nearest(name: str, names: Iterable[str]) -> str:
    """Return the part of an error message that lists up to three similar names; `there is no other` without names."""
    near = get_close_matches(name, list(names), 3, 0.0)
    if not near:
        return "there is no other"
    return f"nearest {'is' if len(near) == 1 else 'are'} {', '.join(map(repr, near))}"


def bundle_agents(loaded: LoadedBundle) -> Agents:
    """Return the agents that the bundle and its workflow class list, and those in the folder `agents` of the bundle.

    Raises:
        BundleError: a file is not valid, or two agents have the same name; the message names file and line.
    """
    folder = None if loaded.folder is None else loaded.folder / AGENTS_FOLDER
    in_folder = load_agents(folder) if folder is not None and folder.is_dir() else []
    return Agents([*loaded.bundle.agents, *loaded.bundle.workflow.agents, *in_folder])


Kind = Literal["tools", "skills"]
PARSED_FILES = 16
"""The number of files whose calls are cached, because opening a bundle needs them several times."""


def descriptor_modules(bundle: LoadedBundle, kind: Kind) -> list[str]:
    """Return the names of the descriptor modules in the calls of `build_react`, each once, in the order of the code.

    Only literals are found, including `__name__` and `f"{__package__}.tools_descriptor"`. If there are none, the result
    is the module `tools_descriptor` or `skills_descriptor`, if it exists, otherwise the empty name: no module is named.
    """
    usual = f"{kind}_descriptor"
    modules = list(dict.fromkeys(name for name, _ in _named_modules(bundle, kind) if name))
    if not modules and bundle.holds(usual):
        return [f"{bundle.name}.{usual}"]
    return modules or [""]


def _named_modules(bundle: LoadedBundle, kind: Kind) -> Iterator[tuple[str, str]]:
    """Yield the name of each descriptor module in the calls of `build_react`, "" if not a literal, and its file and line."""
    for file, call in _calls(bundle):
        for argument in call.keywords:
            if argument.arg == f"{kind}_module":
                yield _module_name(argument.value, file, bundle), f"{file}:{argument.value.lineno}"


def build_call_problems(bundle: LoadedBundle) -> Iterator[str]:
    """Yield an error message with file and line for each literal limit or preset in `build_react` calls that is not valid."""
    for file, call in _calls(bundle):
        for argument in call.keywords:
            try:
                _check(argument)
            except LooplineError as error:
                yield f"{file}:{argument.value.lineno}: {error}"


def tool_lists(bundle: LoadedBundle) -> Iterator[ToolPattern]:
    """Yield the tool names and patterns in literal lists `tools` of `build_react` calls, with file and line."""
    for file, call in _calls(bundle):
        for argument in call.keywords:
            if argument.arg == "tools" and isinstance(argument.value, ast.List | ast.Tuple):
                for item in argument.value.elts:
                    if text := _literal_text(item, bundle):
                        yield ToolPattern(loop_checks.BUILD_TOOLS, text, f"{file}:{item.lineno}")


def names_every_module(bundle: LoadedBundle, kind: Kind) -> bool:
    """Return True if `descriptor_modules` finds all modules of this kind.

    It does not if a name is not a literal, a call passes `**keywords`, or a workflow class is outside the bundle.
    """
    own = {file.resolve() for file in bundle.code}
    for workflow in loop_checks.workflow_classes(bundle.bundle.workflow):
        module = sys.modules.get(workflow.__module__)
        source = None if module is None else _file_of(module)
        if source is None or Path(source).resolve() not in own:
            return False
    for file, call in _calls(bundle):
        written = [keyword.value for keyword in call.keywords if keyword.arg == f"{kind}_module"]
        is_open = not written and any(keyword.arg is None for keyword in call.keywords)
        is_literal = (
            isinstance(value, ast.Constant) or _module_name(value, file, bundle)
            for value in written
        )
        if is_open or not all(is_literal):
            return False
    return True


def _check(argument: ast.keyword) -> None:
    """Check an argument of `build_react` that is a limit or a preset; of a value that is not a literal, only the name.

    Raises:
        LooplineError: the limit or the preset is unknown, or its literal value is not valid.
    """
    name = argument.arg
    if name is None or (
        name in loop_checks.build_parameters(BaseWorkflow.build_react) and name != "preset"
    ):
        return
    try:
        value: object = ast.literal_eval(argument.value)
    except ValueError:  # the value is known only at run time
        if name != "preset" and name not in Limits.__annotations__:
            loop_checks.check_build_limits(cast("Limits", {name: None}), BaseWorkflow.build_react)
        return
    if name != "preset":
        loop_checks.check_build_limits(cast("Limits", {name: value}), BaseWorkflow.build_react)
    elif isinstance(value, str):
        named_preset(value)


def _calls(bundle: LoadedBundle) -> Iterator[tuple[Path, ast.Call]]:
    """Yield the calls of `build_react` in the code of the bundle, with their files, except those in other workflows."""
    classes = loop_checks.workflow_classes(bundle.bundle.workflow)
    for file in filter(Path.is_file, bundle.code):  # code of a prompt does not have a file
        for call, around in _calls_in(file.read_bytes()):
            if not around or any(_defines(node, kind) for kind in classes for node in around):
                yield file, call


@lru_cache(PARSED_FILES)
def _calls_in(source: bytes) -> tuple[tuple[ast.Call, tuple[ast.ClassDef, ...]], ...]:
    """Return the calls of `build_react` in a module, each with the classes that contain it if it is `self.build_react`.

    The result is empty if the module has a syntax error; importing the module reports it.
    """
    if b"build_react" not in source:
        return ()
    try:
        tree = parse_module(source)
    except (SyntaxError, ValueError):
        return ()
    nodes = list(ast.walk(tree))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    found = list[tuple[ast.Call, tuple[ast.ClassDef, ...]]]()
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr="build_react")):
                found.append((node, tuple(kind for kind in classes if node.lineno in _lines(kind))))
            case ast.Call(func=ast.Attribute(attr="build_react")):
                found.append((node, ()))
            case _:
                pass
    return tuple(found)


def _lines(node: ast.ClassDef) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _defines(node: ast.ClassDef, kind: type) -> bool:
    """Return True if the node has the name of the class and contains one of its methods, if it has any."""
    functions = [value for value in vars(kind).values() if isinstance(value, FunctionType)]
    lines = [inspect.unwrap(function).__code__.co_firstlineno for function in functions]
    return node.name == kind.__name__ and (not lines or any(line in _lines(node) for line in lines))


def _module_name(node: ast.expr, file: Path, bundle: LoadedBundle) -> str:
    """Return the name of the module in a literal or in `__name__`; empty for other expressions."""
    if not (isinstance(node, ast.Name) and node.id == "__name__"):
        return _literal_text(node, bundle)
    loaded = bundle.bundle
    names = [loaded.module, bundle.package, *(kind.__module__ for kind in loaded.workflow.__mro__)]
    modules = (sys.modules.get(name) for name in names)
    return next(
        (module.__name__ for module in modules if module is not None and _is_in(module, file)), ""
    )


def _is_in(module: ModuleType, file: Path) -> bool:
    source = _file_of(module)
    return source is not None and Path(source).resolve() == file.resolve()


def _file_of(module: ModuleType) -> str | None:
    """Return the file of a module; None for the `__main__` of a prompt."""
    return getattr(module, "__file__", None)


def _literal_text(node: ast.expr, bundle: LoadedBundle) -> str:
    """Return the value of a literal text, with `{__package__}` replaced by the bundle's name; empty for other expressions."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(
            values=[
                ast.FormattedValue(value=ast.Name(id="__package__")),
                ast.Constant(value=str(suffix)),
            ]
        ):
            return f"{bundle.name}{suffix}"
        case _:
            return ""
