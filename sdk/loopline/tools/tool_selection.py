"""The selection of tools at the beginning of a turn, and `react.request_tools`, which adds tools later in the turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from loopline import timeline as tl
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
from loopline.tools.functions import RerunnableTool
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome
from loopline.tools.parameters import list_argument, nearest_first, object_schema

SELECT_ABOVE = 12
"""The number of tools, without built-in ones, up to which all are offered; with more, a model selects some."""
MAX_SELECTED = 6
"""The number of tools that a selection may name, in addition to pinned ones."""
LONGEST_LINE = 80
"""The number of characters of a description in the catalogue."""

REQUEST_TOOLS = "react.request_tools"
_BUILT_IN_ALIASES = ("react.", "exec.", "crew.")
_BUILT_IN = ("calculator", "knowledge_search", "web_fetch", "web_search")
_NAMES = "a list of names, as the description has them"

_SYSTEM = (
    f"Choose the tools that the question is likely to need. Name at most {MAX_SELECTED}, in the order of their "
    "use to you, and fewer where fewer will do. Others can be asked for later."
)
_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"tools": {"type": "array", "items": {"type": "string"}}},
    "required": ["tools"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSelection:
    """The tools that are offered at the beginning of a turn, in their original order.

    If the selection failed, these are all tools and `fallback` is the reason. `usage` is that of the selection.
    """

    chosen: tuple[str, ...]
    fallback: str = ""
    usage: Usage = field(default_factory=Usage)


def is_built_in(name: str) -> bool:
    """Return whether a tool is part of Loopline. Such tools do not count toward `SELECT_ABOVE` and are always offered."""
    return name in _BUILT_IN or name.startswith(_BUILT_IN_ALIASES)


def catalogue(specs: Iterable[ToolSpec]) -> str:
    """Return a line for each tool: its name and the first 80 characters of its description."""
    return "\n".join(f"- {spec.name}: {_shorten(spec.description)}" for spec in specs)


def tools_in_reply(
    reply: JsonObject, names: Collection[str], limit: int = MAX_SELECTED
) -> list[str]:
    """Return the first `limit` known names in the list `tools` of a reply, in its order and without duplicates.

    The result is empty if `tools` is not a list.
    """
    named: Json = reply.get("tools")
    texts = [text for text in named if isinstance(text, str)] if isinstance(named, list) else []
    return [text for text in dict.fromkeys(texts) if text in names][:limit]


async def select_tools(
    model: Model,
    specs: Sequence[ToolSpec],
    question: str,
    *,
    pinned: Collection[str] = (),
    on_request: Callable[[], None] = lambda: None,
) -> ToolSelection:
    """Let the model choose at most six tools for the question, in addition to the pinned ones.

    If at most `SELECT_ABOVE` tools are not pinned, or the selection fails, all tools are returned. `on_request` is called
    before the request to the model.
    """
    everything = tuple(spec.name for spec in specs)
    offered = [spec for spec in specs if spec.name not in pinned]
    if len(offered) <= SELECT_ABOVE:
        return ToolSelection(chosen=everything)
    on_request()
    prompt = Prompt(
        system=_SYSTEM,
        messages=(UserMessage(text=f"{question}\n\nTools:\n{catalogue(offered)}"),),
        purpose="selection",
    )
    result = await structured_llm_call(
        model,
        prompt,
        _SCHEMA,
        name="select_tools",
        description="Name the tools to begin with.",
    )
    selected = tools_in_reply(result.raw, {spec.name for spec in offered})
    if not selected:
        problem = result.error or "the reply named no tool that exists"
        return ToolSelection(chosen=everything, fallback=problem, usage=result.usage)
    chosen = tuple(name for name in everything if name in selected or name in pinned)
    return ToolSelection(chosen=chosen, usage=result.usage)


def requested_tools(timeline: tl.Timeline, turn: int) -> list[str]:
    """Return the names in the successful calls of `react.request_tools` in a turn, in their order and without duplicates."""
    names: list[str] = []
    for result in timeline.turn(turn).results:
        if result.tool == REQUEST_TOOLS and result.status == "ok":
            ref = CallRef(turn_id=f"turn_{turn}", call_id=result.call_id, part="call")
            block = timeline.find(ref)
            if block is not None and isinstance(block.body, tl.ToolCalled):
                names += list_argument(block.body.arguments, "tool_names", _NAMES)
    return list(dict.fromkeys(names))


class RequestTools(RerunnableTool):
    """The tool `react.request_tools`: the tools that it names are offered from the next round on."""

    effect: tl.Effect = "meta"
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
        """Return whether a call of this tool may add the tool `name`."""
        return name in self._hidden

    def parse(self, arguments: JsonObject) -> list[str]:
        """Return `tool_names`, a non-empty list of strings."""
        return list_argument(arguments, "tool_names", _NAMES)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return a text with the names that are added, those that are offered already, and those that do not exist.

        Raises:
            ToolError: none of the names belongs to a tool.
        """
        requested = list(dict.fromkeys(self.parse(arguments)))
        turn = int(call.context.turn_id.removeprefix("turn_"))
        offered = self._chosen.union(requested_tools(call.timeline, turn))
        added = [name for name in requested if name in self._hidden and name not in offered]
        already = [name for name in requested if name in offered]
        missing = [name for name in requested if name not in self._hidden and name not in offered]
        if not added and not already:
            nearest = nearest_first(missing[0], self._hidden)
            raise ToolError(f"no tool {missing[0]!r} to bring in: there are {nearest}")
        lines = [
            f"{heading}: {', '.join(names)}"
            for heading, names in (
                ("brought in", added),
                ("already there", already),
                ("no such tool", missing),
            )
            if names
        ]
        return Outcome(text="\n".join(lines))


def _shorten(description: str) -> str:
    line = " ".join(description.split())
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1].rstrip()}…"
