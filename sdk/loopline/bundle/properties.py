"""The properties of a bundle: its configuration, overridden by its `loopline.yaml`, overridden by the caller.

Each key is overridden separately. The configuration defines the allowed keys, and the type of each default value is the
type of the key. A key with the default None accepts any type. A section with an empty dict as its default accepts any keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, cast, get_args

from loopline.bundle.mcp_config import MCP_FILE, START_SECONDS
from loopline.errors import LooplineError, PropertyError
from loopline.files import WorkspaceLimits
from loopline.knowledge import KnowledgeConfig
from loopline.models import Json, JsonObject, YamlDocument, YamlError, as_settings, read_yaml
from loopline.models.safe_text import hide_password
from loopline.names import nearest_hint
from loopline.react import Limits, LoopOptions, check_limits, check_mode, named_preset
from loopline.sandbox import ExecutionLimits
from loopline.tools import ToolPattern

FILE = "loopline.yaml"
KNOWLEDGE: Mapping[str, Json] = asdict(KnowledgeConfig())
"""The keys of the section `knowledge`, which all bundles have, with their defaults."""

BACKENDS = ("docker", "fargate", "process", "local")
"""The backends of programs. `execution.runtime.mode` selects one for all tools, `TOOL_RUNTIME` one for each tool."""

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
"""The section `execution`. Programs run only in a bundle that sets a key of it."""

APPROVAL_PEOPLE = "react.approval_people"
"""The property with the number of people who must approve calls of a tool."""

PROGRAMS_TOOLS = "execution.tools"
"""The property with the names of the tools that programs may call."""

_SWITCHES = {"memory": False, "memsearch": False, "agents_md": False, "client_tools": True}
LOOP: Mapping[str, Json] = {
    "agent_mode": "",
    "memory": {"embedder": ""},
    "react": {
        "preset": None,
        **_SWITCHES,
        "skills": "bundle",
        "approval_people": {},
        **dict.fromkeys(LoopOptions().values),
        "settings": {},
    },
    "workspace": asdict(WorkspaceLimits()),
    "mcp": {"file": MCP_FILE, "start_seconds": START_SECONDS},
    "privacy": {"redact": list[Json]()},
    "execution": EXECUTION,
    "web": {"search": "", "fetch": False, "allow": None},
    "react_config": dict.fromkeys(("max_iterations", "tools", "early_stop")),
}
"""The properties of the loop, which all bundles have, with their defaults."""


@dataclass(frozen=True, slots=True)
class TypedValue:
    """A value that a user typed. If the default is a text it is a text, otherwise it is parsed as YAML."""

    text: str


Setting = Json | TypedValue
SkillSearch = Literal["bundle", "project", "all"]


@dataclass(frozen=True)
class Properties:
    """Nested values by name.

    `written` are the top-level keys that the configuration, the file or the caller sets. `locations` has the file and line
    of each value that comes from `loopline.yaml`, by dotted name.
    """

    tree: JsonObject = field(default_factory=JsonObject)
    written: frozenset[str] = frozenset()
    locations: Mapping[str, str] = field(default_factory=dict[str, str])

    def at(self, name: str, default: Json = None) -> Json:
        """Return a copy of the value or section with a dotted name, or the default if it is missing."""
        value: Json = self.tree
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return deepcopy(value)

    def section(self, name: str) -> JsonObject:
        """Return a copy of the section with a dotted name; empty if it does not exist."""
        value = self.at(name)
        return value if isinstance(value, dict) else {}

    def flat(self) -> dict[str, Json]:
        """Return all values by dotted name; an empty section is an empty dict. Lists and dicts are copies."""
        own = {name: deepcopy(self._by_name[name]) for name in self._containers}
        return {**self._by_name, **own}

    @cached_property
    def _by_name(self) -> dict[str, Json]:
        return {".".join(path): value for path, value in _leaves(self.tree)}

    @cached_property
    def _containers(self) -> list[str]:
        """The names of the lists and dicts, which must be copied for each caller."""
        return [name for name, value in self._by_name.items() if isinstance(value, list | dict)]


def merged(
    configuration: Mapping[str, Json],
    *,
    folder: Path | None = None,
    overrides: Mapping[str, Setting] | None = None,
    location: str = "",
) -> Properties:
    """Merge the configuration, the `loopline.yaml` in `folder` and `overrides`. Later values win.

    The keys of `overrides` are dotted names. A dict as a value sets only the keys in it. `location` is the file and line of
    the configuration, for errors.

    Raises:
        PropertyError: a key is unknown, or a value has the wrong type; the message names a similar key or the type, and the
            file and line of the value.
    """
    defaults = _section(cast("Mapping[object, object]", configuration), "configuration")
    shape: JsonObject = {**defaults, **LOOP, "knowledge": dict(KNOWLEDGE)}
    place = f"{location}: configuration: " if location else "configuration: "
    merge = _Merge(shape, lambda _: place)
    tree = merge.into({"knowledge": dict(KNOWLEDGE)}, defaults)
    written = set(defaults)
    locations: dict[str, str] = {}
    if folder is not None and (folder / FILE).is_file():
        file = folder / FILE
        document, content = _read_file(file)
        tree = _Merge(shape, lambda path: f"{file}:{document.line(*path)}: ").into(tree, content)
        written |= content.keys()
        locations = {
            ".".join(path): f"{file}:{document.line(*path)}" for path, _ in _leaves(content)
        }
    for name, value in (overrides or {}).items():
        nested = _nest(shape, name, value)
        tree = _Merge(shape, lambda _: "").into(tree, nested)
        written |= nested.keys()
        for path, _ in _leaves(nested):
            locations.pop(".".join(path), None)
    return Properties(tree, frozenset(written), locations)


def parse_setting(setting: str) -> tuple[str, TypedValue]:
    """Split a setting `a.b=value`, as typed after `--prop`, into name and value.

    Raises:
        PropertyError: the `=` or the name is missing.
    """
    name, equals, text = setting.partition("=")
    if not equals or not name.strip():
        raise PropertyError(f"{hide_password(setting)!r} sets nothing: write it as name=value")
    return name.strip(), TypedValue(text.strip())


_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Merge:
    """Merges values into a section, and checks them against the shape.

    `location` returns the start of an error message, given the path of a value.
    """

    shape: JsonObject
    location: Callable[[_Path], str]

    def into(self, current: JsonObject, values: JsonObject) -> JsonObject:
        return self._section(self.shape, current, values, ())

    def _section(
        self, shape: JsonObject | None, current: JsonObject, values: JsonObject, path: _Path
    ) -> JsonObject:
        """Return the section with the values merged into it. Without a shape, all keys and types are accepted.

        Raises:
            PropertyError: a key has a dot or is not in the shape, or a value has the wrong type.
        """
        section = dict(current)
        for key, value in values.items():
            inner = (*path, key)
            if "." in key:
                location = self.location(inner)
                raise PropertyError(f"{location}{key!r} has a dot: write a section in a section")
            if shape is not None and key not in shape:
                name = ".".join(inner)
                names = [".".join(name_parts) for name_parts in _names(self.shape)]
                hint = nearest_hint(name, names)
                raise PropertyError(f"{self.location(inner)}no property {name!r}, {hint}")
            expected = None if shape is None else shape[key]
            section[key] = self._value(expected, current.get(key), value, inner)
        return section

    def _value(self, expected: Json, current: Json, value: Json, path: _Path) -> Json:
        """Return the new value of a key: a section is merged into `current`, any other value replaces `current`.

        Raises:
            PropertyError: the value has another type than `expected`. None accepts every type, and a float
                whole numbers too.
        """
        if isinstance(value, dict) and isinstance(expected, dict | None):
            before = current if isinstance(current, dict) else {}
            return self._section(expected or None, before, value, path)
        kind = _kind(value)
        # A whole number is a number too.
        fits = kind == _kind(expected) or (isinstance(expected, float) and kind == "a whole number")
        if expected is not None and not fits:
            name = ".".join(path)
            raise PropertyError(
                f"{self.location(path)}{name} must be {_kind(expected)}, "
                f"not {hide_password(repr(value))}"
            )
        return value


def _leaves(section: JsonObject, path: _Path = ()) -> Iterator[tuple[_Path, Json]]:
    """Yield the path and the value of each nested key; sections are left out, except empty ones."""
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _names(section: JsonObject, path: _Path = ()) -> Iterator[_Path]:
    for key, value in section.items():
        yield (*path, key)
        yield from _names(value, (*path, key)) if isinstance(value, dict) else ()


def _kind(expected: Json) -> str:
    """Return the type of a value as error messages name it, such as `a whole number`; `nothing` for None."""
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


def _nest(shape: JsonObject, name: str, value: Setting) -> JsonObject:
    """Return nested sections for a dotted name, with the value, as JSON, in the innermost section.

    Raises:
        PropertyError: a part of the name is empty, or the value is not valid YAML or JSON.
    """
    path = name.split(".")
    if not all(path):
        raise PropertyError(f"{name!r} is not a name: write it as section.key")
    if isinstance(value, TypedValue):
        nested = _parse_typed(shape, name, value)
    else:
        nested = _to_json(value, name)
    for key in reversed(path[1:]):
        around: JsonObject = {key: nested}
        nested = around
    return {path[0]: nested}


def _parse_typed(shape: JsonObject, name: str, value: TypedValue) -> Json:
    """Parse a typed value as YAML; keep it as text if the default is a text and the YAML is invalid or not a text.

    Raises:
        PropertyError: the value is not valid YAML, and the default is not a text.
    """
    is_text = isinstance(Properties(shape).at(name), str)
    try:
        value_at_key = read_yaml(value.text).value
    except YamlError as error:
        if is_text:
            return value.text
        raise PropertyError(f"{name}: {error.problem}") from error
    # YAML parses a commit such as 12e4567 as a number.
    return value.text if is_text and not isinstance(value_at_key, str) else value_at_key


def _to_json(value: object, name: str) -> Json:
    """Convert a value to JSON: a path to a text, a tuple to a list; raise a PropertyError for other types."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Path():
            return str(value)
        case list() | tuple():
            return [_to_json(item, name) for item in cast("Sequence[object]", value)]
        case Mapping():
            return _section(cast("Mapping[object, object]", value), name)
        case _:
            raise PropertyError(f"{name}: {value!r} is not a JSON value")


