"""Agents: what a child run is told, may call and may spend, under a name, written as files or as values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

from loopline.errors import BundleError, LooplineError, ToolError
from loopline.models import Json, JsonObject, YamlDocument, YamlError, dumps, read_yaml
from loopline.names import caller_location, checks_keywords
from loopline.react import Limits, check_limits
from loopline.react.loop_options import Effort
from loopline.timeline import LimitValue

if TYPE_CHECKING:
    from collections.abc import Sequence


AGENTS_FOLDER = "agents"
"""The folder of a bundle whose `.md` files are agents."""
KEYS = ("name", "description", "tools", "skills", "model", "effort", "limits", "files", "leads")
FilesMode = Literal["own", "read", "write"]
FILES_MODES: tuple[FilesMode, ...] = get_args(FilesMode)
DIGEST = 12
EFFORTS: tuple[Effort, ...] = get_args(Effort)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_FRONT = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*$\n?", re.DOTALL | re.MULTILINE)


@checks_keywords
@dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent: the definition of child runs that do one kind of work.

    `tools` are names, or patterns such as `shop.*`, of the bundle's tools that it may call, and `skills` those of the
    skills that it sees; None means all. `model` is a role of the bundle's models, such as `fast`. `effort` is its
    reasoning effort and `limits` are its own limits. `location` is where it is written, by default the file and line of the
    call.

    With `files` "own" its workspace begins empty; with "read" it begins with its caller's `files/`, which it cannot change,
    and with "write" its changes come back. An agent that `leads` may be handed the conversation.
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
    location: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Check the definition.

        Raises:
            LooplineError: a part of it is wrong; the message names the part.
        """
        if not self.location:
            object.__setattr__(self, "location", caller_location())
        if not _NAME.fullmatch(self.name):
            raise LooplineError(
                f"name: an agent's name has a letter, then A-Z a-z 0-9 _ -, which {self.name[:80]!r} is not"
            )
        if not self.description.strip():
            raise LooplineError(f"description: say in one sentence what {self.name} does")
        if self.effort is not None and self.effort not in EFFORTS:
            raise LooplineError(f"effort: one of {', '.join(EFFORTS)}, not {self.effort!r}")
        if self.files not in FILES_MODES:
            raise LooplineError(f"files: one of {', '.join(FILES_MODES)}, not {self.files!r}")
        try:
            check_limits(self._limits)
        except LooplineError as error:
            raise LooplineError(f"limits: {error}") from error

    @property
    def _limits(self) -> Limits:
        return cast("Limits", dict(self.limits))

    @cached_property
    def digest(self) -> str:
        """The first digits of the sha256 of all that defines the agent."""
        definition: JsonObject = {
            "name": self.name,
            "description": self.description,
            "instructions": self.instructions,
            "tools": None if self.tools is None else [*self.tools],
            "skills": None if self.skills is None else [*self.skills],
            "model": self.model,
            "effort": self.effort,
            "limits": {**self.limits},
        }
        if self.files != "own" or self.leads:  # so that agents without either keep their digest
            definition |= {"files": self.files, "leads": self.leads}
        return sha256(dumps(definition).encode()).hexdigest()[:DIGEST]

    def limits_with(self, effort: Effort | None) -> Mapping[str, LimitValue]:
        """Return the limits of its runs, with that effort unless it has one of its own."""
        chosen = self.effort or effort
        own: dict[str, LimitValue] = {} if chosen is None else {"reasoning_effort": chosen}
        if self.files != "own":
            own["workspace"] = "latest"
        return {**own, **self.limits}

    def __str__(self) -> str:
        return f"{self.name}: {self.description.strip()}"


