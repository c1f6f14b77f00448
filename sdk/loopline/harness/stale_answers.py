"""Finds stored answers that cite changed lines of a knowledge space."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from typing import TYPE_CHECKING

from loopline import timeline as tl
from loopline.errors import KnowledgeError, LooplineError, RefError
from loopline.harness.read_only_store import OpenedStore, find_commit
from loopline.refs import KnowledgeRef, parse

if TYPE_CHECKING:
    from loopline.harness.past_repositories import PastRepositories


FAR_LINES = 40
"""Equal lines that moved more lines than this relative to the longest match are not compared."""


def has_lines(text: str, lines: str) -> bool:
    """Return whether `text` contains `lines` as consecutive whole lines."""
    return f"\n{lines.strip(chr(10))}\n" in f"\n{text}\n"


def lines_diff(cited: str, text: str, name: str) -> list[str]:
    """Return a diff from cited lines to the lines that replaced them in `text`; empty if `text` contains them."""
    if has_lines(text, cited):
        return []
    before = cited.strip("\n").splitlines()
    after = _lines_in_place(before, text.splitlines())
    return list(unified_diff(before, after, f"{name} as cited", f"{name} now", lineterm=""))


def _lines_in_place(before: Sequence[str], now: Sequence[str]) -> Sequence[str]:
    """Return the lines of `now` that replace the lines `before`; empty if no line of `before` remains."""
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
    first = near[0]
    last = near[-1]
    start = first.b - first.a
    end = last.b + len(before) - last.a
    return now[max(start, 0) : max(end, 0)]


NOW = "HEAD"
_PROMPTS = tl.BodyUnion[tl.UserPrompt](tl.UserPrompt)
_ANSWERS = tl.BodyUnion[tl.Completion](tl.Completion)


@dataclass(frozen=True, slots=True)
class ChangedSource:
    """A cited source with changed lines: a unified diff, or the problem that prevents the comparison."""

    ref: str
    diff: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StaleAnswer:
    """An answer that cites lines that have changed or cannot be compared."""

    conversation: tl.ConversationKey
    answer: tl.Block
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
    """Yield the answers with cited lines that differ from the repository's `HEAD`.

    With `since`, only lines that were unchanged at that commit count; with several repositories the commit applies to
    the repository that has it.
    """
    log, repositories = store.log, store.past_repositories
    for summary in await log.conversations(user=user, project=project, tenant=tenant):
        key = summary.conversation
        if await log.read(key, types=["source.added"], limit=1):
            timeline = tl.Timeline(await log.read(key))
            questions = {block.turn: prompt.text for block, prompt in _PROMPTS.among(timeline)}
            for answer, completion in _ANSWERS.among(timeline):
                changed = [
                    change
                    for sid in completion.sources_used
                    if (source := timeline.pool.sources.get(sid)) is not None
                    and (change := await _check_source(source, timeline, since, repositories))
                    is not None
                ]
                if changed:
                    question = questions.get(answer.turn, "")
                    yield StaleAnswer(key, answer, question, tuple(changed))


async def _check_source(
    source: tl.Source, timeline: tl.Timeline, since: str, repositories: PastRepositories
) -> ChangedSource | None:
    """Compare the lines of a source with `HEAD`; None if they are unchanged or not from a repository.

    If they cannot be compared, the result has a `problem`.
    """
    try:
        ref = parse(source.url)
    except RefError:
        return None
    if not isinstance(ref, KnowledgeRef) or ref.commit is None:
        return None
    used = await find_commit(source.url, timeline, None)
    if used is None:
        return ChangedSource(source.url, problem="no turn of this conversation used that commit")
    try:
        return await asyncio.to_thread(_compare, source, ref.path, used, since, repositories)
    except LooplineError as error:
        return ChangedSource(source.url, problem=str(error))


def _compare(
    source: tl.Source,
    path: str,
    used: tl.KnowledgeCommit,
    since: str,
    repositories: PastRepositories,
) -> ChangedSource | None:
    """Compare the cited text with the newest text of the file; None if it is equal, or had changed before `since`.

    `since` is ignored for a named repository without that commit.
    """
    if since and (not used.name or repositories.has(used, since)):
        before = _text_at(repositories, used, path, since)
        if not has_lines(before, source.text):
            return None  # the lines had already changed at `since`
    diff = lines_diff(source.text, _text_at(repositories, used, path, NOW), f"ks:{path}")
    return ChangedSource(source.url, diff=tuple(diff)) if diff else None


def _text_at(
    repositories: PastRepositories, used: tl.KnowledgeCommit, path: str, commit: str
) -> str:
    """Return the text of a file at a commit, empty if the commit does not have the file.

    Raises:
        KnowledgeError: the repository or the commit does not exist.
    """
    try:
        return repositories.read(used, f"ks:{path}", commit).text
    except KnowledgeError as error:
        raise KnowledgeError(f"{path} cannot be compared with {commit}: {error}") from error
    except RefError:
        return ""
