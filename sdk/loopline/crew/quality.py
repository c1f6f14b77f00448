"""Quality: the hooks around the runs of a bundle's agents and around the turns of its users."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from loopline.clock import Clock
from loopline.crew.agents import REASONING_MODES, Reasoning
from loopline.crew.hyde import Hyde
from loopline.crew.pipeline import HOOK_SECONDS, PostHook, PreHook, QualityPipeline
from loopline.crew.plan_first import MODES, PlanFirst
from loopline.crew.reflexion import Reflexion
from loopline.crew.verify import Refine, Verify
from loopline.react.environment import (
    Parse,
    one_of,
    parse_duration,
    parse_names,
    parse_switch,
    read_variables,
    whole_number,
)
from loopline.search import SharedEmbedder

T = TypeVar("T")

# Priorities of the built-in hooks; hooks of a bundle have 100 by default and are called between.
EARLY = 50
LATE = 200
CHATCLI = "chatcli"
"""The preset whose loops read environment variables."""
PREFIX = "CHATCLI_QUALITY_"
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The hooks around the runs of agents: those set here, and yours by their priority.

    Plan first is called before the run. After it Refine, Verify and Reflexion are called in this order; `before` and
    `after` are hooks of your own, called between. A hook may take `hook_seconds`. With `enabled` False no hook is called.
    `own_turns` calls the hooks for the turns of the user too. `hyde` expands the searches of every loop, and `reasoning`
    chooses the reasoning effort of agents.
    """

    refine: Refine | None = None
    verify: Verify | None = None
    reflexion: Reflexion | None = None
    plan_first: PlanFirst | None = None
    hyde: Hyde | None = None
    reasoning: Reasoning = field(default_factory=Reasoning)
    before: Sequence[PreHook] = ()
    after: Sequence[PostHook] = ()
    hook_seconds: float = HOOK_SECONDS
    own_turns: bool = False
    enabled: bool = True

    def pipeline(self, clock: Clock, embedder: SharedEmbedder | None = None) -> QualityPipeline:
        """Return a new pipeline of these hooks."""
        pipeline = QualityPipeline(
            clock=clock, enabled=self.enabled, hook_seconds=self.hook_seconds, embedder=embedder
        )
        for pre_hook in self.before:
            pipeline.add_before(pre_hook)
        if self.reflexion is not None:
            pipeline.add_before(self.reflexion, EARLY)
        if self.plan_first is not None:
            pipeline.add_before(self.plan_first, LATE)
        if self.refine is not None:
            pipeline.add_after(self.refine, EARLY)
        if self.verify is not None:
            pipeline.add_after(self.verify, EARLY + 1)
        if self.reflexion is not None:
            pipeline.add_after(self.reflexion, LATE)
        for post_hook in self.after:
            pipeline.add_after(post_hook)
        return pipeline


_FIELDS: Mapping[str, Mapping[str, tuple[str, Parse[object]]]] = {
    "REFINE": {
        "MAX_PASSES": ("max_passes", whole_number(1)),
        "MIN_BYTES": ("min_bytes", whole_number()),
        "EPSILON": ("epsilon", whole_number()),
        "EXCLUDE": ("excluded", parse_names),
        "CONVERGENCE_ENABLED": ("convergence", parse_switch),
        "CONVERGENCE_EMBEDDING": ("embeddings", parse_switch),
        "CONVERGENCE_STRICT": ("strict", parse_switch),
    },
    "VERIFY": {
        "NUM_QUESTIONS": ("questions", whole_number(1)),
        "REWRITE": ("rewrite", parse_switch),
        "EXCLUDE": ("excluded", parse_names),
    },
    "REFLEXION": {
        "ON_ERROR": ("on_error", parse_switch),
        "ON_HALLUCINATION": ("on_discrepancy", parse_switch),
        "ON_LOW_QUALITY": ("on_low_quality", parse_switch),
        "QUEUE_WORKERS": ("workers", whole_number(1)),
        "QUEUE_MAX_ATTEMPTS": ("attempts", whole_number(1)),
        "QUEUE_STALE_AFTER": ("stale_days", lambda text: parse_duration(text) / _DAY_SECONDS),
    },
    "PLAN_FIRST": {"MODE": ("mode", one_of(MODES)), "THRESHOLD": ("threshold", whole_number())},
    "HYDE": {"NUM_KEYWORDS": ("keywords", whole_number(1))},
    "REASONING": {
        "MODE": ("mode", one_of(REASONING_MODES)),
        "BUDGET": ("budget", whole_number()),
        "AUTO_AGENTS": ("auto_agents", parse_names),
    },
}
"""The variables of each group, without their prefix: the field that a variable sets, and its parser."""


