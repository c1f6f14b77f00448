"""Agents: named definitions of child runs, with their instructions, tools and limits, written as files or values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from msgspec import ValidationError, convert

from loopline import models
from loopline.errors import BundleError, LooplineError, ToolError
from loopline.names import caller_location, checks_keywords, nearest_hint
from loopline.react import Limits, check_limits
from loopline.react.environment import one_of, read_variables
from loopline.react.loop_options import Effort
from loopline.timeline import LimitValue
from loopline.tools.parameters import nearest_first

if TYPE_CHECKING:
    from collections.abc import Sequence


AGENTS_FOLDER = "agents"
"""The folder of a bundle that has a `.md` file for each agent."""
FilesMode = Literal["own", "read", "write"]
FILES_MODES: tuple[FilesMode, ...] = get_args(FilesMode)
MAIN = "main"
"""The name of the bundle itself, with its instructions and tools, among its agents."""
DIGEST = 12
EFFORTS: tuple[Effort, ...] = get_args(Effort)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@checks_keywords
@dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent: the definition of child runs that do one kind of work.

    `tools` are the names, or patterns such as `shop.*`, of the tools that it may call, and `skills` those of the skills
    that it sees; None means all of the bundle. `model` is a role of the bundle's models, such as `fast`. `effort` is its
    reasoning effort, and `limits` override the limits of the bundle's loop. `settings` are the settings of its model, which
    override those of the bundle and its loop. `location` is the file and line of the
    definition, by default those of the call.

    With `files` "own" its workspace is empty at first. With "read" the workspace has a copy of its caller's `files/`;
    changes to it are discarded. With "write" its changes are applied to the caller's `files/`. A conversation may be
    handed over to an agent that `leads`.
    """

    name: str
    description: str
    instructions: str = ""
    tools: Sequence[str] | None = None
    skills: Sequence[str] | None = None
    model: str = ""
    effort: Effort | None = None
    limits: Mapping[str, LimitValue] = field(default_factory=dict[str, LimitValue])
    files: FilesMode = "own"
    leads: bool = False
    settings: models.ModelSettings | None = None
    location: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Check the definition.

        Raises:
            LooplineError: a field is not valid; the message starts with the name of the field.
        """
        if not self.location:
            object.__setattr__(self, "location", caller_location())
        if not _NAME.fullmatch(self.name):
            raise LooplineError(
                f"name: a letter, then at most 63 of A-Z a-z 0-9 _ -, not {self.name[:80]!r}"
            )
        if self.name == MAIN:
            raise LooplineError(
                f"name: {MAIN!r} is the bundle itself, so an agent needs another name"
            )
        if not self.description.strip():
            raise LooplineError(f"description: one sentence about the work of {self.name}")
        if self.effort is not None and self.effort not in EFFORTS:
            raise LooplineError(f"effort: one of {', '.join(EFFORTS)}, not {self.effort!r}")
        if self.files not in FILES_MODES:
            raise LooplineError(f"files: one of {', '.join(FILES_MODES)}, not {self.files!r}")
        try:
            check_limits(cast("Limits", dict(self.limits)))
        except LooplineError as error:
            raise LooplineError(f"limits: {error}") from error
        if self.settings is not None:
            models.as_settings(self.settings)

    @cached_property
    def digest(self) -> str:
        """The first 12 digits of the sha256 of the definition, `location` left out."""
        definition: models.JsonObject = {
            "name": self.name,
            "description": self.description,
            "instructions": self.instructions,
            "tools": None if self.tools is None else [*self.tools],
            "skills": None if self.skills is None else [*self.skills],
            "model": self.model,
            "effort": self.effort,
            "limits": {**self.limits},
        }
        # Digests of agents that were recorded before there were these fields must stay the same.
        if self.files != "own" or self.leads:
            definition |= {"files": self.files, "leads": self.leads}
        if self.settings is not None:
            definition |= {"settings": self.settings.recorded()}
        return sha256(models.dumps(definition).encode()).hexdigest()[:DIGEST]

    def limits_with(self, effort: Effort | None) -> Mapping[str, LimitValue]:
        """Return the limits of the agent's runs; `effort` is used if the agent does not set one.

        If the agent has the files of its caller, `workspace` is "latest". The agent's own limits override both.
        """
        chosen = self.effort or effort
        limits: dict[str, LimitValue] = {} if chosen is None else {"reasoning_effort": chosen}
        if self.files != "own":
            limits["workspace"] = "latest"
        return {**limits, **self.limits}

    def __str__(self) -> str:
        return f"{self.name}: {self.description.strip()}"


class Agents(Mapping[str, Agent]):
    """The agents of a bundle by name, in the order they are listed; a lookup ignores case.

    Raises:
        BundleError: two agents have the same name, ignoring case.
    """

    def __init__(self, agents: Iterable[Agent] = ()) -> None:
        self._agents: dict[str, Agent] = {}
        for agent in agents:
            first = self._agents.setdefault(agent.name.lower(), agent)
            if first is not agent:
                raise BundleError(
                    f"{agent.location or 'Agent(…)'}: the agent {agent.name!r} is also at "
                    f"{first.location or 'Agent(…)'}: rename one of them"
                )

    def __getitem__(self, name: str) -> Agent:
        return self._agents[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return (agent.name for agent in self._agents.values())

    def __len__(self) -> int:
        return len(self._agents)

    def find(self, name: str, also: Sequence[str] = ()) -> Agent:
        """Return the agent with this name; case and surrounding spaces are ignored.

        Raises:
            ToolError: no agent has this name; the message lists the agents and the names in `also`, the most similar name
                first.
        """
        if name.strip().lower() in self._agents:
            return self[name.strip()]
        near = ", ".join(nearest_first(name, [*self, *also])) or "none"
        raise ToolError(f"there is no agent {name!r}: there are {near}")

    def without(self, name: str) -> Agents:
        """Return the agents without the agent of that name."""
        return Agents(agent for agent in self.values() if agent.name.lower() != name.lower())

    def with_environment(self, environment: Mapping[str, str]) -> Agents:
        """Return the agents with the models and efforts that environment variables set.

        If `CHATCLI_AGENT_<NAME>_MODEL` is set, the agent's model is the role `agent.<name>`. `CHATCLI_AGENT_<NAME>_EFFORT`
        sets its effort; an unknown effort is ignored.
        """
        return Agents(_override(agent, environment) for agent in self.values())


def _override(agent: Agent, environment: Mapping[str, str]) -> Agent:
    if environment.get(model_variable(agent.name), "").strip():
        agent = replace(agent, model=agent_role(agent.name))
    variable = f"{_prefix(agent.name)}_EFFORT"
    efforts = read_variables(environment, {variable: one_of(EFFORTS)}, ignores_invalid=True)
    return replace(agent, effort=efforts[variable]) if efforts else agent


def _prefix(name: str) -> str:
    return f"CHATCLI_AGENT_{name.upper().replace('-', '_')}"


def model_variable(name: str) -> str:
    """Return the name of the environment variable for the model of an agent."""
    return f"{_prefix(name)}_MODEL"


def agent_role(name: str) -> str:
    """Return the role of the model that the environment sets for an agent."""
    return f"agent.{name}"


def load_agents(folder: Path) -> list[Agent]:
    """Return the agents in the `.md` files of a folder, sorted by file name.

    Raises:
        BundleError: a file does not define an agent; the message has its path and line.
    """
    return [read_agent(path) for path in sorted(folder.glob("*.md")) if path.is_file()]


def read_agent(path: Path) -> Agent:
    """Return the agent in a file: a front matter between lines of `---`, then its instructions.

    Without a name in the front matter the agent has the name of the file, without its extension.

    Raises:
        BundleError: the file does not define an agent, or has an unknown key; the message has its path and line.
        OSError: the file cannot be read.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}:1: the file is not UTF-8: {error.reason}") from error
    try:
        document, instructions = models.split_front_matter(text)
    except models.YamlError as error:
        raise BundleError(f"{path}:{error.line}: {error.problem}") from error
    return _AgentFile(path, document).agent(instructions.strip())


