"""The command `loopline`, with all its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from loopline import __version__
from loopline.cli.bundles import bundles_command, check_command, new_command, tool_command
from loopline.cli.chat import chat_command
from loopline.cli.knowledge import knowledge_commands, search_command
from loopline.cli.presets import preset_commands
from loopline.cli.prompt import prompt_command, replay_command
from loopline.cli.run import resume_command, run_command
from loopline.cli.storage import (
    audit_command,
    backup_command,
    export_command,
    feedback_command,
    forget_command,
    fork_command,
    import_command,
    read_command,
    stop_command,
)
from loopline.cli.timeline import timeline_command

app: typer.Typer = typer.Typer(
    name="loopline",
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
        typer.echo(f"loopline {__version__}")
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


app.command("run")(run_command)
app.command("chat")(chat_command)
app.command("resume")(resume_command)
app.command("stop")(stop_command)
app.command("read")(read_command)
app.command("timeline")(timeline_command)
app.command("prompt")(prompt_command)
app.command("replay")(replay_command)
app.command("export")(export_command)
app.command("import")(import_command)
app.command("audit")(audit_command)
app.command("backup")(backup_command)
app.command("forget")(forget_command)
app.command("fork")(fork_command)
app.command("feedback")(feedback_command)
app.command("search")(search_command)
app.command("check")(check_command)
app.command("tool")(tool_command)
app.command("new")(new_command)
app.command("bundles")(bundles_command)
app.add_typer(knowledge_commands, name="knowledge", help="Build a bundle's knowledge space.")
app.add_typer(preset_commands, name="presets", help="List and compare loop presets.")
