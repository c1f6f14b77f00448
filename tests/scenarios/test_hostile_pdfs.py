"""A small PDF that asks for much is given little, and the process that reads it is not ours."""

from __future__ import annotations

import resource
from contextlib import suppress

import pytest

from loopline.errors import AttachmentError
from loopline.files.formats import parse_pdf
from tests.support.hostile_pdfs import LONG, small_and_large


def test_a_pdf_that_takes_too_long_is_refused() -> None:
    assert len(LONG) < 150_000
    with pytest.raises(AttachmentError, match="takes too much time or memory"):
        parse_pdf("long.pdf", LONG, 500, cpu_seconds=2)


def test_what_reading_a_pdf_takes_is_not_taken_of_this_process() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AttachmentError, match="takes too much"):
        parse_pdf("long.pdf", LONG, 500, cpu_seconds=2)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_a_pdf_that_asks_for_too_much_memory_is_read_without_or_refused() -> None:
    bomb = small_and_large(b" " * 1_000, 70_000)
    with suppress(AttachmentError):
        assert parse_pdf("bomb.pdf", bomb, 500, memory_bytes=200_000_000).pages == 1


def test_a_small_pdf_is_read() -> None:
    assert (
        parse_pdf("a.pdf", small_and_large(b"BT /F 1 Tf (tea) Tj ET\n", 1), 500).text
        == "[page 1]\ntea"
    )
