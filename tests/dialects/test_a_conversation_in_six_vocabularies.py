"""Each vocabulary tells one conversation as it is written down, to the byte."""

from __future__ import annotations

import pytest

from loopline.events import DialectName
from tests.dialects.decoded_stream import GOLDEN, NAMES, heard, lines
from tests.dialects.sample_conversation import EVENTS


@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_is_told_as_it_is_written_down(name: DialectName) -> None:
    written = (GOLDEN / f"{name}.jsonl").read_text("utf-8").splitlines()
    assert lines(heard(name, EVENTS)) == written


def test_every_vocabulary_is_written_down() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(NAMES)
