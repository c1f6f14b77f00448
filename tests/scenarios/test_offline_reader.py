"""The embedded default model plans, searches, reads and quotes what a passage holds; without knowledge it lists tools."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopline.models import (
    AssistantMessage,
    Json,
    JsonObject,
    Message,
    Options,
    Prompt,
    Reply,
    TextDelta,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
    extract_json,
)
from loopline.offline import OfflineModel
from loopline.offline.evidence import stem
from loopline.offline.prompt_turn import parse_passages
from loopline.offline.sentences import split_sentences
from loopline.tools import NO_ANSWER

PLAN, SEARCH, READ = (
    ToolSpec(name=name, description=name, parameters={"type": "object"})
    for name in ("react.plan", "react.search_knowledge", "react.read")
)
SESSIONS = (
    "[[S:1]] Sessions > When sessions are saved — ks:docs/sessions.rst@abc1234#L10-L24",
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
        self.doubts = ""
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
                spaces = [section for section in self.space if shares_a_word(query, section[1])]
                return sections(
                    f'{len(spaces)} passages for "{query}"{self.doubts}'
                    if spaces
                    else f'no passage for "{query}"',
                    spaces,
                )
            case "react.read":
                paths = json.dumps(call.arguments["paths"])
                asked_spaces = [
                    row for row in self.space if row[0].split("ks:")[1].split("@")[0] in paths
                ]
                return sections(READ_STATUS, asked_spaces)
            case _:
                return "mode=new: plan_id=plan:turn_1:c1 is current"


def shares_a_word(query: str, text: str) -> bool:
    words = set(re.findall(r"\w{4,}", query.lower()))
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
    steps = plan.calls[0].arguments["steps"]
    assert isinstance(steps, list)
    assert len(steps) == 3
    assert search.text == "… [1] searching"
    assert read.text.splitlines()[0].startswith("✓ [1] found ")
    assert read.text.splitlines()[1] == "… [2] reading"
    marks = [line[:5] for line in answer.text.splitlines()[:3]]
    assert marks == ["✓ [1]", "✓ [2]", "✓ [3]"]


async def test_a_question_that_the_space_does_not_answer_is_declined_without_a_source() -> None:
    desk = Desk()
    answer = await desk.say("How do I deploy the documentation to a Kubernetes cluster?")
    assert "[[S:" not in answer
    assert "no answer" in answer
    assert "Kubernetes" in answer
    assert "not a language model" in answer
    assert answer.count("✗ [") == 2


async def test_a_question_that_the_space_scores_too_low_is_declined_whatever_words_match() -> None:
    desk = Desk()
    desk.doubts = f"; {NO_ANSWER} (score 0.20 of 1)"
    answer = await desk.say(QUESTION)
    assert quotes(answer) == []
    assert "no answer" in answer


async def test_it_searches_in_other_words_before_it_declines() -> None:
    desk = Desk()
    await desk.say("How do I deploy the documentation to a Kubernetes cluster?")
    searches = [calls for calls in names(desk.replies) if "react.search_knowledge" in calls]
    assert len(searches) == 2
    queries = [call.arguments["query"] for reply in desk.replies for call in reply.calls[1:]]
    assert len(queries) == len(set(map(str, queries)))


async def test_an_empty_space_is_said_to_hold_nothing() -> None:
    desk = Desk(space=())
    answer = await desk.say("Why are sessions saved twice?")
    assert answer.startswith("✗ [1] nothing found")
    assert "[[S:" not in answer


async def test_a_question_that_points_back_is_understood_after_the_one_before_it() -> None:
    desk = Desk()
    await desk.say("What happens to the session file while a request writes to it?")
    answer = await desk.say("And how long does a reader wait for it?", turn=2)
    assert "at most five seconds" in answer
    first_search = next(reply for reply in desk.replies[5:] if reply.text.startswith("… [1]"))
    assert "session" in str(first_search.calls[0].arguments["query"])


async def test_each_turn_has_a_plan_and_searches_of_its_own() -> None:
    desk = Desk()
    await desk.say(QUESTION)
    before = len(desk.replies)
    await desk.say("Which command builds the documentation?", turn=2)
    assert names(desk.replies[before:])[0] == ["react.plan"]
    assert "make docs" in desk.replies[-1].text


async def test_what_is_added_while_it_works_is_searched_and_answered_too() -> None:
    desk = Desk()
    desk.messages.append(UserMessage(text=f"[ar:turn_1.user.prompt]\n{QUESTION}"))
    desk.act(await desk.reply())
    desk.act(await desk.reply())
    answer = await desk.say("Which command builds the documentation?", kind="followup")
    assert "nested* value" in answer
    assert "make docs" in answer
    assert names(desk.replies).count(["react.plan"]) == 1


async def test_it_answers_with_what_it_has_when_no_more_calls_are_allowed() -> None:
    desk = Desk()
    desk.messages.append(UserMessage(text=f"[ar:turn_1.user.prompt]\n{QUESTION}"))
    desk.act(await desk.reply())
    desk.act(await desk.reply())
    forced = await desk.reply(allow_calls=False)
    assert forced.calls == ()
    assert quotes(forced.text)


async def test_it_says_so_when_it_must_answer_before_it_could_search() -> None:
    desk = Desk()
    desk.messages.append(UserMessage(text=f"[ar:turn_1.user.prompt]\n{QUESTION}"))
    forced = await desk.reply(allow_calls=False)
    assert forced.calls == ()
    assert "ran out before I could search" in forced.text


async def test_another_process_carries_on_where_the_messages_end() -> None:
    whole_desk = Desk()
    expected = await whole_desk.say(QUESTION)
    for end in range(1, len(whole_desk.messages)):
        if isinstance(whole_desk.messages[end], ToolMessage):
            continue
        cut = Desk()
        cut.messages = whole_desk.messages[:end]
        cut.made = sum(isinstance(message, ToolMessage) for message in cut.messages)
        assert await cut.carry_on() == expected


async def test_a_turn_that_ended_without_an_answer_does_not_count_as_this_one() -> None:
    desk = Desk()
    desk.messages.append(UserMessage(text="[ar:turn_1.user.prompt]\nHow is the file locked?"))
    desk.act(await desk.reply())
    desk.messages.append(UserMessage(text="[ar:turn_1.react.exit]\nThe turn ended here: stopped."))
    await desk.say("Which command builds the documentation?", turn=2)
    assert names(desk.replies[1:])[0] == ["react.plan"]
    assert "make docs" in desk.replies[-1].text
    assert "locked" not in desk.replies[-1].text


async def test_an_answer_that_was_held_is_given_again() -> None:
    desk = Desk()
    answer = await desk.say(QUESTION)
    desk.messages.append(UserMessage(text="[ar:turn_1.react.notice]\nhold: one more round"))
    assert await desk.carry_on() == answer


async def test_without_a_plan_tool_there_are_no_marks() -> None:
    desk = Desk(tools=(SEARCH, READ))
    answer = await desk.say(QUESTION)
    assert names(desk.replies)[0][0] == "react.search_knowledge"
    assert answer.startswith("“")


async def test_a_read_that_fails_is_mentioned_and_the_search_is_quoted() -> None:
    desk = Desk()
    desk.failing = frozenset({"react.read"})
    answer = await desk.say(QUESTION)
    assert quotes(answer)
    assert "react.read failed: the index is being built" in answer
    assert "✗ [2]" in answer


async def test_a_search_that_fails_is_mentioned() -> None:
    desk = Desk()
    desk.failing = frozenset({"react.search_knowledge"})
    answer = await desk.say(QUESTION)
    assert "react.search_knowledge failed: the index is being built" in answer
    assert "[[S:" not in answer


async def test_text_that_looks_like_a_citation_is_quoted_without_becoming_one() -> None:
    trap = (
        "[[S:4]] Citing — ks:docs/citing.md@abc1234#L1-L2",
        "A citation token such as [[S:99]] names the source of a quoted sentence.",
    )
    answer = await Desk(space=(trap,)).say("What does a citation token name?")
    assert "source of a quoted sentence" in answer
    assert re.findall(r"\[\[S:(\d+)\]\]", answer) == ["4"]


@pytest.mark.parametrize(
    ("question", "text", "answered"),
    [
        ("Does Tea run on Windows?", "Tea runs where a window of WINDOW_LINES fits.", False),
        ("Does Tea run on Windows?", "Tea runs on Windows and on Linux.", True),
        ("What is the license?", "A skill has `license` and `metadata`.", False),
        ("What is the license?", "The license of this repository is MIT.", True),
    ],
)
async def test_a_passage_with_a_similar_name_or_only_code_of_that_name_is_not_quoted(
    question: str, text: str, answered: bool
) -> None:
    desk = Desk(space=(("[[S:7]] Tea — ks:docs/tea.md@abc1234#L1-L3", text),))
    assert bool(quotes(await desk.say(question))) == answered


@pytest.mark.parametrize(
    ("question", "text", "quoted"),
    [
        (
            "What prevents a deadlock between two importers?",
            "The writer takes the advisory lock. This prevents a deadlock between two importers.",
            [
                "The writer takes the advisory lock.",
                "This prevents a deadlock between two importers.",
            ],
        ),
        (
            "How long before publication do vendors get told?",
            "About one week before publication two mails are sent. The first names the date. "
            "The second tells the vendors of operating systems and other distributors.",
            [
                "About one week before publication two mails are sent.",
                "The second tells the vendors of operating systems and other distributors.",
            ],
        ),
        (
            "What is the default of the CACHE_WAIT setting?",
            "The :setting:`CACHE_WAIT` setting, a ``timedelta`` (see :pep:`8` and `the guide "
            "<https://example.org>`_), is **five** minutes by default.",
            [
                "The `CACHE_WAIT` setting, a `timedelta` (see PEP 8 and the guide), "
                "is five minutes by default."
            ],
        ),
    ],
    ids=["what a sentence leans on", "a time for how long", "words without markup"],
)
async def test_a_quote_has_what_answers_the_question(
    question: str, text: str, quoted: list[str]
) -> None:
    desk = Desk(space=(("[[S:5]] Notes — ks:docs/notes.md@abc1234#L1-L5", text),))
    found = [quote for quote, _ in quotes(await desk.say(question))]
    assert [quote for quote in quoted if quote not in found] == []


async def test_the_same_prompt_gets_the_same_reply() -> None:
    first, second = Desk(), Desk()
    assert await first.say(QUESTION) == await second.say(QUESTION)
    assert first.replies == second.replies


async def test_a_title_is_the_beginning_of_the_question() -> None:
    prompt = Prompt(system="", messages=(UserMessage(text=QUESTION),), purpose="title")
    reply = [event async for event in OfflineModel().stream(prompt)][-1]
    assert isinstance(reply, Reply)
    assert reply.text == "Why is a nested value that I changed"


async def test_it_says_what_it_is_and_can_do() -> None:
    model = OfflineModel()
    assert model.name == "offline"
    assert model.capabilities.tool_call
    assert (model.capabilities.window, model.capabilities.output_limit) == (1_000_000, 8_000)


FIND = ToolSpec(
    name="shop.find",
    description="Find goods by name.\n\nLonger words follow.",
    parameters={
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "limit": {"type": "integer", "default": 5},
            "sort": {"type": "string", "enum": ["price", "name"]},
        },
        "required": ["name", "sort"],
    },
)
PLAN_TOOL = ToolSpec(name="react.plan", description="Keep a plan.", parameters={"type": "object"})


async def said(*tools: ToolSpec, system: str = "Bundle: shop") -> str:
    message = UserMessage(text="[ar:turn_1.user.prompt]\nIs there any tea?")
    prompt = Prompt(system=system, tools=tools, messages=(message,))
    reply = [event async for event in OfflineModel().stream(prompt)][-1]
    assert isinstance(reply, Reply)
    assert reply.calls == ()
    return reply.text


def commands(answer: str) -> list[list[str]]:
    lines = [line.strip() for line in answer.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("loopline tool")]


async def arguments(**properties: Json) -> JsonObject:
    """What the line to try passes to a tool with these required properties."""
    schema: JsonObject = {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
    }
    tool = ToolSpec(name="a.b", description="", parameters=schema)
    value = extract_json(commands(await said(tool))[0][-1])
    assert value is not None
    return value


async def test_each_tool_of_the_bundle_has_its_purpose_and_a_line_to_try() -> None:
    answer = await said(PLAN_TOOL, FIND)
    assert "`shop.find`: Find goods by name." in answer
    assert commands(answer) == [
        ["loopline", "tool", "shop", "shop.find", '{"name":"name","sort":"price"}']
    ]
    assert "react.plan" not in answer


async def test_it_says_that_it_is_not_a_language_model() -> None:
    assert "offline — a deterministic reader, not a language model" in await said(FIND)


async def test_a_bundle_whose_name_is_not_known_is_written_as_a_word_to_replace() -> None:
    assert commands(await said(FIND, system="You help."))[0][2] == "BUNDLE"


async def test_a_bundle_name_with_a_space_is_quoted_for_the_shell() -> None:
    assert commands(await said(FIND, system="Rules.\nBundle: my shop"))[0][2] == "my shop"


async def test_a_bundle_without_tools_is_said_to_have_none() -> None:
    answer = await said(PLAN_TOOL)
    assert "neither a knowledge space to read nor tools" in answer
    assert "not a language model" in answer


async def test_an_apostrophe_in_an_argument_survives_the_shell() -> None:
    found = await arguments(name={"type": "string", "default": "Ann's tea"})
    assert found == {"name": "Ann's tea"}


async def test_arguments_follow_types_enums_defaults_and_examples() -> None:
    found = await arguments(
        count={"type": "integer"},
        price={"type": "number", "minimum": 2},
        gift={"type": "boolean"},
        size={"enum": ["small", "large"]},
        colour={"type": "string", "examples": ["green"]},
        tags={"type": "array", "items": {"type": "string"}},
        box={"type": "object", "properties": {"wide": {"type": "integer"}}},
        day={"type": "string", "format": "date"},
        note={"anyOf": [{"type": "string"}, {"type": "null"}]},
    )
    assert found == {
        "count": 1,
        "price": 2,
        "gift": True,
        "size": "small",
        "colour": "green",
        "tags": ["tags"],
        "box": {"wide": 1},
        "day": "2025-01-31",
        "note": "note",
    }


async def test_a_reference_inside_the_schema_is_followed() -> None:
    tool = ToolSpec(
        name="a.b",
        description="",
        parameters={
            "type": "object",
            "properties": {"one": {"$ref": "#/$defs/One"}},
            "required": ["one"],
            "$defs": {"One": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        },
    )
    assert commands(await said(tool))[0][-1] == '{"one":{"id":1}}'


async def test_a_schema_that_holds_itself_comes_to_an_end() -> None:
    tool = ToolSpec(
        name="a.b",
        description="",
        parameters={
            "type": "object",
            "properties": {"node": {"$ref": "#"}},
            "required": ["node"],
        },
    )
    assert commands(await said(tool))[0][:4] == ["loopline", "tool", "shop", "a.b"]


SEARCH_TOOL = ToolSpec(name="react.search_knowledge", description="", parameters={"type": "object"})
PIECES = st.sampled_from(
    [
        "\n", "\n\n", "    ", ".. note::", "::", "```", "====", "- ", "* ", "| a | b |", "+---+", '"""',
        "# ", "[[S:7]]", "[[S:1]] x — ks:a.py@c#L1-L2", "… cut: ks:a", "✓ [1] done", "`", "**", "(", "[",
        "def f():", ":ref:`a <b>`", "word", "cache", "because", "\u2028", "\ud800", "\x00", "\t", "\r",
    ]
)  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join))


