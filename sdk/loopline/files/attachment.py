"""Attachments of a message: they are read, their types are detected from their content, and their sizes are checked."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Protocol

from msgspec import structs

from loopline.errors import AttachmentError
from loopline.files import formats
from loopline.models import Json, dumps, one_line
from loopline.names import check_type
from loopline.timeline import UserAttachment, attachments, workspace

MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file to attach. Its type is detected from its bytes; `mime` is used for texts and for unknown types."""

    name: str
    data: bytes
    mime: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentCaps:
    """The limits of a message: in bytes, in pixels of each side of an image, and in pages of a PDF.

    `prompt_bytes` limits the text of a message in UTF-8, or the values that `resume` gives to pending calls.
    `message_bytes` limits the text and all files together. Files of an unknown type, such as archives and programs, are
    refused; without `known_types` they are accepted up to `file_bytes`. The limit of PDFs also applies to Word, Excel and PowerPoint documents. With `decode_images`
    all frames of an image are decoded by Pillow, and a damaged image is refused.
    """

    image_bytes: int = 5 * MB
    image_pixels: int = 8_000
    pdf_bytes: int = 10 * MB
    pdf_pages: int = 500
    text_bytes: int = 10 * MB
    file_bytes: int = 10 * MB
    prompt_bytes: int = MB // 2
    message_bytes: int = 25 * MB
    known_types: bool = True
    decode_images: bool = False

    @classmethod
    def with_environment(cls, environment: Mapping[str, str]) -> AttachmentCaps:
        """Return the default limits, replaced by those that environment variables set.

        The variables are `MODALITY_MAX_IMAGE_BYTES`, `MODALITY_MAX_DOC_BYTES` (PDFs), `MESSAGE_MAX_BYTES`, and
        `LOOPLINE_DECODE_IMAGES` with 0 or 1.

        Raises:
            AttachmentError: the value of a variable is invalid.
        """
        default = cls()
        decode_images = environment.get("LOOPLINE_DECODE_IMAGES", "").strip() or "0"
        if decode_images not in ("0", "1"):
            raise AttachmentError(f"LOOPLINE_DECODE_IMAGES is {decode_images!r}: it must be 0 or 1")
        return cls(
            image_bytes=_read_bytes(environment, "MODALITY_MAX_IMAGE_BYTES", default.image_bytes),
            pdf_bytes=_read_bytes(environment, "MODALITY_MAX_DOC_BYTES", default.pdf_bytes),
            message_bytes=_read_bytes(environment, "MESSAGE_MAX_BYTES", default.message_bytes),
            decode_images=decode_images == "1",
        )


def _read_bytes(environment: Mapping[str, str], variable: str, default: int) -> int:
    """Return an environment variable as a number of bytes; `default` if it is not set or empty.

    Raises:
        AttachmentError: the value is not a positive integer.
    """
    value = environment.get(variable, "").strip()
    if not value:
        return default
    if not _BYTES.fullmatch(value):
        raise AttachmentError(f"{variable} is {value!r}: it must be a number of bytes above 0")
    return int(value)


_TEXT_SUFFIXES = {
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
"""The media types of texts by the suffix of the name; other texts are `text/plain`."""
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/yaml")
_TYPE = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}(?:; *[\w-]{1,30}=[\w.+-]{1,60})?", re.ASCII)
_BYTES = re.compile(r"[1-9][0-9]{0,11}", re.ASCII)
_BINARY = "application/octet-stream"
AttachmentInput = str | Path | Attachment
"""A file to attach: a path, or a name with bytes."""


def check_text(text: str, caps: AttachmentCaps) -> int:
    """Check that the text of a message fits `prompt_bytes`, and return its size in bytes of UTF-8.

    Raises:
        AttachmentError: the text is too large.
        BundleError: the text is not a str.
    """
    check_type(text, str, "a message", "a str")
    size = _utf8_size(text)
    if size > caps.prompt_bytes:
        raise AttachmentError(
            f"the message has {size:,} bytes of text: it may have {caps.prompt_bytes:,}, so attach "
            "a long text as a file"
        )
    return size


def check_values(values: Mapping[str, Json], caps: AttachmentCaps) -> None:
    """Check that the values for pending calls together fit `prompt_bytes`: strings as they are, other values as JSON.

    Raises:
        AttachmentError: the values are too large.
    """
    texts = (value if isinstance(value, str) else dumps(value) for value in values.values())
    size = sum(map(_utf8_size, texts))
    if size > caps.prompt_bytes:
        raise AttachmentError(
            f"the values for {', '.join(values)} have {size:,} bytes of text: they may have "
            f"{caps.prompt_bytes:,} together, so shorten them, or attach a file to a followup first"
        )


