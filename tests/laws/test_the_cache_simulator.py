"""The cache simulator: what the documented rules read of a conversation's requests, and why not more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import accumulate, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import LooplineError
from loopline.prompt.caching import (
    NOT_RECORDED,
    AnthropicCache,
    CacheOutcome,
    CacheRow,
    CacheRules,
    OpenAIBreakpointCache,
    OpenAICache,
    Part,
    PartKind,
    SentRequest,
    first_difference,
    minimum_tokens,
    simulate,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)
RULES: list[CacheRules] = [
    AnthropicCache(),
    AnthropicCache(ttl="1h", minimum=512),
    OpenAICache(),
    OpenAIBreakpointCache(),
    OpenAIBreakpointCache(explicit=True),
]


def part(text: str, tokens: int = 1_000, kind: PartKind = "message") -> Part:
    digest = sha256(text.encode()).hexdigest()
    return Part(kind=kind, digest=digest, tokens=tokens, ref=f"ar:{text}")


def blocks(count: int, tokens: int = 1_000) -> tuple[Part, ...]:
    return tuple(part(f"block {number}", tokens) for number in range(count))


def sent(
    parts: Sequence[Part],
    *points: int,
    tail: Sequence[Part] = (),
    after: timedelta = timedelta(0),
    cause: str = "",
) -> SentRequest:
    return SentRequest(
        parts=(*parts, *tail),
        stable=len(parts),
        points=points,
        at=NOON + after,
        seq=len(parts),
        cause=cause,
    )


def last(rules: CacheRules, *requests: SentRequest) -> CacheRow:
    return simulate(requests, rules).rows[-1]


def reasons(row: CacheRow) -> list[str]:
    return [miss.reason for miss in row.misses]


# What a request is


def test_a_request_holds_tools_then_system_then_messages() -> None:
    parts = [part("s", kind="system"), part("t", kind="tools")]
    with pytest.raises(LooplineError, match="parts must be in the order tools, system, messages"):
        sent(parts)


@pytest.mark.parametrize("points", [(0,), (4,), (2, 2), (3, 1)])
def test_cache_points_ascend_within_the_request(points: tuple[int, ...]) -> None:
    with pytest.raises(LooplineError, match="do not ascend within 1 to 3"):
        sent(blocks(3), *points)


def test_no_more_parts_are_stable_than_there_are() -> None:
    with pytest.raises(LooplineError, match="3 of 2 parts cannot be stable"):
        replace(sent(blocks(2)), stable=3)


# Anthropic


def test_anthropic_takes_four_markers_and_refuses_a_fifth() -> None:
    assert simulate([sent(blocks(5), 1, 2, 3, 4)], AnthropicCache()).written == 4_000
    with pytest.raises(LooplineError, match=r"5 cache points .* rejects more than 4 cache_control"):
        simulate([sent(blocks(5), 1, 2, 3, 4, 5)], AnthropicCache())


def test_anthropic_reads_what_an_earlier_request_wrote_and_writes_the_rest_up_to_its_marker() -> (
    None
):
    first = sent(blocks(3), 3, tail=[part("announce 1", 50)])
    second = sent(blocks(5), 5, tail=[part("announce 2", 60)])
    report = simulate([first, second], AnthropicCache())
    assert [(row.read, row.written, row.fresh) for row in report.rows] == [
        (0, 3_000, 50),
        (3_000, 2_000, 60),
    ]
    assert (report.held, report.missed, report.read_of_held) == (3_000, 0, 1.0)


@pytest.mark.parametrize(("blocks_in_all", "read"), [(34, 15_000), (35, 0)])
def test_a_marker_is_the_first_of_the_twenty_places_that_anthropic_looks_at(
    blocks_in_all: int, read: int
) -> None:
    row = last(AnthropicCache(), sent(blocks(15), 15), sent(blocks(blocks_in_all), blocks_in_all))
    assert row.read == read
    assert reasons(row) == ([] if read else ["look-back"])
    assert row.missed == 15_000 - read


def test_a_second_marker_looks_back_from_where_it_stands() -> None:
    row = last(AnthropicCache(), sent(blocks(15), 15), sent(blocks(35), 15, 35))
    assert (row.read, row.written) == (15_000, 20_000)


def test_anthropic_finds_only_what_was_written_not_what_stayed_the_same() -> None:
    requests = [sent([*blocks(5), part(f"at {time}")], 6) for time in ("12:00", "12:01")]
    assert last(AnthropicCache(), *requests).read == 0


def test_held_tokens_that_no_cache_point_follows_are_unmarked() -> None:
    row = last(AnthropicCache(), sent(blocks(5), 3), sent(blocks(6), 3))
    assert (row.read, row.written, row.fresh) == (3_000, 0, 3_000)
    assert [(miss.reason, miss.tokens) for miss in row.misses] == [("unmarked", 2_000)]


@pytest.mark.parametrize(("tokens", "read"), [(1_023, 0), (1_024, 1_024)])
def test_anthropic_caches_no_prefix_below_the_minimum(tokens: int, read: int) -> None:
    report = simulate([sent(blocks(1, tokens), 1)] * 2, AnthropicCache())
    row = report.rows[-1]
    assert (row.read, row.written, row.fresh) == (read, 0, tokens - read)
    assert reasons(row) == ([] if read else ["minimum"])
    assert report.read_of_held == 1.0, "minimum tokens are set aside"


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("claude-opus-5-5", 512),
        ("claude-sonnet-5-5", 512),
        ("claude-sonnet-5", 1_024),
        ("claude-sonnet-4-5-20250929", 1_024),
        ("claude-opus-4-7", 2_048),
        ("claude-haiku-4-5-20251001", 4_096),
        ("something-else", 4_096),
    ],
)
def test_the_minimum_is_that_of_the_model_and_the_largest_for_an_unknown_one(
    model: str, tokens: int
) -> None:
    assert minimum_tokens(model) == tokens


# How long an entry lives


@pytest.mark.parametrize(
    ("rules", "ttl"),
    [
        (AnthropicCache(), timedelta(minutes=5)),
        (AnthropicCache(ttl="1h"), timedelta(hours=1)),
        (OpenAICache(), timedelta(minutes=5)),
        (OpenAICache(ttl=timedelta(hours=24)), timedelta(hours=24)),
        (OpenAIBreakpointCache(), timedelta(minutes=30)),
    ],
)
def test_an_entry_is_read_until_its_lifetime_has_passed(rules: CacheRules, ttl: timedelta) -> None:
    parts = blocks(1, 1_024)
    assert last(rules, sent(parts, 1), sent(parts, 1, after=ttl)).read == 1_024
    late = last(rules, sent(parts, 1), sent(parts, 1, after=ttl + INSTANT))
    assert (late.read, reasons(late)) == (0, ["expired"])


@pytest.mark.parametrize("rules", RULES)
def test_an_entry_lives_on_from_each_use(rules: CacheRules) -> None:
    parts = blocks(1, 1_024)
    uses = [sent(parts, 1, after=minutes * timedelta(minutes=4)) for minutes in range(60)]
    assert [row.read for row in simulate(uses, rules).rows] == [0] + [1_024] * 59


def test_reading_a_prefix_renews_it_where_no_cache_point_stands() -> None:
    long, longer, minutes = blocks(2), blocks(3), timedelta(minutes=1)
    requests = [
        sent(long, 2),
        sent(longer, 3, after=4 * minutes),
        sent([*long, part("another way")], 3, after=8 * minutes),
    ]
    assert last(AnthropicCache(), *requests).read == 2_000


# OpenAI


@pytest.mark.parametrize(
    ("common", "read"),
    [(1_023, 0), (1_024, 1_024), (1_151, 1_024), (1_152, 1_152), (1_279, 1_152), (1_280, 1_280)],
)
def test_openai_reads_from_1024_tokens_on_in_steps_of_128(common: int, read: int) -> None:
    report = simulate([sent(blocks(1, common)), sent(blocks(2, common))], OpenAICache())
    assert report.rows[-1].read == read
    assert report.missed_for("minimum") == common - read
    assert report.read_of_held == 1.0, "minimum tokens and steps are set aside"


def test_openai_reads_the_longest_prefix_of_any_earlier_request() -> None:
    detour = [*blocks(1), part("a detour")]
    assert last(OpenAICache(step=1), sent(blocks(4)), sent(detour), sent(blocks(5))).read == 4_000


def test_openai_needs_no_cache_points_and_reports_nothing_as_written() -> None:
    assert OpenAICache().send(sent(blocks(3))) == CacheOutcome(read=0, written=0, uncached=3_000)


def test_a_breakpoint_after_a_tail_that_goes_is_never_read() -> None:
    requests = [sent(blocks(2), tail=[part(f"announce {n}", 50)]) for n in range(3)]
    report = simulate(requests, OpenAIBreakpointCache())
    assert [row.written for row in report.rows] == [2_050, 2_050, 2_050]
    marked = [replace(request, points=(2,)) for request in requests]
    assert [row.read for row in simulate(marked, OpenAIBreakpointCache()).rows] == [0, 2_000, 2_000]


def test_explicit_breakpoints_find_only_what_they_mark() -> None:
    rules = OpenAIBreakpointCache(explicit=True)
    assert last(rules, sent(blocks(2), 2), sent(blocks(3), 3)).misses[0].reason == "look-back"
    assert last(rules, sent(blocks(2), 2), sent(blocks(3), 2, 3)).read == 2_000
    assert simulate([sent(blocks(2))] * 2, rules).read == 0


@pytest.mark.parametrize(("new", "read"), [(20, 15_000), (21, 0)])
def test_twenty_earlier_ends_are_looked_at_for_a_breakpoint(new: int, read: int) -> None:
    row = last(OpenAIBreakpointCache(), sent(blocks(15)), sent(blocks(15 + new)))
    assert row.read == read


def test_the_latest_four_breakpoints_are_written() -> None:
    rules = OpenAIBreakpointCache(explicit=True, minimum=1)
    first = sent(blocks(6), 1, 2, 3, 4, 5)
    assert last(rules, first, sent(blocks(6), 1)).read == 0
    assert last(rules, first, sent(blocks(6), 2)).read == 2_000


# Why something was missed


def test_a_broken_prefix_names_its_part_its_block_and_the_recorded_cause() -> None:
    before = sent(blocks(5), 2, 5)
    summary = part("the summary")
    after = sent([*blocks(2), summary], 2, 3, cause="compaction")
    [miss] = last(AnthropicCache(), before, after).misses
    assert (miss.reason, miss.tokens, miss.cause) == ("broken", 3_000, "compaction")
    assert miss.difference == first_difference(before, after)
    assert miss.difference
    assert (miss.difference.index, miss.difference.ref) == (2, "ar:the summary")
    assert (miss.difference.before, miss.difference.after) == (before.parts[2], summary)


def test_a_broken_prefix_without_a_cause_says_that_none_is_recorded() -> None:
    [miss] = last(OpenAICache(), sent(blocks(3)), sent([part("other")])).misses
    assert (miss.reason, miss.cause) == ("broken", NOT_RECORDED)


def test_changed_tools_break_everything() -> None:
    rest = [part("instructions", kind="system"), *blocks(3)]
    requests = [sent([part(tools, kind="tools"), *rest], 1, 2, 5) for tools in ("a", "a, b")]
    for rules in RULES:
        row = last(rules, *requests)
        assert (row.read, row.held, reasons(row)) == (0, 5_000, ["broken"])
        assert row.misses[0].difference
        assert row.misses[0].difference.before.kind == "tools"


def test_a_request_that_only_grows_has_no_difference_whatever_became_of_the_tail() -> None:
    before = sent(blocks(2), tail=[part("announce 1")])
    after = sent(blocks(4), tail=[part("announce 2")])
    assert first_difference(before, after) is None


def test_a_request_that_ends_early_differs_where_it_ends() -> None:
    difference = first_difference(sent(blocks(3)), sent(blocks(2)))
    assert difference
    assert (difference.index, difference.after) == (2, None)
    assert difference.ref == "ar:block 2"


def test_neither_a_new_estimate_nor_another_ref_breaks_a_prefix() -> None:
    before = sent(blocks(3), 3)
    again = tuple(replace(part, tokens=900, ref="") for part in before.parts)
    row = last(AnthropicCache(), before, sent(again, 3))
    assert (row.read, row.held, row.misses) == (2_700, 2_700, ())


def test_one_request_may_miss_for_several_reasons() -> None:
    before = sent(blocks(3, 700), 3)
    after = sent([*blocks(2, 700), part("other")], 3, after=timedelta(hours=1), cause="hide")
    row = last(OpenAICache(), before, after)
    assert [(miss.reason, miss.tokens) for miss in row.misses] == [
        ("expired", 1_024 + 2 * 128),
        ("minimum", 1_400 - 1_280),
        ("broken", 700),
    ]


# What it costs


@pytest.mark.parametrize(
    ("rules", "factor"),
    [
        (AnthropicCache(), (1_000 * 0.1 + 2_000 * 1.25 + 1_000) / 4_000),
        (AnthropicCache(ttl="1h"), (1_000 * 0.1 + 2_000 * 2 + 1_000) / 4_000),
        (AnthropicCache(read_price=0.05), (1_000 * 0.05 + 2_000 * 1.25 + 1_000) / 4_000),
        (OpenAIBreakpointCache(explicit=True), (1_000 * 0.1 + 2_000 * 1.25 + 1_000) / 4_000),
    ],
)
def test_what_is_read_and_written_has_its_price(rules: CacheRules, factor: float) -> None:
    lowered = replace_minimum(rules)
    report = simulate([sent(blocks(1), 1), sent(blocks(3), 1, 2)], lowered)
    assert (report.read, report.written, report.fresh) == (1_000, 2_000, 1_000)
    assert report.cost_factor == pytest.approx(factor)
    assert report.read_of_all == 0.25


def replace_minimum(rules: CacheRules) -> CacheRules:
    assert isinstance(rules, AnthropicCache | OpenAIBreakpointCache)
    return replace(rules, minimum=1)


def test_what_is_only_written_costs_more_than_no_cache_and_nothing_costs_the_same() -> None:
    assert simulate([sent(blocks(2), 2)], AnthropicCache()).cost_factor == 1.25
    assert simulate([], AnthropicCache()).cost_factor == 1.0


# Laws


@dataclass(frozen=True)
class Step:
    """What one request adds to a conversation, its tail, and the time since the one before."""

    new: list[int]
    tail: list[int]
    wait: timedelta


sizes = st.integers(1, 3_000)
steps = st.builds(
    Step,
    new=st.lists(sizes, min_size=1, max_size=19),
    tail=st.lists(sizes, max_size=1),
    wait=st.timedeltas(timedelta(0), timedelta(minutes=5)),
)


def conversation(script: Sequence[Step]) -> list[SentRequest]:
    """Requests that only grow, each with a cache point before its tail."""
    requests = list[SentRequest]()
    parts = [part("tools", 300, "tools"), part("system", 400, "system")]
    for step, at in zip(script, accumulate(step.wait for step in script), strict=True):
        parts += [part(f"block {len(parts) + n}", size) for n, size in enumerate(step.new)]
        tail = [part(f"tail of {len(requests)}", size) for size in step.tail]
        requests.append(sent(parts, len(parts), tail=tail, after=at))
    return requests


@given(st.lists(steps, max_size=12))
def test_nearly_all_of_a_conversation_that_only_grows_is_read(script: list[Step]) -> None:
    requests = conversation(script)
    growing: list[CacheRules] = [AnthropicCache(), OpenAICache(), OpenAIBreakpointCache()]
    for rules in growing:
        assert simulate(requests, rules).read_of_held >= 0.99


def a_request(
    tools: str, words: list[str], stable: int, points: set[int], wait: timedelta
) -> SentRequest:
    """A request of few words, whose estimates differ from one request to the next."""
    messages = [part(word, 100 * len(words) + ord(word)) for word in words]
    parts = (part(tools, 600, "tools"), *messages)
    return SentRequest(
        parts=parts,
        stable=min(stable, len(parts)),
        points=tuple(sorted(point for point in points if point <= len(parts))),
        at=NOON + wait,
        seq=1,
    )


letters = st.sampled_from("abc")
any_requests = st.lists(
    st.builds(
        a_request,
        tools=letters,
        words=st.lists(letters, max_size=6),
        stable=st.integers(0, 7),
        points=st.sets(st.integers(1, 7), max_size=4),
        wait=st.timedeltas(timedelta(0), timedelta(hours=1)),
    ),
    max_size=8,
).map(lambda requests: sorted(requests, key=lambda request: request.at))


def common(one: SentRequest, other: SentRequest) -> int:
    """The tokens of the prefix that both begin with, as the second counts them."""
    pairs = zip(one.parts, other.parts, strict=False)
    return sum(new.tokens for _, new in takewhile(lambda pair: pair[0].matches(pair[1]), pairs))


@pytest.mark.parametrize("rules", RULES)
@given(requests=any_requests)
def test_what_is_read_written_and_neither_is_all_there_is(
    rules: CacheRules, requests: list[SentRequest]
) -> None:
    for request, row in zip(requests, simulate(requests, rules).rows, strict=True):
        assert row.read + row.written + row.fresh == request.tokens
        assert min(row.read, row.written, row.fresh) >= 0


@pytest.mark.parametrize("rules", RULES)
@given(requests=any_requests)
def test_no_more_is_read_than_an_earlier_request_has_in_common(
    rules: CacheRules, requests: list[SentRequest]
) -> None:
    for place, row in enumerate(simulate(requests, rules).rows):
        earlier = requests[:place]
        assert row.read <= max((common(item, requests[place]) for item in earlier), default=0)


@pytest.mark.parametrize("rules", RULES)
@given(requests=any_requests)
def test_every_held_token_is_read_or_has_one_reason_why_not(
    rules: CacheRules, requests: list[SentRequest]
) -> None:
    report = simulate(requests, rules)
    for row in report.rows:
        assert 0 <= row.held - row.missed <= row.read
        assert all(miss.tokens > 0 for miss in row.misses)
        assert len(set(reasons(row))) == len(row.misses)
    assert 0 <= report.read_of_held <= 1


@pytest.mark.parametrize("rules", RULES)
@given(requests=any_requests)
def test_a_simulation_leaves_nothing_behind(rules: CacheRules, requests: list[SentRequest]) -> None:
    assert simulate(requests, rules) == simulate(requests, rules)
