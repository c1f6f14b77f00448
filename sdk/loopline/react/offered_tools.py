"""The tools that a round offers, and the parts of the prompt that describe them."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from operator import is_

from msgspec import Struct, structs

from loopline.clock import Clock, elapsed_ms
from loopline.events import Delta, EventSink
from loopline.models import Model, ToolSpec, dumps
from loopline.models.prompt import estimate
from loopline.prompt import NATIVE, TRACE_SYSTEM, DecisionProtocol, protocol, tools_text
from loopline.react.replies import TypedAnswer
from loopline.timeline import Recorder, ToolsSelected, UserPrompt
from loopline.tools import (
    MCP,
    REQUEST_TOOLS,
    SELECT_ABOVE,
    RequestTools,
    ToolSet,
    is_built_in,
    requested_tools,
    select_tools,
)

KEPT_TEXTS = 64
"""The most texts with a cached digest and token count; the turns of a bundle usually have the same texts."""
_DEFERRED = f"tools of MCP servers are requested, with {REQUEST_TOOLS}, if there are more than {SELECT_ABOVE} tools"


class ToolOffering(Struct, frozen=True, kw_only=True):
    """Tools, and the parts of a prompt that describe them; `fixed` is the cost of these parts, in tokens.

    The digests are sha256 in hexadecimal. `specs` are empty in protocols that describe the tools in the system text.
    """

    tools: ToolSet
    specs: tuple[ToolSpec, ...]
    system: str
    system_sha256: str
    tools_text: str
    tools_sha256: str
    fixed: int

    @classmethod
    def of(
        cls,
        tools: ToolSet,
        instructions: str,
        encoding: DecisionProtocol,
        answer: TypedAnswer | None = None,
    ) -> ToolOffering:
        """Return the offering of these tools in a protocol, with the instructions and tool of a typed answer."""
        manual = encoding.manual(tools.specs)
        about_answer = answer.instructions if answer else ""
        system = "\n\n".join(part for part in (instructions, manual, about_answer) if part)
        specs = (*tools.specs, *(answer.specs if answer else ()))
        text = _tools_text(_SameSpecs(specs))
        native = encoding.name == NATIVE
        form = answer.form if answer else None
        system_sha256, system_tokens = _measure(system)
        tools_sha256, tools_tokens = _measure(text)
        return cls(
            tools=tools,
            specs=specs if native else (),
            system=system,
            system_sha256=system_sha256,
            tools_text=text,
            tools_sha256=tools_sha256,
            fixed=system_tokens
            + (tools_tokens if native else 0)
            + (estimate(dumps(form.schema)) if form else 0),
        )

    @classmethod
    def for_trace(cls, answer: TypedAnswer | None = None) -> ToolOffering:
        """Return the offering without tools of a request that shows the trace of a turn."""
        offering = cls.of(ToolSet(), TRACE_SYSTEM, protocol(NATIVE), answer)
        # An empty list of tools is recorded, but not sent.
        return structs.replace(offering, fixed=offering.fixed - estimate(offering.tools_text))


class OfferedTools(Struct, frozen=True):
    """The tools that a turn offers: all, or after a selection the selected ones and those that were requested since."""

    recorder: Recorder
    tools: ToolSet
    instructions: str
    protocol: DecisionProtocol
    answer: TypedAnswer | None
    cache: dict[tuple[str, ...] | None, ToolOffering] = {}

    @property
    def current(self) -> ToolOffering:
        """The offering of the next round; the same object while the offered tools are the same."""
        names = self._active_names()
        if names not in self.cache:
            tools = self.tools
            if names is not None:
                chosen = [tool for name, tool in self.tools.items() if name in names]
                can_ask = REQUEST_TOOLS in names
                requests = [] if can_ask else [RequestTools(self.tools.specs, names)]
                tools = ToolSet([*chosen, *requests])
            self.cache[names] = ToolOffering.of(
                tools, self.instructions, self.protocol, self.answer
            )
        return self.cache[names]

    async def select(self, model: Model, clock: Clock, listen: EventSink) -> None:
        """Have the model select tools for the prompt of the turn, and record the selection; at most once a turn."""
        turn = self.recorder.turn
        if turn.selected is not None or turn.prompt is None:
            return
        if not isinstance(turn.prompt.body, UserPrompt):
            return
        pinned = [name for name in self.tools if is_built_in(name)]
        delta = Delta(
            type="progress", channel="tools", text="selecting tools", total=len(self.tools)
        )
        start = clock.elapsed()
        chosen = await select_tools(
            model,
            self.tools.specs,
            turn.prompt.body.text,
            pinned=pinned,
            on_request=lambda: listen(delta),
        )
        if len(chosen.chosen) == len(self.tools) and not chosen.fallback:
            return
        body = ToolsSelected(
            names=chosen.chosen,
            why=chosen.fallback,
            model=model.name,
            elapsed_ms=elapsed_ms(clock, start),
            usage=chosen.usage,
            cost=model.capabilities.cost(chosen.usage),
        )
        await self.recorder.record(body)

    async def defer_mcp_tools(self) -> None:
        """If there are many tools, offer those of MCP servers only through `react.request_tools`, and record this."""
        if len(self.tools) <= SELECT_ABOVE or self.recorder.turn.selected is not None:
            return
        own_tools = [name for name in self.tools if not name.startswith(f"{MCP}.")]
        counted = [name for name in self.tools if not is_built_in(name)]
        if len(counted) > SELECT_ABOVE and len(own_tools) < len(self.tools):
            await self.recorder.record(ToolsSelected(names=tuple(own_tools), why=_DEFERRED))

    def _active_names(self) -> tuple[str, ...] | None:
        """Return the names of the offered tools; None if all are offered."""
        selected = self.recorder.turn.selected
        if selected is None:
            return None
        active = {*selected.names, *requested_tools(self.recorder.timeline, self.recorder.number)}
        names = tuple(name for name in self.tools if name in active)
        return None if len(names) == len(self.tools) else names


class _SameSpecs(tuple[ToolSpec, ...]):
    """Specifications that are equal if each is the same object; a cache lookup by them does not compare schemas."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(tuple(map(id, self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _SameSpecs) or len(self) != len(other):
            return False
        return all(map(is_, self, other))


_tools_text = lru_cache(KEPT_TEXTS)(tools_text)


@lru_cache(KEPT_TEXTS)
def _measure(text: str) -> tuple[str, int]:
    """Return the sha256 of a text in hexadecimal, and its estimated tokens."""
    return sha256(text.encode()).hexdigest(), estimate(text)
