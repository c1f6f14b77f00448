"""Reads descriptor modules, which list the tools and skills of a bundle."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from typing_extensions import TypeIs

from loopline import tools as toolbox
from loopline.bundle.bundle import Bundle
from loopline.bundle.load import LoadedBundle
from loopline.bundle.loop import guard_search
from loopline.bundle.mcp_config import EVERYTHING, McpSelection
from loopline.bundle.properties import BACKENDS
from loopline.errors import BundleError, LooplineError
from loopline.models import UNSET, ModelSettings, as_settings
from loopline.names import nearest_hint, nearest_name, parse_module
from loopline.skills import (
    DEFAULT_NAMESPACE,
    REACT,
    REACT_SHORT,
    SKILL_FILE,
    Skill,
    SkillPlace,
    Skills,
    SkillSelection,
    add_places,
    join_imports,
    read_skill,
    skill_selections,
)

TOOL_NAMES = ("TOOLS_SPECS", "MCP_TOOL_SPECS", "TOOL_RUNTIME", "MODEL_SETTINGS")
SKILL_NAMES = ("CUSTOM_SKILLS_ROOT", "AGENTS_CONFIG")
SKILLS_FOLDER = "skills"
RESERVED = ("react", "crew", "mcp")
"""The aliases of built-in tools and of tools of MCP servers."""

_MCP_SPECS = "MCP_TOOL_SPECS"
_SETTINGS = "MODEL_SETTINGS"
_MCP_KEYS = ("server_id", "alias", "tools")
_SOURCES = ("ref", "module")
_SPEC_KEYS = (*_SOURCES, "alias")
_BUILTIN_KEYS = ("builtin", "port")
_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_ALIAS_RULE = f"a letter, then A-Z a-z 0-9 _ -, and not one of {', '.join(RESERVED)}"
_PROGRAM_TOOLS = ("exec.python", "exec.shell")
"""The tools that run programs. Each may have a different backend."""
_MISSPELT = 0.85
_ALIKE_CONSUMER = 0.8
"""The similarity from which a consumer of skills counts as a misspelt `react`. Its selection would have no effect."""


def load_tools(module: str, bundle: LoadedBundle) -> toolbox.ToolSet:
    """Load the tools that the bundle, its workflow class and the descriptor `module` list; with "" no module is read.

    Raises:
        BundleError: the descriptor or a tool is not valid; the message names file and line.
    """
    listed = toolbox.ToolSet(_bind_listed_tools(bundle.bundle))
    if not module:
        return listed
    descriptor = _Descriptor(bundle.resolve_module(module))
    descriptor.check_spelling(TOOL_NAMES)
    tools = toolbox.ToolSet([*listed.values(), *_bind_tools(descriptor, bundle)])
    _check_runtime(descriptor, tools)
    return tools


def load_mcp_selections(module: str, bundle: LoadedBundle) -> tuple[McpSelection, ...] | None:
    """Read the tools of MCP servers that a descriptor module lists.

    Return None if it does not set `MCP_TOOL_SPECS` or sets None, or if `module` is empty.

    Raises:
        BundleError: `MCP_TOOL_SPECS` is not a list, or an entry is not valid; the message names file and line.
    """
    if not module:
        return None
    descriptor = _Descriptor(bundle.resolve_module(module))
    written = descriptor.value(_MCP_SPECS, None)
    if written is None:
        return None
    if not isinstance(written, list | tuple):
        problem = f'{_MCP_SPECS} must be a list such as [{{"server_id": "time", "alias": "time"}}]'
        raise descriptor.wrong(_MCP_SPECS, problem)
    specs = enumerate(cast("Sequence[object]", written))
    return tuple(_mcp_selection(descriptor, index, spec) for index, spec in specs)


def _mcp_selection(descriptor: _Descriptor, index: int, spec: object) -> McpSelection:
    """Convert entry `index` of `MCP_TOOL_SPECS`; by default the alias is the `server_id`, and all tools are selected.

    Raises:
        BundleError: the entry has an unknown key or is incomplete, or the alias is not valid; the message has its line.
    """
    none: Mapping[object, object] = {}
    fields = cast("Mapping[object, object]", spec) if isinstance(spec, Mapping) else none
    _check_keys(descriptor, _MCP_SPECS, index, fields, _MCP_KEYS)
    complete: Mapping[object, object] = {"alias": None, "tools": EVERYTHING, **fields}
    match complete:
        case {"server_id": str(server_id), "alias": alias, "tools": tools} if _is_list(tools):
            names = tuple(map(str, tools))
        case _:
            problem = 'write {"server_id": "time", "alias": "time", "tools": ["*"]}'
            raise descriptor.wrong(_MCP_SPECS, f"{spec!r} is incomplete: {problem}", index)
    name = server_id if alias is None else str(alias)
    if not is_alias(name):
        problem = f"{name!r} cannot be an alias: {_ALIAS_RULE}"
        raise descriptor.wrong(_MCP_SPECS, problem, index)
    location = descriptor.location(_MCP_SPECS, index)
    return McpSelection(server_id=server_id, alias=name, tools=names, location=location)


def _is_list(value: object) -> TypeIs[Sequence[object]]:
    return isinstance(value, list | tuple)


def load_skills(module: str, bundle: LoadedBundle, places: Sequence[SkillPlace] = ()) -> Skills:
    """Load the skills of a bundle that its loop may use.

    They are the skills that the bundle and its workflow class list, and those in the root of the descriptor module, by
    default the folder `skills` of the bundle. Skills in `places` outside the bundle are added after them.

    Raises:
        BundleError: the descriptor or a skill is not valid; the message names file and line.
    """
    default = bundle.folder / SKILLS_FOLDER if bundle.folder else None
    listed = _load_listed_skills(bundle)
    if not module:
        in_folder = Skills.load(default) if default and default.is_dir() else Skills()
        own = join_imports(_join_skills(listed, in_folder, bundle))
        return add_places(own, places).enabled({})
    descriptor = _Descriptor(bundle.resolve_module(module))
    descriptor.check_spelling(SKILL_NAMES)
    root = _skills_root(descriptor, bundle, default)
    in_root = Skills() if root is None else Skills.load(root)
    skills = add_places(join_imports(_join_skills(listed, in_root, bundle)), places)
    config = _read_agents_config(descriptor, skills)
    warnings = tuple(
        f"{descriptor.location('AGENTS_CONFIG', name)}: the consumer {name!r} is unknown"
        for name in config
        if name != REACT
    )
    return Skills(skills.enabled(config).skills, (*skills.warnings, *warnings))


def _bind_listed_tools(bundle: Bundle[Any]) -> Iterator[toolbox.Tool]:
    """Yield the tools for the functions that the bundle and then its workflow class list.

    Raises:
        BundleError: the id of the bundle cannot be the alias of the tools.
    """
    for function in (*bundle.tools, *bundle.workflow.tools):
        is_tool = isinstance(function, toolbox.ToolFunction)
        function_tool = (
            cast("toolbox.ToolFunction[..., Any]", function) if is_tool else toolbox.tool(function)
        )
        if not is_alias(bundle.id):
            raise BundleError(
                f"{function_tool.location}: {function_tool.name!r} would be called {bundle.id}.{function_tool.name}, and {bundle.id!r} "
                f"cannot be an alias: {_ALIAS_RULE}; rename the bundle, or list the tool in a descriptor"
            )
        yield function_tool.bind(bundle.id)


def _load_listed_skills(bundle: LoadedBundle) -> Skills:
    """Load the skills in the folders that the bundle and its workflow class list; an error has all their problems."""
    listed: list[Skills] = []
    problems: list[str] = []
    for path in (*bundle.bundle.skills, *bundle.bundle.workflow.skills):
        folder = (bundle.folder or Path()) / path
        alone = (folder / SKILL_FILE).is_file()
        try:
            listed.append(
                Skills((read_skill(folder / SKILL_FILE, DEFAULT_NAMESPACE),))
                if alone
                else Skills.load(folder)
            )
        except BundleError as error:
            problems += error.problems
    if problems:
        raise BundleError(*problems)
    warnings = (warning for skills in listed for warning in skills.warnings)
    return Skills(tuple(skill for skills in listed for skill in skills), tuple(warnings))


def _join_skills(listed: Skills, in_folder: Skills, bundle: LoadedBundle) -> Skills:
    """Combine listed skills with those of a folder. A skill that is in both counts once.

    Raises:
        BundleError: two skills in different files have the same full id.
    """
    skills: dict[str, Skill] = {}
    for skill in (*listed, *in_folder):
        existing = skills.setdefault(skill.full_id, skill)
        if existing.path.resolve() != skill.path.resolve():
            raise BundleError(
                f"{skill.path}:1: {skill.full_id!r} is also at {existing.path}: rename one of them, or take "
                f"it out of the bundle {bundle.bundle.id!r}"
            )
    return Skills(tuple(skills.values()), (*listed.warnings, *in_folder.warnings))


@dataclass(frozen=True, slots=True)
class _Descriptor:
    """A descriptor module, and the lines of its settings."""

    module: ModuleType

    def value(self, name: str, default: object) -> object:
        value: object = vars(self.module).get(name, default)
        return value

    def wrong(self, name: str, problem: str, item: int | str | None = None) -> BundleError:
        return BundleError(f"{self.location(name, item)}: {problem}")

    def location(self, name: str, item: int | str | None = None) -> str:
        """Return `file:line` of a setting, or of an item in it; the module's name if it does not have a file."""
        file = self.module.__file__
        if file is None:
            return self.module.__name__
        written = _assignments(Path(file)).get(name)
        return file if written is None else f"{file}:{_line(written, item)}"

    def check_spelling(self, names: Iterable[str]) -> None:
        """Raise a BundleError if an unknown upper-case name in the module is similar to one of `names`."""
        for name in vars(self.module):
            if name in (*TOOL_NAMES, *SKILL_NAMES) or name != name.upper():
                continue
            if near := nearest_name(name, names, _MISSPELT):
                raise self.wrong(name, f"{name} is unknown, nearest is {near}")


