"""Laws 6 and 8: input is taken once, stays in sight while it is answered to, and refs stay readable."""

from __future__ import annotations

import re
from collections import Counter

from loopline import timeline as tl
from loopline.models import UserMessage, dumps
from tests.support.corpus import over_corpus, run_of
from tests.support.scenario import Scenario, ScenarioRun, Sent
from tests.support.scenario_strategies import drawn_scenarios


@over_corpus(drawn_scenarios)
def test_every_user_input_is_pending_or_recalled_or_taken_by_one_round(scenario: Scenario) -> None:
    blocks = run_of(scenario).blocks
    timeline = tl.Timeline(blocks)
    seqs = [b.seq for b in blocks if isinstance(b.body, tl.UserPrompt | tl.UserFollowup)]
    taken = [seq for b in blocks if isinstance(b.body, tl.RoundStart) for seq in b.body.takes]
    assert Counter([*taken, *timeline.pending, *timeline.recalled]) == Counter(seqs)


@over_corpus(drawn_scenarios)
def test_what_the_running_turn_was_told_is_in_its_prompts(scenario: Scenario) -> None:
    """Word for word, or so far as there is room, with the ref that gives all of it."""
    run = run_of(scenario)
    inputs = {b.seq: b for b in run.blocks if isinstance(b.body, tl.UserPrompt | tl.UserFollowup)}
    for sent in run.sent:
        taken = [
            seq
            for block in run.blocks
            if isinstance(block.body, tl.RoundStart)
            and block.turn == sent.start.turn
            and block.seq <= sent.start.seq
            for seq in block.body.takes
        ]
        for seq in taken:
            assert shows(sent, inputs[seq]), inputs[seq].ref


def shows(sent: Sent, block: tl.Block) -> bool:
    assert isinstance(block.body, tl.UserPrompt | tl.UserFollowup)
    texts = [message.text for message in sent.prompt.messages if isinstance(message, UserMessage)]
    found = [text.partition(f"[{block.ref}]\n") for text in texts if f"[{block.ref}]\n" in text]
    if not found:
        return False
    before, _, shown = found[0]
    if before not in ("", "[USER INTERRUPT]\n"):  # one of several that came in one message
        return before.startswith("[USER INTERRUPT]\n") and block.body.text in shown
    kept, _, rest = shown.partition("\n[TRUNCATED]")
    return shown == block.body.text or (
        block.body.text.startswith(kept) and f"{block.ref}#C{len(kept) + 1}-" in rest
    )


@over_corpus(drawn_scenarios)
def test_every_pinned_ref_that_was_shown_reads_as_it_did_then(scenario: Scenario) -> None:
    run = run_of(scenario)
    text = "".join(
        dumps(block.body.arguments) for block in run.blocks if isinstance(block.body, tl.ToolCalled)
    )
    examples = "".join(sent.prompt.system for sent in run.sent[:1])
    absent = {ref for ref, (status, _) in run.first.items() if status != "ok"}
    assert {ref for ref in absent if ref not in text + examples} == set()
    assert {ref: run.last[ref] for ref in run.first if ref not in absent} == {
        ref: read for ref, read in run.first.items() if ref not in absent
    }


@over_corpus(drawn_scenarios)
def test_plans_memory_notes_and_cited_sources_stay_in_the_prompt(scenario: Scenario) -> None:
    run = run_of(scenario)
    for sent in run.sent[-1:]:
        assert missing(run, sent) == []


def missing(run: ScenarioRun, sent: Sent) -> list[str]:
    """What the request should hold of plans, notes and sources, and neither holds nor counts.

    Where the room is small a summary says how many older notes and sources it leaves out, and the ref of all.
    """
    before = tl.Timeline(run.blocks[: sent.start.seq])
    prompt = sent.prompt
    text = "\n".join([*(repr(message) for message in prompt.messages), prompt.tail])
    plans = [plan.plan_id for plan in before.plans.open_plans[-4:]]
    notes = [note.text for note in tl.memory_notes.fold(before.blocks)]
    cited = {
        sid
        for block in before.blocks
        if isinstance(block.body, tl.Completion)
        for sid in block.body.sources_used
    }
    sources = [f"so:{sid}" for sid in cited if not names(text, sid)]
    return [
        *(plan for plan in plans if plan not in text),
        *beyond([note for note in notes if note not in text], counted("memory notes", text)),
        *beyond(sources, counted("sources", text)),
    ]


def counted(things: str, text: str) -> int:
    """How many older ones the summary says that it leaves out, with the ref of all."""
    match = re.search(rf"(\d+) older {things}: artifact:conv:\w+", text)
    return int(match[1]) if match else 0


def beyond(absent: list[str], count: int) -> list[str]:
    return absent if len(absent) > count else []


def names(text: str, sid: int) -> bool:
    if f"[[S:{sid}]]" in text:
        return True
    for part in text.split("so:sources_pool[")[1:]:
        for item in part.partition("]")[0].split(","):
            first, _, last = item.partition("-")
            if first.isdigit() and int(first) <= sid <= int(last or first):
                return True
    return False
