"""Reads the code of a bundle, and checks that every name in a setting that restricts the bundle exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from msgspec import Struct

from loopline.bundle.load import (
    LoadedBundle,
    build_call_problems,
    bundle_agents,
    descriptor_modules,
    names_every_module,
    tool_lists,
)
from loopline.bundle.loop_checks import RESTRICTING, misspelt_attributes
from loopline.bundle.prepared_run import Services
from loopline.bundle.properties import (
    PROGRAMS_TOOLS,
    Properties,
    loop_settings,
    people_patterns,
    tool_properties,
)
from loopline.crew import Agents
from loopline.errors import BundleError
from loopline.guards import Guard, tool_patterns
from loopline.names import nearest_hint
from loopline.skills import Skill, SkillSelection
from loopline.tools import MCP, KnownTools, ToolPattern, may_begin

ANY_TOOL = KnownTools(frozenset(), frozenset([""]))
"""Matches any name, for a bundle whose tools are known only when a loop is built."""


class BundleCode(Struct, frozen=True, kw_only=True):
    """What the files of a bundle say, without running a loop.

    `tools` are the names and patterns of tools in the settings that restrict the bundle, and `problems` are those of its
    other settings, with file and line. `names_tools` and `names_skills` are True if `tool_modules` and `skill_modules` are
    all modules that its loops can use.
    """

    version: str
    agents: Agents
    tool_modules: Sequence[str]
    skill_modules: Sequence[str]
    names_tools: bool
    names_skills: bool
    tools: Sequence[ToolPattern]
    problems: Sequence[str]

    @classmethod
    def read(cls, loaded: LoadedBundle, properties: Properties) -> BundleCode:
        """Collect from the code of the bundle the names and modules that `check_restrictions` checks. This blocks.

        Raises:
            BundleError: a file of an agent is not valid; the message names file and line.
        """
        agents = bundle_agents(loaded)
        attributes = misspelt_attributes(loaded.bundle.workflow)
        misspelt = (text for text, near in attributes if near in RESTRICTING)
        return cls(
            version=loaded.version(),
            agents=agents,
            tool_modules=descriptor_modules(loaded, "tools"),
            skill_modules=descriptor_modules(loaded, "skills"),
            names_tools=names_every_module(loaded, "tools"),
            names_skills=names_every_module(loaded, "skills"),
            tools=[*tool_settings(loaded, properties, agents)],
            problems=[*build_call_problems(loaded), *misspelt],
        )


async def check_restrictions(code: BundleCode, services: Services) -> None:
    """Check the names in the settings that restrict the bundle.

    MCP servers are started only if the name of an MCP tool must be checked. Names that are known only when a loop is built
    are checked by `build_react`.

    Raises:
        BundleError: names are unknown. It has a problem for each of them, with file and line and a similar name.
    """
    known_names = await services.collect_tool_names(asks_servers=False)
    if any(may_begin(tool.pattern, [f"{MCP}."]) for tool in known_names.unknown(code.tools)):
        known_names = await services.collect_tool_names()
    if not code.names_tools:
        known_names |= ANY_TOOL
    skills = [skill for module in code.skill_modules for skill in await services.skills(module)]
    agents = code.agents if code.names_skills else Agents()
    problems = [
        *code.problems,
        *known_names.problems(code.tools),
        *unknown_skills(agents, skills),
    ]
    if problems:
        raise BundleError(*problems)


def tool_settings(
    loaded: LoadedBundle, properties: Properties, agents: Agents
) -> Iterator[ToolPattern]:
    """Yield the names and patterns of tools in the guards, agents, properties and literal `tools` lists of the bundle."""
    for pattern in loaded.bundle.approve:
        yield ToolPattern("Bundle(approve=…)", pattern, loaded.bundle.location)
    for pattern in loaded.bundle.approvals.people:
        yield ToolPattern("ApprovalLimits(people=…)", pattern, loaded.bundle.location)
    for pattern in loaded.bundle.approvals.tools:
        if pattern != "*":
            yield ToolPattern("ApprovalLimits(tools=…)", pattern, loaded.bundle.location)
    yield from people_patterns(properties)
    yield from tool_patterns(loaded.bundle.guards)
    guards: object = loaded.bundle.workflow.guards
    if isinstance(guards, list | tuple):  # a property, for example, has its value only in a turn
        yield from tool_patterns(cast("Sequence[Guard]", guards))
    for agent in agents.values():
        for pattern in agent.tools or ():
            yield ToolPattern(f"the agent {agent.name!r}", pattern, agent.location)
    yield from loop_settings(properties).tools or ()
    yield from tool_properties(properties, PROGRAMS_TOOLS)
    yield from tool_lists(loaded)


def unknown_skills(agents: Agents, skills: Iterable[Skill]) -> Iterator[str]:
    """Yield an error message with file and line for each pattern of an agent that does not match any skill."""
    names = {skill.full_id: (skill.namespace, skill.id) for skill in skills}
    for agent in agents.values():
        for pattern in SkillSelection(enabled=tuple(agent.skills or ())).unmatched(names.values()):
            yield (
                f"{agent.location}: the agent {agent.name!r}: no skill is called {pattern!r}, "
                f"{nearest_hint(pattern, names)}"
            )
