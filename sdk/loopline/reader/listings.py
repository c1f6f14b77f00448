"""Listings: every plan, memory note or reaction of a conversation, a line for each, oldest first."""

from __future__ import annotations

from collections.abc import Iterable

from loopline.timeline import Block, Plan, PlanSnapshot, feedback, memory_notes, plan


def plan_list(blocks: Iterable[Block]) -> str:
    """Return a line for each plan that these blocks record, with the ref of its newest snapshot."""
    latest: dict[str, PlanSnapshot] = {}
    for block in blocks:
        match block.body:
            case Plan(snapshot=snapshot):
                latest[snapshot.plan_id] = snapshot
            case _:
                pass
    return "\n".join(map(plan.in_a_line, latest.values())) or "no plans"


def note_list(blocks: Iterable[Block]) -> str:
    """Return a line for each memory note of these blocks, with the ref of the block that said it first."""
    notes = memory_notes.fold(blocks).notes
    return "\n".join(f"{note.ref} {note.line()}" for note in notes) or "no memory notes"


def feedback_list(blocks: Iterable[Block]) -> str:
    """Return a line for each feedback of these blocks that counts, with the ref of its block."""
    reactions = feedback.fold(blocks)
    given = sorted([*reactions.users.values(), *reactions.machines], key=lambda one: one.block.seq)
    return "\n".join(f"{one.block.ref} {one.line()}" for one in given) or "no feedback"