def answer(question: str, path: str, text: str) -> str:
    call = ToolCall(name="react.search_knowledge", arguments={"query": question}, call_id="c1")
    heading = f"[[S:1]] A title — ks:{path}@abc1234#L1-L9"
    prompt = Prompt(
        system="",
        tools=(SEARCH_TOOL,),
        messages=(
            UserMessage(text=f"[ar:turn_1.user.prompt]\n{question}"),
            AssistantMessage(text="", calls=(call,)),
            ToolMessage(
                call_id="c1",
                name=call.name,
                text=f"[tc:turn_1.c1.result]\n1 passage\n\n{heading}\n{text}",
            ),
        ),
        options=Options(allow_calls=False),
    )

    async def last() -> Reply:
        reply = [event async for event in OfflineModel().stream(prompt)][-1]
        assert isinstance(reply, Reply)
        return reply

    return asyncio.run(last()).text


@settings(deadline=None)
@given(question=TEXTS, text=TEXTS, path=st.sampled_from(["a.py", "a.rst", "a.md", "a%20b.bin"]))
def test_no_passage_and_no_question_makes_it_raise(question: str, text: str, path: str) -> None:
    assert isinstance(answer(question, path, text), str)


@settings(deadline=None)
@given(text=TEXTS)
def test_only_sources_that_were_given_are_cited(text: str) -> None:
    given_sids = {
        str(passage.sid) for passage in parse_passages(f"[[S:1]] A — ks:a@c#L1-L1\n{text}")
    }
    cited = set(re.findall(r"\[\[S:(\d+)\]\]", answer("Why is the cache a word?", "a.rst", text)))
    assert cited <= given_sids


