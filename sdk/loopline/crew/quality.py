"""Quality: which hooks stand around the runs of a bundle's agents, and around the turns of its users."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from loopline.clock import Clock
from loopline.crew.agents import REASONING_MODES, Reasoning
from loopline.crew.hyde import Hyde
from loopline.crew.pipeline import HOOK_SECONDS, PostHook, PreHook, QualityPipeline
from loopline.crew.plan_first import MODES, PlanFirst
from loopline.crew.reflexion import Reflexion
from loopline.crew.verify import Refine, Verify
from loopline.search import SharedEmbedder

EARLY, LATE = 50, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The hooks around the runs of agents: those set here are called, and yours among them by their priority.

    Plan first comes before the run. After it come Refine, Verify and Reflexion, in this order; `before` and `after` are
    hooks of your own, called between. With `enabled` False there are none. `own_turns` has the same done with the turns of
    the user. `hyde` expands the searches of every loop, and `reasoning` says how hard agents think.
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
        """Return the pipeline of these hooks."""
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


T = TypeVar("T")

PREFIX = "CHATCLI_QUALITY_"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_HOUR_SECONDS = 3_600.0


class _Variables:
    """The variables of the environment; one that is unset, or holds junk, changes nothing."""

    def __init__(self, environment: Mapping[str, str], group: str = "") -> None:
        self._environment = environment
        self._prefix = f"{PREFIX}{group}"

    def group(self, name: str) -> _Variables:
        """Return the variables of a group."""
        return _Variables(self._environment, f"{name}_")

    @property
    def is_empty(self) -> bool:
        """Return whether no variable is set."""
        return not any(name.startswith(self._prefix) for name in self._environment)

    def text(self, name: str) -> str:
        """Return the text of a variable, empty if it is unset."""
        return self._environment.get(f"{self._prefix}{name}", "").strip()

    def flag(self, name: str, before: bool) -> bool:
        """Return a truth value: 1 or 0, true or false, yes or no, on or off."""
        text = self.text(name).lower()
        return text in _TRUE if text in (*_TRUE, *_FALSE) else before

    def number(self, name: str, before: int, minimum: int = 0) -> int:
        """Return a whole number that is not below `minimum`."""
        text = self.text(name)
        return int(text) if text.isdecimal() and int(text) >= minimum else before

    def names(self, name: str, before: tuple[str, ...]) -> tuple[str, ...]:
        """Return a list of names with commas between them."""
        names = (part.strip().lower() for part in self.text(name).split(","))
        return tuple(part for part in names if part) or before

    def one_of(self, name: str, choices: Sequence[T], before: T) -> T:
        """Return the choice of that name."""
        text = self.text(name).lower()
        return next((choice for choice in choices if choice == text), before)


def of_environment(quality: Quality | None, environment: Mapping[str, str]) -> Quality | None:
    """Return the quality with what the environment names; None if there is none and it names nothing."""
    variables = _Variables(environment)
    if variables.is_empty:
        return quality
    quality = quality or Quality()
    return replace(
        quality,
        enabled=variables.flag("ENABLED", quality.enabled),
        refine=_switched(quality.refine, Refine, variables.group("REFINE"), _refine),
        verify=_switched(quality.verify, Verify, variables.group("VERIFY"), _verify),
        reflexion=_switched(quality.reflexion, Reflexion, variables.group("REFLEXION"), _reflexion),
        plan_first=_plan_first(quality.plan_first, variables.group("PLAN_FIRST")),
        hyde=_switched(quality.hyde, Hyde, variables.group("HYDE"), _hyde),
        reasoning=_reasoning(quality.reasoning, variables.group("REASONING")),
    )


def _switched(
    hook: T | None,
    make: Callable[[], T],
    variables: _Variables,
    changed: Callable[[T, _Variables], T],
) -> T | None:
    """Return the hook with what its variables change, if it is on, else None."""
    if not variables.flag("ENABLED", hook is not None):
        return None
    return changed(make() if hook is None else hook, variables)


def _refine(refine: Refine, variables: _Variables) -> Refine:
    return replace(
        refine,
        max_passes=variables.number("MAX_PASSES", refine.max_passes, 1),
        min_bytes=variables.number("MIN_BYTES", refine.min_bytes),
        epsilon=variables.number("EPSILON", refine.epsilon),
        excluded=variables.names("EXCLUDE", refine.excluded),
        convergence=variables.flag("CONVERGENCE_ENABLED", refine.convergence),
        embeddings=variables.flag("CONVERGENCE_EMBEDDING", refine.embeddings),
        strict=variables.flag("CONVERGENCE_STRICT", refine.strict),
    )


def _verify(verify: Verify, variables: _Variables) -> Verify:
    return replace(
        verify,
        questions=variables.number("NUM_QUESTIONS", verify.questions, 1),
        rewrite=variables.flag("REWRITE", verify.rewrite),
        excluded=variables.names("EXCLUDE", verify.excluded),
    )


def _reflexion(reflexion: Reflexion, variables: _Variables) -> Reflexion:
    return replace(
        reflexion,
        on_error=variables.flag("ON_ERROR", reflexion.on_error),
        on_discrepancy=variables.flag("ON_HALLUCINATION", reflexion.on_discrepancy),
        on_low_quality=variables.flag("ON_LOW_QUALITY", reflexion.on_low_quality),
        workers=variables.number("QUEUE_WORKERS", reflexion.workers, 1),
        attempts=variables.number("QUEUE_MAX_ATTEMPTS", reflexion.attempts, 1),
        stale_days=_days(variables.text("QUEUE_STALE_AFTER"), reflexion.stale_days),
    )


def _days(duration: str, before: float) -> float:
    """Return the days of a duration such as `168h` or `10m`."""
    units = {"h": _HOUR_SECONDS, "m": 60.0, "s": 1.0}
    number = duration[:-1]
    if not number.isdecimal() or duration[-1] not in units or not int(number):
        return before
    return int(number) * units[duration[-1]] / (24 * _HOUR_SECONDS)


def _plan_first(hook: PlanFirst | None, variables: _Variables) -> PlanFirst | None:
    if hook is None and variables.text("MODE").lower() not in MODES:
        return None
    plan_first = hook or PlanFirst()
    return replace(
        plan_first,
        mode=variables.one_of("MODE", MODES, plan_first.mode),
        threshold=variables.number("THRESHOLD", plan_first.threshold),
    )


def _hyde(hyde: Hyde, variables: _Variables) -> Hyde:
    return replace(hyde, keywords=variables.number("NUM_KEYWORDS", hyde.keywords, 1))


def _reasoning(reasoning: Reasoning, variables: _Variables) -> Reasoning:
    budget = variables.text("BUDGET")
    return replace(
        reasoning,
        mode=variables.one_of("MODE", REASONING_MODES, reasoning.mode),
        budget=int(budget) if budget.isdecimal() else reasoning.budget,
        auto_agents=variables.names("AUTO_AGENTS", reasoning.auto_agents),
    )


CHATCLI = "chatcli"
"""The preset whose loops take variables of the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityInForce:
    """The quality of a loop, with the pipeline that all its runs share."""

    quality: Quality = field(default_factory=Quality)
    pipeline: QualityPipeline | None = None

    @classmethod
    def of(
        cls, quality: Quality | None, clock: Clock, embedder: SharedEmbedder | None
    ) -> QualityInForce:
        """Return it with a pipeline of its own; without a quality there are no hooks."""
        if quality is None:
            return cls()
        return cls(quality=quality, pipeline=quality.pipeline(clock, embedder))

    @property
    def reflexion(self) -> Reflexion | None:
        """Return how lessons are drawn, None if none are."""
        return self.quality.reflexion if self.quality.enabled else None

    @property
    def hyde(self) -> Hyde | None:
        """Return how searches are expanded, None if they are not."""
        return self.quality.hyde if self.quality.enabled else None


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityChoice:
    """The quality of a bundle, and the one that the environment makes of it."""

    of_bundle: QualityInForce = field(default_factory=QualityInForce)
    of_environment: QualityInForce = field(default_factory=QualityInForce)

    @classmethod
    def of(
        cls,
        quality: Quality | None,
        environment: Mapping[str, str],
        clock: Clock,
        embedder: SharedEmbedder | None,
    ) -> QualityChoice:
        """Return both, each with a pipeline of its own."""
        changed = of_environment(quality, environment)
        return cls(
            of_bundle=QualityInForce.of(quality, clock, embedder),
            of_environment=QualityInForce.of(changed, clock, embedder),
        )

    def of_preset(self, preset: str) -> QualityInForce:
        """Return the quality of a loop of that preset."""
        return self.of_environment if preset == CHATCLI else self.of_bundle

    @property
    def pipelines(self) -> Sequence[QualityPipeline]:
        """Return the pipelines of both."""
        both = (self.of_bundle.pipeline, self.of_environment.pipeline)
        return [pipeline for pipeline in both if pipeline is not None]

    @property
    def reflexion(self) -> Reflexion | None:
        """Return how lessons are drawn, None if none are."""
        return self.of_bundle.reflexion or self.of_environment.reflexion
