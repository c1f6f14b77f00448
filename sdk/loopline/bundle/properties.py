"""The properties of a bundle: its configuration, its `loopline.yaml`, and what the caller sets.

A later one wins over an earlier one, key by key. The configuration says which keys there are and, by
their defaults, what type they have; a default of None takes anything. A section whose default is an
empty dict is open: whatever is below it is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Literal, cast, get_args

from loopline.bundle.mcp_config import MCP_FILE, START_SECONDS
from loopline.errors import LooplineError, PropertyError
from loopline.files import WorkspaceLimits
from loopline.knowledge import KnowledgeConfig
from loopline.models import Json, JsonObject, YamlDocument, YamlError, read_yaml
from loopline.react import Limits, LoopOptions, check_limits, check_mode, named_preset
from loopline.sandbox import ExecutionLimits
from loopline.tools import ToolPattern

FILE = "loopline.yaml"
KNOWLEDGE: Mapping[str, Json] = asdict(KnowledgeConfig())
"""The keys of the section `knowledge`, which every bundle knows, with their defaults."""

BACKENDS = ("docker", "fargate", "process", "local")
"""Where programs run: `execution.runtime.mode` names one for all, `TOOL_RUNTIME` of a descriptor one for each tool."""

EXECUTION: JsonObject = {
    "runtime": {
        "mode": "",
        "enabled": True,
        "default_profile": "",
        "profiles": {},
        "image": "py-code-exec:latest",
        "network_mode": "none",
        "cpus": "",
        "memory": "",
        "extra_args": [],
        "cluster": "",
        "task_definition": "",
        "container_name": "exec",
        "subnets": [],
        "security_groups": [],
        "assign_public_ip": False,
        "launch_type": "FARGATE",
        "platform_version": "",
        "snapshots": "",
    },
    "python": "",
    "shell": False,
    "allow_local": False,
    "effect": "exclusive",
    "approval_wait_s": 60.0,
    "tools": None,
    "log_folder": "",
    "limits": dict[str, Json](asdict(ExecutionLimits())),
}
"""The section `execution`; programs run only in a bundle that writes it."""

PROGRAMS_TOOLS = "execution.tools"
"""The property that names the tools which programs may call."""

LOOP: Mapping[str, Json] = {
    "agent_mode": "",
    "memory": {"embedder": ""},
    "react": {
        "preset": None,
        "memory": False,
        "memsearch": False,
        "agents_md": False,
        "skills": "bundle",
        **dict.fromkeys(LoopOptions().values),
    },
    "workspace": asdict(WorkspaceLimits()),
    "mcp": {"file": MCP_FILE, "start_seconds": START_SECONDS},
    "privacy": {"redact": list[Json]()},
    "execution": EXECUTION,
    "web": {"search": "", "fetch": False, "allow": None},
    "react_config": dict.fromkeys(("max_iterations", "tools", "early_stop")),
}
"""The properties that configure every bundle's loop; none is set by default."""


@dataclass(frozen=True, slots=True)
class TypedValue:
    """A value as the user typed it: a text where the default is a text, else a YAML value."""

    text: str


Setting = Json | TypedValue
SkillSearch = Literal["bundle", "project", "all"]
_SKILL_SEARCHES: tuple[SkillSearch, ...] = get_args(SkillSearch)


@dataclass(frozen=True)
class Properties:
    """Nested values by name. `written` are the top-level keys that are set anywhere.

    `locations` has, by dotted name, the file and line of each value that is in force as `loopline.yaml` sets it.
    """

    tree: JsonObject = field(default_factory=JsonObject)
    written: frozenset[str] = frozenset()
    locations: Mapping[str, str] = field(default_factory=dict[str, str])

    def at(self, name: str, default: Json = None) -> Json:
        """Return the value of a dotted name, which may be a section, or the default."""
        value: Json = self.tree
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return deepcopy(value)

    def section(self, name: str) -> JsonObject:
        """Return the section of that dotted name, empty if there is none."""
        value = self.at(name)
        return value if isinstance(value, dict) else {}

    def flat(self) -> dict[str, Json]:
        """Return every value by its dotted name; an empty section is an empty dict."""
        own = {name: deepcopy(self._by_name[name]) for name in self._containers}
        return {**self._by_name, **own}

    @cached_property
    def _by_name(self) -> dict[str, Json]:
        return {".".join(path): value for path, value in _leaves(self.tree)}

    @cached_property
    def _containers(self) -> list[str]:
        """Return the names of the lists and dicts, of which every caller gets its own."""
        return [name for name, value in self._by_name.items() if isinstance(value, list | dict)]


