"""The type checkers know what an answer is: this file is one that both of them must agree with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, assert_type

from loopline import BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult, run_sync
from loopline.conversations import Conversation
from loopline.events import PartialOutput
from loopline.testing import Say, ScriptedModel


@dataclass(frozen=True)
class Advice:
    """How to steep a tea."""

    minutes: int


class Typed(BaseWorkflow):
    """A workflow whose loop says what its answer is."""

    async def process(self, payload: TurnPayload) -> TurnResult[Advice]:
        react = await self.build_react(output_type=Advice)
        return await react.run(payload)


class Plain(BaseWorkflow):
    """A workflow of before there were types."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react()
        return await react.run(payload)

    async def post_run_hook(self, payload: TurnPayload, result: TurnResult) -> None:
        """Look at the result."""


PLAIN, TYPED = Bundle(id="tea"), Bundle(id="tea", output_type=Advice)


def test_what_the_type_checkers_know_is_so() -> None:
    model = ScriptedModel([Say('{"minutes": 3}')])
    result = run_sync(TYPED, "?", model=model)
    assert_type(result, TurnResult[Advice])
    assert result.output == Advice(3)


def test_a_workflow_gives_a_loop_a_type() -> None:
    model = ScriptedModel([Say('{"minutes": 3}')])
    result = run_sync(Bundle(id="tea", workflow=Typed), "?", model=model)
    assert result.answer == '{"minutes":3}'


if TYPE_CHECKING:
    assert_type(PLAIN, Bundle)
    assert_type(TYPED, Bundle[Advice])
    assert_type(Bundle(id="b", output_type=list[int]), Bundle[list[int]])
    assert_type(Bundle(id="b", output_type=Literal["a", "b"]), Bundle[Literal["a", "b"]])
    assert_type(run_sync(PLAIN, "?"), TurnResult)
    assert_type(run_sync(PLAIN, "?").output, None)
    assert_type(run_sync(TYPED, "?").output, Advice | None)
    assert_type(run_sync(PLAIN, "?", output_type=int).output, int | None)
    assert_type(run_sync("bundles/tea", "?"), TurnResult[Any])
    assert_type(PartialOutput(Advice).output, Advice | None)

    async def typed(harness: Harness[Advice], plain: Harness) -> None:
        assert_type(Harness.open(TYPED), Harness[Advice])
        assert_type(Harness.open(PLAIN), Harness)
        assert_type(Harness.open("bundles/tea"), Harness[Any])
        talk = harness.conversation("c")
        assert_type(talk, Conversation[Advice])
        assert_type(await talk.say("?"), TurnResult[Advice])
        assert_type(await talk.resume(), TurnResult[Advice])
        assert_type(await talk.say("?", output_type=list[int]), TurnResult[list[int]])
        assert_type(await talk.resume(output_type=Advice), TurnResult[Advice])
        assert_type(await talk.say("?", output_type=int | str), TurnResult[int | str])
        assert_type(await plain.conversation("c").say("?"), TurnResult)
