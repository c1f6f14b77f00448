"""Images that a call gives to the model: which of those it reads or makes, within the limits of a call."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from loopline.files import AttachmentCaps, describe_data
from loopline.models import AttachmentSupport
from loopline.timeline import ShownImage

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
