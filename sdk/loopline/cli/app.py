"""The command `loopline`: its commands, and their arguments and options."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from loopline import __version__
from loopline.cli.bundles import ToolCall, bundles, check, new, tool
from loopline.cli.chat import chat
from loopline.cli.knowledge import build, search
from loopline.cli.options import (
    BundleArgument,
    Choices,
    ConversationOption,
    JsonOption,
    ModelOption,
    PagerOption,
    ProjectOption,
    PropOption,
    Protocol,
    RecordOption,
    ReplayOption,
    StoreOption,
    TenantOption,
    UserOption,
    VerboseOption,
)
from loopline.cli.presets import diff, presets
from loopline.cli.process import attend
from loopline.cli.prompt import CacheName, Which, prompt, replay
from loopline.cli.run import Asked, carry_on, run
from loopline.cli.storage import (
    audit_command,
    backup_command,
    export_command,
    feedback_command,
    forget_command,
    fork_command,
    import_command,
    read,
    stop_command,
)
from loopline.cli.timeline import Active, Look, Wanted, show
from loopline.events import DialectName
from loopline.react import Limits

knowledge: typer.Typer = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
presetting: typer.Typer = typer.Typer(rich_markup_mode=None)
app: typer.Typer = typer.Typer(
    name="loopline",
    help="Agents that plan, search, read and cite, and whose every step can be read again.",
    epilog="LOOPLINE_STORE and LOOPLINE_MODEL stand for --store and --model where these are left out. "
    "loopline COMMAND -h explains a command.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(knowledge, name="knowledge", help="A bundle's knowledge space.")


def _print_version(wanted: bool) -> None:
    if wanted:
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
    """Agents that plan, search, read and cite, and whose every step can be read again."""
    del version


app.add_typer(presetting, name="presets", help="What a loop may go by, preset by preset.")


@app.command("run")
def run_command(
    bundle: BundleArgument,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="What to say; - reads it from stdin. Without it the "
            "turn that was cut off is carried on.",
            show_default=False,
        ),
    ] = None,
    conversation: ConversationOption = None,
    store: StoreOption = None,
    model: ModelOption = None,
    user: UserOption = None,
    prop: PropOption = None,
    record: RecordOption = None,
    replay: ReplayOption = None,
    max_iterations: Annotated[
        int | None, typer.Option(min=1, help="At most so many rounds.", show_default=False)
    ] = None,
    protocol: Annotated[
        Protocol | None, typer.Option(help="How decisions travel.", show_default=False)
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CALL=VALUE",
            help="What a call of the paused turn waits for.",
            show_default=False,
        ),
    ] = None,
    attach: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Attach a file; may be given again.", show_default=False),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the screen as a picture.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Ask a bundle; without TEXT carry on its cut turn."""
    limits: Limits = {}
    if max_iterations is not None:
        limits["max_iterations"] = max_iterations
    if protocol is not None:
        limits["protocol"] = protocol
    choices = Choices(
        conversation=conversation,
        store=store,
        model=model,
        user=user,
        props=tuple(prop or ()),
        record=record,
        replay=replay,
        as_json=as_json,
    )
    asked = Asked(
        bundle=bundle,
        text=text,
        choices=choices,
        limits=limits,
        picture=svg,
        answers=tuple(answer or ()),
        attached=tuple(attach or ()),
    )
    attend(lambda screen: run(asked, screen), verbose=verbose, as_json=as_json)


