"""Which quality a loop has: that of its bundle or, in the preset `chatcli`, what the environment makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loopline.clock import Clock
from loopline.crew.hyde import Hyde
from loopline.crew.pipeline import QualityPipeline
from loopline.crew.quality import Quality
from loopline.crew.quality_environment import of_environment
from loopline.crew.reflexion import Reflexion
from loopline.search import SharedEmbedder

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
