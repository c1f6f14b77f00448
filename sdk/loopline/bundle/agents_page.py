"""The page for agents, AGENTS.md: the nearest one of the workspace or the knowledge space, given to the model by its ref."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loopline.errors import LooplineError
from loopline.reader import KnowledgeRead
from loopline.timeline import FileAdded, Recorder, TextKept

NAME = "AGENTS.md"
CHARACTERS = 20_000
ROOTS = ("docs", "src", "deploy", "tests", "")
"""The folders of a knowledge space in which a page may stand, the nearest first."""


@dataclass(frozen=True, slots=True)
class AgentsPage:
    """A page for agents: its pinned ref and its text, cut to what a prompt has room for."""

    ref: str
    text: str

    def __str__(self) -> str:
        shown = self.text[:CHARACTERS]
        cut = "" if shown == self.text else f"\n[CUT] react.read gives all of {self.ref}."
        return (
            f"What {NAME} of these files says to agents, {self.ref}; what stands above counts more than it:\n"
            f"{shown.strip()}{cut}"
        )


async def nearest_page(recorder: Recorder, read: KnowledgeRead | None) -> AgentsPage | None:
    """Return the page of the turn's files, else of the knowledge space, None if neither has one.

    What comes from a knowledge space is recorded with the turn's header, so that its ref can be read when the
    repository is gone.
    """
    block = recorder.timeline.files.files.get(NAME)
    if block is not None and isinstance(block.body, FileAdded):
        return AgentsPage(block.ref, block.body.text)
    if read is None:
        return None
    for ref in _places():
        try:
            passage = await read(ref)
        except LooplineError:
            continue  # there is none in that folder
        page = AgentsPage(passage.ref, passage.text)
        kept = TextKept(ref=page.ref, text=page.text, title=NAME, mime="text/markdown")
        if page.ref not in recorder.timeline.kept_texts and kept not in recorder.foreword:
            recorder.foreword = [*recorder.foreword, kept]
        return page
    return None


def _places() -> Iterator[str]:
    for root in ROOTS:
        yield f"ks:{root}/{NAME}" if root else f"ks:{NAME}"
