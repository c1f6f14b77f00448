"""A turn that waits for its user, at the command."""

from __future__ import annotations

import pytest

from tests.doors.command import Loopline


def test_a_paused_turn_says_what_it_waits_for_and_how_to_carry_it_on(asker: Loopline) -> None:
    ran = asker("run", "asker", "shopping", "-c", "a")
    assert ran.code == 1
    assert "? c1 shop.buy asks: Which tea?" in ran.err
    assert "? c2 shop.buy asks: Buy milk?" in ran.err
    assert "loopline run asker --answer c1=yes --answer c2=yes -c a" in ran.pasted


def test_another_process_carries_it_on_in_any_order(asker: Loopline) -> None:
    asker("run", "asker", "shopping", "-c", "a")
    half = asker("run", "asker", "-c", "a", "--answer", "c2=yes", "--json")
    assert half.code == 1
    assert half.value["exit_reason"] == "paused"
    assert [call["call_id"] for call in half.value["pending"]] == ["c1"]
    whole = asker("run", "asker", "-c", "a", "--answer", "c1=green")
    assert (whole.code, whole.out.strip()) == (0, "green and bought milk")


def test_what_is_no_answer_is_refused_and_nothing_runs(asker: Loopline) -> None:
    asker("run", "asker", "shopping", "-c", "a")
    unclear = asker("run", "asker", "-c", "a", "--answer", "c2=maybe")
    assert "error: c2 awaits approval: answer yes or no, not 'maybe'" in unclear.err
    unknown = asker("run", "asker", "-c", "a", "--answer", "c9=yes")
    assert "error: no call 'c9' waits for an answer: c1, c2" in unknown.err
    written = asker("run", "asker", "-c", "a", "--answer", "yes")
    assert written.code == 2
    assert "--answer takes CALL=VALUE" in written.err
    starts = [block for block in asker.blocks("a") if block["type"] == "react.tool.start"]
    assert len(starts) == 1  # the one that asked


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("No, wait", "did not approve of this call. The user's reason: No, wait Do not"),
        ("no", "did not approve of this call. Do not"),
        (
            "I want oat milk",
            "did not approve of this call. The user's reason: I want oat milk Do not",
        ),
    ],
)
def test_in_a_chat_the_next_line_is_the_answer_and_any_text_but_yes_denies(
    asker: Loopline, line: str, result: str
) -> None:
    ran = asker("chat", "asker", "-c", "b", stdin=f"shopping\ngreen\nyes please\n{line}\n")
    assert ran.code == 0
    assert "answer yes or no, not 'yes please'" in ran.err
    assert f"green and The user {result}" in ran.out