_FORMS: Mapping[str, tuple[object, str]] = {
    **dict.fromkeys(("name", "description", "model"), (str | None, "a text")),
    **dict.fromkeys(("tools", "skills"), (str | list[str] | None, "a list of names or patterns")),
    "effort": (Literal["", Effort] | None, f"one of {', '.join(EFFORTS)}"),
    "limits": (dict[str, LimitValue] | None, "a mapping"),
    "files": (Literal["", FilesMode] | None, f"one of {', '.join(FILES_MODES)}"),
    "leads": (bool | None, "true or false"),
    "settings": (dict[str, models.Json] | None, "a mapping"),
}
"""The keys of the front matter of an agent's file, with the type of each value and its description for errors."""


@dataclass(frozen=True, slots=True)
class _AgentFile:
    path: Path
    document: models.YamlDocument

    def agent(self, instructions: str) -> Agent:
        """Return the agent with the fields of the front matter; by default its name is that of the file.

        Raises:
            BundleError: the front matter is not a mapping, or a key or a value is not valid; the message names file and line.
        """
        fields = self.document.value
        if not isinstance(fields, dict):
            raise self._error("", "the front matter is a mapping such as name: researcher")
        for key in fields:
            if key not in _FORMS:
                raise self._error(key, f"unknown key {key!r}, {nearest_hint(key, _FORMS)}")
        location = f"{self.path}:{self.document.line('name')}"
        defaults = {"name": self.path.stem, "description": "", "location": location}
        try:
            values = {key: self._read(key, value) for key, value in fields.items()}
            given = {key: value for key, value in values.items() if value not in (None, "")}
            return Agent(**cast("dict[str, Any]", {**defaults, **given}), instructions=instructions)
        except BundleError:
            raise
        except LooplineError as error:
            key = str(error).partition(":")[0]
            raise self._error(key, str(error)) from error

    def _read(self, key: str, value: models.Json) -> object:
        """Convert a value of the front matter for `Agent`; a text for `tools` or `skills` is split at commas.

        Raises:
            BundleError: the value has the wrong type; the message has file and line.
            LooplineError: a setting of the model is not valid.
        """
        kind, expected = _FORMS[key]
        value = value.strip() if isinstance(value, str) else value
        if isinstance(value, dict) and key == "limits":
            for name, limit in value.items():
                if isinstance(limit, dict | list):
                    problem = f"limits: {name} is one value, not {models.dumps(limit)}"
                    raise self._error("limits", problem, name)
        try:
            value = convert(value, kind)
        except ValidationError as error:
            raise self._error(key, f"{key}: {expected}, not {models.dumps(value)}") from error
        if isinstance(value, dict) and key == "settings":
            return models.read_settings(value)
        if isinstance(value, str) and key in ("tools", "skills"):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return tuple(value) if isinstance(value, list) else value

    def _error(self, key: str, problem: str, *inside: str) -> BundleError:
        return BundleError(f"{self.path}:{self.document.line(key, *inside)}: {problem}")


