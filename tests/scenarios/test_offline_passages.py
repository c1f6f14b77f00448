"""Whatever a passage holds, the default model reads it and quotes no more than stands there."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from loopline.models import (
    AssistantMessage,
    Options,
    Prompt,
    Reply,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from loopline.offline import OfflineModel
from loopline.offline.evidence import stem
from loopline.offline.prompt_turn import parse_passages
from loopline.offline.sentences import split_sentences

SEARCH = ToolSpec(name="react.search_knowledge", description="", parameters={"type": "object"})
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
        tools=(SEARCH,),
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
