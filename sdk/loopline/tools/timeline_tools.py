"""The tools for the conversation itself: `react.hide`, `react.plan` and `react.read`."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from loopline import timeline as tl
from loopline.errors import LooplineError, ToolError
from loopline.models import Json, JsonObject, ToolSpec, dumps
from loopline.reader import Item, Reading
from loopline.refs import BlockRef, CallRef, PlanRef, parse
from loopline.tools.functions import RerunnableTool
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome, ResultSection, images_within_limits, is_image
from loopline.tools.parameters import list_argument, object_schema

EDITABLE_TAIL_TOKENS = 2_000
"""The number of tokens at the end of the prompt in which blocks may be hidden."""
HideableBody = (
    tl.ToolCalled | tl.ToolResult | tl.Completion | tl.Draft | tl.Notice | tl.SystemMessage
)
_HIDEABLE = tl.BodyUnion[HideableBody](HideableBody)


class HideTool(RerunnableTool):
    """The tool that replaces a recent block in the prompt by a line of the model, without changing the cached prefix."""

    effect: tl.Effect = "meta"
    shared_key: str = "view"
    spec: ToolSpec = ToolSpec(
        name="react.hide",
        description=(
            "Replace what path, a recent ref, shows by a line of yours; react.read shows it again."
        ),
        parameters=object_schema(
            {
                "path": {"type": "string"},
                "replacement": {"type": "string"},
            },
            "path",
            "replacement",
        ),
    )

    def __init__(self, editable_tokens: int = EDITABLE_TAIL_TOKENS) -> None:
        self._editable_tokens = editable_tokens

    def parse(self, arguments: JsonObject) -> tuple[str, str]:
        """Return the path and the replacement; raise a ToolError if one of them is not a string."""
        match arguments:
            case {"path": str(path), "replacement": str(replacement)}:
                return path, replacement
            case _:
                name = "replacement" if isinstance(arguments.get("path"), str) else "path"
                raise ToolError(f"{name} must be a string")

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the outcome whose record hides the block from the next round on.

        Raises:
            ToolError: the block does not exist, is not shown, may not be hidden, or is too far from the end of the prompt.
        """
        path, replacement = self.parse(arguments)
        block = await _find_block(path, call)
        self._check_position(block, call)
        return Outcome(
            text=f"{block.ref} is hidden from the next round on",
            bodies=(tl.Hide(path=block.ref, replacement=replacement),),
        )

    def _check_position(self, block: tl.Block, call: ToolInvocation) -> None:
        """Raise a ToolError if the block may not be hidden, is not shown, or is cached or too far from the end."""
        rendering = call.view.rendering
        position = rendering.position(block.ref)
        if isinstance(block.body, tl.UserPrompt | tl.UserFollowup | tl.UserSteer):
            raise ToolError(f"{block.ref} is a message of the user, which is never hidden")
        if not _HIDEABLE.has(block.body):
            raise ToolError(
                f"{block.ref} is a {block.type}, and only calls, results, answers and notices can be hidden"
            )
        if position is None:
            raise ToolError(f"{block.ref} is not shown, so it cannot be hidden")
        if position < _stable_messages(call.timeline.last_round):
            raise ToolError(
                f"hide_before_cache: {block.ref} is in the part of the prompt that the provider "
                "caches; only blocks of the last rounds can be hidden"
            )
        tokens = rendering.tokens - rendering.cost(position)
        if tokens > self._editable_tokens:
            raise ToolError(
                f"hide_too_old: {tokens} tokens follow {block.ref}, and only the last "
                f"{self._editable_tokens} can be changed"
            )


def _stable_messages(start: tl.RoundStart | None) -> int:
    """Return the number of messages in the cached prefix of the round's prompt."""
    points = {point.name: point.messages for point in start.points} if start else {}
    return next((points[name] for name in ("pre_tail", "prev_turn") if points.get(name)), 0)


async def _find_block(path: str, call: ToolInvocation) -> tl.Block:
    """Return the block with this ref; for other refs, the newest result that shows only the text of the ref.

    Raises:
        ToolError: the ref is not valid, the block does not exist, or the newest result with the text shows other texts too.
    """
    try:
        ref = parse(path)
    except LooplineError as error:
        raise ToolError(str(error)) from error
    if isinstance(ref, BlockRef | CallRef):
        block = await call.reader.find(ref)
        if block is None:
            raise ToolError(f"{path!r} does not exist in this conversation")
        return block
    for block in reversed((await call.reader.conversation.full()).blocks):
        if isinstance(block.body, tl.ToolResult) and path in dict(block.body.shows):
            if len({digest for _, digest in block.body.shows}) > 1:
                raise ToolError(f"{block.ref} shows {path} among others: hide {block.ref}")
            return block
    raise ToolError(f"no result shows {path!r}: hide the ref of a result, tc:<turn>.<call>.result")


