"""The smallest bundle: a workflow of a few lines, and one tool."""

from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult


class Hello(BaseWorkflow):
    instructions = "You greet people in the language they ask for."

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(
            scratchpad=self.scratchpad, tools_module="hello.tools_descriptor"
        )
        return await react.run(payload)


bundle = Bundle(id="hello", workflow=Hello)
