"""The command `loopline`: the names of its commands with their help, and the functions that they run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click

import loopline
from loopline.cli.parameters import json_option, verbose_option

ABOUT = "Agents that plan, search, read and cite; every step can be read again."
VARIABLES = (
    "The variables LOOPLINE_STORE and LOOPLINE_MODEL replace --store and --model where these are "
    "omitted. loopline COMMAND -h explains a command."
)
Entries = Mapping[str, tuple[str, str]]
"""Commands by name: each with its function, as `module:function` of this folder, and its help."""

COMMANDS: Entries = {
    "run": ("run:run", "Ask a bundle; without TEXT continue its cut turn."),
    "chat": ("chat:chat", "Talk with a bundle, here or on a server."),
    "resume": ("run:resume", "Continue the turn that was cut off, or all of the store."),
    "stop": ("storage:stop", "Stop the running turn, in any process, and queued turns."),
    "answer": ("storage:answer", "Answer the question of a running call, in any process."),
    "background": (
        "storage:background",
        "List, await or stop the calls that run in the background.",
    ),
    "read": ("reader:read", "Read anything that has a ref."),
    "timeline": ("timeline:timeline", "Show a conversation block by block, or list them all."),
    "prompt": ("prompt:prompt", "Show exactly what a round sent to its model."),
    "replay": ("prompt:replay", "Render every prompt again, and show where one diverges."),
    "export": ("reader:export", "Print a conversation as a JSON document, or as an HTML page."),
    "import": (
        "storage:import_document",
        "Store an exported conversation; its actions stay inert.",
    ),
    "audit": ("storage:audit", "Find blocks that were changed, removed, moved or inserted."),
    "backup": ("storage:backup", "Copy the store, with its blobs, while it is in use."),
    "move": ("storage:move", "Copy a store in a file to PostgreSQL, and check every block."),
    "forget": ("storage:forget", "Remove a conversation for good, after asking."),
    "forget-user": (
        "storage:forget_user",
        "Remove all conversations of a user for good, after asking.",
    ),
    "forget-inactive": (
        "storage:forget_inactive",
        "Remove conversations without activity for the given number of days.",
    ),
    "export-user": ("storage:export_user", "Write all conversations of a user to a new folder."),
    "fork": ("storage:fork", "Begin another conversation from a block of this one."),
    "feedback": ("storage:feedback", "Rate a turn; the newest reaction counts."),
    "stale": ("storage:stale", "List answers whose cited lines have changed, with the difference."),
    "search": ("knowledge:search", "Search a bundle's knowledge space."),
    "check": ("bundles:check", "Show the parts of a bundle, its problems and its warnings."),
    "tool": ("bundles:call_tool", "Call one tool of a bundle, outside any conversation."),
    "mcp": ("server:mcp", "Serve a bundle to MCP clients: its tools, questions, skills."),
    "serve": ("server:serve", "Serve bundles over HTTP: conversations, events, files."),
    "worker": ("workers:worker", "Run the turns of bundles that servers only submit."),
    "turns": ("workers:turns", "List the turns that run, wait or failed, anywhere."),
    "approvals": ("workers:approvals", "List the calls that wait for approval, anywhere."),
    "web": ("web:web", "Open the web page: chat with a bundle, and look into every conversation."),
    "key": ("server:make_key", "Make an API key for a user, and store its digest in a file."),
    "new": ("bundles:new", "Create a bundle: one module with its test."),
    "docs": ("docs:docs", "Open the documentation, which is part of the package, in a browser."),
    "bundles": ("bundles:list_bundles", "List the bundles that can be opened by name."),
    "doctor": (
        "checks:doctor",
        "Show what isolating programs needs, and whether this machine has it.",
    ),
}
KNOWLEDGE_COMMANDS: Entries = {
    "build": ("knowledge:build", "Build a knowledge space, and show what is in it."),
    "check": (
        "knowledge:check_links",
        "List the links, refs and paths in documents that do not exist.",
    ),
}
FILE_COMMANDS: Entries = {
    "list": ("files:list_files", "List the files of a turn."),
    "show": ("files:show", "Print the text of a file of a turn."),
    "diff": ("files:diff", "Show what changed in the files between two turns."),
    "export": ("files:export", "Write the files of a turn into a folder."),
}
SKILL_COMMANDS: Entries = {
    "check": ("checks:check_skills", "Check skills by the rules of the format.")
}
MEMORY_COMMANDS: Entries = {
    "list": ("storage:list_facts", "List what is remembered about a user."),
    "edit": ("storage:edit_fact", "Replace the text of a fact."),
    "remove": ("storage:remove_fact", "Remove a fact, so that no turn recalls it."),
}
PRESET_COMMANDS: Entries = {
    "diff": ("checks:diff", "Show the loop options in which two presets differ.")
}


class LazyCommand(click.Command):
    """The name and the help of a command; its module is imported when it is called."""

    def __init__(self, name: str, function: str, about: str) -> None:
        super().__init__(name, help=about)
        self.function: str = function

    def load(self) -> click.Command:
        """Import the module of the command, and return the command.

        Raises:
            SystemExit: the user pressed Ctrl-C during the import; its code is 130.
        """
        module, _, function = self.function.partition(":")
        try:
            command: click.Command = getattr(import_module(f"loopline.cli.{module}"), function)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        return command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        """Parse the arguments of the imported command, which then runs in place of this placeholder."""
        return self.load().make_context(info_name, args, parent, **extra)


def _commands(entries: Entries) -> list[click.Command]:
    return [LazyCommand(name, function, about) for name, (function, about) in entries.items()]


@click.group(invoke_without_command=True, commands=_commands(PRESET_COMMANDS))
@json_option
@verbose_option
@click.pass_context
def presets(context: click.Context, /, **options: object) -> None:
    """List and compare loop presets."""
    if context.invoked_subcommand is None:
        listing = LazyCommand("presets", "checks:list_presets", "")
        context.invoke(listing.load(), **options)


def _print_version(context: click.Context, option: click.Parameter, requested: bool) -> None:
    """If `--version` was given, print `loopline VERSION` on stdout and exit with the code 0."""
    del option
    if requested:
        click.echo(
            f"loopline {loopline.__version__}"
        )  # looked up here, as it takes as long as a help page
        context.exit()


app: click.Group = click.Group(
    "loopline",
    help=ABOUT,
    epilog=VARIABLES,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version.",
        )
    ],
    commands=[
        *_commands(COMMANDS),
        click.Group(
            "knowledge",
            commands=_commands(KNOWLEDGE_COMMANDS),
            help="Build or check a bundle's knowledge space.",
        ),
        click.Group(
            "files",
            commands=_commands(FILE_COMMANDS),
            help="List, compare and export the files of a turn.",
        ),
        click.Group(
            "skills",
            commands=_commands(SKILL_COMMANDS),
            help="Check skills by the rules of the format.",
        ),
        click.Group(
            "memory",
            commands=_commands(MEMORY_COMMANDS),
            help="List, edit or remove what is remembered.",
        ),
        presets,
    ],
)
