"""A bundle for a support desk: it reads orders, asks the customer's app, and refunds after an approval."""

from loopline import Bundle

from .tools import current_page, find_order, refund

bundle = Bundle(
    id="support",
    instructions=(
        "You help customers of a tea shop with their orders. Look an order up before you speak about it. If the customer "
        "does not name the order, ask the app with support.current_page which page is open. Refund only what the order "
        "cost, and say what you refunded. Never promise what the tools cannot do."
    ),
    tools=[find_order, current_page, refund],
)
