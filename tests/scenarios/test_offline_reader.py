"""The embedded default model plans, searches, reads and quotes, each step read off the prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest

from loopline.adapters.offline import OfflineModel
from loopline.models import (
    AssistantMessage,
    Message,
    Options,
    Prompt,
    Reply,
    TextDelta,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)

PLAN, SEARCH, READ = (
    ToolSpec(name=name, description=name, parameters={"type": "object"})
    for name in ("react.plan", "react.search_knowledge", "react.read")
)
SESSIONS = (
    "[[S:1]] Sessions › When sessions are saved — ks:docs/sessions.rst@abc1234#L10-L24",
    """When sessions are saved
=======================

By default, the session is only saved when it has been modified, that is if any of its keys
have been assigned or deleted. This happens on every request::

    session["foo"] = "bar"

In the last case the session object does not notice, because a *nested* value was changed. To
save it all the same, set ``session.modified`` to ``True``.

.. note::

    Sessions expire after two weeks.
""",
)
LOCKS = (
    "[[S:2]] Locking — ks:docs/locking.rst@abc1234#L1-L6",
    """Locking
=======

The session file is locked with an exclusive lock while a request writes to it. A reader waits
for at most five seconds before it gives up.
""",
)
BUILD = (
    "[[S:3]] Building — ks:docs/building.rst@abc1234#L1-L4",
    "Run ``make docs`` to build the documentation. The output goes to the folder ``build``.\n",
)
QUESTION = "Why is a nested value that I changed in the session not saved?"
SPACE = (SESSIONS, LOCKS, BUILD)
READ_STATUS = '{"paths":[],"missing":[],"total_tokens":9,"exists_in_visible_context":[]}'


class Desk:
    """A conversation with the model: it answers calls from a few passages and keeps the messages."""

    def __init__(
        self,
        space: tuple[tuple[str, str], ...] = SPACE,
        tools: tuple[ToolSpec, ...] = (PLAN, SEARCH, READ),
    ) -> None:
        self.space = space
        self.tools = tools
        self.messages: list[Message] = []
        self.replies: list[Reply] = []
        self.failing: frozenset[str] = frozenset()
        self.made = 0

    async def reply(self, *, allow_calls: bool = True) -> Reply:
        prompt = Prompt(
            system="Bundle: repo_guide",
            tools=self.tools,
            messages=tuple(self.messages),
            options=Options(allow_calls=allow_calls),
        )
        events = [event async for event in OfflineModel().stream(prompt)]
        last = events[-1]
        assert isinstance(last, Reply)
        deltas = [event.text for event in events if isinstance(event, TextDelta)]
        assert "".join(deltas) == last.text
        self.replies.append(last)
        return last

    async def say(self, text: str, turn: int = 1, kind: str = "prompt") -> str:
        """The answer; what is called on the way stands in `replies`."""
        self.messages.append(UserMessage(text=f"[ar:turn_{turn}.user.{kind}]\n{text}"))
        return await self.carry_on()

    async def carry_on(self) -> str:
        for _ in range(9):
            reply = await self.reply()
            if not reply.calls:
                self.messages.append(AssistantMessage(text=reply.text))
                return reply.text
            self.act(reply)
        raise AssertionError("it never answers")

    def act(self, reply: Reply) -> None:
        """Record the calls with their results."""
        calls: list[ToolCall] = []
        for call in reply.calls:
            self.made += 1
            calls.append(
                ToolCall(name=call.name, arguments=call.arguments, call_id=f"c{self.made}")
            )
        self.messages.append(AssistantMessage(text=reply.text, calls=tuple(calls)))
        self.messages += [
            ToolMessage(
                call_id=call.call_id,
                name=call.name,
                text=f"[tc:turn_1.{call.call_id}.result]\n{self.result(call)}",
                ok=call.name not in self.failing,
            )
            for call in calls
        ]

    def result(self, call: ToolCall) -> str:
        if call.name in self.failing:
            return "the index is being built"
        match call.name:
            case "react.search_knowledge":
                query = str(call.arguments["query"])
                found = [section for section in self.space if shares_a_word(query, section[1])]
                return sections(
                    f'{len(found)} passages for "{query}"'
                    if found
                    else f'no passage for "{query}"',
                    found,
                )
            case "react.read":
                paths = json.dumps(call.arguments["paths"])
                asked = [one for one in self.space if one[0].split("ks:")[1].split("@")[0] in paths]
                return sections(READ_STATUS, asked)
            case _:
                return "mode=new: plan_id=plan:turn_1:c1 is current"


def shares_a_word(query: str, text: str) -> bool:
    words = {word for word in re.findall(r"\w{4,}", query.lower())}
    return bool(words & set(re.findall(r"\w{4,}", text.lower())))


def sections(first: str, found: list[tuple[str, str]]) -> str:
    return "\n\n".join([first, *(f"{heading}\n{text}" for heading, text in found)])


def quotes(answer: str) -> list[tuple[str, int]]:
    return [(text, int(sid)) for text, sid in re.findall(r"“(.+?)” \[\[S:(\d+)\]\]", answer)]


def plain(text: str) -> str:
    return " ".join(re.sub(r"[`*]", "", text).split())


def names(replies: list[Reply]) -> list[list[str]]:
    return [[call.name for call in reply.calls] for reply in replies]


async def test_a_question_takes_a_plan_searches_a_reading_and_an_answer() -> None:
    desk = Desk()

    await desk.say(QUESTION)

    rounds = names(desk.replies)
    assert rounds[0] == ["react.plan"]
    assert set(rounds[1]) == {"react.search_knowledge"}
    assert 2 <= len(rounds[1]) <= 3
    assert rounds[2:] == [["react.read"], []]


async def test_every_quoted_sentence_stands_word_for_word_in_the_source_it_names() -> None:
    answer = await Desk().say(QUESTION)

    texts: Mapping[int, str] = {
        number: plain(text) for number, (_, text) in enumerate(SPACE, start=1)
    }
    quoted = quotes(answer)
    assert 2 <= len(quoted) <= 4
    assert all(plain(text) in texts[sid] for text, sid in quoted)


async def test_the_sentence_that_answers_is_among_those_quoted() -> None:
    answer = await Desk().say(QUESTION)

    assert "because a *nested* value was changed" in answer
    assert "[[S:1]]" in answer


async def test_the_steps_of_the_plan_are_acknowledged_as_they_are_done() -> None:
    desk = Desk()

    await desk.say(QUESTION)

    plan, search, read, answer = desk.replies
    assert plan.text == ""
    assert len(plan.calls[0].arguments["steps"]) == 3  # type: ignore[arg-type]
    assert search.text == "… [1] searching"
    assert read.text.splitlines()[0].startswith("✓ [1] found ")
    assert read.text.splitlines()[1] == "… [2] reading"
    marks = [line[:5] for line in answer.text.splitlines()[:3]]
    assert marks == ["✓ [1]", "✓ [2]", "✓ [3]"]
