"""The default model in the whole engine: a repository of three files is asked, and cited."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import pytest

from loopline import BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult
from loopline.models import JsonObject
from loopline.react import PRESETS, Limits
from loopline.timeline import RoundStart, Timeline
from tests.support.git_repositories import commit

SESSIONS = """Sessions
========

The session is saved only when one of its keys has been assigned or deleted. A value nested inside
a key may change without the session noticing. Set ``session.modified`` to ``True`` to have it saved.

Locking
=======

The session file is locked with an exclusive lock. A reader waits for at most five seconds.
"""
INSTALL = "# Installing\n\nRun `make install`. It copies the program into the folder `bin`.\n"
CODE = '''def expire(session):
    """Remove the session when two weeks have gone by since it was last used."""
'''


class Guide(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(
            knowledge_space_fn=self.knowledge.search if self.knowledge else None,
            knowledge_read_fn=self.knowledge.read if self.knowledge else None,
        )
        return await react.run(payload)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    commit(
        tmp_path / "project", {"docs/sessions.rst": SESSIONS, "README.md": INSTALL, "app.py": CODE}
    )
    return tmp_path / "project"


async def asked(
    repository: Path, *questions: str, preset: str = "bare", **limits: Unpack[Limits]
) -> tuple[TurnResult, Timeline]:
    """Return the result of the last question, and the conversation."""
    configuration: JsonObject = {
        "knowledge": {"repo": str(repository)},
        "react": {"preset": preset},
    }
    bundle = Bundle(id="guide", workflow=Guide, configuration=configuration)
    async with Harness.open(bundle, store="memory:", model="offline") as harness:
        talk = harness.conversation("c")
        results = [await talk.say(question, **limits) for question in questions]
        return results[-1], Timeline(await talk.blocks())


async def test_an_answer_cites_the_lines_it_quotes_after_four_rounds_and_a_complete_plan(
    repository: Path,
) -> None:
    result, timeline = await asked(
        repository, "Why is a nested value that I change in the session not saved?"
    )
    assert result.ok
    assert "may change without the session noticing" in result.answer
    assert not result.answer.startswith("✓")
    assert {source.path for source in result.sources} >= {"docs/sessions.rst"}
    assert all(source.lines for source in result.sources)
    assert result.rounds == 4
    assert [plan.status for plan in timeline.plans.latest.values()] == ["complete"]


async def test_a_second_question_is_understood_after_the_first(repository: Path) -> None:
    result, _ = await asked(repository, "When is the session saved?", "And how is its file locked?")
    assert "exclusive lock" in result.answer


async def test_a_docstring_answers_too(repository: Path) -> None:
    result, _ = await asked(repository, "When is an unused session removed?")
    assert "two weeks" in result.answer
    assert "app.py" in {source.path for source in result.sources}


async def test_what_the_repository_does_not_say_is_declined(repository: Path) -> None:
    result, _ = await asked(repository, "How do I train a model with PyTorch on a GPU?")
    assert result.ok
    assert list(result.sources) == []
    assert "no answer" in result.answer


async def test_it_decides_by_native_calls_whatever_protocol_is_asked_for(repository: Path) -> None:
    result, timeline = await asked(repository, "When is the session saved?", protocol="json")
    bodies = [block.body for block in timeline.blocks]
    assert result.ok
    assert {start.protocol for start in bodies if isinstance(start, RoundStart)} == {"native"}


@pytest.mark.parametrize("preset", [*PRESETS])
async def test_in_every_preset_the_question_is_answered_from_the_repository(
    repository: Path, preset: str
) -> None:
    result, _ = await asked(repository, "When is the session saved?", preset=preset)
    assert result.ok
    assert "saved only when one of its keys has been assigned or deleted" in result.answer
    assert [source.path for source in result.sources] == ["docs/sessions.rst"]


async def test_when_the_rounds_are_over_the_trace_is_told_instead(repository: Path) -> None:
    result, _ = await asked(
        repository, "When is the session saved?", preset="fim", max_iterations=2
    )
    assert result.exit_reason == "max_iterations"
    assert "The work ended before there was an answer" in result.answer
    assert "react.search_knowledge (ok)" in result.answer
