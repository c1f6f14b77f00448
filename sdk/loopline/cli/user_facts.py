"""`loopline memory`: list, edit and remove what is remembered about a user."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from loopline.cli.access import open_store
from loopline.cli.existing_store import existing_store
from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED
from loopline.cli.terminal import QUIET, REF, Screen, escape, quantity
from loopline.memory import Owner, UserFact, UserFacts
from loopline.models import Json
from loopline.timeline import DEFAULT_PROJECT, DEFAULT_TENANT, iso_time

FactId = Annotated[str, typer.Argument(metavar="ID", help="The fact, as memory list names it.")]


async def list_facts(choices: Choices, screen: Screen) -> int:
    """List what is remembered about a user."""
    async with open_store(choices) as store:
        facts = await UserFacts(store.log).facts(_owner(choices))
    if choices.as_json:
        screen.write_json([_fact_document(fact) for fact in facts])
    for fact in () if choices.as_json else facts:
        where = "" if fact.scope == "user" else f"only in {fact.conversation}"
        by = "by the user" if fact.by_user else ""
        details = [iso_time(fact.ts)[:10], where, by, fact.ref]
        quiet = ", ".join(detail for detail in details if detail)
        screen.print(
            Text.assemble(
                (fact.fact_id, REF), f"  {escape(fact.text)}", (f"  {escape(quiet)}", QUIET)
            )
        )
    screen.note(f"{quantity(len(facts), 'fact')} about {escape(choices.user_name)}")
    return ANSWERED


async def edit_fact(
    choices: Choices,
    screen: Screen,
    fact_id: FactId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is remembered from now on.")],
) -> int:
    """Replace the text of a fact."""
    async with existing_store(choices) as store:
        fact = await UserFacts(store.log).edit(_owner(choices), fact_id, text)
    screen.note(f"{escape(fact.fact_id)}: {escape(fact.text)}")
    return ANSWERED


async def remove_fact(choices: Choices, screen: Screen, fact_id: FactId) -> int:
    """Remove a fact, so that no turn recalls it."""
    async with existing_store(choices) as store:
        await UserFacts(store.log).remove(_owner(choices), fact_id)
    screen.note(
        f"{escape(fact_id)} is removed; the log of its conversation keeps it until forgotten"
    )
    return ANSWERED


def _owner(choices: Choices) -> Owner:
    return Owner(
        user=choices.user_name,
        project=choices.project or DEFAULT_PROJECT,
        tenant=choices.tenant or DEFAULT_TENANT,
    )


def _fact_document(fact: UserFact) -> Json:
    return {
        "id": fact.fact_id,
        "text": fact.text,
        "scope": fact.scope,
        "refs": list[Json](fact.refs),
        "by_user": fact.by_user,
        "conversation": fact.conversation,
        "ref": fact.ref,
        "ts": iso_time(fact.ts),
    }
