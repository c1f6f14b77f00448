"""Citations: tokens are told from code as CommonMark tells it, and pieces resolve to what the whole does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count, pairwise
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from loopline.timeline import Overlap, Source, Support, citations, verify
from loopline.timeline.citations import TOKEN_LIMIT, Resolver
from tests.support.examples import sampled

atoms = st.sampled_from(
    [
        *("`", "``", "```", "````", "~~~", "~~~~", "\n", "\n\n", " ", "   ", "    ", "\\", "\t"),
        *("[[S:1]]", "[[S:2,3]]", "[[ s : 1 - 4 ]]", "[[S:1–3]]", "[[S:9]]", "[[S:1-300000]]"),
        *("[", "[[", "[[S", ":1", "]]", "]", "[[S:", ",", "-", "–", "1", "a", "word", "é", "\r\n"),
        *("- ", "1. ", "> ", "# ", "```py", "~~~ [[S:1]]", "* ", "+", "10) "),
    ]
)
markdown = st.lists(atoms | st.text(max_size=3), max_size=40).map("".join)
places = st.lists(st.integers(0, 300), max_size=30)


def mark(sids: tuple[int, ...]) -> str:
    return "".join(f"({sid if sid <= 4 else '?'})" for sid in sids)


def in_pieces(pieces: Sequence[str]) -> str:
    resolver = Resolver(mark, newest=4)
    return "".join([*(resolver.feed(piece) for piece in pieces), resolver.close()])


@given(markdown, places)
def test_the_pieces_of_a_text_resolve_to_what_the_whole_does(text: str, cuts: list[int]) -> None:
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert in_pieces([text[start:end] for start, end in pairwise(ends)]) == citations.resolve(
        text, mark, newest=4
    )


@given(markdown)
def test_the_characters_of_a_text_resolve_to_what_the_whole_does(text: str) -> None:
    assert in_pieces(list(text)) == citations.resolve(text, mark, newest=4)


@given(markdown)
def test_a_text_keeps_everything_but_its_tokens(text: str) -> None:
    summary, at = citations.find(text, newest=4), 0
    for citation in summary:
        assert at <= citation.start < citation.end <= len(text)
        assert re.fullmatch(r"\[\[\s*[Ss]\s*:[\s0-9,–-]+\]\]", text[citation.start : citation.end])
        at = citation.end
    assert citations.resolve(text, lambda _: "", newest=4) == "".join(
        text[start:end]
        for start, end in zip(
            [0, *(item.end for item in summary)],
            [*(item.start for item in summary), len(text)],
            strict=True,
        )
    )


plain_atoms = st.sampled_from(
    ["`", "``", "```", "````", "~~~", "~~~~", "\n", "\n\n", " ", "   ", "    ", "\\", "a", "@@"]
)


@given(st.lists(plain_atoms, max_size=40))
def test_code_is_what_common_mark_takes_for_it(pieces: list[str]) -> None:
    numbers = count(1)
    text = "".join(f"[[S:{next(numbers)}]]" if piece == "@@" else piece for piece in pieces)
    text = re.sub("(?m)^ {4,}", "   ", text)  # no indented block, which is no code here
    assert citations.cited_sids(text, newest=99) == cited_by_common_mark(text)


def cited_by_common_mark(text: str) -> tuple[int, ...]:
    """The numbers that a parser of CommonMark leaves in text, not in a fence or code span."""
    other_texts = [
        "code",
        "hr",
        "heading",
        "lheading",
        "list",
        "blockquote",
        "reference",
        "html_block",
    ]
    parser = MarkdownIt("commonmark").disable(
        [*other_texts, "link", "image", "html_inline", "autolink"]
    )
    spans = [child for token in parser.parse(text) for child in token.children or []]
    kept_text = "".join(span.content for span in spans if span.type in ("text", "text_special"))
    return tuple(int(sid) for sid in re.findall(r"\[\[S:(\d+)\]\]", kept_text))


@pytest.mark.parametrize(
    ("text", "sids"),
    [
        ("[[S:1]]", (1,)),
        ("[[s: 2 , 3 ]]", (2, 3)),
        ("[[S:1-3]]", (1, 2, 3)),
        ("[[S:1–3,9]]", (1, 2, 3, 9)),
        ("[[S:3-1]]", (1, 2, 3)),
        ("[[S:2-300000]]", (2, 3, 4)),
        ("[[S:7-9]]", (7,)),
        ("[[S:1,1-2,1]]", (1, 2)),
        ("[[[S:1]]]", (1,)),
        ("[[S:1[[S:2]]", (2,)),
        ("a[[S:1]][[S:2]]", (1, 2)),
        ("\\[[S:1]]", (1,)),
        ("[[S:1]", ()),
        ("[[S:]]", ()),
        ("[[S:1,]]", ()),
        ("[[S:1-]]", ()),
        ("[[S:1,\n2]]", ()),
        ("[[S:1234567]]", ()),
        ("[[T:1]]", ()),
        ("[[S:" + " " * TOKEN_LIMIT + "1]]", ()),
    ],
)
def test_a_token_names_its_sids(text: str, sids: tuple[int, ...]) -> None:
    assert citations.cited_sids(text, newest=4) == sids


@pytest.mark.parametrize(
    "text",
    [
        "`[[S:1]]`",
        "``a ` [[S:1]]``",
        "`a\n[[S:1]]`",
        "`\\` and `[[S:1]]`",
        "```\n[[S:1]]\n```",
        "```py [[S:1]]\nx\n```",
        "~~~ ` [[S:1]]\n[[S:1]]\n~~~",
        "   ````\n```\n[[S:1]]\n   `````",
        "```\n[[S:1]]",
        "~~~\n[[S:1]]\n```\n[[S:1]]",
        "```\n    ```\n[[S:1]]\n",
        "- ```py\n  [[S:1]]\n  ```",
        "10. look\n\n    ```py\n\n    [[S:1]]\n    ```",
    ],
)
def test_what_stands_in_code_cites_nothing(text: str) -> None:
    assert citations.cited_sids(text, newest=4) == ()


@pytest.mark.parametrize(
    "text",
    [
        "a ` b [[S:1]]",
        "\\`a [[S:1]]`",
        "``a [[S:1]] `",
        "a ` b\n\n[[S:1]] `",
        "- a ` b\n- [[S:1]] `",
        "# a ` b\n[[S:1]] `",
        "```\nx\n```\n[[S:1]]",
        "```\r\nx\r\n```\r\n[[S:1]]",
        "``` a`b\n[[S:1]]",
        "a ```\n[[S:1]]",
        "    ```\n[[S:1]]",
        "1. ```py\n   x\n   ```\n2. [[S:1]]",
        "- ```py\n  never closed\n\nafter the list [[S:1]]",
        "10. look\n\n    ```py\n    x\n    ```\n\n[[S:1]]",
    ],
)
def test_what_stands_beside_code_cites(text: str) -> None:
    assert citations.cited_sids(text, newest=4) == (1,)


def shown(*pieces: str) -> list[str]:
    resolver = Resolver(mark, newest=4)
    return [*(resolver.feed(piece) for piece in pieces), resolver.close()]


def test_a_token_is_held_back_until_it_is_whole() -> None:
    assert shown("so [[S", ":1", "]]", ".") == ["so ", "", "(1)", ".", ""]


def test_what_can_no_longer_become_a_token_is_shown_at_once() -> None:
    assert shown("a [[S", ":x b [", "[[", "x") == ["a ", "[[S:x b ", "[", "[[x", ""]


def test_an_unfinished_token_is_shown_as_it_is_at_the_end() -> None:
    assert shown("so [[S:1") == ["so ", "[[S:1"]


def test_an_unknown_number_is_left_to_the_mark() -> None:
    assert shown("a [[S:9]]") == ["a (?)", ""]


def test_no_more_is_held_back_than_a_token_may_have() -> None:
    resolver = Resolver(mark, newest=4)
    fed = "[[S:" + "1," * TOKEN_LIMIT
    given_out = [resolver.feed(char) for char in fed]
    assert len(fed) - len("".join(given_out)) < TOKEN_LIMIT


def test_what_is_surely_text_is_shown_while_a_code_span_may_be_open() -> None:
    assert shown("a ` b ", "[[S:1]] c", " ` d") == ["a ` b ", "", "[[S:1]] c ` d", ""]
    assert shown("a ` b ", "[[S:1]] c", "\n\nd") == ["a ` b ", "", "(1) c\n\nd", ""]


def test_a_line_may_turn_out_to_be_a_fence_or_not() -> None:
    assert shown("```[[S:1]]", "\n[[S:2]]") == ["```", "[[S:1]]\n[[S:2]]", ""]
    assert shown("``", "` [[S:1]]", " ``` [[S:2]]") == ["``", "` ", "[[S:1]] ``` (2)", ""]
    assert shown("``` [[S:1]]", "`", " [[S:2]]\n\n") == ["``` ", "", "(1)` (2)\n\n", ""]


@pytest.mark.parametrize(
    "text",
    sampled(
        [
            "[[S:" * 100_000,
            "[" * 300_000,
            "[[S:1-300000]]" * 30_000,
            "[[S:" + "1," * 200_000,
            "`" * 300_000,
            "".join("`" * n + " " for n in range(1, 700)),
            "` [[S:1]] `` " * 25_000,
            "```" * 100_000,
            " " * 300_000,
            "\\" * 300_000,
            "\n```a\n" * 50_000,
            "- " * 100_000,
        ],
        3,
    ),
    ids=lambda text: repr(text[:12]),
)
def test_the_time_grows_no_faster_than_the_text(text: str) -> None:
    began_at = process_time()
    whole = citations.resolve(text, mark, newest=4)
    assert in_pieces([text[at : at + 7] for at in range(0, len(text), 7)]) == whole
    assert process_time() - began_at < 30


def test_the_tokens_of_a_text_name_a_bounded_number_of_sids() -> None:
    text = "[[S:1-6000]] [[S:1-4000]] [[S:7]] [[S:1-300000]]"
    summary = citations.find(text, newest=300_000)
    assert [len(citation.sids) for citation in summary] == [6000, 4000]
    assert citations.resolve(text, lambda sids: f"({len(sids)})", newest=300_000) == (
        "(6000) (4000) [[S:7]] [[S:1-300000]]"
    )


def test_fenced_code_is_no_prose() -> None:
    text = "so.\n```\ncode\n```\nand `so`."
    assert citations.prose(text) == "so.\n   \n    \n   \nand `so`."
    assert citations.prose("- ```a\n  b\nc") == "-     \n   \nc"


TEAS = {
    1: Source(
        url="https://tea.example/green",
        text="Green tea is made from leaves that are not fermented. It was drunk 4,700 years ago.",
    ),
    2: Source(
        url="https://tea.example/black", text="Black tea is fermented; it keeps for 2 years."
    ),
    3: Source(url="https://tea.example/lost"),
}
TEXTS = {sid: [source.text] for sid, source in TEAS.items()}


def together(answer: str) -> Overlap:
    [sentence] = verify(answer, TEAS, TEXTS).cited
    return sentence.together


@pytest.mark.parametrize(
    ("answer", "support"),
    [
        ("Green tea's leaves are not fermented [[S:1]].", "supported"),
        ("Green tea was drunk 4700 years ago [[S:1]].", "supported"),
        ("Green tea was drunk 5,700 years ago [[S:1]].", "weak"),
        ("Black tea keeps, and green tea leaves are not fermented [[S:1,2]].", "supported"),
        ("Green leaves cure many illnesses [[S:1]].", "weak"),
        ("It cures every illness [[S:1]].", "unsupported"),
        ("It keeps for 2 years [[S:1]].", "weak"),
        ("It keeps for 2 years [[S:3]].", "no text kept"),
        ("It keeps for 2 years [[S:2,3]].", "supported"),
        ("It is so [[S:1]].", "unsupported"),
    ],
)
def test_a_cited_sentence_is_compared_with_its_sources(answer: str, support: Support) -> None:
    assert together(answer).support == support


def test_an_overlap_says_what_was_found_and_what_was_not() -> None:
    assert together("Green tea is made from leaves in 3 steps [[S:1]].") == Overlap(
        share=4 / 6, run=6, missing_numbers=("3",), support="weak"
    )


def test_each_source_of_a_sentence_is_compared_by_itself_too() -> None:
    [sentence] = verify("Black tea is fermented [[S:3,1,2]].", TEAS, TEXTS).cited
    assert sentence.sids == (3, 1, 2)
    assert [item.support for item in sentence.each] == ["no text kept", "supported", "supported"]
    assert [item.run for item in sentence.each] == [0, 2, 4]


def test_an_answer_is_read_sentence_by_sentence() -> None:
    answer = """\
