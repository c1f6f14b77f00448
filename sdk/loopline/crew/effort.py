"""How hard agents think: the effort of those that have none of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from loopline.react.loop_options import Effort

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
