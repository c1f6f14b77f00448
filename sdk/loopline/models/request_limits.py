"""Providers of models, and the limits of a request: its files, its duration, and the size of its reply.

The attachment limits were read on 2026-11-20; if a page has changed, its latest stored text counts.

Attachments. Anthropic, "Vision" and "PDF support" (platform.claude.com/docs): a request has at most
32 MB; an image has at most 10 MB as base64 and 8,000 pixels a side, or 2,000 if there are more than 20
images; 100 images and 100 PDF pages for a window of 200,000 tokens, 600 of each for a larger one; JPEG,
PNG, GIF and WebP; PDFs without a password. OpenAI, "Images and vision" and "File inputs"
(developers.openai.com/api/docs): 512 MB and 1,500 images a request; PNG, JPEG, WebP, and GIF without
animation; 50 MB of files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct, structs

from loopline.errors import ModelError

ApiVendor = Literal["openai", "anthropic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """A provider of models; `key_variable` is "" if it does not need a key."""

    name: str
    base_url: str
    key_variable: str
    url_variable: str
    api_vendor: ApiVendor = "openai"


def _vendor(name: str, base_url: str, settings: str, *, needs_key: bool = True) -> Vendor:
    """Create a provider with OpenAI's API; `settings` is the prefix of its environment variables."""
    return Vendor(
        name=name,
        base_url=base_url,
        key_variable=f"{settings}_API_KEY" if needs_key else "",
        url_variable=f"{settings}_BASE_URL",
    )


_ALL = (
    _vendor("openai", "https://api.openai.com/v1", "OPENAI"),
    _vendor("openai-chat", "https://api.openai.com/v1", "OPENAI"),
    replace(_vendor("anthropic", "https://api.anthropic.com", "ANTHROPIC"), api_vendor="anthropic"),
    _vendor("groq", "https://api.groq.com/openai/v1", "GROQ"),
    _vendor("deepseek", "https://api.deepseek.com", "DEEPSEEK"),
    _vendor("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER"),
    _vendor("ollama", "http://localhost:11434/v1", "OLLAMA", needs_key=False),
)
VENDORS: Mapping[str, Vendor] = MappingProxyType({vendor.name: vendor for vendor in _ALL})
"""The providers by name."""


OFFLINE = "offline"
"""The model string of the built-in reader, which is not a language model and works without a network."""
BRIDGED = "pydantic-ai:"
"""The prefix of model strings for which pydantic-ai sends the requests."""


def public_url(url: str) -> str:
    """Remove user, password, query and fragment from a URL, because they may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if url else ""


def find_vendor(name: str) -> Vendor:
    """Return the provider of a model string such as `groq:openai/gpt-oss-20b`.

    Raises:
        ModelError: the provider is missing or unknown.
    """
    provider, colon, model = name.partition(":")
    if not colon or not model or provider not in VENDORS:
        prefixes = ", ".join(f"{vendor}:" for vendor in VENDORS)
        raise ModelError(f"no model {name!r}: write {OFFLINE}, or begin it with {prefixes}")
    return VENDORS[provider]


_MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentLimits:
    """A provider's limits for the files of a request, in bytes, pixels of a side, images and pages.

    `images_small` and `pdf_pages_small` are the limits for a window of up to 200,000 tokens. None means that only the limit
    for the whole request applies. If there are more images than `crowd`, each may have only `crowd_pixels` on a side. With
    `moving` an image may be an animation. `page_tokens` is the cost of a PDF's page as an image, in addition to its text.
    """

    request_bytes: int
    image_types: frozenset[str]
    image_bytes: int | None
    image_pixels: int | None
    images: int
    images_small: int
    pdf_bytes: int
    pdf_pages: int | None
    pdf_pages_small: int | None
    crowd: int | None = None
    crowd_pixels: int | None = None
    moving: bool = False
    page_tokens: int = 3_000


class AttachmentSupport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The files that a request to a model may include; by default none.

    `images` and `pages` are the limits for all files of a request together. `image_bytes` and `pdf_bytes` are the limits for
    a file and `request_bytes` for all files, as base64. A file may cost at most `tokens`; a page as an image costs
    `page_tokens`. `pixels` is the limit for a side of an image, or `crowd_pixels` if there are more images than `crowd`.
    """

    images: int = 0
    image_types: tuple[str, ...] = ()
    image_bytes: int = 0
    pixels: int = 0
    crowd: int = 0
    crowd_pixels: int = 0
    moving: bool = False
    pages: int = 0
    page_tokens: int = 0
    pdf_bytes: int = 0
    request_bytes: int = 0
    tokens: int = 0


SMALL_WINDOW = 200_000
FILES_SHARE = 0.75
"""The share of a request's bytes that files may take; the remainder is for text."""
UNLIMITED = 1 << 53


def attachment_support(
    limits: AttachmentLimits, *, vision: bool, pdf: bool, window: int, output_limit: int
) -> AttachmentSupport:
    """Return the files that a request to a model may include; `window` and `output_limit` are in tokens.

    Without `vision` and `pdf` there are none. Files may take 75% of the request's bytes, and each may cost at most
    half of `window - output_limit`.
    """
    if not vision and not pdf:
        return AttachmentSupport()
    small = window <= SMALL_WINDOW
    total = int(limits.request_bytes * FILES_SHARE)
    pages = limits.pdf_pages_small if small else limits.pdf_pages
    without_images = AttachmentSupport(
        request_bytes=total,
        pdf_bytes=min(limits.pdf_bytes, total),
        pages=(UNLIMITED if pages is None else pages) if pdf else 0,
        page_tokens=limits.page_tokens,
        tokens=max(window - output_limit, 0) // 2,
    )
    if not vision:
        return without_images
    pixels = limits.image_pixels or UNLIMITED
    return structs.replace(
        without_images,
        images=limits.images_small if small else limits.images,
        image_types=tuple(sorted(limits.image_types)),
        image_bytes=min(limits.image_bytes or total, total),
        pixels=pixels,
        crowd=UNLIMITED if limits.crowd is None else limits.crowd,
        crowd_pixels=limits.crowd_pixels or pixels,
        moving=limits.moving,
    )


_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})

ATTACHMENTS: Mapping[ApiVendor, AttachmentLimits] = MappingProxyType(
    {
        "anthropic": AttachmentLimits(
            request_bytes=32 * _MB,
            image_types=_IMAGES,
            image_bytes=10 * _MB,
            image_pixels=8_000,
            images=600,
            images_small=100,
            pdf_bytes=32 * _MB,
            pdf_pages=600,
            pdf_pages_small=100,
            crowd=20,
            crowd_pixels=2_000,
            moving=True,
            page_tokens=1_650,
        ),
        "openai": AttachmentLimits(
            request_bytes=512 * _MB,
            image_types=_IMAGES,
            image_bytes=None,
            image_pixels=None,
            images=1_500,
            images_small=1_500,
            pdf_bytes=50 * _MB,
            pdf_pages=None,
            pdf_pages_small=None,
        ),
    }
)
"""The limits of each vendor for its own models; other servers with the same API may allow less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The timeouts of a request in seconds: for the connection, for each piece of the reply, and for the complete reply.

    `read` also applies to the first piece; a large model on a slow machine may need a higher value.
    """

    connect: float = 10.0
    read: float = 180.0
    total: float = 1_800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyLimits:
    """The limits of one reply: bytes of text, thinking and arguments together, and the number of calls.

    Today's models write much less than the defaults. A larger reply raises `ModelReplyTooLarge` while it is streamed.
    """

    bytes: int = 16 * 2**20
    calls: int = 256
