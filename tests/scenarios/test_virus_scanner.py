"""A virus scanner is asked about every file; what it does not clear is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from loopline import Attachment, Bundle, Harness
from loopline.errors import AttachmentError
from loopline.testing import Say, ScriptedModel

EICAR = b"X5O!P%@AP[4\\PZX54(P^)7CC)7}$EIC" + b"AR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"


@asynccontextmanager
async def clamd(path: Path, mode: str = "") -> AsyncGenerator[None]:
    """Answer as a `clamd` does whose signatures have the test file of scanners, or misbehave."""

    answers = set[asyncio.Task[None]]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):
            await write_verdict(reader, writer)

    async def write_verdict(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readuntil(b"\0") == b"zINSTREAM\0"
        data = b""
        while size := int.from_bytes(await reader.readexactly(4), "big"):
            data += await reader.readexactly(size)
        if mode == "slow":
            await reader.read()
        found = b"Eicar-Test-Signature FOUND" if EICAR in data else b"OK"
        reply = {"cut": b"", "full": b"INSTREAM size limit exceeded. ERROR\0"}
        writer.write(reply.get(mode, b"stream: " + found + b"\0"))
        await writer.drain()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers.add(asyncio.ensure_future(answer(reader, writer)))

    server = await asyncio.start_unix_server(accept, path)
    async with server:
        yield
    await asyncio.gather(*answers)


@asynccontextmanager
async def scanning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: str = "30"
) -> AsyncGenerator[Harness]:
    monkeypatch.setenv("APP_AV_SCAN", "1")
    monkeypatch.setenv("APP_AV_TIMEOUT_S", seconds)
    monkeypatch.setenv("LOOPLINE_CLAMD", f"unix:{folder}/clamd")
    model = ScriptedModel([Say("Seen.")], strict=False)
    async with Harness.open(Bundle(id="guide"), store="memory:", model=model) as harness:
        yield harness


async def test_a_clean_file_is_taken_and_a_known_virus_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clamd(tmp_path / "clamd"), scanning(tmp_path, monkeypatch) as harness:
        talk = harness.conversation("c1")
        long = Attachment("long.txt", b"tea " * 100_000)
        assert (await talk.say("Look!", attachments=[long])).ok
        head = (await talk.blocks())[-1].seq
        for name in ("virus.txt", "other name.docx"):
            with pytest.raises(AttachmentError, match="the virus scanner refuses it"):
                await talk.say("Look!", attachments=[long, Attachment(name, b"x" + EICAR)])
        assert (await talk.blocks())[-1].seq == head


@pytest.mark.parametrize(
    ("mode", "seconds", "problem"),
    [("cut", "30", "gave up on it"), ("full", "30", "gave up on it"), ("slow", "0.01", "too long")],
)
async def test_a_file_that_was_not_cleared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, seconds: str, problem: str
) -> None:
    async with clamd(tmp_path / "clamd", mode), scanning(tmp_path, monkeypatch, seconds) as harness:
        with pytest.raises(AttachmentError, match=problem):
            await harness.conversation("c1").say("Look!", attachments=[Attachment("a.txt", b"a")])


async def test_without_its_scanner_no_file_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scanning(tmp_path, monkeypatch) as harness:
        with pytest.raises(AttachmentError, match="cannot be reached"):
            await harness.conversation("c1").say("Look!", attachments=[Attachment("a.txt", b"a")])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("APP_AV_SCAN", "yes"),
        ("APP_AV_TIMEOUT_S", "soon"),
        ("APP_AV_TIMEOUT_S", "0"),
        ("LOOPLINE_CLAMD", "clamd"),
        ("MODALITY_MAX_DOC_BYTES", "10MB"),
        ("LOOPLINE_DECODE_IMAGES", "yes"),
    ],
)
def test_a_variable_with_a_wrong_value_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(AttachmentError, match=name):
        Harness.open(Bundle(id="guide"), store="memory:", model=ScriptedModel([]))
