"""`loopline presets`: the options of all loop presets, or those in which two presets differ."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, UsageError
from loopline.cli.terminal import QUIET, Screen, format_limit
from loopline.errors import LooplineError
from loopline.models import Json, JsonObject
from loopline.react import GROUPS, PRESETS, Preset, named_preset, presets_diff

TABLE_WIDTH = 108
"""The columns that the table of all presets takes."""
DIFFERENT = "yellow"
"""The style of a value that is not that of the first preset shown."""
PresetArgument = Annotated[str, typer.Argument(metavar="PRESET")]


async def list_presets(choices: Choices, screen: Screen) -> int:
    """List the loop options of every preset."""
    presets = list(PRESETS.values())
    if choices.as_json:
        screen.write_json([_document(preset) for preset in presets])
        return ANSWERED
    if 0 < screen.width < TABLE_WIDTH:
        for preset in presets:
            screen.print(_short(preset))
    else:
        options = [name for names in GROUPS.values() for name in names]
        _print_table(presets, options, screen)
    for preset in presets:
        for variable in preset.variables:
            screen.note(f"{preset.name} reads the environment variable {variable}")
    return ANSWERED


async def diff(
    choices: Choices, screen: Screen, first_name: PresetArgument, second_name: PresetArgument
) -> int:
    """Show the loop options in which two presets differ."""
    try:
        first, second = named_preset(first_name), named_preset(second_name)
    except LooplineError as error:
        raise UsageError(str(error)) from error
    differences = presets_diff(first, second)
    if choices.as_json:
        values: JsonObject = {name: list[Json](pair) for name, pair in differences.items()}
        screen.write_json({"presets": [first.name, second.name], "policies": values})
    elif differences:
        _print_table([first, second], differences, screen)
    else:
        screen.note(f"{first.name} and {second.name} are alike")
    return ANSWERED


def _short(preset: Preset) -> Text:
    """Return the preset in a few lines: only the options that differ from the preset `bare`."""
    bare = PRESETS["bare"].options
    text = Text.assemble((preset.name, "bold"), (f" — {preset.about}", QUIET))
    for name, value in preset.options.differences(bare).items():
        text.append(f"\n  {name} ").append(format_limit(value), style=DIFFERENT)
    return text


def _print_table(presets: Sequence[Preset], names: Container[str], screen: Screen) -> None:
    """Print the named options, group by group, with a column for each preset."""
    columns = ["option", *(preset.name for preset in presets)]
    lines = ["\t".join(columns)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("", *columns):
        table.add_column(column, no_wrap=True)
    for group, members in GROUPS.items():
        title = group
        for name in members:
            if name not in names:
                continue
            values = [preset.options.values[name] for preset in presets]
            lines.append("\t".join([name, *map(format_limit, values)]))
            cells = [
                Text(format_limit(value), style="" if value == values[0] else DIFFERENT)
                for value in values
            ]
            table.add_row(Text(title, style=QUIET), Text(name), *cells)
            title = ""
    screen.print_layout(table, "\n".join(lines))


def _document(preset: Preset) -> JsonObject:
    return {
        "name": preset.name,
        "about": preset.about,
        "policies": dict[str, Json](preset.options.values),
        "variables": list[Json](preset.variables),
    }