# Teas

Tea is old. Green tea is not fermented. [[S:1]] Black tea [[S:2]] is, e.g. that of 2.5 years
[[S:7]], they say! So?

1. [[S:2]] It keeps.
- None knows [[S:8]]

```
code. [[S:1]]
```
[[S:1]]"""
    report = verify(answer, TEAS, TEXTS)
    assert [(item.text, item.sids) for item in report.cited] == [
        ("Green tea is not fermented.", (1,)),
        ("Black tea is, e.g. that of 2.5 years, they say!", (2,)),
        ("It keeps.", (2,)),
        ("None knows", (1,)),
    ]
    assert report.uncited == ("Tea is old.", "So?")
    assert report.unknown == (7, 8)
    assert sum(report.counts.values()) == 4


def test_a_sentence_that_cites_only_unknown_numbers_is_uncited() -> None:
    report = verify("It is so [[S:9]].", TEAS, TEXTS)
    assert (report.cited, report.uncited, report.unknown) == ((), ("It is so.",), (9,))


@given(markdown)
def test_every_source_that_an_answer_cites_is_verified_or_unknown(answer: str) -> None:
    report, counts = verify(f"Tea is old. {answer}", TEAS, TEXTS), {1, 2, 3}
    sids = {sid for item in report.cited for sid in item.sids}
    assert sids | set(report.unknown) == set(
        citations.cited_sids(f"Tea is old. {answer}", newest=3)
    )
    assert sids <= counts
    assert not counts & set(report.unknown)


@given(st.text(alphabet="tea is old. \n", min_size=1))
def test_a_text_supports_itself(text: str) -> None:
    for item in verify(f"{text} [[S:1]]", {1: Source(url="x")}, {1: [text]}).cited:
        assert not item.together.missing_numbers
        assert item.together.support == "supported" or item.together.share == 0.0


@pytest.mark.parametrize(
    "text", ["." * 300_000, ". " * 30_000, "\n" * 300_000, "[[S:1]] " * 30_000]
)
def test_verifying_takes_time_as_the_text_is_long(text: str) -> None:
    began_at = process_time()
    verify(text, TEAS, TEXTS)
    assert process_time() - began_at < 30
