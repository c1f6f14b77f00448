"""Images that `react.read` gives to the model: which of those it reads, within the limits of a call."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from loopline.files import AttachmentCaps, describe_data
from loopline.models import AttachmentSupport
from loopline.reader import Item
from loopline.timeline import ShownImage

MAX_IMAGES = 10
MAX_BYTES = 16 * 1024 * 1024
_IMAGE = "image/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadImages:
    """The images of a reading by ref, and for each that the model does not get, why."""

    images: Sequence[ShownImage]
    refused: dict[str, str]


def images_among(items: Sequence[Item], allowed: AttachmentSupport) -> ReadImages:
    """Return the images among the items; a model that takes none gets none.

    Nothing is decoded: the pixels are those that the header names, and the limits are those of attached images.
    """
    images, refused, total = list[ShownImage](), dict[str, str](), 0
    for item in items:
        if not item.readable or not item.data or not item.mime.startswith(_IMAGE):
            continue
        image = _image_of(item)
        problem = _problem(image, allowed, len(images), total)
        if problem:
            refused[item.ref] = problem
        else:
            images.append(image)
            total += image.size
    return ReadImages(images=images, refused=refused)


def _image_of(item: Item) -> ShownImage:
    described = describe_data(item.ref, item.data)
    return ShownImage(
        ref=item.ref,
        mime=described.mime,
        size=len(item.data),
        sha256=sha256(item.data).hexdigest(),
        data=b64encode(item.data).decode(),
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
