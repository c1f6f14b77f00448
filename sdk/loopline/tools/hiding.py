"""`react.hide`: something the model need not see any more gives way to a line of its own words."""

from __future__ import annotations

from loopline.errors import LooplineError, ToolError
from loopline.models import JsonObject, ToolSpec
from loopline.refs import BlockRef, CallRef, parse
from loopline.timeline import (
    Block,
    Completion,
    Draft,
    Effect,
    Hide,
    Notice,
    RoundStart,
    SystemMessage,
    ToolCalled,
    ToolResult,
    UserFollowup,
    UserPrompt,
    UserSteer,
)
from loopline.tools.call import Call
from loopline.tools.outcome import Outcome

EDITABLE_TAIL_TOKENS = 2_000
"""How far back from the end of the prompt something may be hidden, in tokens."""
_HIDE_FIELDS = ("path", "replacement")


class HideTool:
    """Hides what lies behind the point before the tail, so that the cached prefix stays as it is."""

    effect: Effect = "meta"
    spec: ToolSpec = ToolSpec(
        name="react.hide",
        description=(
            "Put something recent out of sight that you need no more, such as a long result: "
            "replacement, a line of yours, stands where path, its ref, was. react.read shows it "
            "again. What is older than the cached part of the prompt cannot be hidden."
        ),
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "The ref of what is to be hidden."},
                "replacement": {"type": "string", "description": "What is shown in its place."},
            },
            "required": ["path", "replacement"],
            "additionalProperties": False,
        },
    )

    def __init__(self, editable_tokens: int = EDITABLE_TAIL_TOKENS) -> None:
        self._editable_tokens = editable_tokens

    def check(self, arguments: JsonObject) -> None:
        """Refuse anything but a path and a replacement."""
        unknown = sorted(set(arguments) - set(_HIDE_FIELDS))
        if unknown:
            raise ToolError(f"react.hide has no field {unknown[0]!r}: it takes path, replacement")
        for name in _HIDE_FIELDS:
            if not isinstance(arguments.get(name), str):
                raise ToolError(f"react.hide takes {name}, a string")

    def key(self, arguments: JsonObject) -> str:
        """Calls that change what is shown keep their order."""
        del arguments
        return "view"

    async def reconcile(self, arguments: JsonObject, call: Call) -> Outcome | None:
        """What it does is in the log or has not happened: it may simply be run."""
        return await self.run(arguments, call)

    async def run(self, arguments: JsonObject, call: Call) -> Outcome:
        """The hide, which the next round does."""
        asked, replacement = str(arguments["path"]), str(arguments["replacement"])
        block = await _block_named(asked, call)
        self._check_place(block, call)
        return Outcome(
            text=f"{block.ref} is hidden from the next round on",
            bodies=(Hide(path=block.ref, replacement=replacement),),
        )

    def _check_place(self, block: Block, call: Call) -> None:
        now = call.view.now
        place = now.place(block.ref)
        match block.body:
            case UserPrompt() | UserFollowup() | UserSteer():
                raise ToolError(f"{block.ref} is what the user said, which is never hidden")
            case ToolCalled() | ToolResult() | Completion() | Draft() | Notice() | SystemMessage():
                pass
            case _:
                raise ToolError(
                    f"{block.ref} is a {block.type}, and only calls, results, answers and notices can be hidden"
                )
        if place is None:
            raise ToolError(f"{block.ref} is not shown, so there is nothing to hide")
        if place < _stable_messages(call.timeline.last_round):
            raise ToolError(
                f"hide_before_cache: {block.ref} lies in the part of the prompt that the provider "
                "keeps; only what came in the last rounds can be hidden"
            )
        tokens = now.tokens - now.cost(place)
        if tokens > self._editable_tokens:
            raise ToolError(
                f"hide_too_old: {tokens} tokens follow {block.ref}, and only the last "
                f"{self._editable_tokens} can be changed"
            )


def _stable_messages(begun: RoundStart | None) -> int:
    """How many messages the prompt of the round keeps as they are."""
    points = {point.name: point.messages for point in begun.points} if begun else {}
    return points.get("pre_tail") or points.get("prev_turn") or 0


async def _block_named(asked: str, call: Call) -> Block:
    """The block that a ref names, or the result that shows it and nothing else."""
    try:
        ref = parse(asked)
    except LooplineError as error:
        raise ToolError(str(error)) from error
    if isinstance(ref, BlockRef | CallRef):
        block = await call.reader.find(ref)
        if block is None:
            raise ToolError(f"nothing here answers to {asked!r}")
        return block
    for block in reversed((await call.reader.here.whole()).blocks):
        match block.body:
            case ToolResult(shows=shows) if any(name == asked for name, _ in shows):
                if len({digest for _, digest in shows}) > 1:
                    raise ToolError(f"{block.ref} shows {asked} among others: hide {block.ref}")
                return block
            case _:
                pass
    raise ToolError(f"no result shows {asked!r}: hide the ref of a result, tc:<turn>.<call>.result")
