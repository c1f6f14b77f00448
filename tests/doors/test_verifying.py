"""How the support of an answer is put in words."""

from __future__ import annotations

import pytest

from loopline.cli.timeline_reports import verification_summary, verified_answers
from loopline.clock import SystemClock
from loopline.timeline import Block, Body, Completion, Source, SourceAdded, Timeline, verify

SOURCES = {
    1: Source(url="https://one.example", text="The kettle boils 3 cups of water in two minutes."),
    2: Source(url="https://two.example"),
}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("", "it says nothing"),
        ("The kettle boils water. [[S:1]]", "1 supported"),
        ("The kettle boils 4 cups of water. [[S:1]] So.", "1 weak · 1 no source"),
        ("Elephants never forget. [[S:1]] Nor do we. [[S:2]]", "1 unsupported · 1 no text kept"),
        ("It is so. [[S:7]]", "1 no source · cites S:7, which is not there"),
        ("It is. [[S:7]] Or? [[S:8]]", "2 no source · cites S:7,8, which are not there"),
    ],
)
def test_an_answer_is_summed_up_in_a_line(answer: str, message: str) -> None:
    assert verification_summary(verify(answer, SOURCES)) == message


def test_every_answer_of_a_turn_is_compared_with_what_the_pool_holds_now() -> None:
    bodies: list[tuple[int, Body]] = [
        (1, Completion(text="The kettle boils water. [[S:1]]")),
        (1, SourceAdded(sid=1, source=SOURCES[1])),
        (2, Completion(text="Nothing.")),
    ]
    timeline = Timeline(
        Block(seq=seq, turn=turn, round=0, n=1, ts=SystemClock().now(), term=1, body=body)
        for seq, (turn, body) in enumerate(bodies, start=1)
    )
    assert [
        (verified_answer.turn_id, verification_summary(verified_answer.report))
        for verified_answer in verified_answers(timeline, None)
    ] == [
        ("turn_1", "1 supported"),
        ("turn_2", "1 no source"),
    ]
    assert [verified_answer.turn_id for verified_answer in verified_answers(timeline, 2)] == [
        "turn_2"
    ]
