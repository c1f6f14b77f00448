"""The tools of the support desk. Its orders are in the file `orders.json`, in the folder of the process."""

import json
from pathlib import Path
from threading import Lock
from typing import TypedDict

from loopline import ToolContext, ToolError, tool
from loopline.guards import GuardedCall
from loopline.models import JsonObject

ORDERS = Path("orders.json")
_CHANGE = Lock()
"""Held by the refund that reads and writes the file, because customers refund at the same time."""
SMALL = 20.0
"""The largest refund in euros that needs no approval."""


class Order(TypedDict):
    """An order: its customer, what was ordered, its price, and its refunds in euros by the keys of their calls."""

    customer: str
    item: str
    price: float
    refunds: dict[str, float]


def read_orders() -> dict[str, Order]:
    """Return all orders by their numbers."""
    orders: dict[str, Order] = json.loads(ORDERS.read_text("utf-8")) if ORDERS.exists() else {}
    return orders


def order_of(number: str, customer: str) -> Order:
    """Return an order of the customer.

    Raises:
        ToolError: the customer has no such order.
    """
    order = read_orders().get(number)
    if order is None or order["customer"] != customer:
        raise ToolError(f"you have no order {number!r}")
    return order


@tool(effect="read")
def find_order(number: str, context: ToolContext) -> Order:
    """Return an order of the customer by its number, such as A-17."""
    return order_of(number, context.user)


@tool(effect="read", client=True)
def current_page() -> str:
    """Return the page that is open in the customer's app, such as orders/A-17."""
    raise NotImplementedError  # the app answers the call


def needs_approval(arguments: JsonObject, call: GuardedCall) -> bool | str:
    """Return the question for the support team, or False for a small refund."""
    euros = float(str(arguments["euros"]))
    return f"Refund {euros:.2f} euros to {call.user}?" if euros > SMALL else False


def find_refund(number: str, context: ToolContext) -> str | None:
    """Return the result of a refund that a crash cut off, or None if it did not take place."""
    order = read_orders().get(number)
    euros = order["refunds"].get(context.idempotency_key) if order else None
    return None if euros is None else f"refunded {euros:.2f} euros"


@tool(effect="write", key="order:{number}", approve=needs_approval, reconcile=find_refund)
def refund(number: str, euros: float, context: ToolContext) -> str:
    """Refund a part of an order's price in euros."""
    with _CHANGE:
        order = order_of(number, context.user)
        rest = order["price"] - sum(order["refunds"].values())
        if not 0 < euros <= rest:
            raise ToolError(f"at most {rest:.2f} euros can be refunded")
        order["refunds"][context.idempotency_key] = euros
        ORDERS.write_text(json.dumps({**read_orders(), number: order}), "utf-8")
    return f"refunded {euros:.2f} euros"
