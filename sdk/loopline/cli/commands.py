"""The commands by name, each with its help; a command's module is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

import typer
from typer.core import TyperCommand

from loopline.cli.parameters import OWN

if TYPE_CHECKING:
    from typer._click import Context

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


class LazyCommand(TyperCommand):
    """A command's name and help; the rest is loaded when it is called. Its callback is the `load` of its entry."""

    @cached_property
    def loaded(self) -> TyperCommand:
        """The command with its own arguments and options."""
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        assert self.callback is not None
        app.command(self.name)(self.callback())
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
        "Talk with a bundle; you can type while it works.",
        (_C, *ANSWERS, *CASSETTE, "as_json"),
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
    CommandEntry("read", "reader:read", "Read anything that has a ref.", (_C, *SCOPE, "as_json")),
    CommandEntry(
        "timeline",
        "timeline:timeline",
        "Show a conversation block by block, or list them all.",
        (_A, OWN, *SCOPE, "pager", "as_json"),
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
        (_A, "store", "user", "pager", "as_json"),
    ),
    CommandEntry(
        "export", "reader:export", "Print a conversation as a JSON document.", (_A, *SCOPE)
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
        "fork",
        "storage:fork",
        "Begin another conversation from a block of this one.",
        (_A, "store", "user"),
    ),
    CommandEntry(
        "feedback",
        "storage:feedback",
        "Rate a turn; the newest reaction counts.",
        (_C, "store", "user"),
    ),
    CommandEntry(
        "stale",
        "stale:stale",
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
        "mcp_server:serve",
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
        "doctor:doctor",
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
    "check", "skills:check_skills", "Check skills by the rules of the format.", ("as_json",)
)
FACTS = (
    CommandEntry(
        "list",
        "user_facts:list_facts",
        "List what is remembered about a user.",
        (*SCOPE, "as_json"),
    ),
    CommandEntry("edit", "user_facts:edit_fact", "Replace the text of a fact.", SCOPE),
    CommandEntry(
        "remove", "user_facts:remove_fact", "Remove a fact, so that no turn recalls it.", SCOPE
    ),
)
PRESETS = CommandEntry(
    "presets", "presets:list_presets", "List the loop options of every preset.", ("as_json",)
)
DIFF = CommandEntry(
    "diff", "presets:diff", "Show the loop options in which two presets differ.", ("as_json",)
)


def add(app: typer.Typer, entry: CommandEntry) -> None:
    """Add a command that is loaded when it is called."""
    app.command(entry.name, cls=LazyCommand, help=entry.help)(entry.load)
