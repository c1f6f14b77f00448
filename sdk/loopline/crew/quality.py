"""Quality: which hooks stand around the runs of a bundle's agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopline.clock import Clock
from loopline.crew.pipeline import HOOK_SECONDS, PostHook, PreHook, QualityPipeline
from loopline.crew.plan_first import PlanFirst
from loopline.crew.refine import Refine
from loopline.crew.verify import Verify

EFFORT_BUDGETS = ((16_384, "max"), (8_000, "high"), (4_096, "medium"))
"""Tokens of thinking from which on a budget means an effort."""
EARLY, LATE = 50, 200


def effort_of_budget(tokens: int) -> str:
    """Return the reasoning effort that a budget of thinking tokens means."""
    return next((effort for least, effort in EFFORT_BUDGETS if tokens >= least), "low")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The hooks around the runs of agents: those set here are called, and yours among them by their priority.

    Plan first comes before the run. After it come Refine and Verify, in this order; `before` and `after` are hooks of your
    own, called between. With `enabled` False there are none.
    """

    refine: Refine | None = None
    verify: Verify | None = None
    plan_first: PlanFirst | None = None
    before: Sequence[PreHook] = ()
    after: Sequence[PostHook] = ()
    hook_seconds: float = HOOK_SECONDS
    enabled: bool = True

    def pipeline(self, clock: Clock) -> QualityPipeline:
        """Return the pipeline of these hooks."""
        pipeline = QualityPipeline(
            clock=clock, enabled=self.enabled, hook_seconds=self.hook_seconds
        )
        for pre_hook in self.before:
            pipeline.add_before(pre_hook)
        if self.plan_first is not None:
            pipeline.add_before(self.plan_first, LATE)
        if self.refine is not None:
            pipeline.add_after(self.refine, EARLY)
        if self.verify is not None:
            pipeline.add_after(self.verify, EARLY + 1)
        for post_hook in self.after:
            pipeline.add_after(post_hook)
        return pipeline
