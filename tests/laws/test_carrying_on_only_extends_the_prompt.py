"""Laws 3 and 10: within an epoch a prompt only grows, and it is the same however it came about."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from tempfile import TemporaryDirectory

from loopline import prompt
from loopline import timeline as tl
from loopline.reader import read_document
from tests.support.corpus import IN_FILES, over_corpus, run_of
from tests.support.scenario import Scenario, ScenarioRun, Sent, misplaced
from tests.support.scenario import run_scenario as run_scenario
from tests.support.scenario_strategies import drawn_scenarios

IN_STEPS = 30
"""How many scenarios, the first, are rendered again in steps, which takes longer than to run them."""
CAUSES = (
    "start",
    "model",
    "protocol",
    "renderer",
    "instructions",
    "tools",
    "compaction",
    "prune",
    "hide",
)


def starts(blocks: Sequence[tl.Block]) -> list[tuple[tl.Block, tl.RoundStart]]:
    """The rounds that asked a model."""
    return [
        (block, block.body)
        for block in blocks
        if isinstance(block.body, tl.RoundStart) and block.body.model
    ]


def within_epochs(sent: Sequence[Sent]) -> list[tuple[Sent, Sent]]:
    """Requests that follow each other in one epoch."""
    return [
        (item, other) for item, other in pairwise(sent) if item.begun.epoch == other.begun.epoch
    ]


@over_corpus(drawn_scenarios)
def test_within_an_epoch_a_prompt_begins_with_all_of_the_one_before(scenario: Scenario) -> None:
    for before, after in within_epochs(run_of(scenario).sent):
        assert after.prompt.system == before.prompt.system
        assert after.prompt.tools == before.prompt.tools
        assert after.prompt.messages[: len(before.prompt.messages)] == before.prompt.messages


@over_corpus(drawn_scenarios)
def test_thinking_goes_back_only_behind_what_it_was_thought_behind(scenario: Scenario) -> None:
    assert not [misplaced(item.prompt) for item in run_of(scenario).sent if misplaced(item.prompt)]


@over_corpus(drawn_scenarios)
def test_an_epoch_opens_only_with_a_cause_that_holds(scenario: Scenario) -> None:
    blocks = run_of(scenario).blocks
    before: tl.RoundStart | None = None
    count = 0
    for block, begun in starts(blocks):
        since = blocks[count : block.seq - 1]
        causes = begun.opened_by.split(",") if begun.opened_by else []
        assert begun.epoch == (before.epoch if before else 0) + bool(causes)
        assert set(causes) <= set(CAUSES)
        assert begun.window is None or causes
        for cause in causes:
            assert holds(cause, before, begun, blocks, since), cause
        changed = before is not None and any(
            getattr(before, name) != getattr(begun, name)
            for name in ("model", "protocol", "renderer", "system_sha256", "tools_sha256")
        )
        assert causes or not changed
        before, count = begun, block.seq


def holds(
    cause: str,
    before: tl.RoundStart | None,
    begun: tl.RoundStart,
    blocks: Sequence[tl.Block],
    since: Sequence[tl.Block],
) -> bool:
    if cause == "compaction" or cause == "prune":
        return begun.window is not None and begun.window != window_before(blocks, since)
    if before is None:
        return cause == "start"
    match cause:
        case "model":
            return before.model != begun.model
        case "protocol":
            return before.protocol != begun.protocol
        case "instructions":
            return before.system_sha256 != begun.system_sha256
        case "tools":
            return before.tools_sha256 != begun.tools_sha256
        case "renderer":
            return before.renderer != begun.renderer
        case "hide":
            return any(isinstance(block.body, tl.Hide) for block in since)
        case _:
            return False


def window_before(blocks: Sequence[tl.Block], since: Sequence[tl.Block]) -> tl.Projection:
    end = since[0].seq if since else len(blocks)
    windows = [begun.window for block, begun in starts(blocks) if begun.window and block.seq < end]
    return windows[-1] if windows else tl.Projection()


@over_corpus(drawn_scenarios, first=IN_STEPS)
def test_in_one_go_equals_in_steps(scenario: Scenario) -> None:
    stride = 1 + len(repr(scenario)) % 7
    blocks = run_of(scenario).blocks
    for protocol in (prompt.Native(), prompt.protocol("json")):
        whole_view, stepped = prompt.View(protocol, blocks), prompt.View(protocol)
        for at in range(0, len(blocks), stride):
            stepped.extend(blocks[at : at + stride])
            stepped.render_under(stepped.window)
        assert stepped.messages == whole_view.messages
        assert stepped.rendering.sha256 == whole_view.rendering.sha256
        assert stepped.rendering.tokens == whole_view.rendering.tokens
        assert stepped.state.factor == whole_view.state.factor
        assert seen_of(stepped.rendering) == seen_of(whole_view.rendering)
        assert points_of(stepped, blocks) == points_of(whole_view, blocks)
        again = whole_view.render_under(whole_view.window)
        assert again.messages == whole_view.messages
    timeline, steps = tl.Timeline(blocks), tl.Timeline()
    for at in range(0, len(blocks), stride):
        steps.extend(blocks[at : at + stride])
    assert (timeline.pool, timeline.plans, timeline.pending) == (
        steps.pool,
        steps.plans,
        steps.pending,
    )
    assert (timeline.turns, timeline.shown_texts, timeline.calls) == (
        steps.turns,
        steps.shown_texts,
        steps.calls,
    )


def seen_of(now: prompt.Rendering) -> list[object]:
    return [
        now.window,
        now.refs,
        now.cuts,
        now.last_tail,
        now.shown_texts,
        now.named_sources,
        now.turn_start,
    ]


def points_of(view: prompt.View, blocks: Sequence[tl.Block]) -> object:
    turn = max(block.turn for block in blocks)
    count_unchanged_messages = view.state.count_unchanged_messages(turn)
    return prompt.cache_points(
        view.rendering,
        turn,
        prompt.InputMessages(),
        prompt.CachePolicy(kept_messages=count_unchanged_messages, factor=view.state.factor),
    )


@over_corpus(drawn_scenarios)
def test_every_request_is_made_again_from_the_log_alone(scenario: Scenario) -> None:
    check_requests(run_of(scenario))


@over_corpus(drawn_scenarios, first=IN_FILES)
def test_every_request_is_made_again_from_a_log_in_a_file(scenario: Scenario) -> None:
    with TemporaryDirectory() as folder:
        check_requests(run_scenario(scenario, f"sqlite:///{folder}/c.db"))


def check_requests(run: ScenarioRun) -> None:
    """Compare what was sent with what the log says was."""
    again = {
        request.block.seq: request for request in prompt.past_requests(tl.Timeline(run.blocks))
    }
    assert list(again) == [block.seq for block, _ in starts(run.blocks)]
    assert {request.inexact for request in again.values()} <= {""}
    assert {
        replayed_round.divergence
        for replayed_round in prompt.replayed_rounds(tl.Timeline(run.blocks))
    } <= {None}
    for sent in run.sent:
        request = again[sent.start.seq]
        assert request.messages == sent.prompt.messages
        assert request.system == sent.prompt.system
        assert request.tools == (prompt.tools_text(sent.prompt.tools) if sent.prompt.tools else "")
        assert request.round_start.tail == sent.prompt.tail
        assert request.cache_points == sent.prompt.cache_points


@over_corpus(drawn_scenarios)
def test_an_export_and_a_fork_make_the_same_requests(scenario: Scenario) -> None:
    run = run_of(scenario)
    document = read_document(run.document)
    until = 1 + len(repr(scenario)) % len(run.blocks)
    forked = asyncio.run(fork(run, until))
    expected = list(prompt.past_requests(tl.Timeline(run.blocks)))
    assert list(prompt.past_requests(tl.Timeline(document))) == expected
    assert list(prompt.past_requests(tl.Timeline(forked))) == [
        request for request in expected if request.block.seq <= until
    ]


async def fork(run: ScenarioRun, until: int) -> list[tl.Block]:
    key, other_key = tl.ConversationKey(name="c"), tl.ConversationKey(name="d")
    log = tl.MemoryLog()
    await log.restore(key, run.blocks)
    await log.fork(key, other_key, until)
    return list(await log.read(other_key))
