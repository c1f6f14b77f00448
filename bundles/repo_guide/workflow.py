"""The guide: it searches the repository, reads what it found, and answers with its sources."""

from __future__ import annotations

from loopline import BaseWorkflow, TurnPayload, TurnResult


class RepoGuide(BaseWorkflow):
    """One turn: a question about the repository, and an answer quoted from it."""

    instructions = (
        "You guide people through a Git repository. Answer in the words of its files, each with its "
        "source. If they have no answer, say so."
    )

    async def process(self, payload: TurnPayload) -> TurnResult:
        """Answer from the repository."""
        react = await self.build_react(
            scratchpad=self.scratchpad,
            tools_module="repo_guide.tools_descriptor",
            skills_module="repo_guide.skills_descriptor",
        )
        return await react.run(payload)
