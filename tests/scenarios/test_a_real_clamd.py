"""A real `clamd` with signatures of the tests' own, over a unix socket and over TCP: what it finds, and what it did not search, is refused."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path

import pytest

from loopline import Attachment, Bundle, Harness
from loopline.errors import AttachmentError
from loopline.files.clamd import ClamdScanner
from loopline.testing import Say, ScriptedModel
from tests.scenarios.test_virus_scanner import EICAR
from tests.support.attachment_corpus import archive, docx, pdf_with

pytestmark = pytest.mark.service
MARKER = b"a file that is known by its digest"
LIMIT_BYTES = 2 * 1024 * 1024
SECONDS = 30.0
"""How long a scan may take here: what is too slow is told apart by its own test."""


@dataclass(frozen=True)
class Daemon:
    """A daemon, and its two addresses."""

    process: subprocess.Popen[bytes]
    unix: str
    tcp: str

    @property
    def addresses(self) -> Sequence[str]:
        """Where it listens."""
        return self.unix, self.tcp


def configuration(folder: Path, port: int) -> str:
    """Return the lines of its `clamd.conf`; freshclam is not needed, for all signatures are here."""
    lines = {
        "Foreground": "yes",
        "DatabaseDirectory": f"{folder}/signatures",
        "LocalSocket": f"{folder}/socket",
        "TCPAddr": "127.0.0.1",
        "TCPSocket": f"{port}",
        "StreamMaxLength": f"{LIMIT_BYTES}",
        "AlertExceedsMax": "yes",
        "AlertEncrypted": "yes",
        "MaxRecursion": "6",
        "LogFile": f"{folder}/log",
    }
    return "".join(f"{name} {value}\n" for name, value in lines.items())


@pytest.fixture(scope="module")
def daemon() -> Generator[Daemon]:
    """Start one, in a folder with a short name, for a socket's may not be long."""
    folder = Path(tempfile.mkdtemp(prefix="lc"))
    (folder / "signatures").mkdir()
    (folder / "signatures" / "own.ndb").write_text(f"Test.Eicar:0:*:{EICAR.hex()}\n")
    digest = md5(MARKER, usedforsecurity=False).hexdigest()
    (folder / "signatures" / "own.hdb").write_text(f"{digest}:{len(MARKER)}:Test.Marker\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "clamd.conf").write_text(configuration(folder, port))
    command = ["clamd", "--config-file", f"{folder}/clamd.conf"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (folder / "socket").exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield Daemon(process, f"unix:{folder}/socket", f"127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


async def problem(address: str, data: bytes, seconds: float = SECONDS) -> str:
    """Why a file is refused; empty if it is clean."""
    try:
        await ClamdScanner(address, seconds).scan("a file", data)
    except AttachmentError as error:
        return str(error)
    return ""


def nested(data: bytes, depth: int) -> bytes:
    """Return archives in archives, with these bytes in the innermost."""
    for _ in range(depth):
        data = archive({"inner": data})
    return data


FOUND = {
    "as it is": EICAR,
    "in text": b"before " + EICAR + b" behind",
    "in an archive": archive({"a.txt": EICAR}),
    "in four archives": nested(EICAR, 4),
    "in a Word document": docx(word__media__a_txt=EICAR),
    "in an archive in a Word document": docx(word__media__a_zip=archive({"a": EICAR})),
    "in a stream of a PDF": pdf_with(
        b"/X 4 0 R", b"<< /Length 68 >>\nstream\n" + EICAR + b"\nendstream"
    ),
    "a file by its digest": MARKER,
    "more archives than are searched": nested(b"tea", 12),
}
CLEAN = {
    "a text": b"Green tea.",
    "a large text": b"tea " * 400_000,
    "a Word document": docx("Green tea."),
    "an archive": archive({"a.txt": "tea"}),
    "half of what is known": EICAR[:34],
}


@pytest.mark.parametrize("what", [*FOUND, *CLEAN])
async def test_it_finds_what_it_knows_however_it_is_packed(daemon: Daemon, what: str) -> None:
    data, expected = (FOUND | CLEAN)[what], "refuses it" if what in FOUND else ""
    for address in daemon.addresses:
        said = await problem(address, data)
        assert said.endswith(f"the virus scanner {expected}" if expected else ""), said
        assert bool(said) is bool(expected), said


async def test_more_than_it_takes_is_refused(daemon: Daemon) -> None:
    for address in daemon.addresses:
        assert await problem(address, os.urandom(LIMIT_BYTES + 200_000)) != ""


async def test_while_it_stands_still_nothing_is_taken(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        for address in daemon.addresses:
            assert "took too long" in await problem(address, b"tea", 0.2)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    assert await problem(daemon.unix, b"tea") == ""


async def test_a_message_with_a_virus_is_not_stored_and_one_without_is(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_AV_SCAN", "1")
    monkeypatch.setenv("APP_AV_TIMEOUT_S", "30")
    monkeypatch.setenv("LOOPLINE_CLAMD", daemon.unix)
    model = ScriptedModel([Say("Seen.")])
    async with Harness.open(Bundle(id="guide"), store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        for data in (FOUND["in a Word document"], FOUND["in text"]):
            with pytest.raises(AttachmentError, match="the virus scanner refuses it"):
                await talk.say("Look!", attachments=[Attachment("letter.docx", data)])
        assert await talk.blocks() == []
        assert (
            await talk.say("Look!", attachments=[Attachment("a.docx", CLEAN["a Word document"])])
        ).ok


async def test_once_it_has_ended_nothing_is_taken(daemon: Daemon) -> None:
    daemon.process.terminate()
    daemon.process.wait()
    for address in daemon.addresses:
        assert "cannot be reached" in await problem(address, b"tea")
