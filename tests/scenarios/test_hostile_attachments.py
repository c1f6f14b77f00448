"""Harmful files are refused before anything is recorded, and harmless ones are taken."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from loopline import Attachment
from loopline.errors import AttachmentError
from loopline.files import AttachmentCaps, read_attachments
from loopline.files.formats import check_image
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
    pptx,
    xlsx,
)
from tests.support.pictures import broken, shown

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
