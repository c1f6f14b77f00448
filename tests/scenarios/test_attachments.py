"""What a user attaches is checked, also by a virus scanner, is shown as the model can take it, and stays."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from loopline import Attachment, BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult
from loopline.errors import AttachmentError
from loopline.files import AttachmentCaps, read_attachments
from loopline.files.clamd import ClamdScanner
from loopline.files.formats import check_image, parse_pdf
from loopline.models import ATTACHMENTS, Attached, AttachmentSupport, Json, Prompt, UserMessage
from loopline.prompt import attached_files
from loopline.reader import DocumentError, read_document
from loopline.testing import Call, Refuse, Say, ScriptedModel
from loopline.timeline import RoundStart, Timeline, UserAttachment, checkpoint
from tests.support.attachment_corpus import (
    ACTIVE,
    ENTITIES,
    POLYGLOTS,
    RICH_TEXTS,
    UNKNOWN,
    Sample,
    archive,
    corpus,
    docx,
    pdf_with,
    pptx,
    xlsx,
)
from tests.support.pictures import broken, shown
from tests.support.rows import each_row
from tests.support.sample_files import gif, jpeg, pdf, png, small_and_large, webp
from tests.support.scripted_conversation import talking
from tests.support.workbench import Desk, at_work, bodies, workbench

PLAN = Attachment("plan.pdf", pdf("The tea is 4711.", "Pie is later."))
PHOTO = Attachment("photo.png", png(640, 480))
FEW_PAGES = replace(ATTACHMENTS["anthropic"], pdf_pages=50)
NOTES = Attachment("notes.md", b"# Notes\nGreen tea, 12 tins.\n")


def attached(prompt: Prompt) -> list[Attached]:
    users = [message for message in prompt.messages if isinstance(message, UserMessage)]
    return [attachment for message in users for attachment in message.attachments]


def given(prompt: Prompt) -> list[str]:
    """The names of those that the model is given."""
    return [item.name for item in attached(prompt) if item.data]


async def test_a_file_is_recorded_with_what_it_came_with_and_both_are_acknowledged_at_once() -> (
    None
):
    async with at_work(["Seen."]) as talk:
        await talk.say("Look.", attachments=[PHOTO, NOTES])
        first = (await talk.blocks())[:4]
    assert [block.type for block in first] == [
        *["user.prompt", "user.attachment", "user.attachment", "turn.header"]
    ]
    assert len({block.ts for block in first[:3]}) == 1
    assert [block.ref for block in first[1:3]] == [
        "fi:turn_1.user.attachments/photo.png",
        "fi:turn_1.user.attachments/notes.md",
    ]


async def test_a_model_that_sees_is_given_the_file_and_any_other_its_text_form() -> None:
    seeing, reading = ScriptedModel(["So."], vision=True, pdf=True), ScriptedModel(["So."])
    for model in (seeing, reading):
        async with at_work(model) as talk:
            await talk.say("Look.", attachments=[PHOTO, PLAN, NOTES])
    assert given(seeing.requests[0]) == ["photo.png", "plan.pdf"]
    assert given(reading.requests[0]) == []
    text = str(reading.requests[0])
    assert "photo.png] image/png, 640×480 pixels" in text
    assert "Not shown: this model is given no images." in text
    assert "[page 1]\nThe tea is 4711.\n\n[page 2]\nPie is later." in text
    for request in (seeing.requests[0], reading.requests[0]):
        assert "Green tea, 12 tins." in str(request)
    assert "4711" not in str(seeing.requests[0])


async def test_a_file_reads_again_as_it_came_elsewhere_and_after_a_summary(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    names = ["photo.png", "plan.pdf", "notes.md", "odd %23 [1]@2.bin"]
    files = [PHOTO, PLAN, NOTES, Attachment(names[3], bytes(range(256)) * 200)]
    model = ScriptedModel(
        ["So.", *["x" * 9_000] * 6],
        aux={"summary": ["Goal: go on."] * 9},
        window=16_000,
        vision=True,
    )
    caps = AttachmentCaps(known_types=False)
    async with Harness.open(workbench(), store=store, model=model, caps=caps) as harness:
        talk = harness.conversation("c")
        await talk.say("Look.", attachments=files)
        for _ in range(6):
            await talk.say("On.")
        refs = [block.ref for block in await talk.blocks(types="user.attachment")]
        document = json.loads(json.dumps(await talk.export()))
        fork = await talk.fork(seq=5)
        loaded = await harness.load(document, name="d")
        assert "conv.range.summary" in [block.type for block in await talk.blocks()]
        for entry in (talk, fork, loaded):
            reading = list(await entry.read(refs))
            assert [item.data for item in reading] == [file.data for file in files]
            assert [item.mime for item in reading] == [
                *["image/png", "application/pdf", "text/markdown", "application/octet-stream"]
            ]
            assert [item.title for item in reading] == names
        (item,) = await loaded.read([f"cv:c/{refs[1]}"])
        assert (item.ref, item.data) == (f"cv:c/{refs[1]}", PLAN.data)
        assert item.source is not None
        assert item.source.url == item.ref
    async with Harness.open(workbench(), store=store, model=ScriptedModel([])) as harness:
        (item,) = await harness.conversation("c").read([f"{refs[2]}#L2-L2"])
    assert item.text == "Green tea, 12 tins.\n"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("data", "AAAA", "'photo.png' does not match its sha256"),
        ("data", "A", "'photo.png' does not match its sha256"),
        ("place", 2, "'photo.png' does not belong to an input"),
    ],
)
async def test_a_document_whose_file_is_damaged_is_refused(
    field: str, value: Json, message: str
) -> None:
    async with at_work(["So."]) as talk:
        await talk.say("Look.", attachments=[PHOTO])
        document: Any = json.loads(json.dumps(await talk.export()))
    document["blocks"][1]["body"][field] = value
    with pytest.raises(DocumentError, match=message):
        read_document(document)


async def test_the_model_reads_a_file_by_its_ref_and_may_cite_it() -> None:
    ref = "fi:turn_1.user.attachments/plan.pdf"
    model = ScriptedModel(["So.", Call("react.read", paths=[ref]), "It is 4711 [[S:1]]."], pdf=True)
    async with at_work(model) as talk:
        await talk.say("Look.", attachments=[PLAN])
        result = await talk.say("What was in it?")
    assert [(source.url, source.source_type) for source in result.sources] == [(ref, "attachment")]
    assert "The tea is 4711." in str(model.requests[-1].messages[-1])


async def test_names_that_are_the_same_get_a_number_also_when_they_come_later() -> None:
    async with at_work(["So."]) as talk:
        await talk.say("Look.", attachments=[NOTES, NOTES])
        await talk.followup("And this.", attachments=NOTES)
        files = await bodies(talk, UserAttachment)
    assert [file.name for file in files] == ["notes.md", "notes-2.md", "notes-3.md"]


async def test_a_followup_brings_its_files_with_it() -> None:
    model = ScriptedModel(["So.", "And so."], vision=True)
    async with at_work(model) as talk:
        await talk.say("Look.")
        await talk.followup("And this.", attachments=[PHOTO])
        await talk.followup("And that.", attachments=[NOTES])
        await talk.say("On.")
    assert given(model.requests[-1]) == ["photo.png"]
    (message,) = [message for message in model.requests[-1].messages if "INTERRUPT" in str(message)]
    assert str(message).count("[ATTACHED ") == 2


async def test_what_was_recalled_takes_its_files_with_it() -> None:
    model = ScriptedModel(["So.", "And so."])
    async with at_work(model) as talk:
        await talk.say("Look.")
        receipt = await talk.followup("And this.", attachments=[NOTES])
        assert await talk.recall(receipt)
        await talk.say("On.")
    assert "Green tea" not in str(model.requests[-1])


async def test_a_workflow_has_the_files_of_its_turn() -> None:
    attachments = list[Attachment]()

    class Looking(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            attachments.extend(payload.attachments)
            return await self.answer("Seen.")

    async with at_work([], Bundle(id="looking", workflow=Looking)) as talk:
        await talk.say("Look.", attachments=[PHOTO, NOTES])
    assert [(item.name, item.data) for item in attachments] == [
        (PHOTO.name, PHOTO.data),
        (NOTES.name, NOTES.data),
    ]


async def test_a_conversation_that_is_busy_is_told_with_the_files() -> None:
    model, desk = ScriptedModel([Call("w.hang"), "And so."]), Desk()
    async with at_work(model, workbench(desk)) as talk:
        turn = asyncio.create_task(talk.say("Look."))
        await desk.hanging.wait()
        result = await talk.say("This.", attachments=[NOTES], when_busy="steer")
        await turn
    assert (result.turn_id, result.answer) == ("turn_1", "And so.")
    assert "Green tea" in str(model.requests[-1])


async def test_the_next_model_of_a_chain_is_given_what_it_can_take() -> None:
    blind = ScriptedModel([Refuse()], name="blind")
    seeing = ScriptedModel(["A photo."], name="seeing", vision=True)
    async with at_work((blind, seeing)) as talk:
        result = await talk.say("Look.", attachments=[PHOTO])
        opened = [start.opened_by for start in await bodies(talk, RoundStart)]
    assert result.answer == "A photo."
    assert (given(blind.requests[0]), given(seeing.requests[0])) == ([], ["photo.png"])
    assert opened == ["start", "model"]


async def test_images_of_old_turns_are_only_named_once_an_epoch_opens() -> None:
    model = ScriptedModel(["So."] * 4, vision=True)
    other_model = ScriptedModel(["So."], vision=True, name="other")
    chosen = [model]
    async with Harness.open(workbench(), store="memory:", model=lambda: chosen[0]) as harness:
        talk = harness.conversation("c")
        for number in range(4):
            await talk.say("Look.", attachments=[Attachment(f"{number}.png", png(40))])
        assert given(model.requests[-1]) == ["0.png", "1.png", "2.png", "3.png"]
        chosen[0] = other_model
        await talk.say("On.", attachments=[Attachment("4.png", png(40))])
    assert given(other_model.requests[0]) == ["3.png", "4.png"]
    assert "Not shown any more: it came some turns ago" in str(other_model.requests[0])


async def test_what_one_request_may_carry_is_given_in_order_and_the_rest_is_told() -> None:
    model = ScriptedModel(["So.", "So."], vision=True, pdf=True, attachments=FEW_PAGES)
    wide = Attachment("wide.png", png(2_400, 2))
    attachments = [Attachment(f"{number}.png", png(20)) for number in range(20)]
    long = Attachment("long.pdf", pdf(*["Tea."] * 20))
    async with at_work(model) as talk:
        await talk.say("Look.", attachments=[wide, *attachments, long, PLAN])
        await talk.say("On.", attachments=[wide, *[long] * 3, PLAN])
    first, then = given(model.requests[0]), given(model.requests[1])
    assert first == ["wide.png", *[f"{number}.png" for number in range(19)], "long.pdf", "plan.pdf"]
    assert then == [*first, "long.pdf", "plan.pdf"]
    text = str(model.requests[1])
    assert text.count("with so many images each has at most 2000 pixels a side") == 2
    assert text.count("the PDFs of a request have at most 50 pages") == 2


async def test_a_file_that_would_fill_the_window_is_shown_by_its_text() -> None:
    model = ScriptedModel(["So."], pdf=True, window=30_000)
    async with at_work(model) as talk:
        await talk.say("Look.", attachments=[Attachment("long.pdf", pdf(*["Tea."] * 40))])
    assert given(model.requests[0]) == []
    assert "it would cost about 120000 tokens, and there is room for 11000" in str(
        model.requests[0]
    )


async def test_files_that_fill_the_window_together_make_room_for_each_other() -> None:
    model = ScriptedModel(["So."], vision=True, window=30_000)
    photos = [Attachment(f"{number}.png", png(1_600, 1_600)) for number in range(6)]
    async with at_work(model) as talk:
        result = await talk.say("Look.", attachments=photos)
        (round_start,) = await bodies(talk, RoundStart)
    assert result.ok
    assert round_start.tokens <= 22_000
    assert given(model.requests[0]) == []


async def test_an_answer_from_the_trace_sees_the_files_too() -> None:
    model = ScriptedModel(["Draft.", "A photo."], vision=True)
    async with at_work(model) as talk:
        await talk.say("Look.", attachments=[PHOTO], answer_mode="synthesize")
    assert [request.purpose for request in model.requests] == ["decision", "answer"]
    assert given(model.requests[1]) == ["photo.png"]


async def test_a_trace_that_has_no_room_for_the_files_names_them() -> None:
    model = ScriptedModel(["Draft.", "A photo."], vision=True, window=20_000)
    photos = [Attachment(f"{number}.png", png(1_600, 1_600)) for number in range(3)]
    async with at_work(model) as talk:
        result = await talk.say("Look.", attachments=photos, answer_mode="synthesize")
    assert result.answer == "A photo."
    assert (given(model.requests[1]), "0.png" in str(model.requests[1])) == ([], True)


async def test_what_cannot_be_attached_is_refused_before_anything_is_recorded(
    tmp_path: Path,
) -> None:
    locked = pdf("x").replace(b"/Root 1 0 R", b"/Root 1 0 R /Encrypt 9 0 R")
    (tmp_path / "empty.txt").write_bytes(b"")
    wrong: list[tuple[str | Path | Attachment, str]] = [
        (tmp_path / "none.pdf", "no such file"),
        (tmp_path, "it is a folder"),
        (tmp_path / "empty.txt", "empty.txt is empty"),
        (Attachment("", b"x"), "'' is not a file name"),
        (Attachment("..", b"x"), "'..' is not a file name"),
        (Attachment("big.png", png(10) + bytes(60_000)), "an image may have 50,000"),
        (Attachment("wide.png", png(101)), "101×48 pixels: an image may have 100 a side"),
        (Attachment("half.png", png(10)[:12]), "half.png cannot be read as image/png"),
        (Attachment("big.pdf", pdf("x") + bytes(60_000)), "a PDF may have 50,000"),
        (Attachment("long.pdf", pdf("x", "y", "z")), "long.pdf has 3 pages: 1 to 2"),
        (Attachment("broken.pdf", b"%PDF-1.4 and no more"), "broken.pdf cannot be read as a PDF"),
        (Attachment("locked.pdf", locked), "locked.pdf"),
        (Attachment("big.txt", b"x" * 50_001), "big.txt has 50,001 bytes: a text may have 50,000"),
        (Attachment("big.bin", b"\0" * 50_001), "a file may have 50,000"),
    ]
    caps = AttachmentCaps(
        image_bytes=50_000,
        image_pixels=100,
        pdf_bytes=50_000,
        pdf_pages=2,
        text_bytes=50_000,
        file_bytes=50_000,
        message_bytes=120_000,
        known_types=False,
    )
    async with Harness.open(
        workbench(), store="memory:", model=ScriptedModel([]), caps=caps
    ) as harness:
        talk = harness.conversation("c")
        for item, words in wrong:
            with pytest.raises(AttachmentError, match=re.escape(words)):
                await talk.say("Look.", attachments=[NOTES, item])
        whole_attachments = [Attachment(f"{number}.txt", b"x" * 50_000) for number in range(3)]
        with pytest.raises(AttachmentError, match=r"2\.txt: with it the message has 150,005 bytes"):
            await talk.say("Look.", attachments=whole_attachments)
        assert await talk.blocks() == []


MB = 1024 * 1024


def padded(name: str, data: bytes, size: int) -> list[Attachment]:
    return [Attachment(name, data.ljust(size, b"\n"))]


SIZED: list[tuple[Callable[[int], Sequence[Attachment]], int, str]] = [
    (partial(padded, "a.png", png(10)), 5 * MB, "an image may have 5,242,880"),
    (partial(padded, "a.pdf", pdf("x")), 10 * MB, "a PDF may have 10,485,760"),
    (partial(padded, "a.txt", b"x"), 10 * MB, "a text may have 10,485,760"),
    (lambda pages: [Attachment("a.pdf", pdf(*["x"] * pages))], 500, "has 501 pages: 1 to 500"),
    (lambda files: padded("a.txt", b"x", 5 * MB) * files, 5, "26,214,400"),
]


@pytest.mark.parametrize(("of_size", "limit", "words"), SIZED)
def test_who_says_nothing_of_sizes_has_those_of_the_page(
    of_size: Callable[[int], Sequence[Attachment]], limit: int, words: str
) -> None:
    assert read_attachments(of_size(limit), AttachmentCaps())
    with pytest.raises(AttachmentError, match=re.escape(words)):
        read_attachments(of_size(limit + 1), AttachmentCaps())


@each_row(
    [
        (png(30, 20), "image/png", (30, 20), False),
        (png(30, 20, moving=True), "image/png", (30, 20), True),
        (gif(30, 20), "image/gif", (30, 20), False),
        (gif(30, 20, moving=True), "image/gif", (30, 20), True),
        (jpeg(30, 20), "image/jpeg", (30, 20), False),
        (webp(b"VP8X", 30, 20), "image/webp", (30, 20), False),
        (webp(b"VP8L", 30, 20), "image/webp", (30, 20), False),
        (webp(b"VP8 ", 30, 20), "image/webp", (30, 20), False),
    ]
)
def test_an_image_is_told_by_its_bytes_whatever_it_is_called(
    data: bytes, mime: str, size: tuple[int, int], moves: bool
) -> None:
    (file,) = read_attachments(Attachment("x.txt", data, "text/plain"), AttachmentCaps())
    assert (file.mime, (file.width, file.height), file.moves) == (mime, size, moves)


TEA = "Tee;Preis\nGrüner Tee;4,50 €\nÖolong – süß;5\n"


@each_row(
    [
        (TEA, "cp1252", "windows-1252"),
        (TEA.replace("€", "EUR").replace("–", "-"), "latin-1", "windows-1252"),
        ("a,b\n1,é\n", "latin-1", "windows-1252"),
        (TEA, "utf-16", "utf-16"),
        (TEA, "utf-16-le", "utf-16le"),
        (TEA, "utf-16-be", "utf-16be"),
        (TEA, "utf-32", "utf-32"),
        ("Зелёный чай стоит четыре рубля.", "cp1251", "windows-1251"),
        ("Zażółć gęślą jaźń, zielona herbata.", "cp1250", "windows-1250"),
        ("我们喝绿茶价格是四元五角", "gb18030", "gb18030"),
    ]
)
async def test_a_text_in_another_encoding_is_shown_as_text_and_kept_as_it_came(
    text: str, encoding: str, charset: str
) -> None:
    model = ScriptedModel(["So."])
    data = text.encode(encoding)
    async with at_work(model) as talk:
        await talk.say("Look.", attachments=[Attachment("tea.csv", data, "text/csv")])
        [read] = await talk.read(["fi:turn_1.user.attachments/tea.csv"])
    assert (read.text, read.data, read.mime) == (text, data, f"text/csv; charset={charset}")
    assert text.rstrip() in str(model.requests[0])
    assert f"text/csv; charset={charset}" in str(model.requests[0])


@pytest.mark.parametrize("kind", [b"VP8X", b"VP8L", b"VP8 "])
def test_a_webp_that_ends_inside_its_header_is_refused(kind: bytes) -> None:
    with pytest.raises(AttachmentError, match="it has no size"):
        read_attachments(Attachment("x.webp", webp(kind, 30, 20)[:20]), AttachmentCaps())


async def test_input_that_waits_is_carried_by_a_checkpoint_with_its_files() -> None:
    async with at_work(ScriptedModel(["x" * 900] * 3)) as talk:
        for _ in range(3):
            await talk.say("On.")
        waiting = await talk.followup("And this.", attachments=[PHOTO, NOTES])
        timeline = Timeline(await talk.blocks())
    made = checkpoint(timeline, timeline.seq, {})
    assert made is not None
    assert made.carries == (waiting.seq, waiting.seq + 1, waiting.seq + 2)


@pytest.mark.parametrize(
    ("width", "height", "costs"),
    [
        (1, 1, 255),  # a tile of gpt-4o
        (1_000, 1_000, 1_296),  # Anthropic
        (1_024, 1_024, 2_519),  # OpenAI, 2.46 tokens a patch
        (8_000, 8_000, 4_784),  # Anthropic's most
    ],
)
def test_an_image_is_estimated_at_what_the_dearest_vendor_says(
    width: int, height: int, costs: int
) -> None:
    (file,) = read_attachments(Attachment("x.gif", gif(width, height)), AttachmentCaps())
    assert costs <= attached_files.tokens_of(file, AttachmentSupport()) <= max(2 * costs, 300)


CAPS = AttachmentCaps(decode_images=True)


def problem(sample: Sample) -> str:
    """Why a file is refused; empty if it is taken."""
    try:
        read_attachments(sample.file, CAPS)
    except AttachmentError as error:
        return str(error)
    return ""


def checked_problems(samples: Sequence[Sample]) -> dict[str, str]:
    """Return the problem of each file by its name, once harmful ones are refused and harmless ones taken."""
    with ThreadPoolExecutor(4) as pool:
        problems = dict(zip([s.what for s in samples], pool.map(problem, samples), strict=True))
    passed = [s.what for s in samples if not s.harmless and not problems[s.what]]
    refused = {s.what: problems[s.what] for s in samples if s.harmless and problems[s.what]}
    assert (passed, refused) == ([], {})
    return problems


def test_of_a_sample_harmful_files_are_refused_and_harmless_ones_taken() -> None:
    assert len(checked_problems(corpus()[::7])) > 40


@pytest.mark.campaign
def test_harmful_files_are_refused_and_harmless_ones_taken() -> None:
    samples = corpus()
    problems = checked_problems(samples)
    unread = [what for what in ACTIVE if "cannot be read" in problems[f"docx with {what}"]]
    assert unread == []
    spent = [what for what in ENTITIES if "too much time" in problems[f"docx with {what}"]]
    assert spent == []
    hidden = [
        what for what in POLYGLOTS if "PDF" in what and "alone" not in problems[f"png with {what}"]
    ]
    assert hidden == ["a PDF with an archive"]
    assert {problems[f"rtf with {what}"].partition(":")[0] for what in RICH_TEXTS} == {
        "x.rtf is RTF with objects, fields or other files"
    }
    assert len(samples) >= 285


@pytest.mark.parametrize(
    ("name", "data", "mime", "text"),
    [
        ("a.docx", docx("Green tea."), "wordprocessingml.document", "Green tea."),
        ("a.pptx", pptx("tea"), "presentationml.presentation", "2 tea\n\n10 tea"),
        ("a.xlsx", xlsx("tea"), "spreadsheetml.sheet", "tea\n\n0\t4711"),
    ],
)
def test_the_text_of_an_office_document_is_read(
    name: str, data: bytes, mime: str, text: str
) -> None:
    [file] = read_attachments(Attachment(name, data), AttachmentCaps())
    assert file.mime == f"application/vnd.openxmlformats-officedocument.{mime}"
    assert file.text == text


@pytest.mark.parametrize(
    "data",
    [archive({"a": "b"}), UNKNOWN["another package of parts"], b"MZ\x90\x00" + b"\0" * 200],
)
def test_archives_and_programs_are_accepted_only_if_unknown_types_are(data: bytes) -> None:
    with pytest.raises(AttachmentError, match=r"an archive|of an unknown type"):
        read_attachments(Attachment("a.bin", data), AttachmentCaps())
    [file] = read_attachments(Attachment("a.bin", data), AttachmentCaps(known_types=False))
    assert file.mime == "application/octet-stream"


def test_limits_come_from_the_variables_of_the_seed() -> None:
    caps = AttachmentCaps.with_environment(
        {"MODALITY_MAX_IMAGE_BYTES": "1", "MODALITY_MAX_DOC_BYTES": " 2 ", "MESSAGE_MAX_BYTES": "3"}
    )
    assert (caps.image_bytes, caps.pdf_bytes, caps.message_bytes) == (1, 2, 3)
    assert AttachmentCaps.with_environment({"MESSAGE_MAX_BYTES": ""}) == AttachmentCaps()
    decoding = AttachmentCaps(decode_images=True)
    assert AttachmentCaps.with_environment({"LOOPLINE_DECODE_IMAGES": "1"}) == decoding


@pytest.mark.parametrize("junk", ["0", "-1", "5MB", "1e6", "٣", "1" * 13, "x"])
def test_a_limit_that_is_no_number_is_an_error(junk: str) -> None:
    with pytest.raises(AttachmentError, match="MESSAGE_MAX_BYTES is"):
        AttachmentCaps.with_environment({"MESSAGE_MAX_BYTES": junk})


def test_an_image_that_is_cut_off_is_taken_where_none_is_decoded_and_refused_where_all_are() -> (
    None
):
    half = Attachment("half.png", broken()["half a PNG"])
    [file] = read_attachments(half, AttachmentCaps())
    assert file.mime == "image/png"
    with pytest.raises(AttachmentError, match="cannot be decoded"):
        read_attachments(half, CAPS)


def test_decoding_an_image_takes_no_more_time_and_memory_than_it_may() -> None:
    large = shown()["large.png"]
    check_image("large.png", large)
    for limits in ({"memory_bytes": 60_000_000}, {"cpu_seconds": 0}):
        with pytest.raises(AttachmentError, match=r"takes too much|cannot be decoded"):
            check_image("large.png", large, **limits)


def test_a_pdf_that_takes_too_long_is_refused_and_takes_nothing_of_this_process() -> None:
    long = small_and_large(b"BT /F 1 Tf (a) Tj ET\n", 1_500_000)
    assert len(long) < 150_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(AttachmentError, match="takes too much time or memory"):
        parse_pdf("long.pdf", long, 500, cpu_seconds=2)
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


MARKER = b"a file that is known by its digest"
LIMIT_BYTES = 2 * 1024 * 1024
SECONDS = 30.0
"""How long a scan may take here: what is too slow is told apart by its own test."""


@dataclass(frozen=True)
class Daemon:
    process: subprocess.Popen[bytes]
    unix: str
    tcp: str

    @property
    def addresses(self) -> Sequence[str]:
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


async def scan_problem(address: str, data: bytes, seconds: float = SECONDS) -> str:
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


@pytest.mark.service
@pytest.mark.parametrize("what", [*FOUND, *CLEAN])
async def test_it_finds_what_it_knows_however_it_is_packed(daemon: Daemon, what: str) -> None:
    data, expected = (FOUND | CLEAN)[what], "refuses it" if what in FOUND else ""
    for address in daemon.addresses:
        said = await scan_problem(address, data)
        assert said.endswith(f"the virus scanner {expected}" if expected else ""), said
        assert bool(said) is bool(expected), said


@pytest.mark.service
async def test_more_than_it_takes_is_refused(daemon: Daemon) -> None:
    for address in daemon.addresses:
        assert await scan_problem(address, os.urandom(LIMIT_BYTES + 200_000)) != ""


@pytest.mark.service
async def test_while_it_stands_still_nothing_is_taken(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        for address in daemon.addresses:
            assert "took too long" in await scan_problem(address, b"tea", 0.2)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    assert await scan_problem(daemon.unix, b"tea") == ""


@pytest.mark.service
async def test_a_message_with_a_virus_is_not_stored_and_one_without_is(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APP_AV_SCAN", "1")
    monkeypatch.setenv("APP_AV_TIMEOUT_S", "30")
    monkeypatch.setenv("LOOPLINE_CLAMD", daemon.unix)
    model = ScriptedModel([Say("Seen.")])
    async with talking(model, bundle=Bundle(id="guide"), name="c1") as talk:
        for data in (FOUND["in a Word document"], FOUND["in text"]):
            with pytest.raises(AttachmentError, match="the virus scanner refuses it"):
                await talk.say("Look!", attachments=[Attachment("letter.docx", data)])
        assert await talk.blocks() == []
        assert (
            await talk.say("Look!", attachments=[Attachment("a.docx", CLEAN["a Word document"])])
        ).ok


@pytest.mark.service
async def test_once_it_has_ended_nothing_is_taken(daemon: Daemon) -> None:
    daemon.process.terminate()
    daemon.process.wait()
    for address in daemon.addresses:
        assert "cannot be reached" in await scan_problem(address, b"tea")
