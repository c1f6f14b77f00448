"""The parts of a bundle that are the defaults of its loops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from loopline.crew import GraphOptions
from loopline.knowledge import Passage
from loopline.react import Guard, Limits, Middleware, Preset, PresetName, RoundHook
from loopline.tools import KnowledgeSearch


@dataclass(frozen=True, kw_only=True)
class LoopParts:
    """The parts of a bundle that `build_react` reads. `Bundle` describes each of them."""

    id: str
    instructions: str = ""
    preset: PresetName | Preset = "bare"
    limits: Limits | None = None
    guards: Sequence[Guard] = ()
    round_hooks: Sequence[RoundHook] = ()
    middleware: Sequence[Middleware] = ()
    knowledge_space_fn: KnowledgeSearch | Callable[..., Sequence[Passage]] | None = None
    knowledge_read_fn: Callable[[str], Awaitable[Passage] | Passage] | None = None
    graph: GraphOptions | None = None
    approve: Sequence[str] = ()
