"""The command `loopline`, with all its commands."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from loopline import __version__
from loopline.cli.bundles import call_tool, check, list_bundles, new
from loopline.cli.chat import chat
from loopline.cli.knowledge import build, search
from loopline.cli.options import OWN, Choices, JsonOption, VerboseOption, command
from loopline.cli.presets import diff, list_presets
from loopline.cli.process import execute
from loopline.cli.prompt import prompt, replay
from loopline.cli.run import resume, run
from loopline.cli.storage import (
    audit,
    backup,
    export,
    feedback,
    forget,
    fork,
    import_document,
    read,
    stop,
)
from loopline.cli.timeline import timeline

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


SCOPE = ("store", "user", "project", "tenant")
ANSWERS = ("store", "model", "user", "prop")
CASSETTE = ("record", "replay")

app.command("run")(command(run, "conversation", *ANSWERS, *CASSETTE, OWN, "as_json"))
app.command("chat")(command(chat, "conversation", *ANSWERS, *CASSETTE, "as_json"))
app.command("resume")(command(resume, "conversation", OWN, *ANSWERS, "as_json"))
app.command("stop")(command(stop, "conversation", OWN, *SCOPE, "as_json"))
app.command("read")(command(read, "conversation", *SCOPE, "as_json"))
app.command("timeline")(command(timeline, "conversation_argument", OWN, *SCOPE, "pager", "as_json"))
app.command("prompt")(command(prompt, "conversation", OWN, "store", "user", "pager", "as_json"))
app.command("replay")(command(replay, "conversation_argument", "store", "user", "pager", "as_json"))
app.command("export")(command(export, "conversation_argument", *SCOPE))
app.command("import")(command(import_document, "store", "user"))
app.command("audit")(command(audit, *SCOPE, "as_json"))
app.command("backup")(command(backup, "store"))
app.command("forget")(command(forget, "store", "user"))
app.command("fork")(command(fork, "conversation_argument", "store", "user"))
app.command("feedback")(command(feedback, "conversation", "store", "user"))
app.command("search")(command(search, "store", "prop", "as_json"))
app.command("check")(command(check, "store", "model", "prop", "as_json"))
app.command("tool")(command(call_tool, "user", "prop", "as_json"))
app.command("new")(command(new))
app.command("bundles")(command(list_bundles, "as_json"))

knowledge_commands: typer.Typer = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
knowledge_commands.command("build")(command(build, "store", "prop", "as_json"))
app.add_typer(knowledge_commands, name="knowledge", help="Build a bundle's knowledge space.")

preset_commands: typer.Typer = typer.Typer(rich_markup_mode=None)
preset_commands.command("diff")(command(diff, "as_json"))
app.add_typer(preset_commands, name="presets", help="List and compare loop presets.")


@preset_commands.callback(invoke_without_command=True)
def presets_command(
    context: typer.Context, as_json: JsonOption = False, verbose: VerboseOption = False
) -> None:
    """List the loop options of every preset."""
    if context.invoked_subcommand is None:
        work = partial(list_presets, Choices(as_json=as_json))
        execute(work, verbose=verbose, as_json=as_json)