def _section(values: Mapping[object, object], name: str) -> JsonObject:
    """Convert a mapping and the values in it to JSON; `name` is its dotted name in error messages.

    Raises:
        PropertyError: a key is empty or not a text, or a value is not JSON.
    """
    section: JsonObject = {}
    for key, value in values.items():
        if not isinstance(key, str) or not key:
            raise PropertyError(f"{name}: the key {key!r} must be a text")
        section[key] = _to_json(value, key if name == "configuration" else f"{name}.{key}")
    return section


def _read_file(file: Path) -> tuple[YamlDocument, JsonObject]:
    """Read a YAML file; return the document, which has the line numbers, and its content, {} for an empty file.

    Raises:
        PropertyError: the file is not UTF-8 or YAML, or is not a mapping; the message has file and line.
    """
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
    """The settings of the loop in the properties.

    `preset` is empty and `tools` is None if they are not set. `tools` are patterns of the tools that the loop may offer.
    With `memsearch` the loop offers a search in past turns, with `memory` a memory of facts about the user, and with
    `agents_md` the system text contains the nearest AGENTS.md. `skills` are the places where skills are searched: only the
    bundle, also the project, or also the folders of the user. Without `client_tools` a message may bring no tools.
    `approval_people` has the number of people who must approve a call, by patterns of tools.
    """

    preset: str = ""
    limits: Limits = field(default_factory=Limits)
    tools: tuple[ToolPattern, ...] | None = None
    memsearch: bool = False
    agents_md: bool = False
    memory: bool = False
    skills: SkillSearch = "bundle"
    client_tools: bool = True
    approval_people: Mapping[str, int] = field(default_factory=dict[str, int])
    workspace: WorkspaceLimits = field(default_factory=WorkspaceLimits)


