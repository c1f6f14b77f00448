"""The invariants of the loop, I1 to I15, over random scenarios in every protocol.

Users steer, add, judge and answer; guards deny and ask; models fail, ramble and answer early; processes die.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from loopline import timeline as tl
from loopline.events import Delta, Event
from loopline.models import AssistantMessage, Message, ToolCall, ToolMessage, Usage
from loopline.prompt import TRACE_TAIL, View, past_requests, protocol_named
from tests.support.corpus import over_corpus, run_of
from tests.support.fuzzed_scenarios import fuzzed_scenarios, without_cuts
from tests.support.scenario import Scenario, misplaced
from tests.support.scenario import run_scenario as run_scenario

wildly = over_corpus(fuzzed_scenarios, 100)
WITHOUT_CUTS = 40
"""How many of them, the first, are run a second time, with every reply heard to its end."""


def results_of(blocks: Sequence[tl.Block]) -> Counter[str]:
    return Counter(b.body.call_id for b in blocks if isinstance(b.body, tl.ToolResult))


def calls_of(blocks: Sequence[tl.Block]) -> Counter[str]:
    return Counter(b.body.call_id for b in blocks if isinstance(b.body, tl.ToolCalled))


@wildly
def test_i1_every_call_has_one_result_before_the_next_decision(scenario: Scenario) -> None:
    run = run_of(scenario)
    for sent in run.sent:
        before = run.blocks[: sent.start.seq]
        assert results_of(before) == calls_of(before)
    timeline = tl.Timeline(run.blocks)
    waiting = [call_id for turn in timeline.resumable for call_id in turn.open_calls]
    assert results_of(run.blocks) == calls_of(run.blocks) - Counter(waiting)


@wildly
def test_i2_no_request_has_a_result_without_its_call_or_a_call_without_its_result(
    scenario: Scenario,
) -> None:
    run = run_of(scenario)
    for prompt in [*(sent.prompt for sent in run.sent), *run.summaries]:
        called = [call.call_id for message in prompt.messages for call in calls_in(message)]
        given_back = [
            message.call_id for message in prompt.messages if isinstance(message, ToolMessage)
        ]
        assert sorted(called) == sorted(given_back)
        assert len(called) == len(set(called))


def calls_in(message: Message) -> Sequence[ToolCall]:
    return message.calls if isinstance(message, AssistantMessage) else ()


@wildly
def test_i3_every_request_has_the_instructions_and_what_the_user_asked(scenario: Scenario) -> None:
    run = run_of(scenario)
    for sent in run.sent:
        text = "\n".join(map(str, sent.prompt.messages))
        if sent.prompt.tail != TRACE_TAIL:
            assert "Live." in sent.prompt.system
        for block in run.blocks[: sent.start.seq]:
            if isinstance(block.body, tl.UserPrompt) and block.turn == sent.start.turn:
                assert block.body.text[:100] in text


@wildly
def test_i4_no_turn_makes_more_decisions_than_it_may_and_one_answer(scenario: Scenario) -> None:
    most = scenario.limits.get("max_iterations") or 0
    blocks = run_of(scenario).blocks
    for turn in tl.Timeline(blocks).turns.values():
        own = [block.body for block in blocks if block.turn == turn.number]
        counts = Counter(body.purpose for body in own if isinstance(body, tl.Decision))
        assert counts["decision"] <= most
        assert counts["answer"] <= 1
        assert sum(isinstance(body, tl.Completion) for body in own) <= 1


@wildly
def test_i5_results_stand_directly_behind_their_calls_and_in_their_order(
    scenario: Scenario,
) -> None:
    run = run_of(scenario)
    for sent in run.sent:
        if sent.prompt.tail == TRACE_TAIL:
            continue
        refs = [item for message in sent.prompt.messages for item in [result_in(message)] if item]
        numbers = [int(ref.split(".")[1].removeprefix("c")) for ref in refs]
        assert numbers == sorted(set(numbers))
        expected: list[str] = []
        for message in sent.prompt.messages:
            if expected:
                assert result_in(message).endswith(f".{expected.pop(0)}.result")
            elif isinstance(message, AssistantMessage):
                expected = [call.call_id for call in message.calls]
        assert not expected


def result_in(message: Message) -> str:
    """The ref of the result that the message is; empty when it is none."""
    match message:
        case AssistantMessage():
            return ""
        case _:
            text = message.text.removeprefix("Observation: ")
            return text[1:].partition("]")[0] if text.startswith("[tc:") else ""


@wildly
def test_i6_what_the_user_says_is_taken_by_one_round_or_pending_or_recalled(
    scenario: Scenario,
) -> None:
    blocks = run_of(scenario).blocks
    timeline = tl.Timeline(blocks)
    inputs = tl.UserPrompt | tl.UserFollowup | tl.UserSteer
    seqs = [block.seq for block in blocks if isinstance(block.body, inputs)]
    taken = [seq for b in blocks if isinstance(b.body, tl.RoundStart) for seq in b.body.takes]
    assert Counter([*taken, *timeline.pending, *timeline.recalled]) == Counter(seqs)


@over_corpus(fuzzed_scenarios, 100, first=WITHOUT_CUTS)
def test_i7_the_usage_of_the_turns_is_that_of_all_replies(scenario: Scenario) -> None:
    run = run_scenario(without_cuts(scenario))
    used, replied = Usage(), Usage()
    for turn in tl.Timeline(run.blocks).turns.values():
        used += turn.usage
    for usage in run.replies:
        replied += usage
    assert used == replied


@wildly
def test_i8_after_a_crash_the_log_goes_on_and_nothing_that_had_begun_begins_again(
    scenario: Scenario,
) -> None:
    run = run_of(scenario)
    for death in run.deaths:
        assert run.blocks[: len(death)] == death
    started = Counter(b.body.call_id for b in run.blocks if isinstance(b.body, tl.ToolStarted))
    assert set(started.values()) <= {1}
    assert set(results_of(run.blocks).values()) <= {1}


@wildly
def test_i9_what_is_heard_rises_and_ends_with_the_exit(scenario: Scenario) -> None:
    run = run_of(scenario)
    for heard in run.heard:
        seqs = [event.seq for event in heard if isinstance(event, tl.Block)]
        assert seqs == sorted(set(seqs))
        exits = [place for place, event in enumerate(heard) if is_exit(event)]
        assert exits in ([], [len(heard) - 1])
    turns = [turn for turn in tl.Timeline(run.blocks).turns.values() if turn.exit]
    for turn in turns:
        assert not turn.open_calls
        assert turn.open_round is None or turn.exit


def is_exit(event: Event) -> bool:
    return isinstance(event, tl.Block) and isinstance(event.body, tl.Exit)


@wildly
def test_i10_whatever_models_and_tools_do_a_turn_ends_with_a_reason(scenario: Scenario) -> None:
    run = run_of(scenario)
    timeline = tl.Timeline(run.blocks)
    for turn in timeline.turns.values():
        match turn.exit:
            case tl.Exit(reason="stopped" | "interrupted"):
                pass
            case tl.Exit() as end:
                assert end.by_bundle is False
                assert turn.completion is not None
                assert turn.completion.text
            case None:
                assert turn.number == max(timeline.turns)
                assert turn.pending


@wildly
def test_i11_calls_that_conflict_never_overlap_and_keep_their_order(scenario: Scenario) -> None:
    run = run_of(scenario)
    for ran in batches(run.blocks):
        for item, other in combinations(ran, 2):
            if item.conflicts(other):
                assert item.ended < (other.began or other.ended)
    assert run.trace.busiest <= scenario.limits.get("parallel_tools", 10)


@dataclass(frozen=True)
class Ran:
    """A call that has run: what it claims, and the places of its start, if it has one, and its end."""

    effect: tl.Effect
    key: str
    began: int
    ended: int

    def conflicts(self, other: Ran) -> bool:
        effects = {self.effect, other.effect}
        alike = effects in ({"write"}, {"meta"}) and self.key == other.key
        return "exclusive" in effects or alike


def batches(blocks: Sequence[tl.Block]) -> list[list[Ran]]:
    """The calls of each round that have run, in their order."""
    starts: dict[str, tuple[int, tl.Effect]] = {
        b.body.call_id: (b.seq, b.body.effect) for b in blocks if isinstance(b.body, tl.ToolStarted)
    }
    ends = {
        b.body.call_id: b.seq
        for b in reversed(blocks)
        if (
            isinstance(b.body, tl.ToolResult)
            and (b.body.status == "ok" or b.body.call_id in starts)
        )
        or (isinstance(b.body, tl.ToolPending) and b.body.kind == "question")
    }
    rounds = defaultdict[tuple[int, int], list[Ran]](list)
    for block in blocks:
        match block.body:
            case tl.ToolCalled(call_id=call_id, tool=tool, arguments=arguments) if call_id in ends:
                began, effect = starts.get(call_id, (0, "read"))
                key = str(arguments.get("name")) if effect == "write" else tool
                rounds[block.turn, block.round].append(Ran(effect, key, began, ends[call_id]))
            case _:
                pass
    return list(rounds.values())


@wildly
def test_i12_a_view_is_pure_and_only_grows_within_an_epoch(scenario: Scenario) -> None:
    run = run_of(scenario)
    for sent in run.sent:
        if sent.prompt.tail != TRACE_TAIL:
            spoken = protocol_named(sent.begun.protocol)
            view = View(spoken, run.blocks[: sent.start.seq])
            assert tuple(view.messages) == sent.prompt.messages
    shown = [sent for sent in run.sent if sent.prompt.tail != TRACE_TAIL]
    for item, other in pairwise(shown):
        if item.begun.epoch == other.begun.epoch:
            assert other.prompt.messages[: len(item.prompt.messages)] == item.prompt.messages
    again = {
        request.block.seq: request.messages for request in past_requests(tl.Timeline(run.blocks))
    }
    assert all(again[sent.start.seq] == sent.prompt.messages for sent in run.sent)


@wildly
def test_i13_an_answer_that_is_held_is_never_left_in_the_answer_channel(scenario: Scenario) -> None:
    for heard in run_of(scenario).heard:
        shown = ""
        for event in heard:
            match event:
                case Delta(type="delta", channel="answer", text=text):
                    shown += text
                case Delta(type="reset", channel="answer"):
                    shown = ""
                case tl.Block(body=tl.Draft() | tl.ToolCalled()):
                    assert shown == ""
                case tl.Block(body=tl.Completion(text=text)) if "[[S:" not in text:
                    assert shown == "" or shown.strip().endswith(text)  # marks of a plan lead it
                case _:
                    pass


@wildly
def test_i14_the_request_that_writes_the_answer_has_the_beginning_of_every_result(
    scenario: Scenario,
) -> None:
    run = run_of(scenario)
    for sent in run.sent:
        if sent.prompt.tail != TRACE_TAIL:
            continue
        text = "\n".join(message.text for message in sent.prompt.messages)
        for block in run.blocks[: sent.start.seq]:
            if isinstance(block.body, tl.ToolResult) and block.turn == sent.start.turn:
                assert f"[RESULT {block.ref}]" in text
                assert block.body.text[:100] in text


@wildly
def test_i15_a_tool_that_is_not_offered_is_never_run(scenario: Scenario) -> None:
    run = run_of(scenario)
    assert run.trace.secrets == []
    statuses = {
        block.body.status
        for block in run.blocks
        if isinstance(block.body, tl.ToolResult)
        and block.body.tool in ("life.secret", "life.unknown")
    }
    assert statuses <= {"error", "interrupted", "stopped"}


@wildly
def test_thinking_goes_back_only_behind_what_it_came_behind_whoever_is_asked(
    scenario: Scenario,
) -> None:
    for sent in run_of(scenario).sent:
        assert misplaced(sent.prompt) == []
