"""The outcome of a tool call, a value that the loop records, and Python values as JSON."""

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
    """A part of a result with its own heading; it can be cited if it has a source.

    `cites` are the sources that unbound citations of the text name, which get their numbers of the pool when the result
    is recorded, and so does the text that is `kept` with it. The text is shown under the refs `shown_as`, and followed
    by the `note`.
    """

    heading: str
    text: str
    source: Source | None = None
    note: str = ""
    cites: Mapping[int, Source] = {}
    kept: TextKept | None = None
    shown_as: tuple[str, ...] = ()


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of a call, which the loop records; a tool itself writes nothing.

    `text` comes first; `sections` follow, each with a source under its number; `sources` are listed last. An `answer` that
    is not None is the turn's. `bodies` are recorded in the same append as the result. `match_count` is what a search found,
    `shows` are pairs of a ref and the sha256 of the text that the model sees. `files` are changes to the workspace, of which
    the result names the refs; `images` are given to the model with the text. If it `cites`, `[[S:@2]]` in its text stands for
    the second of its sources, and becomes that source's number in the conversation. `files` are held to `file_limits` if
    there are any; with `cites_files` those of `outputs/` that the user sees are sources, too. A call that `failed` has a result with the status "error", and what else it gives is recorded all the same.
    `missing` says of each ref that cannot be read why; the text says it too. The call of a program fails then.
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
    """What a tool function may return when text alone is not enough.

    `sources` join the conversation's pool and can be cited. `artifact`, any JSON value, is stored under the call's id as
    `ar:<turn>.artifacts.<call_id>`; the model does not see it. `files` are recorded in the turn's `outputs/`, or in its
    `files/` if their path says so; the model sees their refs. An `answer` is the turn's: the turn ends once every call of
    the round has its result. It is a value of the turn's output type or, without one, a text.
    """

    text: str = ""
    sources: Sequence[Source] = ()
    files: Sequence[OutputFile] = ()
    artifact: Json = None
    answer: object = None


@contextmanager
def tool_failures(work: str) -> Generator[None]:
    """Turn a failure of the work, such as `the search`, into an error that the model reads."""
    try:
        yield
    except LooplineError:
        raise
    except Exception as error:
        raise ToolError(f"{work} failed: {type(error).__name__}: {error}") from error


def counted(number: int, noun: str) -> str:
    """Return `no hit`, `1 hit`, `2 hits` and so on."""
    return f"{number or 'no'} {noun}{'s' if number > 1 else ''}"


def as_json(value: object) -> Json:
    """Return the value as JSON: a plain, pydantic or dataclass value.

    Raises:
        ValueError: a part of it has no form in JSON.
    """
    plain: Json = _anything().dump_python(_sound(value), mode="json")
    return finite(well_formed_json(plain))


def _sound(value: object) -> object:
    """Return the value with well-formed texts: pydantic refuses lone surrogates in keys."""
    match value:
        case str():
            return well_formed(value)
        case dict():
            items = cast("dict[object, object]", value).items()
            return {_sound(key): _sound(item) for key, item in items}
        case list():
            return [_sound(item) for item in cast("list[object]", value)]
        case _:
            return value


@cache
def _anything() -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="constants"))


def finite(value: Json) -> Json:
    """Return the value with numbers that JSON lacks, such as infinity, written as text."""
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
_IMAGE = "image/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadImages:
    """The images of a call, and for each that the model does not get, why."""

    images: tuple[ShownImage, ...]
    refused: dict[str, str]


def is_image(mime: str) -> bool:
    """Return whether that is the media type of images."""
    return mime.startswith(_IMAGE)


def images_within_limits(files: Mapping[str, bytes], allowed: AttachmentSupport) -> ReadImages:
    """Return the images of these refs that the model gets; a model that takes none gets none.

    Nothing is decoded: the pixels are those that the header names, and the limits are those of attached images.
    """
    images, refused, total = list[ShownImage](), dict[str, str](), 0
    for ref, data in files.items():
        image = _image(ref, data)
        problem = _problem(image, allowed, len(images), total)
        if problem:
            refused[ref] = problem
        else:
            images.append(image)
            total += image.size
    return ReadImages(images=tuple(images), refused=refused)


def _image(ref: str, data: bytes) -> ShownImage:
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


def _problem(image: ShownImage, allowed: AttachmentSupport, images: int, total: int) -> str:
    """Return why the model does not get the image, "" if it does."""
    caps = AttachmentCaps()
    objections = [
        (not allowed.images, "this model is given no images"),
        (not (image.width and image.height), "its header has no size"),
        (
            max(image.width, image.height) > caps.image_pixels,
            f"an image may have {caps.image_pixels:,} pixels a side",
        ),
        (image.size > caps.image_bytes, f"an image may have {caps.image_bytes:,} bytes"),
        (images == MAX_IMAGES, f"a call shows at most {MAX_IMAGES} images"),
        (total + image.size > MAX_BYTES, f"a call shows at most {MAX_BYTES:,} bytes of images"),
    ]
    return next((reason for holds, reason in objections if holds), "")