class Agents(Mapping[str, Agent]):
    """The agents of a bundle by name, in the order they are listed.

    Raises:
        BundleError: two agents have the same name.
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

    def find(self, name: str) -> Agent:
        """Return the agent of that name, in any case.

        Raises:
            ToolError: there is none; the message names the nearest first.
        """
        if name.strip().lower() in self._agents:
            return self[name.strip()]
        near = get_close_matches(name, list(self), len(self), 0.0)
        raise ToolError(f"there is no agent {name!r}: there are {', '.join(near or self)}")

    def without(self, name: str) -> Agents:
        """Return all agents but that one."""
        return Agents(agent for agent in self.values() if agent.name.lower() != name.lower())

    def with_environment(self, environment: Mapping[str, str]) -> Agents:
        """Return the agents with the models and efforts that `CHATCLI_AGENT_<NAME>_MODEL` and `…_EFFORT` name.

        A model is asked for by the role `agent.<name>`; an effort that does not exist changes nothing.
        """
        return Agents(_overridden(agent, environment) for agent in self.values())


def _overridden(agent: Agent, environment: Mapping[str, str]) -> Agent:
    if environment.get(model_variable(agent.name), "").strip():
        agent = replace(agent, model=agent_role(agent.name))
    effort = environment.get(f"{_prefix(agent.name)}_EFFORT", "").strip().lower()
    chosen = _effort(effort)
    return agent if chosen is None else replace(agent, effort=chosen)


def _effort(text: str) -> Effort | None:
    """Return the effort of that name, None if there is none."""
    for effort in EFFORTS:
        if effort == text:
            return effort
    return None


def _prefix(name: str) -> str:
    return f"CHATCLI_AGENT_{name.upper().replace('-', '_')}"


def model_variable(name: str) -> str:
    """Return the variable of the environment that names the model of an agent."""
    return f"{_prefix(name)}_MODEL"


def agent_role(name: str) -> str:
    """Return the role of the model that the environment names for an agent."""
    return f"agent.{name}"


def load_agents(folder: Path) -> list[Agent]:
    """Return the agents in the `.md` files of a folder, by file name.

    Raises:
        BundleError: a file is wrong; the message names file and line.
    """
    return [read_agent(path) for path in sorted(folder.glob("*.md")) if path.is_file()]


def read_agent(path: Path) -> Agent:
    """Return the agent in a file: a front matter between lines of `---`, then its instructions.

    Raises:
        BundleError: the file is wrong; the message names file and line.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise BundleError(f"{path}:1: the file is not UTF-8: {error.reason}") from error
    front = _FRONT.match(text)
    if front is None:
        raise BundleError(
            f"{path}:1: an agent begins with a front matter: ---, name: …, description: …, ---"
        )
    try:
        document = read_yaml(front[1], first_line=2)
    except YamlError as error:
        raise BundleError(f"{path}:{error.line}: {error.problem}") from error
    return _AgentFile(path, document).agent(text[front.end() :].strip())