def with_environment(quality: Quality, environment: Mapping[str, str]) -> Quality:
    """Return the quality with the fields that variables of the environment override; unchanged if none is set.

    A variable with an invalid text is ignored.
    """
    variables = _QualityVariables(environment)
    plan_first = quality.plan_first
    if plan_first is None and variables.read("PLAN_FIRST_MODE", one_of(MODES), None) is not None:
        plan_first = PlanFirst()
    return replace(
        quality,
        enabled=variables.read("ENABLED", parse_switch, quality.enabled),
        refine=variables.switch(quality.refine, Refine, "REFINE"),
        verify=variables.switch(quality.verify, Verify, "VERIFY"),
        reflexion=variables.switch(quality.reflexion, Reflexion, "REFLEXION"),
        plan_first=plan_first and variables.override(plan_first, "PLAN_FIRST"),
        hyde=variables.switch(quality.hyde, Hyde, "HYDE"),
        reasoning=variables.override(quality.reasoning, "REASONING"),
    )


@dataclass(frozen=True, slots=True)
class _QualityVariables:
    """The environment variables for quality, with names that start with `PREFIX`."""

    environment: Mapping[str, str]

    def read(self, name: str, parse: Parse[T], default: T) -> T:
        variable = f"{PREFIX}{name}"
        values = read_variables(self.environment, {variable: parse}, ignores_invalid=True)
        return values.get(variable, default)

    def switch(self, hook: T | None, make: Callable[[], T], group: str) -> T | None:
        """Return the hook with its overridden fields; None if it is switched off.

        `<group>_ENABLED` switches it on or off; a hook that is switched on and was None is made with its defaults.
        """
        if not self.read(f"{group}_ENABLED", parse_switch, hook is not None):
            return None
        return self.override(make() if hook is None else hook, group)

    def override(self, options: T, group: str) -> T:
        """Return the options with the fields that variables of the group, a key of `_FIELDS`, set; invalid texts are ignored."""
        fields = {f"{PREFIX}{group}_{name}": entry for name, entry in _FIELDS[group].items()}
        parsers = {name: parse for name, (_, parse) in fields.items()}
        values = read_variables(self.environment, parsers, ignores_invalid=True)
        changes = {fields[name][0]: value for name, value in values.items()}
        return cast("T", replace(cast("Any", options), **changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityInForce:
    """The quality of a loop, with the pipeline that all its runs share."""

    quality: Quality
    pipeline: QualityPipeline

    @property
    def reflexion(self) -> Reflexion | None:
        """The hook that requests lessons; None if lessons are not written."""
        return self.quality.reflexion if self.quality.enabled else None

    @property
    def hyde(self) -> Hyde | None:
        """The expansion of searches; None if searches are not expanded."""
        return self.quality.hyde if self.quality.enabled else None


def open_qualities(
    quality: Quality | None,
    environment: Mapping[str, str],
    clock: Clock,
    embedder: SharedEmbedder | None,
) -> tuple[QualityInForce, QualityInForce]:
    """Return the quality of a bundle, and the same with the overrides of the environment, each with a new pipeline."""
    own = quality or Quality()
    overridden = with_environment(own, environment)
    return (
        QualityInForce(quality=own, pipeline=own.pipeline(clock, embedder)),
        QualityInForce(quality=overridden, pipeline=overridden.pipeline(clock, embedder)),
    )
