"""The workflow of a bundle: what its author writes, and what that may call on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, Unpack

from loopline.bundle.properties import Properties
from loopline.bundle.services import Services
from loopline.bundle.wiring import guarded_read, guarded_search, system_text
from loopline.errors import BundleError
from loopline.knowledge import KnowledgeSpace, Passage
from loopline.models import Json, Model, dumps, well_formed, well_formed_json
from loopline.react import (
    Around,
    Context,
    Guard,
    Hands,
    Limits,
    Nudge,
    React,
    Seams,
    TurnPayload,
    TurnResult,
    completion,
    result,
)
from loopline.reader import Reader
from loopline.timeline import (
    ArtifactKept,
    Body,
    Decision,
    Feedback,
    Reaction,
    RoundStart,
    Timeline,
)
from loopline.tools import (
    EDITABLE_TAIL_TOKENS,
    HideTool,
    KnowledgeSearch,
    PlanTool,
    ReadTool,
    SearchTool,
    Tool,
    ToolSet,
)


class BaseWorkflow:
    """One instance runs one turn. A subclass says what the turn does, in `process`.

    `guards` stand around every call, `nudges` between rounds, `arounds` about the whole run, each in their
    order.
    """

    instructions: str = ""
    guards: Sequence[Guard] = ()
    nudges: Sequence[Nudge] = ()
    arounds: Sequence[Around] = ()

    def __init__(self, services: Services) -> None:
        self._services = services
        self.scratchpad: dict[str, Any] = {}

    async def process(self, payload: TurnPayload) -> TurnResult:
        """Run the turn; the default is the loop with nothing but its own tools."""
        react = await self.build_react(scratchpad=self.scratchpad)
        return await react.run(payload)

    @classmethod
    async def on_bundle_load(cls) -> None:
        """Called once a process, after the knowledge space has been built."""

    async def pre_run_hook(self, payload: TurnPayload) -> None:
        """Called before each turn, after the knowledge space has been reconciled."""

    async def post_run_hook(self, payload: TurnPayload, result: TurnResult) -> None:
        """Called after each turn, before `react.exit` is recorded."""

    @property
    def properties(self) -> Properties:
        """The bundle's properties as they are in force."""
        return self._services.properties

    @property
    def knowledge(self) -> KnowledgeSpace | None:
        """The bundle's own knowledge space; None without a `knowledge` configuration."""
        return self._services.knowledge

    def bundle_prop(self, name: str, default: Json = None) -> Json:
        """The property of that dotted name, or the default."""
        return self.properties.at(name, default)

    async def build_react(
        self,
        *,
        scratchpad: dict[str, Any] | None = None,
        tools_module: str = "",
        skills_module: str = "",
        knowledge_space_fn: KnowledgeSearch | None = None,
        knowledge_read_fn: Callable[[str], Awaitable[Passage]] | None = None,
        instructions: str | None = None,
        preset: Literal["bare"] = "bare",
        model: Model | None = None,
        tools: Iterable[str] | None = None,
        **limits: Unpack[Limits],
    ) -> React:
        """Wire a loop for this turn.

        `tools_module` and `skills_module` name descriptor modules, `tools` allows only the tools that
        match one of its patterns. The knowledge functions take the place of the bundle's own space.

        Raises:
            BundleError: a descriptor or a tool is wrong; the message names file and line.
        """
        if preset != "bare":
            raise BundleError(f"no preset {preset!r}: there is only 'bare'")
        services, space, decider = self._services, self.knowledge, model or self._services.model
        skills = await asyncio.to_thread(services.skills, skills_module)
        search = knowledge_space_fn or (space.search if space else None)
        read = knowledge_read_fn or services.read
        reader = Reader(
            here=services.here,
            skills=skills,
            knowledge=guarded_read(read) if read else None,
            other=services.other,
        )
        in_force: Limits = {**limits, **services.limits}
        reach = in_force.get("editable_tail_size_in_tokens", EDITABLE_TAIL_TOKENS)
        found = guarded_search(search) if search else None
        toolset = await self._toolset(tools_module, tools, found, reach)
        wanted = self.instructions if instructions is None else instructions
        seams = Seams(nudges=tuple(self.nudges), arounds=tuple(self.arounds))
        context = Context(
            recorder=services.recorder,
            model=decider,
            tools=toolset,
            system=system_text(wanted, services.source, toolset, skills),
            clock=services.clock,
            listen=services.listen,
            limits=in_force,
        )
        return React(
            recorder=services.recorder,
            model=decider,
            context=context,
            hands=Hands(
                tools=lambda: context.tools,
                reader=reader,
                view=context.view,
                properties=self.properties.flat(),
                scratchpad=self.scratchpad if scratchpad is None else scratchpad,
                guards=tuple(self.guards),
                limits=in_force,
            ),
            clock=services.clock,
            listen=services.listen,
            limits=in_force,
            seams=seams,
        )

    async def _toolset(
        self,
        module: str,
        allowed: Iterable[str] | None,
        search: KnowledgeSearch | None,
        editable: int,
    ) -> ToolSet:
        own = await asyncio.to_thread(self._services.toolset, module)
        if allowed is not None:
            own = own.allow(allowed)
        built_in: list[Tool] = [PlanTool(), ReadTool(), HideTool(editable)]
        if search is not None:
            built_in.append(SearchTool(search))
        return ToolSet([*built_in, *own.values()])

    async def answer(self, text: str) -> TurnResult:
        """End the turn with this answer, without a model; it takes the place of one given before."""
        recorder = self._services.recorder
        recorder.answers += 1
        if len(recorder.turn.completions) >= recorder.answers:  # carried on after it was answered
            return result(recorder.timeline, recorder.number, "complete")
        recorder.round = recorder.turn.rounds + 1
        last = recorder.timeline.last_round
        begun = RoundStart(
            saw=recorder.timeline.seq,
            takes=tuple(block.seq for block in recorder.timeline.inputs_for(recorder.number)),
            epoch=last.epoch if last else 1,
            opened_by="",
            model="",
            protocol="",
            renderer=0,
            system_sha256="",
            tools_sha256="",
            stable_sha256="",
            purpose="answer",
        )
        await recorder.record(begun)
        said = completion(recorder.timeline, well_formed(text))
        await recorder.record(Decision(model="", stop_reason="stop"), said)
        recorder.round = 0
        return result(recorder.timeline, recorder.number, "complete")

    async def keep(self, name: str, value: Json) -> str:
        """Keep a value under a name; the ref by which it can be read again, pinned to its version."""
        recorder, name = self._services.recorder, well_formed(name)
        sound = well_formed_json(value)
        text, mime = (sound, "text/plain") if isinstance(sound, str) else (dumps(sound), _JSON)

        def kept(timeline: Timeline) -> list[Body]:
            version = timeline.artifacts.get((recorder.number, name), 0) + 1
            return [ArtifactKept(name=name, version=version, text=text, mime=mime)]

        return (await recorder.record_made(kept))[-1].ref

    async def feedback(
        self, reaction: Reaction, *, text: str = "", confidence: float | None = None
    ) -> None:
        """Judge the turn by machine; it replaces nothing that a person said."""
        await self._services.recorder.record(
            Feedback(
                reaction=reaction, text=well_formed(text), origin="machine", confidence=confidence
            )
        )


_JSON = "application/json"
