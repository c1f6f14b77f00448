"""Files of turns: the tree is the fold of the log, and every version reads the same bytes for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from loopline import timeline as tl
from loopline.errors import ToolError
from loopline.files import FileChange, WorkspaceLimits, file_bodies
from loopline.reader import ConversationView, Reader, read_document, timeline_document
from tests.support.examples import examples

HERE, FORK = tl.ConversationKey(name="c"), tl.ConversationKey(name="fork")
NOW = datetime(2026, 3, 21, tzinfo=UTC)
NAMES = ("files/a", "files/b/c", "outputs/a", "files/B", "files/a/d")
LIMITS = WorkspaceLimits(file_bytes=30, tree_bytes=50, files=3)

changes = st.builds(
    FileChange,
    path=st.sampled_from(NAMES).map(tl.parse_path),
    data=st.none() | st.binary(max_size=32) | st.text(max_size=8).map(str.encode),
)
turns = st.tuples(
    st.sampled_from(["latest", "empty"]), st.lists(st.lists(changes, max_size=3), max_size=4)
)
lives = st.lists(turns, min_size=1, max_size=5)
Life = Sequence[tuple[str, Sequence[Sequence[FileChange]]]]


@dataclass(slots=True)
class Written:
    """A conversation as it is written, and what its files ought to be, kept beside it."""

    blocks: list[tl.Block] = field(default_factory=list[tl.Block])
    timeline: tl.Timeline = field(default_factory=tl.Timeline)
    counts: Counter[tuple[int, str]] = field(default_factory=Counter[tuple[int, str]])
    trees: dict[int, dict[tl.WorkspacePath, bytes]] = field(
        default_factory=dict[int, dict[tl.WorkspacePath, bytes]]
    )
    ends: list[int] = field(default_factory=list[int])

    def add(self, turn: int, body: tl.Body) -> None:
        self.counts[turn, body.type] += 1
        block = tl.Block(
            seq=len(self.blocks) + 1,
            turn=turn,
            round=0,
            n=self.counts[turn, body.type],
            ts=NOW,
            term=1,
            body=body,
        )
        self.blocks.append(block)
        self.timeline.extend([block])

    def change(self, turn: int, changes: Sequence[FileChange]) -> None:
        """Make the changes of one call, unless they are refused as a whole."""
        try:
            bodies = file_bodies(self.timeline, turn, changes, limits=LIMITS)
        except ToolError:
            return
        for body in bodies:
            self.add(turn, body)
        for change in changes:
            if change.data is None:
                self.trees[turn].pop(change.path, None)
            else:
                self.trees[turn][change.path] = change.data


def written(life: Life) -> Written:
    result = Written()
    for number, (start, calls) in enumerate(life, 1):
        result.add(number, tl.UserPrompt(text="go"))
        header = tl.TurnHeader(
            bundle="b", model="m", protocol="native", limits={"workspace": start}
        )
        result.add(number, header)
        before = result.trees.get(number - 1, {}) if start == "latest" else {}
        result.trees[number] = {path: data for path, data in before.items() if path.area == "files"}
        for call in calls:
            result.change(number, call)
        result.add(number, tl.Exit(reason="complete"))
        result.ends.append(len(result.blocks))
    return result


def tree_of(timeline: tl.Timeline, number: int) -> dict[tl.WorkspacePath, str]:
    tree = timeline.files_at(number)
    files = {tl.WorkspacePath("files", path): block.ref for path, block in tree.files.items()}
    outputs = tree.outputs_of(number)
    return files | {tl.WorkspacePath("outputs", path): block.ref for path, block in outputs.items()}


async def bytes_of(view: ConversationView, refs: Sequence[str]) -> list[bytes | None]:
    reading = await Reader(conversation=view).read(refs)
    return [item.data if item.readable else None for item in reading]


@given(lives)
@examples(60)
def test_the_tree_of_a_turn_is_what_was_written_last(life: Life) -> None:
    conversation = written(life)
    view = ConversationView(tl.Timeline(conversation.blocks))
    for number, expected in conversation.trees.items():
        tree = tree_of(view.timeline, number)
        assert tree.keys() == expected.keys()
        moving = [f"fi:turn_{number}.{path}" for path in tree]
        for refs in (list(tree.values()), moving):
            assert asyncio.run(bytes_of(view, refs)) == [expected[path] for path in tree]


@given(lives)
@examples(60)
def test_what_the_prompt_says_of_the_files_is_what_there_is(life: Life) -> None:
    """The tree knows its size and its newest files without looking at all of them."""
    conversation = written(life)
    for number, expected in conversation.trees.items():
        tree = tl.Timeline(conversation.blocks).files_at(number)
        assert tree.size_at(number) == sum(map(len, expected.values()))
        blocks = [*tree.files.values(), *tree.outputs_of(number).values()]
        newest = sorted(blocks, key=lambda block: block.seq)[-2:]
        found = sorted(tree.newest_at(number, 2), key=lambda block: block.seq)[-2:]
        assert found == newest


@given(lives)
@examples(60)
def test_nothing_passes_a_limit(life: Life) -> None:
    conversation = written(life)
    for number, tree in conversation.trees.items():
        assert len(tree) <= LIMITS.files, number
        assert sum(map(len, tree.values())) <= LIMITS.tree_bytes
        assert all(len(data) <= LIMITS.file_bytes for data in tree.values())
        folded = {str(path).lower() for path in tree}
        assert len(folded) == len(tree)
        assert not any(f"{path}/".lower() in name for path in tree for name in map(str, tree))


@given(lives, st.integers(0, 4))
@examples(60)
def test_a_version_reads_the_same_from_a_checkpoint_a_fork_and_a_document(
    life: Life, after: int
) -> None:
    async def run() -> None:
        conversation = written(life)
        whole = tl.Timeline(conversation.blocks)
        refs = [block.ref for block in whole if isinstance(block.body, tl.FileAdded)]
        refs += [f"fi:turn_{n}.{name}" for n in conversation.trees for name in NAMES]
        expected = await bytes_of(ConversationView(whole), refs)
        covers = [0, *conversation.ends][min(after, len(life) - 1)]  # never the last turn
        body = tl.checkpoint(tl.Timeline(conversation.blocks), covers, {})
        if body is not None:
            conversation.add(len(life), body)
        log = tl.MemoryLog()
        await log.restore(HERE, conversation.blocks)
        await log.fork(HERE, FORK, len(conversation.blocks))
        document = timeline_document(tl.Timeline(conversation.blocks), None)
        for key in (HERE, FORK):
            timeline = await tl.open_timeline(log, key)
            view = ConversationView(timeline, history=tl.History(log, key, timeline))
            assert await bytes_of(view, refs) == expected
            assert tree_of(timeline, len(life)) == tree_of(whole, len(life))
        imported = tl.Timeline(read_document(document))
        assert await bytes_of(ConversationView(imported), refs) == expected

    asyncio.run(run())