def loop_settings(properties: Properties) -> LoopSettings:
    """Read the settings of the loop from the properties. Limits below `react` override those below `react_config`.

    Raises:
        PropertyError: a value is not valid.
    """
    react = properties.section("react")
    react_config = properties.section("react_config")
    preset = react.pop("preset", None)
    tools = react_config.pop("tools", None)
    skills = react.pop("skills", "bundle")
    search = next((each for each in get_args(SkillSearch) if each == skills), None)
    if search is None:
        choices = ", ".join(get_args(SkillSearch))
        raise PropertyError(f"react.skills must be one of {choices}, not {skills!r}")
    switches = {name: bool(react.pop(name, default)) for name, default in _SWITCHES.items()}
    react.pop("approval_people", None)
    mode = properties.at("agent_mode", "")
    try:
        check_mode(str(mode))
        if preset is not None:
            named_preset(str(preset))
    except LooplineError as error:
        raise PropertyError(str(error)) from error
    limits: Limits = {**_limits("react_config", react_config), **_limits("react", react)}
    return LoopSettings(
        preset=str(preset or ""),
        limits=limits,
        tools=None if tools in (None, []) else tool_properties(properties, "react_config.tools"),
        skills=search,
        **switches,
        approval_people=_approval_people(properties),
        workspace=_workspace_limits(properties.section("workspace")),
    )


