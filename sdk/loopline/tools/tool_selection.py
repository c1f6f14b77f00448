"""The selection of tools that a turn begins with, and `react.request_tools`, which adds others later."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from loopline.errors import ToolError
from loopline.models import (
    Json,
    JsonObject,
    Model,
    Prompt,
    ToolSpec,
    Usage,
    UserMessage,
    structured_llm_call,
)
from loopline.refs import CallRef
from loopline.timeline import Effect, Timeline, ToolCalled
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome
from loopline.tools.parameters import check_names, nearest_first, object_schema
from loopline.tools.tool import RerunnableTool

SELECT_ABOVE = 12
"""Tools that a model is shown whole, built-in ones aside; only of more than these is there a selection."""
MAX_SELECTED = 6
"""Tools that a selection may name, pinned ones aside."""
LONGEST_LINE = 80
"""Characters of a description in the catalogue."""

REQUEST_TOOLS = "react.request_tools"
_BUILT_IN_ALIASES = ("react.", "exec.", "crew.")
_BUILT_IN = ("web_search", "web_fetch")

_SYSTEM = (
    "Choose the tools that the question is likely to need. Name at most {most}, in the order of their "
    "use to you, and fewer where fewer will do. Others can be asked for later."
)
_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"tools": {"type": "array", "items": {"type": "string"}}},
    "required": ["tools"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSelection:
    """The tools that a turn begins with, in their original order.

    `fallback` says why these are all tools although there are many; `usage` is what the selection cost.
    """

    chosen: tuple[str, ...]
    fallback: str = ""
    usage: Usage = field(default_factory=Usage)


def is_built_in(name: str) -> bool:
    """Return whether a tool comes with Loopline: it does not count toward `SELECT_ABOVE` and is always offered."""
    return name in _BUILT_IN or name.startswith(_BUILT_IN_ALIASES)


def catalogue(specs: Iterable[ToolSpec]) -> str:
    """Return a line for each tool: its name, and the beginning of its description."""
    return "\n".join(f"- {spec.name}: {_line(spec.description)}" for spec in specs)


def tools_in_reply(
    reply: JsonObject, names: Collection[str], limit: int = MAX_SELECTED
) -> list[str]:
    """Return the tools that a reply names, in its order, each once, without unknown names."""
    named: Json = reply.get("tools")
    texts = [text for text in named if isinstance(text, str)] if isinstance(named, list) else []
    return [text for text in dict.fromkeys(texts) if text in names][:limit]


async def select_tools(
    model: Model,
    specs: Sequence[ToolSpec],
    question: str,
    *,
    pinned: Collection[str] = (),
    above: int = SELECT_ABOVE,
    limit: int = MAX_SELECTED,
    timeout_seconds: float | None = None,
    on_request: Callable[[], None] | None = None,
) -> ToolSelection:
    """Let the model choose tools if more than `above` are not pinned; pinned tools are always included.

    If anything fails, all tools are offered. `on_request` is called before the model is asked.
    """
    everything = tuple(spec.name for spec in specs)
    offered = [spec for spec in specs if spec.name not in pinned]
    if len(offered) <= max(above, limit):
        return ToolSelection(chosen=everything)
    if on_request is not None:
        on_request()
    prompt = Prompt(
        system=_SYSTEM.format(most=limit),
        messages=(UserMessage(text=f"{question}\n\nTools:\n{catalogue(offered)}"),),
        purpose="selection",
    )
    result = await structured_llm_call(
        model,
        prompt,
        _SCHEMA,
        name="select_tools",
        description="Name the tools to begin with.",
        timeout_seconds=timeout_seconds,
    )
    named = tools_in_reply(result.raw, {spec.name for spec in offered}, limit)
    if not named:
        why = result.error or "the reply named no tool that there is"
        return ToolSelection(chosen=everything, fallback=why, usage=result.usage)
    chosen = tuple(name for name in everything if name in named or name in pinned)
    return ToolSelection(chosen=chosen, usage=result.usage)


def requested_tools(timeline: Timeline, turn: int) -> list[str]:
    """Return the tools that calls of `react.request_tools` added to the turn, in their order."""
    names: list[str] = []
    for result in timeline.turn(turn).results:
        if result.tool == REQUEST_TOOLS and result.status == "ok":
            ref = CallRef(turn_id=f"turn_{turn}", call_id=result.call_id, part="call")
            block = timeline.find(ref)
            if block is not None and isinstance(block.body, ToolCalled):
                names += _names(block.body.arguments)
    return list(dict.fromkeys(names))


class RequestTools(RerunnableTool):
    """The tools that were not selected, by name; those that are requested are offered from the next round on."""

    effect: Effect = "meta"
    shared_key: str = "tools"

    def __init__(self, specs: Sequence[ToolSpec], chosen: Collection[str]) -> None:
        self._chosen = frozenset(chosen)
        self._hidden = {spec.name: spec for spec in specs if spec.name not in self._chosen}
        self.spec: ToolSpec = ToolSpec(
            name=REQUEST_TOOLS,
            description=(
                "Bring in tools that are not offered yet; they can be called from the next round on."
                f" There are:\n{catalogue(self._hidden.values())}"
            ),
            parameters=object_schema(
                {"tool_names": {"type": "array", "items": {"type": "string"}}}, "tool_names"
            ),
        )

    def can_add(self, name: str) -> bool:
        """Return whether a call of this tool may add the tool of that name."""
        return name in self._hidden

    def check(self, arguments: JsonObject) -> None:
        """Refuse anything but a list of names."""
        check_names(self.spec, arguments, "it takes tool_names")
        _names(arguments)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return which tools are added, which were there already, and which do not exist.

        Raises:
            ToolError: none of the names is that of a tool.
        """
        requested = _names(arguments)
        turn = int(call.context.turn_id.removeprefix("turn_"))
        offered = self._chosen.union(requested_tools(call.timeline, turn))
        loaded = [name for name in requested if name in self._hidden and name not in offered]
        already = [name for name in requested if name in offered]
        missing = [name for name in requested if name not in self._hidden and name not in offered]
        if not loaded and not already:
            nearest = nearest_first(missing[0], self._hidden)
            raise ToolError(f"no tool {missing[0]!r} to bring in: there are {nearest}")
        lines = [
            f"{heading}: {', '.join(names)}"
            for heading, names in (
                ("brought in", loaded),
                ("already there", already),
                ("no such tool", missing),
            )
            if names
        ]
        return Outcome(text="\n".join(lines))


def _line(description: str) -> str:
    line = " ".join(description.split())
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1].rstrip()}…"


def _names(arguments: JsonObject) -> list[str]:
    value: Json = arguments.get("tool_names")
    named = value if isinstance(value, list) else []
    names = [item for item in named if isinstance(item, str)]
    if not names or len(names) != len(named):
        raise ToolError("tool_names: a list of names, as the description has them")
    return list(dict.fromkeys(names))
