"""The pool: a source keeps its number, and one address is one source however it is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline.timeline import Source, SourceAdded, SourcePool, identity, with_number

parts = st.sampled_from(
    [
        *("http", "HTTPS", "://", "/", "//", "@", ":", "80", ":443", "[", "]", "::1", "a.example"),
        *("?", "&", "=", "#", "utm_source", "%", "%7e", "%2F", "%c3", "é", "ß", ".", "..", "。"),
        *(" ", "\\", "\ud800", "℀", "10.0.0.80", "ks:", "x", "1", "+", "\n", "²"),
    ]
)
addresses = st.lists(parts, max_size=14).map("".join) | st.text()
urls = st.sampled_from(["https://a.example", "http://a.example", "https://a.example/#x", "ks:a@1"])
sources = st.builds(Source, url=urls | st.just(""), path=st.sampled_from(["", "a", "b"]))


@given(addresses)
def test_any_text_has_one_identity(text: str) -> None:
    once = identity(text)
    assert identity(once) == once


@given(addresses)
def test_any_web_address_has_one_identity(text: str) -> None:
    once = identity(f"https://a.example/{text}")
    assert identity(once) == once
    assert once.startswith("https://a.example")
    assert once.isascii()


@pytest.mark.parametrize(
    "url",
    [
        "https://tea.example/green",
        "HTTPS://Tea.Example/green",
        "https://tea.example:443/green",
        "https://tea.example:0443/green",
        "https://tea.example:/green",
        "https://tea.example./green",
        "https://ann:secret@tea.example/green",
        "https://tea.example/green/",
        "https://tea.example/green//",
        "https://tea.example/green?",
        "https://tea.example/green#top",
        "https://tea.example/green/?utm_source=x&UTM_Medium=y&gclid=1&fbclid=2#top",
        "https://tea.example/green?%75tm_source=x",
        "https://tea.example/gr%65en",
        "https://tea.example/black/../green",
        "https://tea.example/./green/.",
        "https://\uff54\uff45\uff41.example/green",
        "  https://tea.example/green\n",
    ],
)
def test_one_page_is_one_source(url: str) -> None:
    assert identity(url) == "https://tea.example/green"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://tea.example", "https://tea.example"),
        ("https://tea.example", "https://tea.example:8443"),
        ("https://tea.example", "https://tea.example:80"),
        ("http://10.0.0.80", "http://10.0.0"),
        ("http://10.0.0.80:8080", "http://10.0.0.80"),
        ("https://tea.example/Green", "https://tea.example/green"),
        ("https://tea.example/a//b", "https://tea.example/a/b"),
        ("https://tea.example/a%2Fb", "https://tea.example/a/b"),
        ("https://tea.example?a=1&b=2", "https://tea.example?b=2&a=1"),
        ("https://tea.example?a=%26b", "https://tea.example?a=&b"),
        ("https://tea.example?utm=1", "https://tea.example"),
        ("https://tea.example?a=%FF", "https://tea.example?a=%FE"),
        ("https://faß.example", "https://fass.example"),
        ("ks:docs/tea.md@3f2a91c#L1-L9", "ks:docs/tea.md@3f2a91c#L1-L8"),
    ],
)
def test_different_pages_are_different_sources(one: str, other: str) -> None:
    assert identity(one) != identity(other)


@pytest.mark.parametrize(
    ("url", "is_"),
    [
        ("http://10.0.0.80/", "http://10.0.0.80"),
        ("http://10.0.0.80:80/x", "http://10.0.0.80/x"),
        ("https://[::1]:443/X", "https://[::1]/X"),
        ("https://[FE80::A]:8443", "https://[fe80::a]:8443"),
        ("https://bücher.example/é", "https://xn--bcher-kva.example/%C3%A9"),
        ("https://B%C3%9CCHER.example/%c3%a9", "https://xn--bcher-kva.example/%C3%A9"),
        ("https://tea.example/100%", "https://tea.example/100%25"),
        ("https://tea.example/?b=2&&a=1&", "https://tea.example?b=2&a=1"),
    ],
)
def test_an_address_has_one_form(url: str, is_: str) -> None:
    assert identity(url) == is_


@pytest.mark.parametrize(
    "host", ["\u4e2d" * 64, "%E4%B8%AD" * 64, "\u337f" * 200, "a" + "\u0315\u0300" * 50_000]
)
def test_a_long_host_that_is_not_ascii_is_no_web_address(host: str) -> None:
    assert identity(f"https://{host}.example/") == f"https://{host}.example/"


def test_labels_of_63_characters_have_a_form_in_ascii() -> None:
    label = "\u4e2d" * 63
    assert identity(f"https://{label}.{label}.example/").startswith("https://xn--")


@pytest.mark.parametrize(
    "text",
    [
        *("http://[bad", "http://", "https:///x", "http://a:b/", "http://a%2Fb/", "http://℀/"),
        *("http:tea", "ftp://tea.example/", "", "ks:docs/x@1#L1", "http://a b/", "https://."),
    ],
)
def test_what_is_no_web_address_is_itself(text: str) -> None:
    assert identity(text) == text


def folded(*sources: Source) -> SourcePool:
    """The pool after each was added by itself."""
    pool = SourcePool()
    for source in sources:
        for added in pool.assign_numbers([source])[1]:
            pool.take(added)
    return pool


@given(st.lists(sources, max_size=12))
def test_numbers_are_dense_and_kept(found: list[Source]) -> None:
    pool, given_out = SourcePool(), dict[int, Source]()
    for source in found:
        sids, added = pool.assign_numbers([source, source])
        assert sids[0] == sids[1]
        for item in added:
            pool.take(item)
            given_out[item.sid] = item.source
    assert pool.sources == given_out
    assert list(pool.sources) == list(range(1, pool.newest + 1))


@given(st.lists(sources, max_size=12))
def test_numbering_at_once_is_numbering_one_by_one(found: list[Source]) -> None:
    sids, added = SourcePool().assign_numbers(found)
    one_by_one = folded(*found)
    assert [item.source for item in added] == list(one_by_one.sources.values())
    assert [one_by_one.assign_numbers([source])[0][0] for source in found] == sids


@given(sources)
def test_a_source_of_a_result_is_stored_without_the_number_of_its_pool(source: Source) -> None:
    _, [added] = SourcePool().assign_numbers([with_number(source, 9)])
    assert (added.sid, added.source, type(added.source)) == (1, source, Source)


def test_a_source_that_comes_again_with_more_stays_as_it_was_first() -> None:
    first = Source(url="https://tea.example/green", title="Green tea")
    again = Source(url="https://tea.example/green/#top", title="Green tea, all of it", text="Tea.")
    pool = folded(first, again)
    assert pool.sources == {1: first}
    assert pool.find("https://TEA.example/green") == first


def test_a_source_recorded_twice_can_be_cited_by_both_numbers() -> None:
    page = Source(url="https://tea.example")
    pool = SourcePool()
    for sid in (1, 2):
        pool.take(SourceAdded(sid=sid, source=page))
    assert pool.assign_numbers([page]) == ([1], [])
    assert pool.sources == {1: page, 2: page}
    assert pool.newest == 2


def test_a_number_that_is_taken_stays_with_its_source() -> None:
    pool = folded(Source(url="https://tea.example"))
    pool.take(SourceAdded(sid=1, source=Source(url="https://coffee.example")))
    assert pool.sources[1].url == "https://tea.example"


def test_sources_without_an_address_are_told_apart_by_path_commit_and_lines() -> None:
    source = Source(url="", path="a.md", commit="3f2a", lines=(1, 9), text="x")
    same_source = Source(url="", path="a.md", commit="3f2a", lines=(1, 9), title="again")
    other_source = Source(url="", path="a.md", commit="3f2a", lines=(2, 9), text="x")
    sids, _ = SourcePool().assign_numbers(
        [source, same_source, other_source, Source(url="", text="x"), Source(url="", text="y")]
    )
    assert sids == [1, 1, 2, 3, 4]
