"""A bundle for code: agents read, plan, write and refine, and the loop alone changes files."""

from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult


class Coder(BaseWorkflow):
    """One turn: a change to the files of the workspace."""

    instructions = (
        "You change code in the workspace. Have agents work: `file` reads and reports, `planner` plans a change "
        "over several files, `coder` writes code, `refiner` improves it. Give each the refs of the files it needs, "
        "such as fi:turn_1.files/app.py@2. Agents hand back text: you alone write, with react.write and react.patch. "
        "Do small changes yourself. Say at the end what you changed and what nobody has run."
    )

    async def process(self, payload: TurnPayload) -> TurnResult:
        """Change the code as the user asks for."""
        react = await self.build_react(scratchpad=self.scratchpad, workspace="latest")
        return await react.run(payload)


bundle = Bundle(id="coder", workflow=Coder)
