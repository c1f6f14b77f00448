"""Handing a conversation over: from then on another agent leads it, in the same turn and in those that follow."""

from __future__ import annotations

from collections.abc import Sequence

from loopline.crew.agents import Agent, Agents
from loopline.models import Json, JsonObject, ToolSpec
from loopline.timeline import AgentSwitched, BodyUnion, Effect, Imported, Timeline, TurnHeader
from loopline.tools import Outcome, RerunnableTool, ToolInvocation
from loopline.tools.arguments import check_names, object_schema, optional_text, text_argument

HAND_OVER = "crew.hand_over"
MAIN = "main"
"""The name under which an agent hands the conversation back to the bundle's own loop."""
_ReadBody = AgentSwitched | TurnHeader | Imported
_READ = BodyUnion[_ReadBody](_ReadBody)


def leader(timeline: Timeline) -> str:
    """Return the agent that leads the conversation; an empty text is the bundle's own loop.

    What a document imported makes no agent lead: anybody may have written it.
    """
    for _, body in _READ.among(reversed(timeline.blocks)):
        match body:
            case AgentSwitched(agent=agent) | TurnHeader(agent=agent):
                return agent
            case Imported():
                return ""
    return ""


class HandOverTool(RerunnableTool):
    """The tool by which whoever leads the conversation hands it over to another agent."""

    effect: Effect = "meta"
    shared_key: str = HAND_OVER

    def __init__(self, agents: Agents, current: str) -> None:
        """Offer all of these agents but the current one, and the bundle's own loop if that is not the current one."""
        self._agents = agents.without(current) if current else agents
        names: list[Json] = [*self._agents, *([MAIN] if current else [])]
        self._names = [str(name) for name in names]
        self.spec: ToolSpec = ToolSpec(
            name=HAND_OVER,
            description=(
                "Hand the conversation over: from now on that agent answers the user, with all that was said. Do it when "
                f"the user's matter is another's work, not for a single task. Agents:\n{self._listed(bool(current))}"
            ),
            parameters=object_schema(
                {
                    "agent": {"type": "string", "enum": names},
                    "note": {"type": "string", "description": "What it should know first."},
                },
                "agent",
            ),
        )

    def _listed(self, is_led: bool) -> str:
        lines = [f"- {agent}" for agent in self._agents.values()]
        return "\n".join([*lines, *([f"- {MAIN}: whoever led at the beginning"] if is_led else [])])

    def check(self, arguments: JsonObject) -> None:
        """Refuse unknown fields, and an agent that may not lead."""
        check_names(self.spec, arguments)
        self._chosen(arguments)
        optional_text(arguments, "note")

    def _chosen(self, arguments: JsonObject) -> Agent | None:
        """Return the agent that is to lead; None is the bundle's own loop."""
        name = text_argument(arguments, "agent")
        return None if name == MAIN and MAIN in self._names else self._agents.find(name)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the switch, which takes effect with the next decision."""
        agent = self._chosen(arguments)
        note = optional_text(arguments, "note")
        switched = AgentSwitched(
            agent=agent.name if agent else "",
            agent_digest=agent.digest if agent else "",
            note=note,
            call_id=call.context.call_id,
        )
        name = agent.name if agent else MAIN
        text = f"{name} leads the conversation from here on. Answer the user."
        return Outcome(text=f"{text}\nnote: {note}" if note else text, bodies=(switched,))


def leading_agents(agents: Agents) -> Agents:
    """Return the agents that may lead a conversation."""
    if not agents:
        return agents
    leaders: Sequence[Agent] = [agent for agent in agents.values() if agent.leads]
    return Agents(leaders)
