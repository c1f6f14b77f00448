"""Feedback and memory notes: what of them counts is a fold of the log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline.timeline import Block, Body, Feedback, Notes, Reaction, feedback, memory_notes

feedbacks = st.builds(
    Feedback,
    reaction=st.sampled_from(["ok", "not_ok", "neutral", None]),
    text=st.sampled_from(["", "too long", "a\nb"]),
    origin=st.sampled_from(["user", "machine"]),
    confidence=st.none() | st.floats(0, 1),
)
said = st.lists(st.tuples(st.integers(1, 3), feedbacks), max_size=12)


def blocks(*bodies: tuple[int, Body]) -> list[Block]:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    return [
        Block(seq=seq, turn=turn, round=0, n=seq, ts=noon, term=0, body=body)
        for seq, (turn, body) in enumerate(bodies, start=1)
    ]


def by_user(reaction: Reaction | None, text: str = "") -> Feedback:
    return Feedback(reaction=reaction, text=text)


def by_machine(reaction: Reaction | None, confidence: float | None, text: str = "") -> Feedback:
    return Feedback(reaction=reaction, text=text, origin="machine", confidence=confidence)


@given(said)
def test_the_newest_of_a_turn_is_what_the_user_thinks_of_it(
    bodies: list[tuple[int, Feedback]],
) -> None:
    newest = {turn: body.reaction for turn, body in bodies if body.origin == "user"}
    users = feedback.fold(blocks(*bodies)).user_reactions
    assert {turn: item.feedback.reaction for turn, item in users.items()} == {
        turn: reaction for turn, reaction in newest.items() if reaction is not None
    }


@given(said)
def test_the_rate_is_the_share_of_ok_among_what_is_in_force(
    bodies: list[tuple[int, Feedback]],
) -> None:
    reactions = feedback.fold(blocks(*bodies))
    verdicts = [
        user_reaction.feedback.reaction for user_reaction in reactions.user_reactions.values()
    ]
    assert reactions.satisfaction.rate == (
        verdicts.count("ok") / len(verdicts) if verdicts else None
    )


@given(said, st.integers(0, 13))
def test_news_are_told_once(bodies: list[tuple[int, Feedback]], seq: int) -> None:
    log = blocks(*bodies)
    lines = feedback.fold(log).new_lines_since(seq)
    assert all("\n" not in line for line in lines)
    assert len(lines) <= sum(block.seq > seq for block in log)
    assert feedback.fold(log).new_lines_since(len(log)) == []


@given(said, st.integers(0, 13))
def test_machines_change_nothing_of_what_the_user_thinks(
    bodies: list[tuple[int, Feedback]], seq: int
) -> None:
    log = blocks(*bodies)
    alone = [block for block in log if block.body.type != "turn.feedback" or is_by_user(block)]
    assert feedback.fold(log).satisfaction == feedback.fold(alone).satisfaction
    own = [line for line in feedback.fold(log).new_lines_since(seq) if "(user" in line]
    assert own == feedback.fold(alone).new_lines_since(seq)


def is_by_user(block: Block) -> bool:
    return isinstance(block.body, Feedback) and block.body.origin == "user"


def test_every_feedback_of_a_machine_that_is_sure_counts() -> None:
    reactions = feedback.fold(
        blocks(
            (1, by_machine("ok", 0.7)),
            (1, by_machine("not_ok", 0.9)),
            (1, by_machine("ok", 0.69)),
            (1, by_machine(None, None, "hm")),
        )
    )
    assert reactions.new_lines_since(0) == [
        "turn_1 ok (machine, 0.70 sure)",
        "turn_1 not_ok (machine, 0.90 sure)",
        "turn_1 no reaction (machine): hm",
    ]
    assert reactions.satisfaction.rate is None


@pytest.mark.parametrize(
    ("seq", "lines"),
    [
        (0, ["turn_2 not_ok (user): too long"]),
        (1, ["turn_2 not_ok (user): too long", "turn_1 taken back (user)"]),
        (2, ["turn_1 taken back (user)"]),
        (3, []),
    ],
)
def test_what_was_taken_back_unseen_is_not_told(seq: int, lines: Sequence[str]) -> None:
    log = blocks((1, by_user("ok")), (2, by_user("not_ok", "too\n long")), (1, by_user(None)))
    assert feedback.fold(log).new_lines_since(seq) == lines


def test_the_same_said_again_is_no_news() -> None:
    log = blocks((1, by_user("ok", "nice")), (1, by_user("ok", "nice")))
    assert feedback.fold(log).new_lines_since(1) == []


def test_a_long_text_is_cut_and_names_its_block() -> None:
    [line] = feedback.fold(blocks((4, by_user("ok", "x" * 1000)))).new_lines_since(0)
    assert line == f"turn_4 ok (user): {'x' * feedback.TEXT_LIMIT}… (ar:turn_4.turn.feedback.1)"


def text_of(notes: Sequence[memory_notes.MemoryNote]) -> str:
    return "\n".join(note.line() for note in notes)


def test_memory_notes_are_kept_in_order_and_once() -> None:
    log = blocks(
        (1, Notes(text="looking\n[P] answers in German\n- [D] SQLite it is")),
        (2, Notes(text="[K] fi:turn_2.files/a.md\n[p] no\n[X] no\n[ ] no\n so [D] no")),
        (2, by_user("ok", "[D] not of the model")),
        (3, Notes(text="  [D]  sqlite  it is \n[S] one file a port\n[A] the log works\n[A]")),
    )
    notes = memory_notes.fold(log)
    assert text_of(notes) == (
        "[P] answers in German\n[D] SQLite it is\n[K] fi:turn_2.files/a.md\n"
        "[S] one file a port\n[A] the log works"
    )
    assert [(note.kind, note.ref) for note in notes] == [
        ("preference", "ar:turn_1.react.notes.1"),
        ("decision", "ar:turn_1.react.notes.1"),
        ("artifact", "ar:turn_2.react.notes.2"),
        ("structure", "ar:turn_3.react.notes.4"),
        ("achievement", "ar:turn_3.react.notes.4"),
    ]


@given(st.lists(st.text(alphabet="[]PDSAK- x\n", max_size=30), max_size=5))
def test_the_text_of_memory_notes_reads_as_the_same_notes(texts: list[str]) -> None:
    text = text_of(memory_notes.fold(blocks(*((1, Notes(text=text)) for text in texts))))
    assert text_of(memory_notes.fold(blocks((1, Notes(text=text))))) == text


def test_every_letter_has_its_kind() -> None:
    kinds: set[Literal["preference", "decision", "structure", "achievement", "artifact"]]
    kinds = set(memory_notes.LETTERS.values())
    assert len(kinds) == len(memory_notes.LETTERS) == 5