def read_attachments(
    inputs: AttachmentInput | Sequence[AttachmentInput],
    caps: AttachmentCaps,
    text_bytes: int = 0,
) -> list[UserAttachment]:
    """Read, check and describe the files as they are recorded, in order; blocks while it reads them.

    If a name occurs twice, a number is added to the later one. `text_bytes` is the size of the message's text.

    Raises:
        AttachmentError: a file cannot be read, is refused or is too large, or the message is too large.
    """
    files: list[UserAttachment] = []
    total = text_bytes
    for item in [inputs] if isinstance(inputs, str | Path | Attachment) else inputs:
        attachment = item if isinstance(item, Attachment) else _read_file(Path(item), caps)
        total += len(attachment.data)
        if total > caps.message_bytes:
            raise AttachmentError(
                f"{attachment.name}: with it the message has {total:,} bytes: it may have "
                f"{caps.message_bytes:,}, so attach fewer files at once"
            )
        files.append(structs.replace(_identify(attachment, caps), place=len(files) + 1))
    return with_unique_names(files, ())


def with_unique_names(
    files: Sequence[UserAttachment], used_names: Collection[str]
) -> list[UserAttachment]:
    """Return the files with unique names: `a.txt` becomes `a-2.txt` if the name is used or occurs before."""
    names = set(used_names)
    result: list[UserAttachment] = []
    for file in files:
        path = PurePath(file.name)
        name = file.name
        number = 1
        while name in names:
            number += 1
            name = f"{path.stem}-{number}{path.suffix}"
        names.add(name)
        result.append(structs.replace(file, name=name))
    return result


def attachment_of(file: UserAttachment) -> Attachment:
    """Convert a recorded file to an attachment."""
    return Attachment(file.name, workspace.file_bytes(file), file.mime)


def _read_file(path: Path, caps: AttachmentCaps) -> Attachment:
    """Read a file, after checking its size against the largest limit of any type.

    Raises:
        AttachmentError: the path is not a file, or the file cannot be read or is too large.
    """
    limit = max(caps.image_bytes, caps.pdf_bytes, caps.text_bytes, caps.file_bytes)
    try:
        if not path.is_file():
            problem = "it is a folder" if path.is_dir() else "no such file"
            raise AttachmentError(f"{path} cannot be attached: {problem}")
        _check_size(path.name, "a file", path.stat().st_size, limit)
        return Attachment(path.name, path.read_bytes())
    except OSError as error:
        raise AttachmentError(f"{path} cannot be attached: {error.strerror or error}") from error


def _identify(attachment: Attachment, caps: AttachmentCaps) -> UserAttachment:
    """Detect the type of a file from its bytes, and return the file as it is recorded.

    Raises:
        AttachmentError: the file is unnamed, empty or damaged, has active or hidden content, or is too large for its
            type; or its type is unknown, and only known types are allowed.
    """
    data = attachment.data
    name = one_line(attachment.name.rstrip("/").rpartition("/")[2])
    if name in ("", ".", ".."):
        raise AttachmentError(f"{name!r} is not a file name: give the attachment one")
    if not data:
        raise AttachmentError(f"{name} is empty: there is nothing to attach")
    file = UserAttachment(
        name=name, mime=_BINARY, size=len(data), sha256=sha256(data).hexdigest(), data=""
    )
    image = formats.parse_image(data)
    _check_hidden_content(name, data, image)
    if image is not None:
        return _describe_image(file, image, data, caps)
    if data.startswith(formats.PDF_SIGNATURE):
        _check_size(name, "a PDF", len(data), caps.pdf_bytes)
        pdf = formats.parse_pdf(name, data, caps.pdf_pages)
        return structs.replace(
            file, mime=attachments.PDF, data=_base64(data), pages=pdf.pages, text=pdf.text
        )
    if formats.is_office(data):
        _check_size(name, "a document", len(data), caps.pdf_bytes)
        office = formats.parse_office(name, data)
        if office is not None:
            return structs.replace(file, mime=office.mime, data=_base64(data), text=office.text)
    text = decoded_text(data)
    if text is not None:
        _check_size(name, "a text", len(data), caps.text_bytes)
        return structs.replace(file, mime=text_type(name, attachment.mime), text=text)
    detected = detect_text(data)
    if detected is not None:
        _check_size(name, "a text", len(data), caps.text_bytes)
        mime = f"{text_type(name, attachment.mime).partition(';')[0]}; charset={detected.charset}"
        return structs.replace(file, mime=mime, data=_base64(data), text=detected.text)
    if caps.known_types:
        kind = "an archive" if formats.is_archive(data) else "a file of an unknown type"
        raise AttachmentError(
            f"{name} is {kind}: images, PDFs, Word, Excel and PowerPoint documents and texts can be attached"
        )
    _check_size(name, "a file", len(data), caps.file_bytes)
    return structs.replace(file, mime=normalize_media_type(attachment.mime), data=_base64(data))