def merged(
    configuration: Mapping[str, Json],
    *,
    folder: Path | None = None,
    overrides: Mapping[str, Setting] | None = None,
) -> Properties:
    """Return the properties in force: the configuration, the `loopline.yaml` in `folder`, then `overrides`.

    An override is named by its dotted name; a dict sets the keys in it and leaves the others.

    Raises:
        PropertyError: a key is unknown, or a value has the wrong type; the message names the nearest
            key or the type, and the file and line it was read from.
    """
    defaults = _section(cast("Mapping[object, object]", configuration), "configuration")
    shape: JsonObject = {**defaults, **LOOP, "knowledge": dict(KNOWLEDGE)}
    merge = _Merge(shape, lambda _: "configuration: ")
    tree = merge.into({"knowledge": dict(KNOWLEDGE)}, defaults)
    written, locations = set(defaults), dict[str, str]()
    if folder is not None and (folder / FILE).is_file():
        file = folder / FILE
        document, content = _read_file(file)
        tree = _Merge(shape, lambda path: f"{file}:{document.line(*path)}: ").into(tree, content)
        written |= content.keys()
        locations = {
            ".".join(path): f"{file}:{document.line(*path)}" for path, _ in _leaves(content)
        }
    for name, value in (overrides or {}).items():
        nested = _nested(shape, name, value)
        tree = _Merge(shape, lambda _: "").into(tree, nested)
        written |= nested.keys()
        for path, _ in _leaves(nested):
            locations.pop(".".join(path), None)
    return Properties(tree, frozenset(written), locations)


def parse_setting(setting: str) -> tuple[str, TypedValue]:
    """Return the name and the value in `a.b=value`, as it is typed after `--prop`.

    Raises:
        PropertyError: there is no `=`, or no name before it.
    """
    name, equals, text = setting.partition("=")
    if not equals or not name.strip():
        raise PropertyError(f"{setting!r} sets nothing: write it as name=value")
    return name.strip(), TypedValue(text.strip())


_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Merge:
    """Merges values into a section, as the shape allows; `location` begins an error's text."""

    shape: JsonObject
    location: Callable[[_Path], str]

    def into(self, current: JsonObject, values: JsonObject) -> JsonObject:
        return self._section(self.shape, current, values, ())

    def _section(
        self, shape: JsonObject | None, current: JsonObject, values: JsonObject, path: _Path
    ) -> JsonObject:
        """Return the section with the values in it; without a shape it takes any."""
        section = dict(current)
        for key, value in values.items():
            inner = (*path, key)
            if "." in key:
                location = self.location(inner)
                raise PropertyError(f"{location}{key!r} has a dot: write a section in a section")
            if shape is not None and key not in shape:
                name = ".".join(inner)
                names = [".".join(name_parts) for name_parts in _names(self.shape)]
                nearest = get_close_matches(name, names, 1, 0.0)[0]
                raise PropertyError(
                    f"{self.location(inner)}no property {name!r}, nearest is {nearest!r}"
                )
            expected = None if shape is None else shape[key]
            section[key] = self._value(expected, current.get(key), value, inner)
        return section

    def _value(self, expected: Json, current: Json, value: Json, path: _Path) -> Json:
        if isinstance(value, dict) and isinstance(expected, dict | None):
            before = current if isinstance(current, dict) else {}
            return self._section(expected or None, before, value, path)
        kind = _kind(value)
        # A whole number is a number too.
        fits = kind == _kind(expected) or (isinstance(expected, float) and kind == "a whole number")
        if expected is not None and not fits:
            name = ".".join(path)
            raise PropertyError(
                f"{self.location(path)}{name} must be {_kind(expected)}, not {value!r}"
            )
        return value


def _leaves(section: JsonObject, path: _Path = ()) -> Iterator[tuple[_Path, Json]]:
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _names(section: JsonObject, path: _Path = ()) -> Iterator[_Path]:
    """Yield the path of every section and key."""
    for key, value in section.items():
        yield (*path, key)
        yield from _names(value, (*path, key)) if isinstance(value, dict) else ()


def _kind(expected: Json) -> str:
    match expected:
        case bool():
            return "true or false"
        case int():
            return "a whole number"
        case float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case dict():
            return "a section"
        case None:
            return "nothing"


def _nested(shape: JsonObject, name: str, value: Setting) -> JsonObject:
    """Return the dotted name as sections, with the value in the innermost."""
    path = name.split(".")
    if not all(path):
        raise PropertyError(f"{name!r} is no name: write it as section.key")
    nested = _read(shape, name, value) if isinstance(value, TypedValue) else _plain(value, name)
    for key in reversed(path[1:]):
        around: JsonObject = {key: nested}
        nested = around
    return {path[0]: nested}


def _read(shape: JsonObject, name: str, value: TypedValue) -> Json:
    is_text = isinstance(Properties(shape).at(name), str)
    try:
        value_at_key = read_yaml(value.text).value
    except YamlError as error:
        if is_text:
            return value.text
        raise PropertyError(f"{name}: {error.problem}") from error
    # A commit such as 12e4567 is a number to YAML.
    return value.text if is_text and not isinstance(value_at_key, str) else value_at_key


