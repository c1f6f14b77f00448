"""Attachments as they are handed in, and how large they may be."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path, PurePath

from loopline.errors import AttachmentError
from loopline.files.formats import SIGNATURE, Image, image_of, pdf_of
from loopline.models import Json, dumps, one_line
from loopline.timeline import UserAttachment, attachments

MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file to attach. Its type is told by its bytes; `mime` says which kind of text a text is."""

    name: str
    data: bytes
    mime: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentCaps:
    """How large a message may be, in bytes, in pixels a side and in pages of a PDF.

    `prompt_bytes` is for the text of a message in UTF-8, or of what is given to calls that wait, `message_bytes` for its text and all its files,
    `file_bytes` for one file of any other type.
    """

    image_bytes: int = 5 * MB
    image_pixels: int = 8_000
    pdf_bytes: int = 10 * MB
    pdf_pages: int = 500
    text_bytes: int = 10 * MB
    file_bytes: int = 10 * MB
    prompt_bytes: int = MB // 2
    message_bytes: int = 25 * MB


_TEXTS = {
    ".css": "text/css",
    ".csv": "text/csv",
    ".htm": "text/html",
    ".html": "text/html",
    ".json": "application/json",
    ".markdown": "text/markdown",
    ".md": "text/markdown",
    ".xml": "application/xml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
"""What a text is by the end of its name; any other is plain."""
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/yaml")
_TYPE = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}(?:; *[\w-]{1,30}=[\w.+-]{1,60})?", re.ASCII)
_BINARY = "application/octet-stream"
AttachmentInput = str | Path | Attachment
"""A file to attach: the path of one, or its name and bytes."""