LARGEST_LIMITS = WorkspaceLimits(
    file_bytes=1 << 30, tree_bytes=1 << 30, files=100_000, depth=WorkspaceLimits().depth
)


def _workspace_limits(values: Mapping[str, Json]) -> WorkspaceLimits:
    """Return the limits of the workspace; a missing value has its default.

    Raises:
        PropertyError: a value is not a whole number from 1 to that in `LARGEST_LIMITS`.
    """
    numbers = asdict(WorkspaceLimits())
    for name, most in asdict(LARGEST_LIMITS).items():
        value = values.get(name, numbers[name])
        if not isinstance(value, int) or not 0 < value <= most:
            raise PropertyError(f"workspace.{name} must be from 1 to {most:,}, not {value!r}")
        numbers[name] = value
    return WorkspaceLimits(**numbers)


def _approval_people(properties: Properties) -> dict[str, int]:
    """Return the numbers of people in the section, such as `shop.refund: 2`, by the patterns of tools.

    Raises:
        PropertyError: a value is not a whole number of at least 1; the message has file and line, if known.
    """
    people: dict[str, int] = {}
    for path, value in _leaves(properties.section(APPROVAL_PEOPLE)):
        name = ".".join((APPROVAL_PEOPLE, *path))
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            location = properties.locations.get(name, "")
            place = f"{location}: " if location else ""
            raise PropertyError(
                f"{place}{name} must be a number of people of at least 1, not {value!r}"
            )
        people[".".join(path)] = value
    return people


def people_patterns(properties: Properties) -> Iterator[ToolPattern]:
    """Yield the patterns of tools in the section of the people who must approve."""
    for path, _ in _leaves(properties.section(APPROVAL_PEOPLE)):
        name = ".".join((APPROVAL_PEOPLE, *path))
        yield ToolPattern(APPROVAL_PEOPLE, ".".join(path), properties.locations.get(name, ""))


def _limits(section: str, values: Mapping[str, Json]) -> Limits:
    """Return the limits in a section, with `settings` converted; raise a PropertyError if a limit is not valid."""
    limits = cast("Limits", dict(values))
    try:
        if settings := limits.pop("settings", None):
            limits["settings"] = as_settings(settings)
        return check_limits(limits)
    except LooplineError as error:
        raise PropertyError(f"{section}: {error}") from error


def tool_properties(properties: Properties, name: str) -> tuple[ToolPattern, ...]:
    """Return the names and patterns of tools in a property; empty if it is not set.

    Raises:
        PropertyError: the value is not a list of texts.
    """
    tools = properties.at(name)
    location = properties.locations.get(name, "")
    match tools:
        case None:
            return ()
        case list() if all(isinstance(tool, str) for tool in tools):
            return tuple(ToolPattern(name, str(tool), location) for tool in tools)
        case _:
            raise PropertyError(f"{name} must be a list of patterns, such as shop.*, not {tools!r}")