@dataclass(frozen=True, slots=True)
class _AgentFile:
    """The front matter of an agent's file."""

    path: Path
    document: YamlDocument

    def agent(self, instructions: str) -> Agent:
        fields = self.document.value
        if not isinstance(fields, dict):
            raise self._wrong("", "the front matter is a mapping such as name: researcher")
        for key in fields:
            if key not in KEYS:
                near = get_close_matches(key, KEYS, 1, 0.0)[0]
                raise self._wrong(
                    key, f"the key {key!r} means nothing here, the nearest is {near!r}"
                )
        unset: JsonObject = dict.fromkeys(KEYS, None)
        fields = {**unset, **fields}
        effort = self._text(fields, "effort")
        chosen = _effort(effort)
        if effort and chosen is None:
            raise self._wrong("effort", f"effort: one of {', '.join(EFFORTS)}, not {effort!r}")
        try:
            return Agent(
                name=self._text(fields, "name") or self.path.stem,
                description=self._text(fields, "description"),
                instructions=instructions,
                tools=self._names(fields, "tools"),
                skills=self._names(fields, "skills"),
                model=self._text(fields, "model"),
                effort=chosen,
                limits=self._limits(fields),
                files=self._files_mode(fields),
                leads=self._flag(fields, "leads"),
                location=f"{self.path}:{self.document.line('name')}",
            )
        except BundleError:
            raise
        except LooplineError as error:
            key = str(error).partition(":")[0]
            raise self._wrong(key, str(error)) from error

    def _text(self, fields: JsonObject, key: str) -> str:
        match fields[key]:
            case None:
                return ""
            case str() as text:
                return text.strip()
            case value:
                raise self._wrong(key, f"{key}: a text, not {dumps(value)}")

    def _names(self, fields: JsonObject, key: str) -> tuple[str, ...] | None:
        match fields[key]:
            case None:
                return None
            case str() as text:
                return tuple(name.strip() for name in text.split(",") if name.strip())
            case list() as items if all(isinstance(item, str) for item in items):
                return tuple(map(str, items))
            case value:
                raise self._wrong(key, f"{key}: a list of names or patterns, not {dumps(value)}")

    def _files_mode(self, fields: JsonObject) -> FilesMode:
        text = self._text(fields, "files") or "own"
        for mode in FILES_MODES:
            if mode == text:
                return mode
        raise self._wrong("files", f"files: one of {', '.join(FILES_MODES)}, not {text!r}")

    def _flag(self, fields: JsonObject, key: str) -> bool:
        match fields[key]:
            case None:
                return False
            case bool() as flag:
                return flag
            case value:
                raise self._wrong(key, f"{key}: true or false, not {dumps(value)}")

    def _limits(self, fields: JsonObject) -> Mapping[str, LimitValue]:
        match fields["limits"]:
            case None:
                return {}
            case dict() as limits:
                return {name: self._limit(name, value) for name, value in limits.items()}
            case value:
                raise self._wrong("limits", f"limits: a mapping, not {dumps(value)}")

    def _limit(self, name: str, value: Json) -> LimitValue:
        if isinstance(value, dict | list):
            raise self._wrong("limits", f"limits: {name} is one value, not {dumps(value)}", name)
        return value

    def _wrong(self, key: str, problem: str, *inside: str) -> BundleError:
        return BundleError(f"{self.path}:{self.document.line(key, *inside)}: {problem}")


DEFAULT_EFFORTS: Mapping[str, Effort] = {
    **dict.fromkeys(["planner", "refactor", "diagnostics", "reviewer", "verifier"], "high"),
    **dict.fromkeys(["coder", "tester", "refiner"], "medium"),
    **dict.fromkeys(["file", "search", "git", "shell", "deps", "formatter"], "low"),
}
"""The reasoning effort of an agent of that name, where nothing else says one."""
EFFORT_BUDGETS: tuple[tuple[int, Effort], ...] = (
    (16_384, "max"),
    (8_000, "high"),
    (4_096, "medium"),
)
"""Tokens of thinking from which on a budget means an effort."""
ReasoningMode = Literal["off", "on", "auto"]
REASONING_MODES: tuple[ReasoningMode, ...] = ("off", "on", "auto")
AUTO_AGENTS = ("planner", "refiner", "verifier")


def effort_of_budget(tokens: int) -> Effort:
    """Return the reasoning effort that a budget of thinking tokens means."""
    for threshold, effort in EFFORT_BUDGETS:
        if tokens >= threshold:
            return effort
    return "low"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """How hard agents think that have no effort of their own.

    With `auto` those named in `auto_agents` have the effort of the `budget`, if there is one, and all others that of
    their name; with `on` every agent has one, and with `off` none.
    """

    mode: ReasoningMode = "auto"
    budget: int | None = None
    auto_agents: tuple[str, ...] = AUTO_AGENTS

    def effort(self, agent: str) -> Effort | None:
        """Return the effort of an agent, None if its requests name none."""
        named = DEFAULT_EFFORTS.get(agent.lower())
        of_budget = None if self.budget is None else effort_of_budget(self.budget)
        match self.mode:
            case "off":
                return None
            case "on":
                return of_budget or named or "high"
            case "auto":
                return (agent.lower() in self.auto_agents and of_budget) or named


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