@given(text=TEXTS)
def test_a_sentence_holds_only_words_of_its_text(text: str) -> None:
    for sentence in split_sentences(text) + split_sentences(text, is_source=True):
        assert set(re.findall(r"\w+", sentence)) <= set(re.findall(r"\w+", text))


def test_a_document_is_cut_where_its_sentences_end() -> None:
    text = """Title
=====

The first, e.g. this one, is
wrapped. The second ends! ``a.b.C`` begins the third.

- an item
  that goes on
- another

.. code-block:: python

    nothing = to_read

A term
    Its definition. More of it.
"""
    assert split_sentences(text) == [
        "The first, e.g. this one, is wrapped.",
        "The second ends!",
        "``a.b.C`` begins the third.",
        "an item that goes on",
        "another",
        "A term",
        "Its definition.",
        "More of it.",
    ]


def test_rows_of_tables_are_sentences_of_their_own() -> None:
    text = """| name | default |
|------|---------|
| wait | 5 s |

====  =======
code  meaning
====  =======
404   not found
====  =======
"""
    assert split_sentences(text) == [
        "name | default",
        "wait | 5 s",
        "code | meaning",
        "404 | not found",
    ]


def test_docstrings_and_comments_of_code_are_prose() -> None:
    text = '''class Cache:
    """Keeps values. They expire."""

    # Two lines of
    # one comment.
    limit = compute(
        1,
    )
'''
    assert split_sentences(text, is_source=True) == [
        "Keeps values.",
        "They expire.",
        "Two lines of one comment.",
    ]


