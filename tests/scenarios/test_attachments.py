"""What a user attaches: it comes with what was said, is shown as the model can take it, and stays."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loopline import Attachment, BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult
from loopline.errors import AttachmentError
from loopline.files import AttachmentCaps, read_attachments
from loopline.models import ATTACHMENTS, Attached, AttachmentSupport, Json, Prompt, UserMessage
from loopline.prompt import attached_files
from loopline.reader import DocumentError, read_document
from loopline.testing import Call, Refuse, ScriptedModel
from loopline.timeline import RoundStart, Timeline, UserAttachment, checkpoint
from tests.support.sample_files import gif, jpeg, pdf, png, webp
from tests.support.workbench import Desk, at_work, bodies, workbench

PLAN = Attachment("plan.pdf", pdf("The tea is 4711.", "Pie is later."))
PHOTO = Attachment("photo.png", png(640, 480))
FEW_PAGES = replace(ATTACHMENTS["anthropic"], pdf_pages=50)
NOTES = Attachment("notes.md", b"# Notes\nGreen tea, 12 tins.\n")


def attached(prompt: Prompt) -> list[Attached]:
    """The files of a request, in order."""
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
    """A file of that name and size."""
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


@pytest.mark.parametrize(
    ("data", "mime", "size", "moves"),
    [
        (png(30, 20), "image/png", (30, 20), False),
        (png(30, 20, moving=True), "image/png", (30, 20), True),
        (gif(30, 20), "image/gif", (30, 20), False),
        (gif(30, 20, moving=True), "image/gif", (30, 20), True),
        (jpeg(30, 20), "image/jpeg", (30, 20), False),
        (webp(b"VP8X", 30, 20), "image/webp", (30, 20), False),
        (webp(b"VP8L", 30, 20), "image/webp", (30, 20), False),
        (webp(b"VP8 ", 30, 20), "image/webp", (30, 20), False),
    ],
)
def test_an_image_is_told_by_its_bytes_whatever_it_is_called(
    data: bytes, mime: str, size: tuple[int, int], moves: bool
) -> None:
    (file,) = read_attachments(Attachment("x.txt", data, "text/plain"), AttachmentCaps())
    assert (file.mime, (file.width, file.height), file.moves) == (mime, size, moves)


TEA = "Tee;Preis\nGrüner Tee;4,50 €\nÖolong – süß;5\n"


@pytest.mark.parametrize(
    ("text", "encoding", "charset"),
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
    ],
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
