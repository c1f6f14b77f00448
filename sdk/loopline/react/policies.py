"""Policies: everything that a turn goes by, each with its value; and what may be set apart from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from loopline.errors import LooplineError
from loopline.events import DialectName
from loopline.models import Abilities, Model
from loopline.prompt import (
    KEEP_INTACT_TURNS,
    KEEP_TURNS,
    MIN_ROUNDS,
    OFFSET_ROUNDS,
    DecisionProtocol,
    ProtocolName,
    protocol,
)
from loopline.react.limits import (
    AnswerMode,
    ChainUse,
    Effort,
    Limits,
    OnExhausted,
    ProtocolChoice,
    TextProtocol,
    UnknownEffect,
    checked,
)
from loopline.react.outcomes import RESULT_BYTES
from loopline.timeline import RESULT_CHARACTERS, LimitValue
from loopline.tools import EDITABLE_TAIL_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """What `Limits` names, whole: these defaults are the preset `bare`."""

    max_iterations: int | None = 15
    early_stop: bool = True
    min_rounds: int = 1
    deadline_seconds: float | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    on_exhausted: OnExhausted = "force"
    repairs: int | None = 1
    output_escalations: int = 2
    model_retries: int = 3
    max_calls_per_reply: int = 100
    stagnation_rounds: int = 0
    cycle_warning_rounds: int = 0
    self_check_rounds: int = 0
    failure_reflection: bool = False
    completion_check: bool = False
    max_depth: int = 2
    protocol: ProtocolChoice = "auto"
    text_protocol: TextProtocol = "auto"
    parallel_tools: int = 10
    tool_timeout_seconds: float | None = None
    unknown_effect: UnknownEffect = "exclusive"
    select_tools: bool = False
    answer_mode: AnswerMode = "direct"
    chain: ChainUse = "next"
    reasoning_effort: Effort | None = None
    dialect: DialectName = "plain"
    cache_ttl_seconds: int = 300
    keep_recent_turns: int = KEEP_TURNS
    keep_recent_intact_turns: int = KEEP_INTACT_TURNS
    cache_point_min_rounds: int = MIN_ROUNDS
    cache_point_offset_rounds: int = OFFSET_ROUNDS
    editable_tail_size_in_tokens: int = EDITABLE_TAIL_TOKENS
    result_bytes: int = RESULT_BYTES
    result_characters: int = RESULT_CHARACTERS
    summary_hint: str | None = None
    time_zone: str | None = None

    def under(self, *limits: Limits) -> LoopOptions:
        """These, with what the limits set, the later ones over the earlier.

        Raises:
            LooplineError: a limit is unknown or out of its range.
        """
        together: Limits = {}
        for one in limits:
            together.update(checked(one))
        return replace(self, **together)

    def sound(self) -> LoopOptions:
        """These, when they go together.

        Raises:
            LooplineError: nothing would end a turn, or it could never answer.
        """
        if self.max_iterations is None:
            missing = [
                name for name in ("deadline_seconds", "max_tokens") if self.value(name) is None
            ]
            if missing:
                raise LooplineError(f"without max_iterations a turn needs {' and '.join(missing)}")
            if not self.early_stop:
                raise LooplineError(
                    "early_stop=False needs max_iterations: so many rounds are made"
                )
        return self

    def value(self, name: str) -> LimitValue:
        """The policy of that name."""
        return self.values[name]

    @property
    def values(self) -> dict[str, LimitValue]:
        """Every policy by its name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def apart_from(self, other: LoopOptions) -> dict[str, LimitValue]:
        """What these have otherwise than others, by name."""
        others = other.values
        return {name: value for name, value in self.values.items() if value != others[name]}

    @property
    def synthesizes(self) -> bool:
        """Whether the answer is written by a request of its own."""
        return self.answer_mode == "synthesize"


GROUPS: Mapping[str, Iterable[str]] = {
    "limits": (
        "max_iterations",
        "early_stop",
        "min_rounds",
        "deadline_seconds",
        "max_tokens",
        "max_cost",
        "on_exhausted",
        "max_depth",
    ),
    "protocol": ("protocol", "text_protocol", "reasoning_effort"),
    "chain": ("chain",),
    "repair": ("repairs", "output_escalations", "model_retries", "max_calls_per_reply"),
    "schedule": ("parallel_tools", "tool_timeout_seconds", "unknown_effect", "result_bytes"),
    "answer": ("answer_mode",),
    "view": (
        "result_characters",
        "summary_hint",
        "time_zone",
        "keep_recent_turns",
        "keep_recent_intact_turns",
        "cache_ttl_seconds",
        "cache_point_min_rounds",
        "cache_point_offset_rounds",
        "editable_tail_size_in_tokens",
    ),
    "selection": ("select_tools",),
    "seams": (
        "stagnation_rounds",
        "cycle_warning_rounds",
        "failure_reflection",
        "self_check_rounds",
        "completion_check",
    ),
    "dialect": ("dialect",),
}
"""The policies by what they are about."""


def chosen_protocol(policies: LoopOptions, model: Model) -> DecisionProtocol:
    """The protocol that is asked for, unless the model cannot keep it; "auto" is the best it can."""
    abilities = model.abilities
    match policies.protocol:
        case "json" | "tagged" | "thought_action" as name if abilities.write_decisions:
            return protocol(name)
        case _:
            return protocol(_best(abilities, policies.text_protocol))


def _best(abilities: Abilities, text: TextProtocol) -> ProtocolName:
    if abilities.tool_call:
        return "native"
    if text != "auto":
        return text
    return "json" if abilities.json_mode else "tagged"