def check_text(text: str, caps: AttachmentCaps) -> int:
    """Return the size of a message's text in bytes of UTF-8.

    Raises:
        AttachmentError: it is too large.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > caps.prompt_bytes:
        raise AttachmentError(
            f"the message has {size:,} bytes of text: it may have {caps.prompt_bytes:,}, so attach "
            "what is long as a file"
        )
    return size


def check_values(values: Mapping[str, Json], caps: AttachmentCaps) -> None:
    """Check the size of what is given to calls that wait: as one message's, in UTF-8 and as JSON.

    Raises:
        AttachmentError: it is too large.
    """
    said = [one if isinstance(one, str) else dumps(one) for one in values.values()]
    size = sum(len(one.encode("utf-8", "surrogatepass")) for one in said)
    if size > caps.prompt_bytes:
        raise AttachmentError(
            f"the values for {', '.join(values)} have {size:,} bytes of text: they may have "
            f"{caps.prompt_bytes:,} together, so say less, or attach a file to a followup first"
        )


def read_attachments(
    given: AttachmentInput | Sequence[AttachmentInput],
    caps: AttachmentCaps,
    taken: Collection[str] = (),
    text_bytes: int = 0,
) -> list[UserAttachment]:
    """The files as they are recorded, in order; blocks, for files are read.

    A name that is `taken`, or comes twice, gets a number. The message has `text_bytes` beside them.

    Raises:
        AttachmentError: one cannot be read or is too large, or the message is.
    """
    files, total, names = list[UserAttachment](), text_bytes, set(taken)
    for one in [given] if isinstance(given, str | Path | Attachment) else given:
        found = one if isinstance(one, Attachment) else _read(Path(one), caps)
        total += len(found.data)
        if total > caps.message_bytes:
            raise AttachmentError(
                f"{found.name}: with it the message has {total:,} bytes: it may have "
                f"{caps.message_bytes:,}, so attach fewer at once"
            )
        files.append(_named(_checked(found, caps), names))
        names.add(files[-1].name)
    return _placed(files)


def with_unique_names(
    files: Sequence[UserAttachment], taken: Collection[str]
) -> list[UserAttachment]:
    """The files, each with a number in its name where that is taken."""
    given, names = list[UserAttachment](), set(taken)
    for file in files:
        given.append(_named(file, names))
        names.add(given[-1].name)
    return given


def attachment_of(file: UserAttachment) -> Attachment:
    """The file as it was handed in."""
    return Attachment(file.name, attachments.content(file), file.mime)


def _placed(files: Sequence[UserAttachment]) -> list[UserAttachment]:
    return [replace(file, place=place) for place, file in enumerate(files, start=1)]


def _read(path: Path, caps: AttachmentCaps) -> Attachment:
    largest = max(caps.image_bytes, caps.pdf_bytes, caps.text_bytes, caps.file_bytes)
    try:
        if not path.is_file():
            what = "it is a folder" if path.is_dir() else "no such file"
            raise AttachmentError(f"{path} cannot be attached: {what}")
        size = path.stat().st_size
        if size > largest:
            raise _too_large(path.name, "a file", size, largest)
        return Attachment(path.name, path.read_bytes())
    except OSError as error:
        raise AttachmentError(f"{path} cannot be attached: {error.strerror or error}") from error


def _checked(found: Attachment, caps: AttachmentCaps) -> UserAttachment:
    """What the file is, once it is known to be sound.

    Raises:
        AttachmentError: it is not.
    """
    name, data = _name(found.name), found.data
    if not data:
        raise AttachmentError(f"{name} is empty: there is nothing to attach")
    file = UserAttachment(
        name=name,
        mime=_BINARY,
        size=len(data),
        sha256=sha256(data).hexdigest(),
        data="",
    )
    image = image_of(data)
    if image is not None:
        return _as_image(file, image, data, caps)
    if data.startswith(SIGNATURE):
        _check_size(name, "a PDF", len(data), caps.pdf_bytes)
        pdf = pdf_of(name, data, caps.pdf_pages)
        return replace(
            file, mime=attachments.PDF, data=_base64(data), pages=pdf.pages, text=pdf.text
        )
    text = _text_of(data)
    if text is not None:
        _check_size(name, "a text", len(data), caps.text_bytes)
        return replace(file, mime=_text_type(name, found.mime), text=text)
    _check_size(name, "a file", len(data), caps.file_bytes)
    return replace(
        file, mime=found.mime if _TYPE.fullmatch(found.mime) else _BINARY, data=_base64(data)
    )


def _as_image(
    file: UserAttachment, image: Image, data: bytes, caps: AttachmentCaps
) -> UserAttachment:
    _check_size(file.name, "an image", len(data), caps.image_bytes)
    if not (image.width and image.height):
        raise AttachmentError(f"{file.name} cannot be read as {image.mime}: it has no size")
    if max(image.width, image.height) > caps.image_pixels:
        raise AttachmentError(
            f"{file.name} has {image.width:,}×{image.height:,} pixels: an image may have "
            f"{caps.image_pixels:,} a side"
        )
    return replace(
        file,
        mime=image.mime,
        data=_base64(data),
        width=image.width,
        height=image.height,
        moves=image.moves,
    )


def _text_of(data: bytes) -> str | None:
    """The text that the bytes are; None when they are no UTF-8, or hold what no text does."""
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


def _text_type(name: str, mime: str) -> str:
    if mime.startswith(_TEXT_TYPES) and _TYPE.fullmatch(mime):
        return mime
    return _TEXTS.get(PurePath(name).suffix.lower(), "text/plain")


def _name(name: str) -> str:
    """The last part of a path, as text.

    Raises:
        AttachmentError: nothing is left.
    """
    last = one_line(name.rstrip("/").rpartition("/")[2])
    if last in ("", ".", ".."):
        raise AttachmentError(f"{name!r} is no name of a file: give the attachment one")
    return last


def _named(file: UserAttachment, taken: Collection[str]) -> UserAttachment:
    path, number, name = PurePath(file.name), 1, file.name
    while name in taken:
        number += 1
        name = f"{path.stem}-{number}{path.suffix}"
    return replace(file, name=name)


def _check_size(name: str, what: str, size: int, most: int) -> None:
    if size > most:
        raise _too_large(name, what, size, most)


def _too_large(name: str, what: str, size: int, most: int) -> AttachmentError:
    return AttachmentError(f"{name} has {size:,} bytes: {what} may have {most:,}")


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
