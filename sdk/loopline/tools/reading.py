"""`react.read`: any block, source, skill or knowledge passage, by ref."""

from __future__ import annotations

from dataclasses import replace

from loopline.errors import ToolError
from loopline.models import JsonObject, ToolSpec, dumps
from loopline.reader import Item, Reading
from loopline.timeline import Effect, TextKept
from loopline.tools.call import Call
from loopline.tools.outcome import Outcome, Section

READ_LIMIT = 48_000
"""Characters that one call may put before the model, over all its paths."""
MOST_PATHS = 50


class ReadTool:
    """Reads by ref: what exists is read although some of the refs do not."""

    effect: Effect = "read"
    spec: ToolSpec = ToolSpec(
        name="react.read",
        description=(
            "Read anything that has a ref again: ar: blocks, tc: tool calls and results, "
            "fi: attached files, so:sources_pool[1,3-5], sk: skills, ks: knowledge paths; add #L10-L40 for some lines. "
            "The status comes first, then the texts."
        ),
        parameters={
            "type": "object",
            "properties": {
                "paths": {
                    "type": "array",
                    "items": {"type": "string"},
                    "minItems": 1,
                    "maxItems": MOST_PATHS,
                    "description": "The refs to read, in the order wanted.",
                }
            },
            "required": ["paths"],
            "additionalProperties": False,
        },
    )

    def check(self, arguments: JsonObject) -> None:
        """Refuse anything but a list of refs."""
        _paths(arguments)

    def key(self, arguments: JsonObject) -> str:
        """Reads exclude nothing."""
        del arguments
        return ""

    async def reconcile(self, arguments: JsonObject, call: Call) -> Outcome | None:
        """What it does is in the log or has not happened: it may simply be run."""
        return await self.run(arguments, call)

    async def run(self, arguments: JsonObject, call: Call) -> Outcome:
        """The status, then a section for each text that is not visible already."""
        reading = await call.reader.read(_paths(arguments), limit=READ_LIMIT)
        seen = [one.ref for one in reading if one.found and _is_visible(one, call)]
        fresh = [item for item in reading if item.ref not in seen]
        return Outcome(
            text=_status(replace_seen(reading, seen)),
            sections=tuple(_section(item) for item in fresh if item.found),
            bodies=tuple(_text_kept(item) for item in fresh if item.keep and not _is_recorded(item, call)),
            found=len(reading.paths),
            shows=tuple(pair for item in fresh if item.text for pair in _shown(item)),
        )


def _is_visible(item: Item, call: Call) -> bool:
    """Whether the prompt shows the text: a result put it there, or its block is shown whole."""
    now = call.view.now
    return now.shown.get(item.ref) == item.sha256 or item.ref.partition("#")[0] in now.whole


def replace_seen(reading: Reading, seen: list[str]) -> Reading:
    """The reading, with what the model can see already listed and its text left out."""
    items = [replace(item, text="") if item.ref in seen else item for item in reading]
    return Reading(items, exists_in_visible_context=tuple(seen))


def _status(reading: Reading) -> str:
    problems = [f"missing {item.asked}: {item.message}" for item in reading if not item.found]
    return "\n".join([dumps(reading.status()), *problems])


def _section(item: Item) -> Section:
    title = f"{item.title} — {item.ref}" if item.title else item.ref
    ending = f"\n… {item.message}" if item.message else ""
    source = item.source
    if source is not None and item.keep:
        source = replace(source, text=item.text)
    return Section(heading=title, text=f"{item.text}{ending}", source=source)


def _shown(item: Item) -> list[tuple[str, str]]:
    """The names under which the model has seen the text: its own, and the one it asked by."""
    return [(name, item.sha256) for name in dict.fromkeys((item.ref, item.asked))]


def _is_recorded(item: Item, call: Call) -> bool:
    """Whether the text comes with its source, or has come before."""
    new = item.source is not None and call.timeline.pool.find(item.source.url) is None
    return new or item.ref in call.timeline.kept


def _text_kept(item: Item) -> TextKept:
    return TextKept(ref=item.ref, text=item.text, title=item.title, mime=item.mime)


def _paths(arguments: JsonObject) -> list[str]:
    unknown = sorted(set(arguments) - {"paths"})
    if unknown:
        raise ToolError(f"react.read has no field {unknown[0]!r}: it takes paths, a list of refs")
    paths = arguments.get("paths")
    found = [paths] if isinstance(paths, str) else paths
    if not isinstance(found, list) or not found or len(found) > MOST_PATHS:
        raise ToolError(f"react.read takes paths, a list of 1 to {MOST_PATHS} refs")
    refs = [ref for ref in found if isinstance(ref, str)]
    if len(refs) != len(found):
        raise ToolError("react.read takes paths, a list of refs, each a string")
    return refs
