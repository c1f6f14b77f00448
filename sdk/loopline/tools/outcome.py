"""The outcome of a tool call, which the loop records, and the conversion of Python values to JSON."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from loopline.errors import LooplineError, ToolError
from loopline.files import AttachmentCaps, FileChange, OutputFile, WorkspaceLimits, describe_data
from loopline.models import AttachmentSupport, Json, well_formed, well_formed_json
from loopline.timeline import Body, ShownImage, Source, TextKept

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class ResultSection(Struct, frozen=True, kw_only=True):
    """A part of a result with a heading. If it has a source, it can be cited.

    Citations in the text may name the sources in `cites` by their keys; when the result is recorded, they are replaced by
    the numbers of the sources in the conversation. The same is done in the text `kept`, which is recorded with the
    result. `shown_as` are the refs by which the model knows the text. The `note` follows the text.
    """

    heading: str
    text: str
    source: Source | None = None
    note: str = ""
    cites: Mapping[int, Source] = {}
    kept: TextKept | None = None
    shown_as: tuple[str, ...] = ()


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of a call. A tool only returns it; the loop records it.

    The result has the `text` first, then the `sections`, each with the number of its source, and then the list of
    `sources`. `bodies` are recorded in the same append as the result. An `answer` that is not None ends the turn.

    `match_count` is the number of hits of a search. `shows` are pairs of a ref and the sha256 of its text that the model
    sees. `images` are sent to the model with the text. If `cites` is true, `[[S:@2]]` in the text is replaced by the
    number of the second of the `sources` in the conversation.

    `files` are changes to the workspace, within `file_limits` if they are given; the result names their refs. With
    `cites_files`, external files in `outputs/` become sources. If `failed` is true, the result has the status "error", and
    all other fields are still recorded. `missing` has an error message for each ref that cannot be read, which the text
    has too; if a program made the call, the call fails.
    """

    text: str
    sections: tuple[ResultSection, ...] = ()
    sources: tuple[Source, ...] = ()
    bodies: tuple[Body, ...] = ()
    match_count: int | None = None
    shows: tuple[tuple[str, str], ...] = ()
    files: tuple[FileChange, ...] = ()
    images: tuple[ShownImage, ...] = ()
    artifact: Json = None
    answer: object = None
    cites: bool = False
    failed: bool = False
    file_limits: WorkspaceLimits | None = None
    missing: tuple[str, ...] = ()
    cites_files: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """The return value of a tool function that returns more than text.

    `sources` are added to the conversation's sources and can be cited. `artifact`, any JSON value, is stored as
    `ar:<turn>.artifacts.<call_id>`; the model does not see it. `files` are recorded in the turn's `outputs/`, or in
    `files/` if their paths begin with it; the model sees their refs. An `answer` ends the turn when all calls of the round
    have a result. It is a value of the turn's output type or, without such a type, a text.
    """

    text: str = ""
    sources: Sequence[Source] = ()
    files: Sequence[OutputFile] = ()
    artifact: Json = None
    answer: object = None


@contextmanager
def tool_failures(work: str) -> Generator[None]:
    """Convert any exception in the context to a ToolError for the model; `work` is its subject, such as `the search`.

    A LooplineError is raised unchanged.
    """
    try:
        yield
    except LooplineError:
        raise
    except Exception as error:
        raise ToolError(f"{work} failed: {type(error).__name__}: {error}") from error


def count_text(number: int, noun: str) -> str:
    """Return a number with a noun: `no hit`, `1 hit` or `2 hits`."""
    return f"{number or 'no'} {noun}{'s' if number > 1 else ''}"


def as_json(value: object) -> Json:
    """Convert a plain, pydantic or dataclass value to JSON. Lone surrogates are replaced, infinite numbers become strings.

    Raises:
        ValueError: a part of the value cannot be converted to JSON.
    """
    plain: Json = _adapter().dump_python(_repair_texts(value), mode="json")
    return finite(well_formed_json(plain))


def _repair_texts(value: object) -> object:
    """Replace lone surrogates in the texts of a value, because pydantic refuses them in keys."""
    match value:
        case str():
            return well_formed(value)
        case dict():
            items = cast("dict[object, object]", value).items()
            return {_repair_texts(key): _repair_texts(item) for key, item in items}
        case list():
            return [_repair_texts(item) for item in cast("list[object]", value)]
        case _:
            return value


@cache
def _adapter() -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="constants"))


def finite(value: Json) -> Json:
    """Return the value with numbers that JSON does not have, such as infinity, replaced by strings."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case list():
            return [finite(item) for item in value]
        case dict():
            return {key: finite(item) for key, item in value.items()}
        case _:
            return value


MAX_IMAGES = 10
MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadImages:
    """The images of a call that are sent to the model, and the reasons why other images are not, by ref."""

    images: tuple[ShownImage, ...]
    refused: dict[str, str]


def is_image(mime: str) -> bool:
    """Return whether a media type is that of an image."""
    return mime.startswith("image/")


def images_within_limits(files: Mapping[str, bytes], allowed: AttachmentSupport) -> ReadImages:
    """Return the images that can be sent to the model, and by ref the reason for each image that is refused.

    The limits are those of attached images and those of a call: 10 images with 16 MiB, in the order of the files. Without
    `allowed.images` all are refused. The pixels are read from the header, without decoding.
    """
    images: list[ShownImage] = []
    refused: dict[str, str] = {}
    total = 0
    for ref, data in files.items():
        image = _describe(ref, data)
        problem = _image_problem(image, allowed, len(images), total)
        if problem:
            refused[ref] = problem
        else:
            images.append(image)
            total += image.size
    return ReadImages(images=tuple(images), refused=refused)


def _describe(ref: str, data: bytes) -> ShownImage:
    """Return an image with its detected media type, its size in bytes and pixels, its sha256 and base64 data."""
    described = describe_data(ref, data)
    return ShownImage(
        ref=ref,
        mime=described.mime,
        size=len(data),
        sha256=sha256(data).hexdigest(),
        data=b64encode(data).decode(),
        width=described.width,
        height=described.height,
        moves=described.moves,
    )


def _image_problem(image: ShownImage, allowed: AttachmentSupport, images: int, total: int) -> str:
    """Return why an image is not sent after `images` earlier images with `total` bytes; "" if it is sent."""
    caps = AttachmentCaps()
    if not allowed.images:
        return "this model is given no images"
    if not (image.width and image.height):
        return "its header has no size"
    if max(image.width, image.height) > caps.image_pixels:
        return f"an image may have {caps.image_pixels:,} pixels a side"
    if image.size > caps.image_bytes:
        return f"an image may have {caps.image_bytes:,} bytes"
    if images == MAX_IMAGES:
        return f"a call shows at most {MAX_IMAGES} images"
    if total + image.size > MAX_BYTES:
        return f"a call shows at most {MAX_BYTES:,} bytes of images"
    return ""
