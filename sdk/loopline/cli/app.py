"""The command `loopline`, with all its commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from typer.core import TyperCommand, TyperGroup

import loopline
from loopline.cli.parameters import OWN, JsonOption, VerboseOption

if TYPE_CHECKING:
    from typer._click import Context, Parameter


SCOPE = ("store", "user", "project", "tenant")
ANSWERS = ("store", "model", "user", "prop")
CASSETTE = ("record", "replay")


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command: its name, the function that does its work, its help, and the shared options it takes."""

    name: str
    work: str
    """The function, as `module:function` of this room."""
    help: str
    shared: tuple[str, ...] = ()

    def load(self) -> Callable[..., None]:
        """Import the command's module, and return what runs the command.

        Raises:
            SystemExit: the user pressed Ctrl-C.
        """
        module, _, function = self.work.partition(":")
        try:
            work = getattr(import_module(f"loopline.cli.{module}"), function)
            command = import_module("loopline.cli.options").command
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        call: Callable[..., None] = command(work, *self.shared)
        return call


class _TypedText:
    """The value of a parameter that is text, or several texts: what was typed."""

    def coerce(
        self, value: str | bool | tuple[str, ...] | None, param: object, ctx: object
    ) -> object:
        """Return the text; several are a list."""
        del param, ctx
        return list(value) if isinstance(value, tuple) else value


_TEXTS = ((str,), (str | None,), (list[str],), (list[str] | None,))


def _take_as_typed(parameters: Sequence[Parameter], types: Mapping[str, inspect.Parameter]) -> None:
    """Let neither text nor the flag for help be checked: Typer would load pydantic, a fifth of a short command."""
    for parameter in parameters:
        declared = types.get(parameter.name or "")
        is_text = declared is not None and get_args(declared.annotation)[:1] in _TEXTS
        if is_text or parameter.name == "help":
            vars(parameter)["get_runtime_param"] = _TypedText


class LightGroup(TyperGroup):
    """The commands; what is typed for them is read without pydantic."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        """Return the options of all commands."""
        parameters = super().get_params(ctx)
        _take_as_typed(parameters, {})
        return parameters


class _LightCommand(TyperCommand):
    """A command whose texts are read without pydantic."""

    def get_params(self, ctx: Context) -> list[Parameter]:
        """Return the parameters."""
        parameters = super().get_params(ctx)
        assert self.callback is not None
        _take_as_typed(parameters, inspect.signature(self.callback).parameters)
        return parameters


class LazyCommand(TyperCommand):
    """A command's name and help; the rest is loaded when it is called. Its callback is the `load` of its entry."""

    @cached_property
    def loaded(self) -> TyperCommand:
        """The command with its own arguments and options."""
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        assert self.callback is not None
        app.command(self.name, cls=_LightCommand)(self.callback())
        command = typer.main.get_command(app)
        assert isinstance(command, TyperCommand)
        return command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: Context | None = None,
        **extra: object,
    ) -> Context:
        """Read the arguments of the loaded command."""
        return self.loaded.make_context(info_name, args, parent, **extra)