def _assignments(file: Path) -> dict[str, ast.expr]:
    """Return the last expression assigned to each top-level name of a Python file; empty if the file is missing."""
    assignments: dict[str, ast.expr] = {}
    if file.suffix != ".py" or not file.is_file():
        return assignments
    for node in parse_module(file.read_bytes()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                assignments[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                assignments[name] = value
            case _:
                pass
    return assignments


def _line(written: ast.expr, item: int | str | None) -> int:
    """Return the line of an item of a list (by index) or dict (by key); otherwise the line of the expression."""
    match written:
        case ast.List(elts=items) | ast.Tuple(elts=items):
            before = items[: item + 1] if isinstance(item, int) else []
            # A list may be longer than its literal, and after `*others` its items have other numbers.
            is_literal = not any(isinstance(each, ast.Starred) for each in before)
            return before[-1].lineno if is_literal and item == len(before) - 1 else written.lineno
        case ast.Dict(keys=keys):
            named = (key for key in keys if isinstance(key, ast.Constant) and key.value == item)
            return next((key.lineno for key in named), written.lineno)
        case _:
            return written.lineno


def _bind_tools(descriptor: _Descriptor, bundle: LoadedBundle) -> Iterator[toolbox.Tool]:
    """Yield the tools of the entries of `TOOLS_SPECS` in order: built-in tools, and functions with the entry's alias.

    Raises:
        BundleError: the setting is not a list, an entry is not valid, or its module cannot be imported or lacks tools.
    """
    specs = descriptor.value("TOOLS_SPECS", None)
    if not isinstance(specs, list | tuple):
        problem = 'TOOLS_SPECS must be a list such as [{"ref": "tools.py", "alias": "shop"}]'
        raise descriptor.wrong("TOOLS_SPECS", problem)
    for index, item in enumerate(cast("Sequence[object]", specs)):
        if not isinstance(item, Mapping):
            raise descriptor.wrong("TOOLS_SPECS", f"{item!r} must be a dict", index)
        spec = cast("Mapping[object, object]", item)
        if "builtin" in spec:
            yield _builtin(descriptor, index, spec)
            continue
        source, name, alias = _spec(descriptor, index, spec)
        try:
            module = bundle.resolve_file(name) if source == "ref" else bundle.resolve_module(name)
        except BundleError as error:
            location = descriptor.location("TOOLS_SPECS", index)
            raise BundleError(f"{error} (asked for at {location})") from error
        functions = _functions(module)
        if not functions:
            problem = f"no function in {name!r} is decorated with @tool"
            raise descriptor.wrong("TOOLS_SPECS", problem, index)
        yield from (function.bind(alias) for function in functions)


def _check_keys(
    descriptor: _Descriptor,
    setting: str,
    index: int,
    spec: Mapping[object, object],
    allowed: Sequence[str],
) -> None:
    """Raise a BundleError with the entry's line and the nearest allowed key if the entry has an unknown key."""
    for key in spec:
        if key not in allowed:
            problem = f"the key {key!r} is unknown, {nearest_hint(str(key), allowed)}"
            raise descriptor.wrong(setting, problem, index)


def _builtin(descriptor: _Descriptor, index: int, spec: Mapping[object, object]) -> toolbox.Tool:
    """Return the built-in tool of an entry, with the port in the entry.

    Raises:
        BundleError: a key or the name of the tool is unknown, or the tool refuses the port; the message has the line.
    """
    _check_keys(descriptor, "TOOLS_SPECS", index, spec, _BUILTIN_KEYS)
    name = str(spec["builtin"])
    if name not in BUILTINS:
        problem = f"no built-in tool is called {name!r}, {nearest_hint(name, BUILTINS)}"
        raise descriptor.wrong("TOOLS_SPECS", problem, index)
    try:
        return BUILTINS[name](spec.get("port"))
    except BundleError as error:
        raise descriptor.wrong("TOOLS_SPECS", str(error), index) from error


def _spec(
    descriptor: _Descriptor, index: int, spec: Mapping[object, object]
) -> tuple[str, str, str]:
    """Check an entry of `TOOLS_SPECS`; return the key of its source (`ref` or `module`), the source, and the alias.

    Raises:
        BundleError: the entry has an unknown key, not exactly one source, or an invalid alias; the message has the line.
    """
    _check_keys(descriptor, "TOOLS_SPECS", index, spec, _SPEC_KEYS)
    texts = {str(key): value for key, value in spec.items() if isinstance(value, str) and value}
    sources = [key for key in _SOURCES if key in spec]
    if len(sources) != 1 or sources[0] not in texts or "alias" not in texts:
        problem = 'write {"ref": "tools.py", "alias": "shop"} or {"module": "a.b", "alias": "shop"}'
        raise descriptor.wrong("TOOLS_SPECS", f"{spec!r} is incomplete: {problem}", index)
    alias = texts["alias"]
    if not is_alias(alias):
        problem = f"{alias!r} cannot be an alias: {_ALIAS_RULE}"
        raise descriptor.wrong("TOOLS_SPECS", problem, index)
    return sources[0], texts[sources[0]], alias


def _functions(module: ModuleType) -> Iterable[toolbox.ToolFunction[..., Any]]:
    """Return the tools in the public names of a module, imported ones too, each once, in the order of the names."""
    named = ((name, value) for name, value in vars(module).items() if not name.startswith("_"))
    functions = [
        cast("toolbox.ToolFunction[..., Any]", value)
        for _, value in named
        if isinstance(value, toolbox.ToolFunction)
    ]
    return {id(function): function for function in functions}.values()


def is_alias(text: str) -> bool:
    """Return True if the text is valid as the alias of tools."""
    return _ALIAS.fullmatch(text) is not None and text not in RESERVED


def load_runtimes(module: str, bundle: LoadedBundle) -> Mapping[str, str]:
    """Return the backends in `TOOL_RUNTIME` of `exec.python` and `exec.shell`, if set; empty if `module` is empty.

    Raises:
        BundleError: the module cannot be imported, or `TOOL_RUNTIME` is not a dict; the message names file and line.
    """
    if not module:
        return {}
    runtimes = _read_runtimes(_Descriptor(bundle.resolve_module(module)))
    return {name: str(runtimes[name]) for name in _PROGRAM_TOOLS if name in runtimes}


def load_model_settings(module: str, bundle: LoadedBundle) -> ModelSettings:
    """Return the settings of the bundle, with those in `MODEL_SETTINGS` of a descriptor module over them.

    If the name of the module is empty, they are those of the bundle alone.

    Raises:
        BundleError: the descriptor is not valid; the message names file and line.
    """
    settings = bundle.bundle.settings or UNSET
    if not module:
        return settings
    descriptor = _Descriptor(bundle.resolve_module(module))
    written = descriptor.value(_SETTINGS, UNSET)
    try:
        return settings.override(as_settings(written, _SETTINGS))
    except (LooplineError, TypeError) as error:
        raise descriptor.wrong(_SETTINGS, str(error)) from error


def _read_runtimes(descriptor: _Descriptor) -> Mapping[object, object]:
    runtimes = descriptor.value("TOOL_RUNTIME", {})
    if not isinstance(runtimes, Mapping):
        raise descriptor.wrong("TOOL_RUNTIME", 'must be a dict such as {"shop.find": "local"}')
    return cast("Mapping[object, object]", runtimes)


def _check_runtime(descriptor: _Descriptor, tools: toolbox.ToolSet) -> None:
    """Check the backend of each tool in `TOOL_RUNTIME`.

    Raises:
        BundleError: a tool or a backend is unknown, or a backend does not support the tool.
    """
    for key, runtime in _read_runtimes(descriptor).items():
        name = str(key)
        if name not in tools and name not in _PROGRAM_TOOLS:
            problem = f"there is no tool {name!r}, {nearest_hint(name, [*tools, *_PROGRAM_TOOLS])}"
        elif runtime not in BACKENDS:
            problem = f"{name!r} cannot run in {runtime!r}, {nearest_hint(str(runtime), BACKENDS)}"
        elif runtime != "local" and name in tools:
            problem = f"{name!r} cannot run in {runtime!r}: only 'local' works"
        else:
            continue
        raise descriptor.wrong("TOOL_RUNTIME", problem, name)


def _skills_root(
    descriptor: _Descriptor, bundle: LoadedBundle, default: Path | None
) -> Path | None:
    """Return the folder `CUSTOM_SKILLS_ROOT`, which is relative to the bundle; None if it is set to None.

    If it is not set, return `default` if that is a folder, otherwise None.

    Raises:
        BundleError: the setting is not a path or None, or the folder does not exist; the message has the line.
    """
    if "CUSTOM_SKILLS_ROOT" not in vars(descriptor.module):
        return default if default and default.is_dir() else None
    root = descriptor.value("CUSTOM_SKILLS_ROOT", None)
    if root is None:
        return None
    if not isinstance(root, str | Path):
        raise descriptor.wrong("CUSTOM_SKILLS_ROOT", f"{root!r} must be a path or None")
    folder = (bundle.folder or Path()) / root
    if not folder.is_dir():
        problem = f"there is no folder {folder}: create it, or set CUSTOM_SKILLS_ROOT to None"
        raise descriptor.wrong("CUSTOM_SKILLS_ROOT", problem)
    return folder


def _read_agents_config(descriptor: _Descriptor, skills: Skills) -> dict[str, SkillSelection]:
    """Return the selections of skills in `AGENTS_CONFIG` by consumer.

    Raises:
        BundleError: the setting is not valid, a consumer looks like a misspelt `react`, or a pattern does not match any skill.
    """
    try:
        config = skill_selections(descriptor.value("AGENTS_CONFIG", {}))
    except BundleError as error:
        raise descriptor.wrong("AGENTS_CONFIG", str(error)) from error
    names = [(skill.namespace, skill.id) for skill in skills]
    for consumer, selection in config.items():
        known = (REACT, REACT_SHORT)
        if consumer not in known and (near := nearest_name(consumer, known, _ALIKE_CONSUMER)):
            problem = f"the consumer {consumer!r} is unknown, nearest is {near!r}"
            raise descriptor.wrong("AGENTS_CONFIG", problem, consumer)
        for pattern in selection.unmatched(names):
            nearest = nearest_hint(pattern, [skill.full_id for skill in skills])
            problem = f"no skill is called {pattern!r}, {nearest}"
            raise descriptor.wrong("AGENTS_CONFIG", problem, consumer)
    return config


def _calculator(port: object) -> toolbox.Tool:
    if port is not None:
        raise BundleError(f"calculator needs no port, and was given {port!r}")
    return toolbox.Calculator()


def _web_search(port: object) -> toolbox.Tool:
    if not isinstance(port, toolbox.WebSearch):
        raise BundleError(
            f"web_search needs a port with `async search(query, limit)`, not {port!r}"
        )
    return toolbox.WebSearchTool(port)


def _web_fetch(port: object) -> toolbox.Tool:
    if not isinstance(port, toolbox.WebFetch):
        raise BundleError(f"web_fetch needs a port with `async fetch(url)`, not {port!r}")
    return toolbox.WebFetchTool(port)


def _knowledge_search(port: object) -> toolbox.Tool:
    """Return `knowledge_search` for a port that is a dict of search functions; their failures become ToolErrors.

    Raises:
        BundleError: the port is not a dict, is empty, or has an item that is not a non-empty name with a function.
    """
    none: Mapping[object, object] = {}
    searches = cast("Mapping[object, object]", port) if isinstance(port, Mapping) else none
    spaces = {name: search for name, search in searches.items() if isinstance(name, str) and name}
    if not spaces or len(spaces) != len(searches) or not all(map(callable, spaces.values())):
        problem = 'as its port a dict such as {"docs": search_docs} of search functions'
        raise BundleError(f"knowledge_search needs {problem}, not {port!r}")
    return toolbox.KnowledgeSearchTool(
        {
            name: guard_search(cast("toolbox.KnowledgeSearch", search))
            for name, search in spaces.items()
        }
    )


BUILTINS: Mapping[str, Callable[[object], toolbox.Tool]] = {
    "calculator": _calculator,
    "web_search": _web_search,
    "web_fetch": _web_fetch,
    "knowledge_search": _knowledge_search,
}
