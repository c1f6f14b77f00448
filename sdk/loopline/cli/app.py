"""The command `loopline`, with all its commands."""

from __future__ import annotations

from typing import Annotated

import typer

import loopline
from loopline.cli.commands import (
    BUILD,
    CHECK,
    COMMANDS,
    DIFF,
    FACTS,
    FILES,
    PRESETS,
    SKILLS_CHECK,
    LightGroup,
    add,
)
from loopline.cli.parameters import JsonOption, VerboseOption

app: typer.Typer = typer.Typer(
    name="loopline",
    cls=LightGroup,
    help="Agents that plan, search, read and cite; every step can be read again.",
    epilog="The variables LOOPLINE_STORE and LOOPLINE_MODEL replace --store and --model where these are omitted. "
    "loopline COMMAND -h explains a command.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"loopline {loopline.__version__}")
        raise typer.Exit


@app.callback()
def main_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Agents that plan, search, read and cite; every step can be read again."""
    del version


for _entry in COMMANDS:
    add(app, _entry)

knowledge_commands: typer.Typer = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
add(knowledge_commands, BUILD)
add(knowledge_commands, CHECK)
app.add_typer(
    knowledge_commands, name="knowledge", help="Build or check a bundle's knowledge space."
)

file_commands: typer.Typer = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
for _entry in FILES:
    add(file_commands, _entry)
app.add_typer(file_commands, name="files", help="List, compare and export the files of a turn.")

skill_commands: typer.Typer = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
add(skill_commands, SKILLS_CHECK)
app.add_typer(skill_commands, name="skills", help="Check skills by the rules of the format.")

fact_commands: typer.Typer = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
for _entry in FACTS:
    add(fact_commands, _entry)
app.add_typer(fact_commands, name="memory", help="List, edit or remove what is remembered.")

preset_commands: typer.Typer = typer.Typer(rich_markup_mode=None)
add(preset_commands, DIFF)
app.add_typer(preset_commands, name="presets", help="List and compare loop presets.")


@preset_commands.callback(invoke_without_command=True)
def presets_command(
    context: typer.Context, as_json: JsonOption = False, verbose: VerboseOption = False
) -> None:
    """List the loop options of every preset."""
    if context.invoked_subcommand is None:
        PRESETS.load()(as_json=as_json, verbose=verbose)
