"""Scenarios as hypothesis draws them: small windows, large results, and everything that opens an epoch."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from loopline import Attachment
from loopline.models import Json, TailKind, ToolCall
from loopline.models.prompt import estimate
from loopline.react import Limits
from tests.support.sample_files import pdf, png
from tests.support.scenario import Act, Judged, Kind, Said, Scenario, Shown


def call(name: str, /, **arguments: Json) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


sizes = st.sampled_from([0, 40, 300, 399, 400, 401, 2_000, 6_000, 20_000, 60_000, 120_000])


def look(size: int, seed: int) -> ToolCall:
    return call("life.look", size=size, seed=seed)


def table(count: int, width: int) -> ToolCall:
    return call("life.rows", count=count, width=width)


def find(page: int, size: int) -> ToolCall:
    return call("life.find", page=page, size=size)


def write(name: str, size: int) -> ToolCall:
    return call("life.write", name=name, text=f"@{size}")


looks = st.builds(look, sizes, st.integers(0, 9))
tables = st.builds(table, st.sampled_from([0, 3, 50, 51, 200]), st.sampled_from([4, 40, 500]))
finds = st.builds(find, st.integers(1, 9), sizes)
writes = st.builds(write, st.sampled_from("ab"), st.sampled_from([10, 900, 1_001, 3_000]))
reads = st.sampled_from(
    [
        call("react.read", paths=["tc:turn_1.c1.result"]),
        call("react.read", paths=["ar:turn_1.user.prompt", "so:sources_pool[1-3]"]),
        call("react.read", paths=["su:turn_2.conv.range.summary.1", "nothing"]),
        call("react.read", paths=["artifact:conv.timeline.v1"]),
    ]
)
new_plans = st.sampled_from(
    [
        call("react.plan", mode="new", steps=["look at heron.py", "answer"]),
        call("react.plan", mode="new", steps=["a third"]),
    ]
)
plans = new_plans | new_plans | st.just(call("react.plan", mode="close", plan_id="unknown"))
others = st.sampled_from(
    [
        call("life.fail", message="no"),
        call("life.alone", size=500),
        call("life.look", size="many"),
        call("life.unknown"),
        call("react.hide", path="tc:turn_9.c99.result", replacement="x"),
    ]
)
notes = st.sampled_from(
    [
        "",
        "… [1] going",
        "✓ [1] done\n✗ [2] not",
        "thinking aloud about src/heron.py",
        "[D] SQLite it is\n[P] short answers",
        "@1500\n[K] src/heron.py holds 4711",
    ]
)
far = st.builds(Shown, st.integers(0, 30))
said_meanwhile = st.sampled_from(["", "", "", "also this", "@3000"])
calls = looks | looks | tables | finds | writes | reads | plans | others
acts: SearchStrategy[Act] = st.builds(
    Act,
    text=notes,
    calls=st.lists(calls, min_size=1, max_size=3).map(tuple),
    hides=st.none() | st.none() | far,
    reads=st.none() | st.none() | far,
    followup=said_meanwhile,
    recalled=st.booleans(),
    pause=st.sampled_from([0.0, 0.0, 0.0, 60.0, 400.0]),
)
stalls = st.just(Act(calls=(call("life.look", size=50), call("life.stall"))))
malformed = st.just(Act(""))
failures = st.just(Act("", fails=True))
rounds = acts | acts | acts | acts | acts | malformed | failures | stalls
judgements = st.builds(
    Judged,
    st.integers(0, 3),
    st.sampled_from(["ok", "not_ok", "neutral", None]),
    st.sampled_from(["", "too long"]),
)
PHOTO, POSTER = Attachment("a b.png", png(90)), Attachment("poster.png", png(1_200, 1_200))
REPORT = Attachment("report.pdf", pdf("src/heron.py holds 4711.", "So it goes."))
BOOK = Attachment("book.md", b"# Herons\n" + b"src/heron.py is long. " * 2_000)
DATA = Attachment("data", b"\0\1")
files = st.sampled_from(
    [*[()] * 6, (PHOTO,), (PHOTO, PHOTO, POSTER), (REPORT,), (BOOK, DATA), (POSTER, REPORT)]
)
turns: SearchStrategy[Said] = st.builds(
    Said,
    text=st.sampled_from(["go on", "look at src/heron.py", "!", "@5000", "@60000"]),
    acts=st.lists(rounds, min_size=1, max_size=7).map(tuple),
    answer=st.sampled_from(["It is [[S:1]].", "✓ [1]\nSo.", "@6000", "See [[S:2,7]]"]),
    model=st.sampled_from([0, 0, 0, 1]),
    protocol=st.sampled_from(["native", "native", "native", "json"]),
    pause=st.sampled_from([0.0, 10.0, 289.0, 290.0, 4_000.0, -500.0]),
    judged=st.lists(judgements, max_size=2).map(tuple),
    between=st.sampled_from(["", "", "by the way"]),
    reopened=st.sampled_from([False, False, True]),
    dies_after=st.none() | st.none() | st.none() | st.integers(1, 30),
    files=files,
)


def fives(text: str) -> int:
    """A tokenizer that takes five characters to a token."""
    return len(text) // 5


def finer(text: str) -> int:
    """One that takes a third more tokens than is estimated."""
    return estimate(text) * 4 // 3


def halves(text: str) -> int:
    """One that takes two and a half characters, whatever they are."""
    return int(len(text) / 2.5)


def jumpy(text: str) -> int:
    """One that takes from three to five, as it likes."""
    return len(text) // (3 + len(text) % 3)


TAILS: tuple[TailKind, ...] = ("dropped", "inside", "kept", "cleared")
kinds: SearchStrategy[Kind] = st.builds(
    Kind,
    name=st.just("one"),
    window=st.sampled_from([6_000, 8_000, 12_000, 20_000, 40_000]),
    output_limit=st.sampled_from([1_000, 2_000, 4_000]),
    counts=st.sampled_from([None, fives, finer, halves, jumpy]),
    tail=st.sampled_from(TAILS),
    vision=st.booleans(),
    pdf=st.booleans(),
)


def _limits(
    hint: str | None, turns: int | None, ttl: int | None, editable: int, rounds: int
) -> Limits:
    limits: Limits = {"editable_tail_size_in_tokens": editable, "max_iterations": rounds}
    if hint is not None:
        limits["summary_hint"] = hint
    if turns is not None:
        limits["keep_recent_turns"], limits["keep_recent_intact_turns"] = turns, 1
    if ttl is not None:
        limits["cache_ttl_seconds"] = ttl
    return limits


def scenario_of(
    turns: list[Said], one: Kind, two: Kind, summaries: list[str], limits: Limits
) -> Scenario:
    return Scenario(
        turns=tuple(turns),
        models=(one, replace(two, name="two")),
        summaries=tuple(summaries),
        limits=limits,
    )


drawn_scenarios: SearchStrategy[Scenario] = st.builds(
    scenario_of,
    st.lists(turns, min_size=2, max_size=5),
    kinds,
    kinds,
    st.lists(
        st.sampled_from(["", "fail", "Goal: go on.\nNext steps: answer.", "@9000"]),
        min_size=1,
        max_size=3,
    ),
    st.builds(
        _limits,
        st.sampled_from([None, "planner_input", "step_dependency", "odd"]),
        st.sampled_from([None, 1, 2]),
        st.sampled_from([None, None, 0, 60]),
        st.sampled_from([2_000, 2_000, 50_000, 0]),
        st.sampled_from([4, 8, 12]),
    ),
)