_C, _A = "conversation", "conversation_argument"
COMMANDS = (
    CommandEntry(
        "run",
        "run:run",
        "Ask a bundle; without TEXT continue its cut turn.",
        (_C, *ANSWERS, *CASSETTE, OWN, "as_json"),
    ),
    CommandEntry(
        "chat",
        "chat:chat",
        "Talk with a bundle, here or on a server.",
        (OWN, _C, *ANSWERS, *CASSETTE, "as_json"),
    ),
    CommandEntry(
        "resume",
        "run:resume",
        "Continue the turn that was cut off, or all of the store.",
        (_C, OWN, *ANSWERS, "as_json"),
    ),
    CommandEntry(
        "stop",
        "storage:stop",
        "Stop the running turn, in any process, and queued turns.",
        (_C, OWN, *SCOPE, "as_json"),
    ),
    CommandEntry(
        "answer",
        "storage:answer",
        "Answer what a running call asks, in any process.",
        (_C, OWN, *SCOPE, "as_json"),
    ),
    CommandEntry("read", "reader:read", "Read anything that has a ref.", (_C, *SCOPE, "as_json")),
    CommandEntry(
        "timeline",
        "timeline:timeline",
        "Show a conversation block by block, or list them all.",
        (_A, _C, OWN, *SCOPE, "pager", "as_json"),
    ),
    CommandEntry(
        "prompt",
        "prompt:prompt",
        "Show exactly what a round sent to its model.",
        (_C, OWN, "store", "user", "pager", "as_json"),
    ),
    CommandEntry(
        "replay",
        "prompt:replay",
        "Render every prompt again, and show where one diverges.",
        (_A, _C, "store", "user", "pager", "as_json"),
    ),
    CommandEntry(
        "export", "reader:export", "Print a conversation as a JSON document.", (_A, _C, *SCOPE)
    ),
    CommandEntry(
        "import",
        "storage:import_document",
        "Store an exported conversation; its actions stay inert.",
        ("store", "user"),
    ),
    CommandEntry(
        "audit",
        "storage:audit",
        "Find blocks that were changed, removed, moved or inserted.",
        (*SCOPE, "as_json"),
    ),
    CommandEntry(
        "backup",
        "storage:backup",
        "Copy the store, with its blobs, while it is in use.",
        ("store",),
    ),
    CommandEntry(
        "forget",
        "storage:forget",
        "Remove a conversation for good, after asking.",
        ("store", "user"),
    ),
    CommandEntry(
        "forget-user",
        "storage:forget_user",
        "Remove all conversations of a user for good, after asking.",
        ("store", "project", "tenant"),
    ),
    CommandEntry(
        "forget-inactive",
        "storage:forget_inactive",
        "Remove conversations that nobody has used for so many days.",
        ("store", "tenant"),
    ),
    CommandEntry(
        "export-user",
        "storage:export_user",
        "Write all conversations of a user to a new folder.",
        ("store", "project", "tenant"),
    ),
    CommandEntry(
        "fork",
        "storage:fork",
        "Begin another conversation from a block of this one.",
        (_A, _C, "store", "user"),
    ),
    CommandEntry(
        "feedback",
        "storage:feedback",
        "Rate a turn; the newest reaction counts.",
        (_C, "store", "user"),
    ),
    CommandEntry(
        "stale",
        "storage:stale",
        "List answers whose cited lines have changed, with the difference.",
        (*SCOPE, "as_json"),
    ),
    CommandEntry(
        "search",
        "knowledge:search",
        "Search a bundle's knowledge space.",
        ("store", "prop", "as_json"),
    ),
    CommandEntry(
        "check",
        "bundles:check",
        "Show what a bundle consists of, and what is wrong with it.",
        ("store", "model", "prop", "as_json"),
    ),
    CommandEntry(
        "tool",
        "bundles:call_tool",
        "Call one tool of a bundle, outside any conversation.",
        ("user", "store", "prop", "as_json"),
    ),
    CommandEntry(
        "mcp",
        "server:mcp",
        "Serve a bundle to MCP clients: its tools, questions, skills.",
        (OWN, *ANSWERS),
    ),
    CommandEntry(
        "serve",
        "server:serve",
        "Serve bundles over HTTP: conversations, events, files.",
        ("store", "model", "prop"),
    ),
    CommandEntry(
        "key",
        "server:make_key",
        "Make an API key for a user, and store its digest in a file.",
        (OWN, "user", "project", "tenant"),
    ),
    CommandEntry("new", "bundles:new", "Create a bundle, with a tool, a skill and a test."),
    CommandEntry(
        "bundles",
        "bundles:list_bundles",
        "List the bundles that can be opened by name.",
        ("as_json",),
    ),
    CommandEntry(
        "doctor",
        "checks:doctor",
        "Say what isolation of programs needs, and whether it is here.",
        ("as_json",),
    ),
)
BUILD = CommandEntry(
    "build",
    "knowledge:build",
    "Build a knowledge space, and show what is in it.",
    ("store", "prop", "as_json"),
)
CHECK = CommandEntry(
    "check",
    "knowledge:check_links",
    "List the links, refs and paths in documents that name nothing.",
    ("store", "prop", "as_json"),
)
FILES = (
    CommandEntry("list", "files:list_files", "List the files of a turn.", (_C, *SCOPE, "as_json")),
    CommandEntry(
        "show", "files:show", "Print the text of a file of a turn.", (_C, *SCOPE, "as_json")
    ),
    CommandEntry(
        "diff",
        "files:diff",
        "Show what changed in the files between two turns.",
        (_C, *SCOPE, "pager", "as_json"),
    ),
    CommandEntry(
        "export", "files:export", "Write the files of a turn into a folder.", (_C, *SCOPE)
    ),
)
SKILLS_CHECK = CommandEntry(
    "check", "checks:check_skills", "Check skills by the rules of the format.", ("as_json",)
)
FACTS = (
    CommandEntry(
        "list",
        "storage:list_facts",
        "List what is remembered about a user.",
        (*SCOPE, "as_json"),
    ),
    CommandEntry("edit", "storage:edit_fact", "Replace the text of a fact.", SCOPE),
    CommandEntry(
        "remove", "storage:remove_fact", "Remove a fact, so that no turn recalls it.", SCOPE
    ),
)
PRESETS = CommandEntry(
    "presets", "checks:list_presets", "List the loop options of every preset.", ("as_json",)
)
DIFF = CommandEntry(
    "diff", "checks:diff", "Show the loop options in which two presets differ.", ("as_json",)
)


def add(app: typer.Typer, entry: CommandEntry) -> None:
    """Add a command that is loaded when it is called."""
    app.command(entry.name, cls=LazyCommand, help=entry.help)(entry.load)


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