def test_a_passage_that_begins_inside_a_docstring_is_read_as_one() -> None:
    text = '''    and it expires after an hour.
    """
    return value
'''
    assert split_sentences(text, is_source=True) == ["and it expires after an hour."]


def test_results_are_cut_at_their_headers_and_what_was_left_out_is_noticed() -> None:
    result = """2 passages for "cache"

[[S:3]] Caching > Keys — ks:docs/a%20b.rst@abc1234#L10-L20
A key is a string.

It has a version.

[[S:12]] ks:src/cache.py@abc1234#L1-L4
def key(): ...
… cut: 900 characters; the whole is ks:src/cache.py@abc1234#L1-L4"""
    first, second = parse_passages(result)
    assert (first.sid, first.title, first.path) == (3, "Caching > Keys", "docs/a%20b.rst")
    assert first.ref == "ks:docs/a%20b.rst@abc1234#L10-L20"
    assert first.text.strip() == "A key is a string.\n\nIt has a version."
    assert (second.sid, second.text) == (12, "def key(): ...")


def test_forms_of_one_word_share_a_stem() -> None:
    for forms in (
        ("cache", "caches", "cached", "caching"),
        ("compression", "compressed", "compresses"),
        ("lock", "locks", "locked", "locking"),
        ("retry", "retries", "retried"),
        ("dependency", "dependencies"),
        ("file", "files", "filing"),
    ):
        assert len({stem(form) for form in forms}) == 1, forms


TIES = """
from loopline.offline.evidence import choose_quotes, find_candidates, parse_question
from loopline.offline.prompt_turn import CitablePassage

text = "Harbours, lanterns, anchors, sextants, compasses, rudders and mainsails were painted."
passages = [CitablePassage(sid, "", f"ks:{sid}.md", text) for sid in (1, 2)]
earlier = parse_question("Were harbours, lanterns, anchors, compasses and mainsails painted?", None)
question = parse_question("And rudders?", earlier)
print(question, choose_quotes(question, find_candidates(question, passages)))
"""


def test_words_of_equal_weight_are_searched_and_quoted_in_one_order_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", TIES],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "1234"
    }
    assert len(outputs) == 1
