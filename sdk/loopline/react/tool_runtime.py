"""The tool runtime: what the tools of one run reach, and how they begin child runs."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from loopline.clock import Clock
from loopline.events import EventSink
from loopline.models import Json, OutputType
from loopline.react.extensions import Guard
from loopline.react.loop_options import Limits, LoopOptions
from loopline.react.quota import Quota
from loopline.react.state import ReactStateV2
from loopline.reader import Reader
from loopline.refs import BlockRef
from loopline.timeline import Recorder, TurnResult
from loopline.tools import ChildTask


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """What the user gave to a child that asked by that block of its own."""

    question: BlockRef
    value: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A child run: the name of its conversation, what it is to do, and under which limits.

    Its `quota` stands below its parent's.
    """

    name: str
    task: ChildTask
    limits: Limits
    answer: ChildAnswer | None = None
    quota: Quota = field(default_factory=Quota)


class Spawn(Protocol):
    """Runs child runs. A child of one name is started once, however often it is requested."""

    async def __call__(self, child: Child, listen: EventSink) -> TurnResult:
        """Begin the child, carry it on, or say what came of it; it may be paused again.

        The listener hears every block of it, those of earlier runs first. Cancelling this stops the child.

        Raises:
            LooplineError: its code failed, or the name stands for a child with another task.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRuntime:
    """What one run works with: its log, clock and listener, its options and budget, and what its tools reach."""

    recorder: Recorder
    clock: Clock
    listen: EventSink
    reader: Reader
    properties: Mapping[str, Json]
    scratchpad: MutableMapping[str, Any]
    guards: Sequence[Guard] = ()
    options: LoopOptions = field(default_factory=LoopOptions)
    output: OutputType[Any] | None = None
    spawn: Spawn | None = None
    quota: Quota = field(default_factory=Quota)
    deps: object = field(default=None, repr=False)

    @property
    def state(self) -> ReactStateV2:
        """Return where the turn stands, folded from its blocks."""
        recorder = self.recorder
        return ReactStateV2.fold(recorder.turn, self.options, recorder.elapsed_seconds)

    @property
    def asks_again(self) -> bool:
        """Return whether a later request can show what the user says now."""
        return self.options.forces_answer or not self.state.exhausted
