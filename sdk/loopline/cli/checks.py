"""`loopline doctor`, `presets` and `skills`: checks of this machine, and of presets and skills."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from loopline import bundle as bundles
from loopline.cli.bundle_access import parse_properties
from loopline.cli.options import ANSWERED, FAILED, Choices, UsageError, command, misuse
from loopline.cli.parameters import PATH, json_option, prop_option
from loopline.cli.terminal import QUIET, WARNING, Screen, escape, format_limit, quantity
from loopline.errors import LooplineError
from loopline.harness import execution_features, features_for
from loopline.models import Json, JsonObject
from loopline.react import GROUPS, PRESETS, Preset, named_preset, presets_diff
from loopline.skills import check_skill, skill_folders


@command
@click.argument(
    "bundle", required=False, metavar="[BUNDLE]", help="Show the backend of this bundle's programs."
)
@prop_option
@json_option
async def doctor(choices: Choices, screen: Screen, bundle: str | None) -> int:
    """Show what isolating programs needs, and whether this machine has it."""
    if bundle:
        properties = bundles.load(bundle).properties(parse_properties(choices))
        backends = await features_for(properties)
    else:
        backends = await execution_features()
    if bundle and not backends:
        screen.note(f"{escape(bundle)} runs no programs on this machine")
        return ANSWERED
    if choices.as_json:
        document: JsonObject = {
            name: [{**asdict(feature)} for feature in features]
            for name, features in backends.items()
        }
        screen.write_json(document)
    else:
        for name, features in backends.items():
            screen.print(Text(name, "bold"))
            for feature in features:
                status = "ok" if feature.ok else "missing" if feature.required else "without"
                screen.print(Text(f"  {status:8} {feature.name}: {feature.detail}"))
    runs = any(
        all(feature.ok for feature in features if feature.required)
        for features in backends.values()
    )
    return ANSWERED if runs else FAILED


TABLE_WIDTH = 108
"""The width of the table of all presets, in columns."""
DIFFERENT = "yellow"
"""The style of a value that differs from the value of the first preset in the table."""


@command
@json_option
async def list_presets(choices: Choices, screen: Screen) -> int:
    """List the loop options of every preset."""
    presets = list(PRESETS.values())
    if choices.as_json:
        screen.write_json([_document(preset) for preset in presets])
        return ANSWERED
    if 0 < screen.width < TABLE_WIDTH:
        for preset in presets:
            screen.print(_render_preset(preset))
    else:
        options = [name for names in GROUPS.values() for name in names]
        _print_table(presets, options, screen)
    for preset in presets:
        for variable in preset.variables:
            screen.note(f"{preset.name} reads the environment variable {variable}")
    return ANSWERED


@command
@click.argument("first_name", metavar="PRESET")
@click.argument("second_name", metavar="PRESET")
@json_option
async def diff(choices: Choices, screen: Screen, first_name: str, second_name: str) -> int:
    """Show the loop options in which two presets differ."""
    with misuse(LooplineError):
        first, second = named_preset(first_name), named_preset(second_name)
    differences = presets_diff(first, second)
    if choices.as_json:
        values: JsonObject = {name: list[Json](pair) for name, pair in differences.items()}
        screen.write_json({"presets": [first.name, second.name], "policies": values})
    elif differences:
        _print_table([first, second], differences, screen)
    else:
        screen.note(f"{first.name} and {second.name} are alike")
    return ANSWERED


def _render_preset(preset: Preset) -> Text:
    """Render a preset with the options that differ from the preset `bare`, one per line."""
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
    """Return a preset as JSON: its name, description, loop options (`policies`) and environment variables."""
    return {
        "name": preset.name,
        "about": preset.about,
        "policies": dict[str, Json](preset.options.values),
        "variables": list[Json](preset.variables),
    }


PLACES = (".agents/skills", "skills")
"""The folders that are checked if the user names none."""


@command
@click.argument(
    "folders", type=PATH, nargs=-1, metavar="[FOLDER…]", help="Skills, or folders of skills."
)
@json_option
async def check_skills(choices: Choices, screen: Screen, folders: tuple[Path, ...]) -> int:
    """Check skills by the rules of the format."""
    roots = await asyncio.to_thread(_roots, folders)
    skills = {
        folder: check_skill(folder) for root in roots for folder in skill_folders(root) or [root]
    }
    problems = [problem for skill_problems in skills.values() for problem in skill_problems]
    if choices.as_json:
        documents: list[Json] = [
            {"path": str(problem.path), "line": problem.line, "problem": problem.text}
            for problem in problems
        ]
        screen.write_json({"skills": list[Json](map(str, skills)), "problems": documents})
    else:
        for problem in problems:
            screen.print(Text(escape(str(problem)), WARNING))
        screen.note(f"{quantity(len(problems), 'problem')} in {quantity(len(skills), 'skill')}")
    return FAILED if problems else ANSWERED


def _roots(folders: Sequence[Path]) -> Sequence[Path]:
    """Return `folders`, or the existing folders of PLACES if `folders` is empty.

    Raises:
        UsageError: `folders` is empty and PLACES do not exist, or a path is not a folder.
    """
    roots = folders or [Path(place) for place in PLACES if Path(place).is_dir()]
    if not roots:
        raise UsageError(f"no skills here: name a folder, or make one of {', '.join(PLACES)}")
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"{root} is not a folder")
    return roots
