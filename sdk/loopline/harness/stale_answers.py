"""Stored answers whose cited lines of a knowledge space have changed since."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from typing import TYPE_CHECKING

from loopline.errors import KnowledgeError, LooplineError, RefError
from loopline.harness.read_only_store import OpenedStore, used_commit
from loopline.refs import KnowledgeRef, parse
from loopline.timeline import (
    Block,
    BodyUnion,
    Completion,
    ConversationKey,
    KnowledgeCommit,
    Source,
    Timeline,
    UserPrompt,
)

if TYPE_CHECKING:
    from loopline.harness.past_repositories import PastRepositories


FAR_LINES = 40
"""Lines that moved further than this from the others of the same text count as other lines."""


def has_lines(text: str, lines: str) -> bool:
    """Return whether whole lines stand in a text, one after the other, wherever."""
    return f"\n{lines.strip(chr(10))}\n" in f"\n{text}\n"


def lines_diff(cited: str, text: str, name: str) -> list[str]:
    """Return a unified diff from cited lines to those of a text that stand in their place now; empty if they stand in it."""
    if has_lines(text, cited):
        return []
    before = cited.strip("\n").splitlines()
    after = _lines_in_place(before, text.splitlines())
    return list(unified_diff(before, after, f"{name} as cited", f"{name} now", lineterm=""))


def _lines_in_place(before: Sequence[str], now: Sequence[str]) -> Sequence[str]:
    """Return the lines that took the place of those before; none if no line of them is left."""
    matcher = SequenceMatcher(None, before, now, autojunk=False)
    longest = matcher.find_longest_match()
    if not longest.size:
        return []
    shift = longest.b - longest.a
    near = [
        block
        for block in matcher.get_matching_blocks()
        if block.size and abs(block.b - block.a - shift) <= FAR_LINES
    ]
    first, last = near[0], near[-1]
    start, end = first.b - first.a, last.b + len(before) - last.a
    return now[max(start, 0) : max(end, 0)]


NOW = "HEAD"
_PROMPTS = BodyUnion[UserPrompt](UserPrompt)
_ANSWERS = BodyUnion[Completion](Completion)


@dataclass(frozen=True, slots=True)
class ChangedSource:
    """A cited source whose lines have changed: a unified diff, or why they cannot be compared."""

    ref: str
    diff: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StaleAnswer:
    """An answer that rests on lines that have changed, or can no longer be compared."""

    conversation: ConversationKey
    answer: Block
    question: str
    sources: tuple[ChangedSource, ...]


async def find_stale_answers(
    store: OpenedStore,
    *,
    user: str | None,
    project: str | None,
    tenant: str | None,
    since: str = "",
) -> AsyncIterator[StaleAnswer]:
    """Yield the answers of these users whose cited lines differ from those of the repository's `HEAD`.

    With `since` only those whose lines still stood at that commit; in a space of several repositories, of the one that
    has it.
    """
    log, repositories = store.log, store.past_repositories
    for summary in await log.conversations(user=user, project=project, tenant=tenant):
        key = summary.conversation
        if await log.read(key, types=["source.added"], limit=1):
            timeline = Timeline(await log.read(key))
            questions = {block.turn: prompt.text for block, prompt in _PROMPTS.among(timeline)}
            for answer, completion in _ANSWERS.among(timeline):
                changed = [
                    change
                    for sid in completion.sources_used
                    if (source := timeline.pool.sources.get(sid)) is not None
                    and (change := await _changed(source, timeline, since, repositories))
                    is not None
                ]
                if changed:
                    question = questions.get(answer.turn, "")
                    yield StaleAnswer(key, answer, question, tuple(changed))


async def _changed(
    source: Source, timeline: Timeline, since: str, repositories: PastRepositories
) -> ChangedSource | None:
    """Return how the lines of a source have changed, None if they have not, or are in no repository."""
    try:
        ref = parse(source.url)
    except RefError:
        return None
    if not isinstance(ref, KnowledgeRef) or ref.commit is None:
        return None
    used = await used_commit(source.url, timeline, None)
    if used is None:
        return ChangedSource(source.url, problem="no turn of this conversation used that commit")
    try:
        return await asyncio.to_thread(_compared, source, ref.path, used, since, repositories)
    except LooplineError as error:
        return ChangedSource(source.url, problem=str(error))


def _compared(
    source: Source,
    path: str,
    used: KnowledgeCommit,
    since: str,
    repositories: PastRepositories,
) -> ChangedSource | None:
    if since and (not used.name or repositories.has(used, since)):
        before = _text_at(repositories, used, path, since)
        if not has_lines(before, source.text):
            return None  # it was stale before
    diff = lines_diff(source.text, _text_at(repositories, used, path, NOW), f"ks:{path}")
    return ChangedSource(source.url, diff=tuple(diff)) if diff else None


def _text_at(repositories: PastRepositories, used: KnowledgeCommit, path: str, commit: str) -> str:
    """Return the text of a file at a commit, empty if the commit has no such file.

    Raises:
        KnowledgeError: there is no such repository or commit.
    """
    try:
        return repositories.read(used, f"ks:{path}", commit).text
    except KnowledgeError as error:
        raise KnowledgeError(f"{path} cannot be compared with {commit}: {error}") from error
    except RefError:
        return ""
