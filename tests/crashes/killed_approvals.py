"""A payment that two people approve with edited arguments, in a process that is killed, and again to its end in another."""

from __future__ import annotations

import sys
from pathlib import Path

from loopline import Agent, Bundle, Harness, ToolContext, tool
from loopline.conversations import Conversation
from loopline.models import Json, Prompt, ToolMessage
from loopline.testing import Call, Say, ScriptedModel
from tests.crashes.processes import die_at_every_point, say, url
from tests.support.crews import handoff

EDITED: Json = {"approved": True, "arguments": {"amount": 30}}
PAYER = Agent(name="payer", description="Pays.")


def bundle_of(folder: Path) -> Bundle:
    """Return a bundle that needs two people for a payment; its ledger is a file in the folder."""
    ledger = folder / "talk.ledger"

    def pay_once(amount: int, context: ToolContext) -> str:
        """Pay unless the ledger has the payment, as a bank does with an idempotency key."""
        key = context.idempotency_key
        if not any(line.startswith(key) for line in ledger_of(folder)):
            with ledger.open("a", encoding="utf-8") as file:
                file.write(f"{key} {amount}\n")
        return f"{amount} paid"

    @tool(effect="write", approve=True, people=2, reconcile=pay_once)
    def pay(amount: int, context: ToolContext) -> str:
        """Pay an amount."""
        with ledger.open("a", encoding="utf-8") as file:
            file.write(f"{context.idempotency_key} {amount}\n")
        return f"{amount} paid"

    return Bundle(id="desk", tools=[pay], agents=[PAYER])


def ledger_of(folder: Path) -> list[str]:
    """Return the lines of the ledger."""
    ledger = folder / "talk.ledger"
    return ledger.read_text("utf-8").splitlines() if ledger.exists() else []


def model_of(kind: str) -> ScriptedModel:
    """Return a model that pays once: in its own turn, or by a child run."""

    def reply(prompt: Prompt) -> Say:
        is_paid = any(isinstance(message, ToolMessage) for message in prompt.messages)
        is_child = "Pay it" in f"{prompt.messages[0]}"
        if is_paid:
            return Say(handoff("Paid.") if is_child else "Done.")
        if is_child or kind == "own":
            return Say("", Call("desk.pay", amount=300))
        return Say("", Call("crew.delegate", agent="payer", task="Pay it"))

    return ScriptedModel([reply] * 9, strict=False)


async def pay_to_the_end(conversation: Conversation, point: int) -> None:
    """Do what is left of it, and say what is acknowledged."""
    if not await conversation.blocks():
        await conversation.say("Go")
    say(point, "asked")
    while not await conversation.blocks(types="react.exit"):
        answers = await conversation.blocks(types="user.answer")
        match len(answers):
            case 0 if not await conversation.blocks(types="react.tool.pending"):
                await conversation.resume()  # it was killed before it asked
            case 0:
                await conversation.resume({"c1": EDITED}, by="ann")
                say(point, "edited")
            case 1 if (await conversation.resume({"c1": True}, by="bob")).ok:
                say(point, "approved")
            case _:
                await conversation.resume()


async def live(kind: str, folder: str, point: int) -> None:
    """Pay in a store of this point."""
    place = Path(folder) / f"{point}"
    place.mkdir(exist_ok=True)
    async with Harness.open(
        bundle_of(place), store=url(place / "talk.db"), model=model_of(kind)
    ) as harness:
        await pay_to_the_end(harness.conversation("c"), point)


if __name__ == "__main__":
    kind_of_call, stores = sys.argv[1:]
    die_at_every_point(
        stores, lambda folder, point: live(kind_of_call, folder, point), commits=True
    )
