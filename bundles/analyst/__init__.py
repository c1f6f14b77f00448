"""A bundle for tables: a CSV file or a spreadsheet in, a chart and a report out, by programs that run in isolation."""

from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult


class Analyst(BaseWorkflow):
    """One turn: a question about the tables that the user has attached."""

    instructions = (
        "You answer questions about tables. The user's files are in attachments/ of the folder in which a program of "
        "exec.python runs; it has pandas, which reads CSV and .xlsx, numpy and matplotlib. First print the columns, "
        "the types and the first rows. Then compute in a program: never estimate a figure. For amounts of money in "
        'several currencies call await tools.call("analyst.euros", amount=1.0, currency="USD") from the program. '
        "Make outputs/chart.png, with a title, labelled axes and units, and outputs/report.md, with the question, the "
        "figures, how they were computed, and what the table does not say. Cite both files in your answer, after the "
        "sentences that rest on them. If a value is missing or makes no sense, say which, and how you treated it."
    )

    async def process(self, payload: TurnPayload) -> TurnResult:
        """Answer from the tables."""
        react = await self.build_react(
            scratchpad=self.scratchpad, tools_module="analyst.tools_descriptor"
        )
        return await react.run(payload)


bundle = Bundle(
    id="analyst",
    workflow=Analyst,
    configuration={"execution": {"limits": {"wall_seconds": 120}}},
)
