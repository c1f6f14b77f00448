"""Requests as they were sent: the prompt of any past round, rendered again from the log alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loopline.models import Message, ToolSpec, dumps
from loopline.prompt.protocols import protocol
from loopline.prompt.rendering import RENDERER
from loopline.prompt.view import View
from loopline.timeline import Block, RoundStart, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a round asked: `refs` names, for each message, the block it was made of.

    `tools` is the JSON of the tools as they were offered. `exact` is False where this loopline renders
    otherwise than the one that sent it, or a text was never kept.
    """

    block: Block
    begun: RoundStart
    system: str
    tools: str
    messages: tuple[Message, ...]
    refs: tuple[str, ...]
    exact: bool


def requests(timeline: Timeline) -> Iterator[Request]:
    """The requests of every round that asked a model, in order."""
    views: dict[str, View] = {}
    for place, block in enumerate(timeline.blocks):
        match block.body:
            case RoundStart(model=model) as begun if model:
                view = views.setdefault(begun.protocol, _view(begun))
                view.extend(timeline.blocks[_seen(view) : place])
                same = _stable(view, begun) == begun.stable_sha256
                view.extend([block])
                yield _request(timeline, block, begun, view, same=same)
            case _:
                pass


def tools_text(specs: Sequence[ToolSpec]) -> str:
    """The tools as JSON: what a digest is made of, and what a log keeps."""
    return dumps(
        [
            {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
            for spec in specs
        ]
    )


def _view(begun: RoundStart) -> View:
    match begun.protocol:
        case "native" | "json" as name:
            return View(protocol(name))
        case other:
            raise ValueError(f"no protocol {other!r}")


def _seen(view: View) -> int:
    return view.seq


def _stable(view: View, begun: RoundStart) -> str:
    return view.sha256 if begun.window is None else view.under(begun.window).sha256


def _request(
    timeline: Timeline, block: Block, begun: RoundStart, view: View, *, same: bool
) -> Request:
    system = timeline.system_texts.get(begun.system_sha256)
    tools = timeline.tool_texts.get(begun.tools_sha256)
    kept = system is not None and tools is not None
    return Request(
        block=block,
        begun=begun,
        system=system or "",
        tools=tools or "",
        messages=tuple(view.messages),
        refs=tuple(view.now.refs),
        exact=same and kept and begun.renderer == RENDERER,
    )
