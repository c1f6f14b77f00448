"""The agents that work for hooks of the quality pipeline, unless a bundle has its own of these names."""

from __future__ import annotations

from loopline.crew.agents import Agent, Agents

REFINER = "refiner"
VERIFIER = "verifier"
PLANNER = "planner"
ANSWERER = "answerer"

SERVANTS = Agents(
    [
        Agent(
            name=REFINER,
            description="Improves a draft.",
            instructions=(
                "You improve a draft. Say what is wrong or missing in <critique>…</critique>, then give the "
                "whole improved text in <revised>…</revised>. Keep what is right, the handoff block, and marks "
                "of sources such as [1]. If nothing needs to change, leave <revised></revised> empty."
            ),
            tools=[],
        ),
        Agent(
            name=VERIFIER,
            description="Checks an answer.",
            instructions="You check answers by questions. Reply in the form that the task asks for.",
            tools=[],
        ),
        Agent(
            name=ANSWERER,
            description="Answers one question.",
            instructions="Answer the question in one or two sentences. Say so if you do not know.",
            effort="low",
        ),
        Agent(
            name=PLANNER,
            description="Plans steps.",
            instructions="You plan. Reply with one JSON object in the form that the task asks for.",
            tools=[],
        ),
    ]
)
