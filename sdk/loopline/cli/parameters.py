"""The arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import click

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

PATH: click.Path = click.Path(path_type=Path)
"""The type of a parameter whose value is a path."""


def _combine(*options: Decorator) -> Decorator:
    """Return a decorator that adds the options; the help lists them in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


bundle_argument: Decorator = click.argument(
    "bundle", metavar="BUNDLE", help="A bundle's file, folder or name."
)


class _TurnNumber(click.ParamType[int]):
    """The number of a turn, written as `turn_2` or `2`."""

    name = "turn"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the number."""
        digits = f"{value}".removeprefix("turn_")
        if not (digits.isascii() and digits.isdecimal() and 0 < len(digits) < 10 and int(digits)):
            self.fail(f"{value!r} is not a turn such as turn_2 or 2", param, ctx)
        return int(digits)


TURN = _TurnNumber()
PORT = click.IntRange(min=0, max=65535)
COUNT = click.IntRange(min=1)
turn_option: Decorator = click.option(
    "--turn", type=TURN, help="The turn, as turn_2 or 2; else the last."
)
conversation_option: Decorator = click.option(
    "-c",
    "--conversation",
    help="The conversation; if omitted, run and chat begin one, others take the latest.",
)
conversation_argument: Decorator = _combine(
    click.argument(
        "conversation_argument",
        required=False,
        metavar="[CONVERSATION]",
        help="Its name; the latest if omitted.",
    ),
    conversation_option,
)
"""The conversation, as an argument or as an option."""
store_option: Decorator = click.option(
    "--store", help="The store's URL, such as sqlite:///talk.db; else LOOPLINE_STORE."
)
model_option: Decorator = click.option(
    "--model", help="The model, such as openai:gpt-5; else LOOPLINE_MODEL."
)
user_option: Decorator = click.option("--user", help="The user of the conversation.")
project_option: Decorator = click.option("--project", help="The project of the conversation.")
tenant_option: Decorator = click.option("--tenant", help="The tenant of the conversation.")
prop_option: Decorator = click.option(
    "props", "--prop", multiple=True, metavar="A.B=VALUE", help="Set a property of the bundle."
)
pager_option: Decorator = click.option(
    "--pager/--no-pager", default=True, help="Show long output in PAGER, else in less."
)
yes_option: Decorator = click.option("-y", "--yes", is_flag=True, help="Do not ask first.")

OptionMaker: TypeAlias = Callable[..., Decorator]
"""Takes what `click.option` takes."""
flag: OptionMaker = partial(click.option, is_flag=True)
repeated: OptionMaker = partial(click.option, multiple=True)
file_option: OptionMaker = partial(click.option, type=PATH, metavar="FILE")
with_default: OptionMaker = partial(click.option, show_default=True)
"""Makes an option whose help shows its default."""
json_option: Decorator = flag("as_json", "--json", help="Print one JSON value on stdout.")
verbose_option: Decorator = flag(
    "-v", "--verbose", help="Log to stderr; with --json in lines of JSON."
)

user_options: Decorator = _combine(store_option, user_option)
owner_options: Decorator = _combine(store_option, project_option, tenant_option)
scope_options: Decorator = _combine(store_option, user_option, project_option, tenant_option)
report_options: Decorator = _combine(scope_options, json_option)
model_options: Decorator = _combine(store_option, model_option, prop_option)
property_options: Decorator = _combine(store_option, prop_option, json_option)
answer_options: Decorator = _combine(store_option, model_option, user_option, prop_option)
by_option: Decorator = click.option(
    "--by", default="", metavar="NAME", help="Who answers, if not the user of the conversation."
)
bundles_argument: Decorator = click.argument(
    "bundles", nargs=-1, required=True, metavar="BUNDLE…", help="Folders or names of bundles."
)
browser_options: Decorator = _combine(
    click.option(
        "--port", type=PORT, default=0, help="The port to listen on; a free one if omitted."
    ),
    flag("--no-browser", help="Print the address, and open no browser."),
)
cassette_options: Decorator = _combine(
    file_option("--record", help="Record the replies of a provider's model."),
    file_option("--replay", help="Answer from a recording, without network."),
)