@app.command("chat")
def chat_command(
    bundle: BundleArgument,
    conversation: ConversationOption = None,
    store: StoreOption = None,
    model: ModelOption = None,
    user: UserOption = None,
    prop: PropOption = None,
    record: RecordOption = None,
    replay: ReplayOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Talk with a bundle; what you type while it works is added."""
    choices = Choices(
        conversation=conversation,
        store=store,
        model=model,
        user=user,
        props=tuple(prop or ()),
        record=record,
        replay=replay,
        as_json=as_json,
    )
    attend(partial(chat, bundle, choices), verbose=verbose, as_json=as_json)


@app.command("resume")
def resume_command(
    bundle: BundleArgument,
    conversation: ConversationOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="Carry on every cut turn of the store instead.")
    ] = False,
    at_once: Annotated[
        int, typer.Option(min=1, metavar="N", help="With --all: run so many at a time.")
    ] = 4,
    store: StoreOption = None,
    model: ModelOption = None,
    user: UserOption = None,
    prop: PropOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Carry on the turn that was cut off, or every one of the store."""
    choices = Choices(
        conversation=conversation,
        store=store,
        model=model,
        user=user,
        props=tuple(prop or ()),
        as_json=as_json,
    )
    if every:
        work = partial(carry_on, bundle, at_once, choices)
    else:
        work = partial(run, Asked(bundle=bundle, text=None, choices=choices, limits={}))
    attend(work, verbose=verbose, as_json=as_json)


app.command("stop")(stop_command)


@app.command("read")
def read_command(
    refs: Annotated[
        list[str],
        typer.Argument(metavar="REF...", help="Refs, as they are printed.", show_default=False),
    ],
    conversation: ConversationOption = None,
    store: StoreOption = None,
    user: UserOption = None,
    project: ProjectOption = None,
    tenant: TenantOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Read anything that has a ref."""
    choices = Choices(
        conversation=conversation,
        store=store,
        user=user,
        project=project,
        tenant=tenant,
        as_json=as_json,
    )
    attend(lambda screen: read(refs, choices, screen), verbose=verbose, as_json=as_json)


@app.command("timeline")
def timeline_command(
    conversation: Annotated[
        str | None,
        typer.Argument(
            metavar="CONVERSATION", help="Its name; without it the latest.", show_default=False
        ),
    ] = None,
    turn: Annotated[
        int | None, typer.Option(min=1, help="Only that turn.", show_default=False)
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--types",
            "--type",
            metavar="TYPE,…",
            help="Only these types and those below them: user,react.tool",
            show_default=False,
        ),
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="Only blocks after that place.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many lines.", show_default=False)
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the answers with the sources they cite.")
    ] = False,
    cost: Annotated[bool, typer.Option("--cost", help="Say what each request cost.")] = False,
    dialect: Annotated[
        DialectName | None,
        typer.Option(
            help="Instead, what a listener was sent, in this vocabulary.", show_default=False
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", "--all", help="List the conversations instead.")
    ] = False,
    active_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="List those active later.")
    ] = None,
    active_before: Annotated[
        str | None, typer.Option(metavar="TIME", help="List those not active since.")
    ] = None,
    store: StoreOption = None,
    user: UserOption = None,
    project: ProjectOption = None,
    tenant: TenantOption = None,
    pager: PagerOption = True,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show a conversation block by block, or list them all."""
    choices = Choices(
        conversation=conversation,
        store=store,
        user=user,
        project=project,
        tenant=tenant,
        as_json=as_json,
    )
    kinds = tuple(kind.strip() for some in types or () for kind in some.split(","))
    look = Look(
        wanted=Wanted(turn=turn, types=kinds, after=after, limit=limit),
        active=Active(after=active_after, before=active_before, limit=limit),
        listed=listed,
        verify=verify,
        cost=cost,
        dialect=dialect,
    )
    attend(partial(show, look, choices), verbose=verbose, as_json=as_json, paged=pager)


@app.command("prompt")
def prompt_command(
    conversation: ConversationOption = None,
    turn: Annotated[
        int | None, typer.Option(min=1, help="The turn; else the last one.", show_default=False)
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(
            "--round", min=1, help="The round of the turn; else its last one.", show_default=False
        ),
    ] = None,
    cache: Annotated[
        CacheName | None,
        typer.Option(
            help="Instead, what a provider's cache would have read of every round.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="With --cache: price them as this model's.", show_default=False),
    ] = None,
    store: StoreOption = None,
    user: UserOption = None,
    pager: PagerOption = True,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show exactly what a round asked its model, cache points marked."""
    choices = Choices(conversation=conversation, store=store, user=user, as_json=as_json)
    which = Which(turn=turn, round=number, cache=cache, model=model)
    attend(partial(prompt, which, choices), verbose=verbose, as_json=as_json, paged=pager)


@app.command("replay")
def replay_command(
    conversation: Annotated[
        str | None,
        typer.Argument(
            metavar="CONVERSATION", help="Its name; without it the latest.", show_default=False
        ),
    ] = None,
    store: StoreOption = None,
    user: UserOption = None,
    pager: PagerOption = True,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Render every prompt again, and say where one diverges."""
    choices = Choices(conversation=conversation, store=store, user=user, as_json=as_json)
    attend(partial(replay, choices), verbose=verbose, as_json=as_json, paged=pager)


app.command("export")(export_command)
app.command("import")(import_command)
app.command("audit")(audit_command)
app.command("backup")(backup_command)
app.command("forget")(forget_command)
app.command("fork")(fork_command)
app.command("feedback")(feedback_command)


@app.command("search")
def search_command(
    bundle: BundleArgument,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="Words to look for.", show_default=False)
    ],
    limit: Annotated[int, typer.Option(min=1, help="At most so many passages.")] = 5,
    store: StoreOption = None,
    prop: PropOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Search a bundle's knowledge space."""
    choices = Choices(store=store, props=tuple(prop or ()), as_json=as_json)
    attend(partial(search, bundle, query, limit, choices), verbose=verbose, as_json=as_json)


@app.command("check")
def check_command(
    bundle: BundleArgument,
    store: StoreOption = None,
    model: ModelOption = None,
    prop: PropOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Say what a bundle is made of, and what is wrong with it."""
    choices = Choices(store=store, model=model, props=tuple(prop or ()), as_json=as_json)
    attend(partial(check, bundle, choices), verbose=verbose, as_json=as_json)


@app.command("tool")
def tool_command(
    bundle: BundleArgument,
    name: Annotated[
        str, typer.Argument(metavar="ALIAS.FUNCTION", help="The tool.", show_default=False)
    ],
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="Its arguments, as a JSON object.")
    ] = "{}",
    user: UserOption = None,
    prop: PropOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Call one tool of a bundle, outside any conversation."""
    choices = Choices(user=user, props=tuple(prop or ()), as_json=as_json)
    call = ToolCall(bundle=bundle, name=name, arguments=arguments)
    attend(partial(tool, call, choices), verbose=verbose, as_json=as_json)


@app.command("new")
def new_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="What the package is to be called.", show_default=False
        ),
    ],
    folder: Annotated[
        Path, typer.Option("--in", metavar="FOLDER", help="Where its folder is made.")
    ] = Path(),
    verbose: VerboseOption = False,
) -> None:
    """Begin a bundle, with a tool, a skill and a test."""
    attend(partial(new, name, folder), verbose=verbose)


@app.command("bundles")
def bundles_command(as_json: JsonOption = False, verbose: VerboseOption = False) -> None:
    """List what can be opened by name."""
    attend(partial(bundles, Choices(as_json=as_json)), verbose=verbose, as_json=as_json)


@presetting.callback(invoke_without_command=True)
def presets_command(
    context: typer.Context, as_json: JsonOption = False, verbose: VerboseOption = False
) -> None:
    """Show every preset, policy by policy."""
    if context.invoked_subcommand is None:
        attend(partial(presets, Choices(as_json=as_json)), verbose=verbose)


@presetting.command("diff")
def diff_command(
    one: Annotated[str, typer.Argument(metavar="PRESET", show_default=False)],
    other: Annotated[str, typer.Argument(metavar="PRESET", show_default=False)],
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show in which policies two presets differ."""
    attend(partial(diff, one, other, Choices(as_json=as_json)), verbose=verbose)


@knowledge.command("build")
def build_command(
    bundle: BundleArgument,
    store: StoreOption = None,
    prop: PropOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Have a knowledge space ready, and say what is in it."""
    choices = Choices(store=store, props=tuple(prop or ()), as_json=as_json)
    attend(partial(build, bundle, choices), verbose=verbose, as_json=as_json)
