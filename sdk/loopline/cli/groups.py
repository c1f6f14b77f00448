"""Commands in groups: `loopline knowledge …` and `loopline presets …`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from loopline.cli.choices import Choices
from loopline.cli.door import attend
from loopline.cli.knowing import build
from loopline.cli.options import BundleArgument, JsonOption, PropOption, StoreOption, VerboseOption
from loopline.cli.presetting import diff, presets

knowledge: typer.Typer = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
presetting: typer.Typer = typer.Typer(rich_markup_mode=None)


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
