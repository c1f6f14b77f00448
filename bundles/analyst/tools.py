"""What an analysis asks for and no table holds."""

from loopline import ToolError, tool

RATES = {"USD": 1.10, "GBP": 0.85, "CHF": 0.95, "JPY": 160.0}
"""What a euro is worth here: round figures of this example, of no bank and no day. Put in your own."""


@tool(effect="read")
def euros(amount: float, currency: str) -> float:
    """Return what an amount of USD, GBP, CHF or JPY is worth in euros, at fixed rates."""
    rate = RATES.get(currency.upper())
    if rate is None:
        raise ToolError(f"no rate of {currency!r}: there are {', '.join(RATES)}")
    return round(amount / rate, 2)