def _plain(value: object, name: str) -> Json:
    """Return the value as JSON: a path is a text, a tuple a list."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Path():
            return str(value)
        case list() | tuple():
            return [_plain(item, name) for item in cast("Sequence[object]", value)]
        case Mapping():
            return _section(cast("Mapping[object, object]", value), name)
        case _:
            raise PropertyError(f"{name}: {value!r} is no JSON value")


def _section(values: Mapping[object, object], name: str) -> JsonObject:
    section: JsonObject = {}
    for key, value in values.items():
        if not isinstance(key, str) or not key:
            raise PropertyError(f"{name}: the key {key!r} must be a text")
        section[key] = _plain(value, key if name == "configuration" else f"{name}.{key}")
    return section


def _read_file(file: Path) -> tuple[YamlDocument, JsonObject]:
    """Return the document in the file, and its sections and keys."""
    try:
        document = read_yaml(file.read_text("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise PropertyError(f"{file}:1: not UTF-8: {error.reason}") from error
    except YamlError as error:
        raise PropertyError(f"{file}:{error.line}: {error.problem}") from error
    content = {} if document.value is None else document.value
    if not isinstance(content, dict):
        raise PropertyError(f"{file}:1: write sections and keys, such as `knowledge:`")
    return document, content


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """The configured loop; `preset` is empty and `tools` is None where nothing is configured.

    `tools` are patterns of the ids of the tools that the loop may offer. With `memsearch` it offers the search in
    past turns, with `memory` the memory of facts about the user. With `agents_md` the model gets the nearest AGENTS.md.
    `skills` says where skills are looked for: in the bundle, also in the project, or in all places.
    """

    preset: str = ""
    limits: Limits = field(default_factory=Limits)
    tools: tuple[ToolPattern, ...] | None = None
    memsearch: bool = False
    agents_md: bool = False
    memory: bool = False
    skills: SkillSearch = "bundle"
    workspace: WorkspaceLimits = field(default_factory=WorkspaceLimits)


def loop_settings(properties: Properties) -> LoopSettings:
    """Return the settings below `react` and `react_config`, of which the former win, and `agent_mode`.

    Raises:
        PropertyError: one of them has a value that it does not take.
    """
    react, nadoo = properties.section("react"), properties.section("react_config")
    preset, tools = react.pop("preset", None), nadoo.pop("tools", None)
    memsearch = bool(react.pop("memsearch", False))
    agents_md = bool(react.pop("agents_md", False))
    memory = bool(react.pop("memory", False))
    skills = _skill_search(react.pop("skills", "bundle"))
    mode = properties.at("agent_mode", "")
    try:
        check_mode(str(mode))
        if preset is not None:
            named_preset(str(preset))
    except LooplineError as error:
        raise PropertyError(str(error)) from error
    limits: Limits = {**_limits("react_config", nadoo), **_limits("react", react)}
    return LoopSettings(
        preset=str(preset or ""),
        limits=limits,
        tools=None if tools in (None, []) else tool_properties(properties, "react_config.tools"),
        memsearch=memsearch,
        agents_md=agents_md,
        memory=memory,
        skills=skills,
        workspace=_workspace_limits(properties.section("workspace")),
    )


LARGEST_LIMITS = WorkspaceLimits(
    file_bytes=1 << 30, tree_bytes=1 << 30, files=100_000, depth=WorkspaceLimits().depth
)


def _workspace_limits(values: Mapping[str, Json]) -> WorkspaceLimits:
    numbers = asdict(WorkspaceLimits())
    for name, most in asdict(LARGEST_LIMITS).items():
        value = values.get(name, numbers[name])
        if not isinstance(value, int) or not 0 < value <= most:
            raise PropertyError(f"workspace.{name} must be from 1 to {most:,}, not {value!r}")
        numbers[name] = value
    return WorkspaceLimits(**numbers)


def _skill_search(value: Json) -> SkillSearch:
    for search in _SKILL_SEARCHES:
        if value == search:
            return search
    raise PropertyError(f"react.skills must be one of {', '.join(_SKILL_SEARCHES)}, not {value!r}")


def _limits(section: str, values: Mapping[str, Json]) -> Limits:
    try:
        return check_limits(cast("Limits", dict(values)))
    except LooplineError as error:
        raise PropertyError(f"{section}: {error}") from error


def tool_properties(properties: Properties, name: str) -> tuple[ToolPattern, ...]:
    """Return the names and patterns of tools in a property; none if it is not set.

    Raises:
        PropertyError: it is no list of texts.
    """
    tools, location = properties.at(name), properties.locations.get(name, "")
    match tools:
        case None:
            return ()
        case list() if all(isinstance(tool, str) for tool in tools):
            return tuple(ToolPattern(name, str(tool), location) for tool in tools)
        case _:
            raise PropertyError(f"{name} must be a list of patterns, such as shop.*, not {tools!r}")
