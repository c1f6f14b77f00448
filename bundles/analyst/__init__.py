"""A bundle for tables: a CSV file or a spreadsheet in, a chart and a report out, by programs that run in isolation."""

from loopline import Bundle, ToolError, tool

RATES = {"USD": 1.10, "GBP": 0.85, "CHF": 0.95, "JPY": 160.0}
"""The value of a euro: round figures for this example, of no bank and no day. Replace them by your own."""


@tool(effect="read")
def euros(amount: float, currency: str) -> float:
    """Return what an amount of USD, GBP, CHF or JPY is worth in euros, at fixed rates."""
    rate = RATES.get(currency.upper())
    if rate is None:
        raise ToolError(f"no rate of {currency!r}: there are {', '.join(RATES)}")
    return round(amount / rate, 2)


bundle = Bundle(
    id="analyst",
    instructions=(
        "You answer questions about tables. The user's files are in attachments/ of the folder in which a program of "
        "exec.python runs; it has pandas, which reads CSV and .xlsx, numpy and matplotlib. First print the columns, "
        "the types and the first rows. Then compute in a program: never estimate a figure. For amounts of money in "
        'several currencies call await tools.call("analyst.euros", amount=1.0, currency="USD") from the program. '
        "Make outputs/chart.png, with a title, labelled axes and units, and outputs/report.md, with the question, the "
        "figures, how they were computed, and what the table does not say. Cite both files in your answer, after the "
        "sentences that rest on them. If a value is missing or makes no sense, say which, and how you treated it."
    ),
    tools=[euros],
    configuration={"execution": {"limits": {"wall_seconds": 120}}},
)
