"""The default model in the whole engine: a repository of three files is asked, and cited."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult
from loopline.react import PRESETS
from loopline.timeline import RoundStart, Timeline

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
    folder = tmp_path / "project"
    for path, text in (("docs/sessions.rst", SESSIONS), ("README.md", INSTALL), ("app.py", CODE)):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Begin"]):
        subprocess.run(["git", *identity, *command], cwd=folder, check=True)
    return folder


@asynccontextmanager
async def guide(repository: Path) -> AsyncGenerator[Harness, None]:
    bundle = Bundle(
        id="guide", workflow=Guide, configuration={"knowledge": {"repo": str(repository)}}
    )
    async with Harness.open(bundle, store="memory:", model="offline") as harness:
        yield harness


async def test_an_answer_cites_the_lines_it_quotes(repository: Path) -> None:
    async with guide(repository) as harness:
        talk = harness.conversation("c")

        result = await talk.say("Why is a nested value that I change in the session not saved?")

    assert result.ok
    assert "may change without the session noticing" in result.answer
    assert not result.answer.startswith("✓")
    assert {source.path for source in result.sources} >= {"docs/sessions.rst"}
    assert all(source.lines for source in result.sources)


async def test_it_takes_four_rounds_and_leaves_a_complete_plan(repository: Path) -> None:
    async with guide(repository) as harness:
        talk = harness.conversation("c")

        result = await talk.say("Why is a nested value that I change in the session not saved?")
        timeline = Timeline(await talk.blocks())

    assert result.rounds == 4
    statuses = [plan.status for plan in timeline.plans.latest.values()]
    assert statuses == ["complete"]


async def test_a_second_question_is_understood_after_the_first(repository: Path) -> None:
    async with guide(repository) as harness:
        talk = harness.conversation("c")
        await talk.say("When is the session saved?")

        result = await talk.say("And how is its file locked?")

    assert "exclusive lock" in result.answer


async def test_a_docstring_answers_too(repository: Path) -> None:
    async with guide(repository) as harness:
        result = await harness.conversation("c").say("When is an unused session removed?")

    assert "two weeks" in result.answer
    assert "app.py" in {source.path for source in result.sources}


async def test_what_the_repository_does_not_say_is_declined(repository: Path) -> None:
    async with guide(repository) as harness:
        result = await harness.conversation("c").say(
            "How do I train a model with PyTorch on a GPU?"
        )

    assert result.ok
    assert list(result.sources) == []
    assert "no answer" in result.answer


async def test_it_decides_by_native_calls_whatever_protocol_is_asked_for(repository: Path) -> None:
    async with guide(repository) as harness:
        talk = harness.conversation("c")
        result = await talk.say("When is the session saved?", protocol="json")
        bodies = [block.body for block in await talk.blocks(types="react.round.start")]
    assert result.ok
    assert {start.protocol for start in bodies if isinstance(start, RoundStart)} == {"native"}


@pytest.mark.parametrize("preset", [*PRESETS])
async def test_in_every_preset_the_question_is_answered_from_the_repository(
    repository: Path, preset: str
) -> None:
    bundle = Bundle(
        id="guide",
        workflow=Guide,
        configuration={"knowledge": {"repo": str(repository)}, "react": {"preset": preset}},
    )
    async with Harness.open(bundle, store="memory:", model="offline") as harness:
        result = await harness.conversation("c").say("When is the session saved?")
    assert result.ok
    assert "saved only when one of its keys has been assigned or deleted" in result.answer
    assert [source.path for source in result.sources] == ["docs/sessions.rst"]


async def test_when_the_rounds_are_over_the_trace_is_told_instead(repository: Path) -> None:
    bundle = Bundle(
        id="guide",
        workflow=Guide,
        configuration={"knowledge": {"repo": str(repository)}, "react": {"preset": "fim"}},
    )
    async with Harness.open(bundle, store="memory:", model="offline") as harness:
        talk = harness.conversation("c")
        result = await talk.say("When is the session saved?", max_iterations=2)
    assert result.exit_reason == "max_iterations"
    assert "The work ended before there was an answer" in result.answer
    assert "react.search_knowledge (ok)" in result.answer
