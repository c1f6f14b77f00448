"""`loopline presets`: the presets policy by policy, whole or where two of them differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, UsageError
from loopline.cli.terminal import QUIET, Screen, worded
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, dumps
from loopline.react import GROUPS, PRESETS, Preset, named_preset, presets_diff

WIDE = 108
"""The columns that the table of all presets takes."""
OTHERWISE = "yellow"
"""The style of a policy that is not that of the first preset shown."""


async def presets(choices: Choices, screen: Screen) -> int:
    """Print every preset."""
    shown = list(PRESETS.values())
    if choices.as_json:
        screen.raw(dumps([_document(one) for one in shown]))
        return ANSWERED
    if 0 < screen.width < WIDE:
        for one in shown:
            screen.answer(_short(one))
    else:
        _print(shown, list(_names()), screen)
    for one in shown:
        for variable in one.variables:
            screen.note(Text(f"{one.name} heeds {variable}", style=QUIET))
    return ANSWERED


async def diff(one: str, other: str, choices: Choices, screen: Screen) -> int:
    """Print the policies in which two presets differ."""
    try:
        first, second = named_preset(one), named_preset(other)
    except LooplineError as error:
        raise UsageError(str(error)) from error
    apart = presets_diff(first, second)
    if choices.as_json:
        values: JsonObject = {name: list[Json](pair) for name, pair in apart.items()}
        screen.raw(dumps({"presets": [first.name, second.name], "policies": values}))
    elif apart:
        _print([first, second], [name for name in _names() if name in apart], screen)
    else:
        screen.note(Text(f"{first.name} and {second.name} are alike", style=QUIET))
    return ANSWERED


def _short(one: Preset) -> Text:
    """The preset in a few lines: what it has otherwise than the engine itself."""
    bare = PRESETS["bare"].options
    text = Text.assemble((one.name, "bold"), (f" — {one.about}", QUIET))
    for name, value in one.options.differences(bare).items():
        text.append(f"\n  {name} ").append(worded(value), style=OTHERWISE)
    return text


def _names() -> Iterator[str]:
    for names in GROUPS.values():
        yield from names


def _print(shown: Sequence[Preset], names: Sequence[str], screen: Screen) -> None:
    lines = ["\t".join(["policy", *(one.name for one in shown)])]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("", "policy", *(one.name for one in shown)):
        table.add_column(column, no_wrap=True)
    for group, members in GROUPS.items():
        title = group
        for name in members:
            if name not in names:
                continue
            values = [one.options.values[name] for one in shown]
            lines.append("\t".join([name, *map(worded, values)]))
            cells = [
                Text(worded(value), style="" if value == values[0] else OTHERWISE)
                for value in values
            ]
            table.add_row(Text(title, style=QUIET), Text(name), *cells)
            title = ""
    screen.answer_whole(table, "\n".join(lines))


def _document(one: Preset) -> JsonObject:
    return {
        "name": one.name,
        "about": one.about,
        "policies": dict[str, Json](one.options.values),
        "variables": list[Json](one.variables),
    }