def _check_hidden_content(name: str, data: bytes, image: formats.Image | None) -> None:
    """Check that programs do not open the file as a type that is not detected here.

    Raises:
        AttachmentError: an archive follows an image or a PDF, a PDF follows other data, or a text is RTF that loads
            or starts something.
    """
    if formats.has_archive_at_end(data) and (image or data.startswith(formats.PDF_SIGNATURE)):
        raise AttachmentError(f"{name} has an archive at its end: attach each of them as a file")
    if formats.has_late_pdf_header(data):
        raise AttachmentError(
            f"{name} has a PDF behind other data: attach the PDF alone; a text may have %PDF only after 1,100 bytes"
        )
    if formats.has_active_rtf(data):
        raise AttachmentError(
            f"{name} is RTF with objects, fields or other files: save it as docx or as a PDF"
        )


def _describe_image(
    file: UserAttachment, image: formats.Image, data: bytes, caps: AttachmentCaps
) -> UserAttachment:
    """Return the file with the bytes, the media type, and the width and height of the image.

    Raises:
        AttachmentError: the image has too many bytes or pixels, or no readable size; or, with `decode_images`, it
            cannot be decoded.
    """
    _check_size(file.name, "an image", len(data), caps.image_bytes)
    if not (image.width and image.height):
        raise AttachmentError(f"{file.name} cannot be read as {image.mime}: it has no size")
    if max(image.width, image.height) > caps.image_pixels:
        raise AttachmentError(
            f"{file.name} has {image.width:,}×{image.height:,} pixels: an image may have "
            f"{caps.image_pixels:,} a side"
        )
    if caps.decode_images:
        formats.check_image(file.name, data)
    return structs.replace(
        file,
        mime=image.mime,
        data=_base64(data),
        width=image.width,
        height=image.height,
        moves=image.animated,
    )


def decoded_text(data: bytes) -> str | None:
    """Decode bytes as text; return None if they are not UTF-8 or have a null byte."""
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


_CHARSETS = {
    "utf_16": "utf-16",
    "utf_16_le": "utf-16le",
    "utf_16_be": "utf-16be",
    "utf_32": "utf-32",
    **{f"cp125{number}": f"windows-125{number}" for number in range(7)},
    "koi8_r": "koi8-r",
    "cp932": "shift_jis",
    "euc_jp": "euc-jp",
    "gb18030": "gb18030",
    "big5": "big5",
    "cp949": "euc-kr",
}
"""The encodings of Python that are detected, with their names in media types."""
_USUAL = "cp1252"
"""The encoding of a text that could be in several: that of Western Europe, which includes Latin-1."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class DetectedText:
    """A text that is not in UTF-8, and the name of its encoding, such as `windows-1252`."""

    text: str
    charset: str


def detect_text(data: bytes) -> DetectedText | None:
    """Decode bytes in another encoding than UTF-8; return None if they are not a text.

    A short text may be decoded wrongly, because its encoding is guessed from its characters.
    """
    from charset_normalizer import from_bytes  # its import takes 50 ms

    matches = list(from_bytes(data, cp_isolation=[*_CHARSETS]))
    if not matches:
        return None
    best = matches[0]
    equal = [
        name
        for match in matches
        if (match.chaos, match.coherence) == (best.chaos, best.coherence)
        for name in match.could_be_from_charset
    ]
    encoding = _USUAL if _USUAL in equal else best.encoding
    text = data.decode(encoding)
    return None if _CONTROLS.search(text) else DetectedText(text, _CHARSETS[encoding])


def text_type(name: str, mime: str) -> str:
    """Return the media type of a text: `mime` if it is a type of texts, otherwise the type for the suffix of the name."""
    if mime.startswith(_TEXT_TYPES) and _TYPE.fullmatch(mime):
        return mime
    return _TEXT_SUFFIXES.get(PurePath(name).suffix.lower(), "text/plain")


def normalize_media_type(mime: str) -> str:
    """Return `mime` if it is a valid media type, otherwise `application/octet-stream`."""
    return mime if _TYPE.fullmatch(mime) else _BINARY


def _check_size(name: str, kind: str, size: int, limit: int) -> None:
    if size > limit:
        raise AttachmentError(f"{name} has {size:,} bytes: {kind} may have {limit:,}")


def _utf8_size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


class AttachmentScanner(Protocol):
    """Searches files for viruses before they are recorded.

    Promised: a file that was not searched to its end is refused. Not promised: every harmful file is recognized.
    """

    async def scan(self, name: str, data: bytes) -> None:
        """Search the bytes of a file for viruses; `name` is its name in the error.

        Raises:
            AttachmentError: a virus was found, or the scanner cannot be reached or is too slow.
        """
        ...
