"""The pages for agents, AGENTS.md: the nearest one of the workspace or of each repository, given to the model by its ref."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from loopline.errors import LooplineError
from loopline.reader import KnowledgeRead
from loopline.timeline import FileAdded, Recorder, TextKept

NAME = "AGENTS.md"
CHARACTERS = 20_000
"""The characters of all pages that a prompt shows."""
MAX_PAGES = 8
ROOTS = ("docs", "src", "deploy", "tests", "")
"""The folders of a knowledge space in which a page may stand, the nearest first."""


@dataclass(frozen=True, slots=True)
class AgentsPage:
    """A page for agents: its pinned ref and its text, of which a prompt shows the first `room` characters."""

    ref: str
    text: str
    room: int = CHARACTERS

    def __str__(self) -> str:
        shown = self.text[: self.room]
        cut = "" if shown == self.text else f"\n[CUT] react.read gives all of {self.ref}."
        return (
            f"What {NAME} of these files says to agents, {self.ref}; what stands above counts more than it:\n"
            f"{shown.strip()}{cut}"
        )


async def nearest_pages(
    recorder: Recorder, read: KnowledgeRead | None, repositories: Sequence[str]
) -> Sequence[AgentsPage]:
    """Return the page of the turn's files, else that of each repository that has one.

    `repositories` are the names that begin the paths of several repositories. What comes from a knowledge space is
    recorded with the turn's header, so that its ref can be read when the repository is gone.
    """
    block = recorder.timeline.files.files.get(NAME)
    if block is not None and isinstance(block.body, FileAdded):
        return [AgentsPage(block.ref, block.body.text)]
    if read is None:
        return []
    names = [name for name in repositories if name][:MAX_PAGES] or [""]
    pages = [page for name in names if (page := await _nearest(recorder, read, name)) is not None]
    room = CHARACTERS // max(len(pages), 1)
    return [replace(page, room=room) for page in pages]


async def _nearest(recorder: Recorder, read: KnowledgeRead, repository: str) -> AgentsPage | None:
    """Return the page of a repository, None if it has none."""
    for ref in _places(repository):
        try:
            passage = await read(ref)
        except LooplineError:
            continue  # there is none in that folder
        page = AgentsPage(passage.ref, passage.text)
        text_kept = TextKept(ref=page.ref, text=page.text, title=NAME, mime="text/markdown")
        if page.ref not in recorder.timeline.kept_texts and text_kept not in recorder.foreword:
            recorder.foreword = [*recorder.foreword, text_kept]
        return page
    return None


def _places(repository: str) -> Iterator[str]:
    for root in ROOTS:
        yield f"ks:{'/'.join(name for name in (repository, root, NAME) if name)}"
