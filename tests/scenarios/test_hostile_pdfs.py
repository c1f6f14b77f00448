"""A small PDF that asks for much is given little, and the process that reads it is not ours."""

from __future__ import annotations

import resource
import zlib
from contextlib import suppress

import pytest

from loopline.errors import AttachmentError
from loopline.files.pdfs import pdf_of


def small_and_large(operators: bytes, times: int) -> bytes:
    """A PDF of one page whose text is these operators again and again, compressed."""
    stream = zlib.compress(operators * times, 9)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R /Resources << /Font "
        b"<< /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Filter /FlateDecode /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream),
    ]
    data, places = b"%PDF-1.4\n", list[int]()
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return (
        data
        + b"xref\n0 5\n0000000000 65535 f \n%btrailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF"
        % (
            table,
            len(data),
        )
    )


LONG = small_and_large(b"BT /F 1 Tf (a) Tj ET\n", 1_500_000)


def test_a_pdf_that_takes_too_long_is_refused() -> None:
    assert len(LONG) < 150_000
    with pytest.raises(AttachmentError, match="takes too much time or memory"):
        pdf_of("long.pdf", LONG, 500, cpu_seconds=2)


def test_what_reading_a_pdf_takes_is_not_taken_of_this_process() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AttachmentError, match="takes too much"):
        pdf_of("long.pdf", LONG, 500, cpu_seconds=2)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_a_pdf_that_asks_for_too_much_memory_is_read_without_or_refused() -> None:
    bomb = small_and_large(b" " * 1_000, 70_000)
    with suppress(AttachmentError):
        assert pdf_of("bomb.pdf", bomb, 500, memory_bytes=200_000_000).pages == 1


def test_a_small_pdf_is_read() -> None:
    assert (
        pdf_of("a.pdf", small_and_large(b"BT /F 1 Tf (tea) Tj ET\n", 1), 500).text
        == "[page 1]\ntea"
    )