class PlanTool(RerunnableTool):
    """The tool that changes plans; the new snapshots are recorded with its result."""

    effect: tl.Effect = "meta"
    shared_key: str = "plan"
    spec: ToolSpec = ToolSpec(
        name="react.plan",
        description=(
            "Keep a plan: new begins one from steps, replace retires plan_id for another, activate "
            "makes plan_id current, close ends it. Lines beside later calls mark steps: ✓ [n] done, "
            "✗ [n] failed, … [n] in progress, □ [n] pending."
        ),
        parameters=object_schema(
            {
                "mode": {"type": "string", "enum": ["new", "activate", "replace", "close"]},
                "plan_id": {"type": "string"},
                "steps": {"type": "array", "items": {"type": "string"}},
            },
            "mode",
        ),
    )

    def parse(self, arguments: JsonObject) -> tuple[Json, str, list[str]]:
        """Return the mode, which `run` checks, and the id of a plan and the steps, which may be empty.

        Raises:
            ToolError: the id is not a string, or the steps are not a list of strings.
        """
        plan_id = arguments.get("plan_id") or ""
        if not isinstance(plan_id, str):
            raise ToolError("plan_id must be a string, as ANNOUNCE shows it")
        expected = "a list of strings, each the description of one step"
        steps = list_argument(arguments, "steps", expected, least=0)
        return arguments.get("mode"), plan_id, steps

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Change the plans, and return the current plan as text.

        Raises:
            ToolError: the mode is unknown, or the change is not possible.
        """
        mode, plan_id, steps = self.parse(arguments)
        plans_before = await _load_plans(plan_id, call)
        snapshots = _change_plans(mode, plan_id, steps, plans_before, call)
        plans = tl.plan.fold([*plans_before.latest.values(), *snapshots])
        return Outcome(
            text=_render(str(mode), snapshots, plans.current),
            bodies=tuple(tl.Plan(snapshot=snapshot) for snapshot in snapshots),
        )


async def _load_plans(plan_id: str, call: ToolInvocation) -> tl.Plans:
    """Return the plans of the timeline, together with an older plan if the call names it."""
    plans = call.timeline.plans
    if not plan_id or plan_id in plans.latest:
        return plans
    block = await call.reader.find(PlanRef(plan_id=plan_id))
    if block is None or not isinstance(block.body, tl.Plan):
        return plans
    return tl.plan.fold([*plans.latest.values(), block.body.snapshot])


def _change_plans(
    mode: Json, plan_id: str, steps: list[str], plans: tl.Plans, call: ToolInvocation
) -> list[tl.PlanSnapshot]:
    """Return the new snapshots of plans for the mode; a new plan has the id `plan:<turn>:<call>`.

    Raises:
        ToolError: the mode is unknown, no open plan has the id, or the steps are not valid.
    """
    moment = call.moment
    new_id = f"plan:{call.context.turn_id}:{call.context.call_id}"
    match mode:
        case "new":
            return tl.plan.new(plans, new_id, steps, moment)
        case "replace":
            return tl.plan.replace_with(plans, plan_id, new_id, steps, moment)
        case "activate":
            return tl.plan.activate(plans, plan_id, moment)
        case "close":
            return tl.plan.close(plans, plan_id, moment)
        case _:
            raise ToolError(f"mode={mode!r}: react.plan knows new, activate, replace and close")


def _render(mode: str, snapshots: list[tl.PlanSnapshot], current: tl.PlanSnapshot | None) -> str:
    if current is None:
        return f"mode={mode}: done; no plan is current"
    changed = "" if snapshots else " already"
    head = f"mode={mode}: plan_id={current.plan_id} is{changed} current"
    return "\n".join([head, f"latest: ar:plan.latest:{current.plan_id}", *current.lines()])


READ_LIMIT = 48_000
"""The number of characters that one call shows to the model, over all of its paths."""
MAX_PATHS = 50


class ReadTool(RerunnableTool):
    """The tool that reads texts and images by ref; refs that do not exist are reported in the result."""

    spec: ToolSpec = ToolSpec(
        name="react.read",
        description=(
            "Read any ref, also what is cut or summed up: ar: blocks, tc: calls and "
            "results, fi: files, so:sources_pool[1,3-5], sk: skills, ks: knowledge; #L10-L40 gives some lines."
        ),
        parameters=object_schema(
            {"paths": {"type": "array", "items": {"type": "string"}}},
            "paths",
        ),
    )

    def parse(self, arguments: JsonObject) -> list[str]:
        """Return `paths` as a list of 1 to 50 strings; a single string becomes a list."""
        paths = arguments.get("paths")
        if isinstance(paths, str):
            return [paths]
        expected = f"a list of 1 to {MAX_PATHS} refs"
        return list_argument(arguments, "paths", expected, most=MAX_PATHS)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the status of all refs as JSON, and a section for each text that is not visible to the model yet.

        All texts together have at most `READ_LIMIT` characters. Images are sent with the text, and a ref that cannot be read
        has a line with the reason. Texts that must be kept are recorded with the result.
        """
        reading = await call.reader.read(self.parse(arguments), limit=READ_LIMIT)
        visible = [item.ref for item in reading if item.readable and _is_visible(item, call)]
        fresh = [item for item in reading if item.ref not in visible]
        images = images_within_limits(
            {
                item.ref: item.data
                for item in fresh
                if item.readable and item.data and is_image(item.mime)
            },
            call.view.window.carrying,
        )
        status = without_visible_texts(reading, visible).status()
        missing = tuple(
            f"missing {item.requested}: {item.message}" for item in reading if not item.readable
        )
        return Outcome(
            text="\n".join([dumps(status), *missing]),
            missing=missing,
            sections=tuple(
                _section(item, call, images.refused.get(item.ref, ""))
                for item in fresh
                if item.readable
            ),
            images=images.images,
            bodies=tuple(
                tl.TextKept(ref=item.ref, text=item.text, title=item.title, mime=item.mime)
                for item in fresh
                if item.keep and not _is_recorded(item, call)
            ),
            match_count=len(reading.paths),
            # The model knows a text by its own ref, and by the ref in the call.
            shows=tuple(
                (ref, item.sha256)
                for item in fresh
                if item.text and not item.cites and item.ref not in images.refused
                for ref in _both_refs(item)
            ),
        )


