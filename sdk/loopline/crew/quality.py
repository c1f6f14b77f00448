"""Quality: which hooks stand around the runs of a bundle's agents, and around the turns of its users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loopline.clock import Clock
from loopline.crew.effort import Reasoning
from loopline.crew.hyde import Hyde
from loopline.crew.pipeline import HOOK_SECONDS, PostHook, PreHook, QualityPipeline
from loopline.crew.plan_first import PlanFirst
from loopline.crew.refine import Refine
from loopline.crew.reflexion import Reflexion
from loopline.crew.verify import Verify
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
