"""Small PDFs that ask for much."""

from __future__ import annotations

import zlib


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
    data, numbers = b"%PDF-1.4\n", list[int]()
    for number, body in enumerate(objects, 1):
        numbers.append(len(data))
        data += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in numbers)
    return (
        data
        + b"xref\n0 5\n0000000000 65535 f \n%btrailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF"
        % (
            table,
            len(data),
        )
    )


LONG = small_and_large(b"BT /F 1 Tf (a) Tj ET\n", 1_500_000)
