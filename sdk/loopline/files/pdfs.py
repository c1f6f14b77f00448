"""PDFs: how many pages they have, and their text."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import cast

from loopline.errors import AttachmentError

SIGNATURE = b"%PDF-"
CPU_SECONDS = 20
MEMORY_BYTES = 768 * 1024 * 1024
WAIT_SECONDS = 60.0
"""So long a PDF is waited for, on a machine that is busy with other things too."""


@dataclass(frozen=True, slots=True)
class Pdf:
    """The pages of a PDF, and its text as far as it was read."""

    pages: int
    text: str


def pdf_of(
    name: str,
    data: bytes,
    most_pages: int,
    *,
    cpu_seconds: int = CPU_SECONDS,
    memory_bytes: int = MEMORY_BYTES,
) -> Pdf:
    """Return the PDF that the bytes are; blocks while a process of its own reads it.

    A file of 50 KB can ask for minutes or for a gigabyte: that process has limits for both.

    Raises:
        AttachmentError: it is damaged, has a password or too many pages, or reading it takes too much.
    """
    # A folder of the user must not stand in for a package: no current folder in the path.
    command = [sys.executable, "-P", "-m", "loopline.files.pdf_reading"]
    command += map(str, (most_pages, cpu_seconds, memory_bytes))
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=WAIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise _too_much(name) from error
    if done.returncode != 0:
        raise _too_much(name)
    found = cast("dict[str, int | str]", json.loads(done.stdout))
    if "problem" in found:
        raise AttachmentError(f"{name} {found['problem']}")
    return Pdf(int(found["pages"]), str(found["text"]))


def _too_much(name: str) -> AttachmentError:
    return AttachmentError(
        f"{name} takes too much time or memory to be read as a PDF: attach its text, or print it anew"
    )
