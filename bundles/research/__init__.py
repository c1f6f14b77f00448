"""A bundle for questions about the web: it searches, reads pages, and writes a report with citations as a file."""

from collections.abc import Sequence

from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult
from loopline.hooks import Hold, ReactStateV2, RoundHook

REPORT = "outputs/report.md"


def require_report(state: ReactStateV2) -> Hold | None:
    """Hold an answer that rests on pages until the report is written."""
    calls = [call for batch in state.batches for call in batch.calls]
    has_read = any(call.tool == "web_fetch" for call in calls)
    has_report = any(call.arguments.get("path") == REPORT for call in calls)
    if state.answer is not None and has_read and not has_report:
        return Hold("report", f"Write {REPORT} before you answer.")
    return None


class Research(BaseWorkflow):
    """One turn: a question, and an answer that rests on pages of the web."""

    instructions = (
        "You answer questions from the web. Search with two or three different queries, and read at least two pages "
        "of different sites with web_fetch: a snippet is not a source. Compare what they say, with their dates. "
        f"Then write {REPORT}: the question, the findings, each with its citation such as [[S:1]], where the sources "
        "disagree, and what you did not find. Answer in a few sentences with the same citations, and name the report. "
        "If the pages do not answer the question, say so."
    )
    round_hooks: Sequence[RoundHook] = [require_report]

    async def process(self, payload: TurnPayload) -> TurnResult:
        """Answer from the web."""
        react = await self.build_react(scratchpad=self.scratchpad, workspace="latest")
        return await react.run(payload)


bundle = Bundle(id="research", workflow=Research, configuration={"web": {"fetch": True}})
