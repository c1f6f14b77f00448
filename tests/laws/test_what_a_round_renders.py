"""Law 9: what is rendered and judged for a round does not depend on how many rounds there were before."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from itertools import pairwise
from types import CodeType, FrameType

from loopline.models import Prompt
from loopline.prompt import Rendering
from loopline.prompt.rendering import RenderState
from loopline.react.guards import CallChecker
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Line
from tests.support.scenario_bundle import bundle
from tests.support.scripted_conversation import talking

CODES = (Rendering.take.__code__, RenderState.take.__code__, Rendering.inputs.__code__)


class Calls:
    """How often something was called: what this module looks for, or all in the module of a `code`."""

    def __init__(self, code: CodeType | None = None) -> None:
        self.made = 0
        self.file = code.co_filename if code else ""

    def count(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        sought = code.co_filename == self.file if self.file else code in CODES
        self.made += event == "call" and sought


@contextmanager
def counted(code: CodeType | None = None) -> Generator[Calls, None, None]:
    """Counts the blocks that are folded and rendered, or what the module of that code does."""
    calls = Calls(code)
    before = sys.getprofile()
    sys.setprofile(calls.count)
    try:
        yield calls
    finally:
        sys.setprofile(before)


async def test_what_is_rendered_for_a_round_does_not_depend_on_its_place() -> None:
    rendered = list[int]()
    with counted() as calls:

        def acting(prompt: Prompt) -> Line:
            rendered.append(calls.made)
            return Say("note", Call("life.look", size=40), Call("life.alone", size=40))

        model = ScriptedModel([acting] * 60 + ["Done."])
        async with talking(model, bundle=bundle) as talk:
            await talk.say("go", max_iterations=80)
    each = [after - before for before, after in pairwise(rendered)]
    assert len(each) == 59
    assert len(set(each)) == 1


async def test_what_a_turn_renders_does_not_depend_on_the_turns_before_it() -> None:
    model = ScriptedModel(["Yes."] * 30)
    rendered = list[int]()
    with counted() as calls:
        async with talking(model, bundle=bundle) as talk:
            for _ in range(30):
                await talk.say("go")
                rendered.append(calls.made)
    each = [after - before for before, after in pairwise(rendered)]
    assert len(set(each)) == 1


async def test_what_guards_are_told_of_a_round_does_not_depend_on_its_place() -> None:
    judged = list[int]()
    with counted(CallChecker.check.__code__) as calls:

        def acting(prompt: Prompt) -> Line:
            judged.append(calls.made)
            return Say("note", Call("life.look", size=40), Call("life.fail", message="no"))

        model = ScriptedModel([acting] * 40 + ["Done."])
        async with talking(model, bundle=bundle) as talk:
            await talk.say("go", max_iterations=80)
    each = [after - before for before, after in pairwise(judged)]
    assert len(each) == 39
    assert len(set(each)) == 1