def _both_refs(item: Item) -> tuple[str, ...]:
    return tuple(dict.fromkeys((item.ref, item.requested)))


def _is_visible(item: Item, call: ToolInvocation) -> bool:
    """Return whether the prompt has the text: in an earlier result, or because its block is shown in full."""
    rendering = call.view.rendering
    is_shown = rendering.shown_texts.get(item.ref) == item.sha256
    return is_shown or item.ref.partition("#")[0] in rendering.shown_in_full


def without_visible_texts(reading: Reading, visible: list[str]) -> Reading:
    """Return the reading without the texts of the visible refs, which its status lists as visible."""
    items = [replace(item, text="") if item.ref in visible else item for item in reading]
    return Reading(items, exists_in_visible_context=tuple(visible))


def _section(item: Item, call: ToolInvocation, refused: str) -> ResultSection:
    """Return the section of a readable item, with its title and ref as the heading.

    The note has the message of a cut text, and the reason why an image is not shown. A text that the timeline has already
    is not kept again.
    """
    title = f"{item.title} — {item.ref}" if item.title else item.ref
    source = item.source
    kept = item.kept
    if source is not None and item.keep:
        source = structs.replace(source, text=item.text)
    notes = [item.message, f"Not shown: {refused}." if refused else ""]
    if kept is not None and kept.ref in call.timeline.kept_texts:
        kept = None  # recorded already
    return ResultSection(
        heading=title,
        text=item.text,
        source=source,
        note="".join(f"\n… {note}" for note in notes if note),
        cites=item.cites,
        kept=kept,
        shown_as=_both_refs(item) if item.cites else (),
    )


def _is_recorded(item: Item, call: ToolInvocation) -> bool:
    """Return whether the text was recorded before, or will be recorded as the text of a new source."""
    has_new_source = item.source is not None and call.timeline.pool.find(item.source.url) is None
    return has_new_source or item.ref in call.timeline.kept_texts
