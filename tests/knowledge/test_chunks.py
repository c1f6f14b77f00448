"""How files are cut into chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline.refs import split_lines
from loopline.search import Chunk, chunk

PATHS = st.sampled_from(["a.md", "a.rst", "a.txt", "a.py", "a.js", "a"])
PIECES = st.sampled_from(
    [
        *("# One\n", "## Two ##\n", "Three\n=====\n", "Four\n----\n", "```\n", "~~~ py\n", "---\n"),
        *("title: x\n", "\n", "\n\n", "text\n", "text", "\r\n", "\r", "\f", "\u2028", "\ufeff"),
        *("def f():\n", "async def g(x):\n", "class C:\n", "    def m(self):\n", "    pass\n"),
        *('"""\n', "'''\n", '    """doc"""\n', "# note\n", "@decorated\n", 'x = \'"""\'\n', ")\n"),
        *(".. _label:\n", "=====\n", "  indented\n", "\t", "word " * 120 + "\n", "y\n" * 70),
    ]
)
TEXTS = st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=200)


@given(PATHS, TEXTS)
def test_the_chunks_of_a_text_are_the_text(path: str, text: str) -> None:
    assert "".join(item.text for item in chunk(path, text)) == text


@given(PATHS, TEXTS)
def test_a_chunk_is_exactly_the_lines_it_says(path: str, text: str) -> None:
    lines = split_lines(text)
    for passage in chunk(path, text):
        first, last = passage.lines
        assert passage.text == "".join(lines[first - 1 : last])
        assert first <= last


@given(PATHS, TEXTS)
def test_every_line_is_in_one_chunk(path: str, text: str) -> None:
    covered = [
        n for passage in chunk(path, text) for n in range(passage.lines[0], passage.lines[1] + 1)
    ]
    assert covered == list(range(1, len(split_lines(text)) + 1))


@given(PATHS, TEXTS)
def test_a_chunk_is_short_unless_a_line_is_long(path: str, text: str) -> None:
    longest = max(map(len, split_lines(text)), default=0)
    assert all(len(item.text) <= 2_800 + longest for item in chunk(path, text))


@given(TEXTS)
def test_only_newlines_end_lines(text: str) -> None:
    lines = split_lines(text)
    assert "".join(lines) == text
    assert len(lines) == text.count("\n") + (not text.endswith("\n") and text != "")


def titles(path: str, text: str) -> list[str]:
    return [item.title for item in chunk(path, text)]


def test_a_markdown_section_is_called_by_its_headings() -> None:
    text = "# Caching\n\nWhy.\n\n## Per-site `cache`\n\nHow.\n\n# [Other](x.md)\n\nMore.\n"
    assert titles("a.md", text) == ["Caching", "Caching \u203a Per-site cache", "Other"]


def test_setext_headings_are_headings() -> None:
    text = "Caching\n=======\n\nWhy.\n\nPer-site\n--------\n\nHow.\n"
    assert titles("a.md", text) == ["Caching", "Caching \u203a Per-site"]


def test_a_heading_in_fenced_code_is_none() -> None:
    text = "# One\n\n```sh\n# not a heading\n~~~\n## nor this\n```\n\ntext\n"
    assert titles("a.md", text) == ["One"]


def test_a_rule_below_a_list_is_no_heading() -> None:
    assert titles("a.md", "# One\n\n- item\n---\n\ntext\n") == ["One"]


def test_front_matter_gives_the_title_and_belongs_to_the_first_chunk() -> None:
    first, second = chunk("a.md", '---\ntitle: "Guide"\n---\n\nHello.\n\n## Start\n\nGo.\n')
    assert first.title == "Guide"
    assert first.text.startswith("---\n")
    assert second.title == "Guide \u203a Start"


def test_a_heading_with_nothing_below_is_read_with_the_deeper_one_that_follows() -> None:
    (one,) = chunk("a.md", "# Guide\n\n## Start\n\nGo.\n")
    assert one.title == "Guide \u203a Start"
    assert one.lines == (1, 5)


def test_restructured_titles_nest_in_the_order_they_are_met() -> None:
    text = "=====\nCache\n=====\n\nWhy.\n\nThe ``site``\n============\n\nHow.\n\nDeep\n----\n\nx\n"
    assert titles("a.txt", text) == [
        "Cache",
        "Cache \u203a The site",
        "Cache \u203a The site \u203a Deep",
    ]


def test_the_label_above_a_title_is_read_with_it() -> None:
    _, second = chunk("a.rst", "One\n===\n\ntext\n\n.. _two:\n\nTwo\n===\n\ntext\n")
    assert second.text.startswith(".. _two:")


def test_a_table_in_restructured_text_is_no_title() -> None:
    text = "One\n===\n\n=====  =====\na      b\n=====  =====\n1      2\n=====  =====\n"
    assert titles("a.rst", text) == ["One"]


def test_a_python_file_is_cut_at_its_definitions() -> None:
    text = "import os\n\n\n# about f\n@cached(\n    1,\n)\ndef f(\n    x,\n):\n    pass\n\n\nX = 1\n\n\nclass C:\n    pass\n"
    cut = chunk("src/a.py", text)
    assert [item.title for item in cut] == ["a.py", "def f", "a.py", "class C"]
    assert cut[1].text.startswith("# about f\n@cached(")


def test_the_methods_of_a_long_class_are_chunks() -> None:
    body = "        x = 1\n" * 120
    text = f'class Foo:\n    """Doc."""\n\n    def bar(self):\n{body}\n    async def baz(self):\n{body}'
    found_titles = titles("a.py", text)
    assert list(dict.fromkeys(found_titles)) == [
        "class Foo",
        "class Foo \u203a def bar",
        "class Foo \u203a def baz",
    ]


def test_what_looks_like_code_in_a_string_is_no_definition() -> None:
    text = (
        "X = \"\"\"\ndef not_this():\n\"\"\"\n\n\ndef this():\n    '''\nclass NorThis:\n    '''\n"
    )
    assert titles("a.py", text) == ["a.py", "def this"]


def test_a_quote_in_a_comment_or_string_opens_nothing() -> None:
    text = '# it\'s """ here\nX = \'"""\'\n\n\ndef f():\n    pass\n'
    assert titles("a.py", text) == ["a.py", "def f"]


def test_a_syntax_error_stops_nothing() -> None:
    assert titles("a.py", "def f(:\n  ???\n\n\ndef g():\n    pass\n") == ["def f", "def g"]


def test_any_other_file_is_cut_by_lines_and_called_by_its_name() -> None:
    cut = chunk("web/a.js", "x();\n" * 150)
    assert [passage.lines for passage in cut] == [(1, 60), (61, 120), (121, 150)]
    assert {item.title for item in cut} == {"a.js"}


def test_a_long_section_is_cut_between_paragraphs() -> None:
    paragraph = "word " * 100 + "\n\n"
    cut = chunk("a.md", "# One\n\n" + paragraph * 12)
    assert len(cut) > 1
    assert all(item.text.endswith("\n\n") for item in cut)


def test_an_empty_file_has_no_chunks() -> None:
    assert chunk("a.md", "") == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("docs/a.md", "prose"),
        ("src/a.py", "source"),
        ("tests/a.py", "tests"),
        ("src/test_a.py", "tests"),
        ("src/locale/de/a.po", "other"),
        ("data/a.csv", "other"),
    ],
)
def test_the_path_tells_what_a_file_is_for(path: str, kind: str) -> None:
    cut: list[Chunk] = chunk(path, "x\n")
    assert cut[0].kind == kind