DEFAULT_EFFORTS: Mapping[str, Effort] = {
    **dict.fromkeys(["planner", "refactor", "diagnostics", "reviewer", "verifier"], "high"),
    **dict.fromkeys(["coder", "tester", "refiner"], "medium"),
    **dict.fromkeys(["file", "search", "git", "shell", "deps", "formatter"], "low"),
}
"""The reasoning effort of agents by name, used if no other setting chooses one."""
EFFORT_BUDGETS: tuple[tuple[int, Effort], ...] = (
    (16_384, "max"),
    (8_000, "high"),
    (4_096, "medium"),
)
"""The least thinking budget, in tokens, of each effort above "low"."""
ReasoningMode = Literal["off", "on", "auto"]
REASONING_MODES: tuple[ReasoningMode, ...] = ("off", "on", "auto")
AUTO_AGENTS = ("planner", "refiner", "verifier")


def effort_of_budget(tokens: int) -> Effort:
    """Return the reasoning effort for a thinking budget in tokens."""
    for threshold, effort in EFFORT_BUDGETS:
        if tokens >= threshold:
            return effort
    return "low"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """The reasoning effort of agents that do not set one.

    With `mode` "auto" the agents in `auto_agents` have the effort of the `budget`, in tokens. Other agents, and all agents
    without a budget, have the effort of their name in `DEFAULT_EFFORTS`, if it is listed there. With "on" the effort of an
    agent that has neither is "high". With "off" requests do not set an effort.
    """

    mode: ReasoningMode = "auto"
    budget: int | None = None
    auto_agents: tuple[str, ...] = AUTO_AGENTS

    def effort(self, agent: str) -> Effort | None:
        """Return the effort for the agent with this name: its default or that of the budget, depending on the mode.

        None means that requests do not set an effort.
        """
        default = DEFAULT_EFFORTS.get(agent.lower())
        budgeted = None if self.budget is None else effort_of_budget(self.budget)
        match self.mode:
            case "off":
                return None
            case "on":
                return budgeted or default or "high"
            case "auto":
                return (agent.lower() in self.auto_agents and budgeted) or default


REFINER = "refiner"
VERIFIER = "verifier"
PLANNER = "planner"
ANSWERER = "answerer"
SERVANTS = Agents(
    [
        Agent(
            name=REFINER,
            description="Improves a draft.",
            instructions=(
                "You improve a draft. Say what is wrong or missing in <critique>…</critique>, then give the "
                "whole improved text in <revised>…</revised>. Keep what is right, the handoff block, and marks "
                "of sources such as [1]. If nothing needs to change, leave <revised></revised> empty."
            ),
            tools=[],
        ),
        Agent(
            name=VERIFIER,
            description="Checks an answer.",
            instructions="You check answers by questions. Reply in the form that the task asks for.",
            tools=[],
        ),
        Agent(
            name=ANSWERER,
            description="Answers one question.",
            instructions="Answer the question in one or two sentences. Say so if you do not know.",
            effort="low",
        ),
        Agent(
            name=PLANNER,
            description="Plans steps.",
            instructions="You plan. Reply with one JSON object in the form that the task asks for.",
            tools=[],
        ),
    ]
)
