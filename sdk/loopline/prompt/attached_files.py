"""Attached files and images of results in a prompt: sent to the model, or described in text.

Files are decided in order, each by what came before it, so that a later file never changes an earlier one.

The cost of images is the highest of what vendors say, as read on 2026-11-20. Anthropic, "Vision"
(platform.claude.com/docs): a token for each patch of 28 by 28 pixels, at most 4,784. OpenAI, "Images and
vision" (developers.openai.com/api/docs), at high detail: patches of 32 by 32 pixels, at most 2,500 at 1.2 tokens
or 1,536 at up to 2.46, or tiles of 512 pixels a side, no image less than 255 tokens. A page of a PDF costs as
an image, and its text besides; Anthropic's "PDF support" says 1,500 to 3,000 tokens for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loopline.models import Attached, AttachmentSupport, one_line
from loopline.models.prompt import estimate
from loopline.prompt import truncation
from loopline.prompt.truncation import escape_frame
from loopline.timeline import Block, Projection, ShownImage, UserAttachment, attachments

_PATCH = 28
_PATCH_TOKENS = 2
_MIN_TOKENS, _MAX_TOKENS = 300, 4_800
_PAGE_TOKENS = 3_000
"""The minimum estimate of a page, since its text may be unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLoad:
    """The files that a request has so far; `pixels` is the largest side, `size` counts base64."""

    images: int = 0
    pixels: int = 0
    pages: int = 0
    size: int = 0

    def plus(self, file: UserAttachment) -> FileLoad:
        """Return the load with one more file."""
        return FileLoad(
            images=self.images + attachments.is_image(file),
            pixels=max(self.pixels, file.width, file.height),
            pages=self.pages + file.pages,
            size=self.size + len(file.data),
        )


def is_image_or_pdf(file: UserAttachment) -> bool:
    """Return whether some models take the file itself: an image or a PDF."""
    return attachments.is_image(file) or file.pages > 0


def tokens_of(file: UserAttachment, allowed: AttachmentSupport) -> int:
    """Return what an image or a PDF costs a model that gets it, in tokens."""
    if attachments.is_image(file):
        patches = -(-file.width // _PATCH) * -(-file.height // _PATCH)
        return min(max(patches * _PATCH_TOKENS, _MIN_TOKENS), _MAX_TOKENS)
    by_text = estimate(file.text) + file.pages * allowed.page_tokens
    return max(by_text, file.pages * _PAGE_TOKENS)


def show_file(
    block: Block, file: UserAttachment, window: Projection, load: FileLoad
) -> tuple[Attached, FileLoad]:
    """Return the file as this epoch shows it, and the load with it."""
    reason = _why_not(block, file, window, load)
    is_given = is_image_or_pdf(file) and not reason
    line = f"[ATTACHED {block.ref}] {attachments.describe(file)}"
    attached = Attached(
        ref=block.ref,
        name=file.name,
        mime=file.mime,
        sha256=file.sha256,
        text="\n".join([line, *_explanation(block, file, window, reason)]),
        tokens=tokens_of(file, window.carrying) if is_given else 0,
        data=file.data if is_given else "",
    )
    return attached, load.plus(file) if is_given else load


def show_image(
    block: Block, image: ShownImage, window: Projection, load: FileLoad
) -> tuple[Attached, FileLoad]:
    """Return an image of a result as this epoch shows it, and the load with it."""
    file = UserAttachment(
        name=image.ref,
        mime=image.mime,
        size=image.size,
        sha256=image.sha256,
        data=image.data,
        width=image.width,
        height=image.height,
        moves=image.moves,
    )
    line = f"[ATTACHED {image.ref}] {attachments.describe(file)}"
    if block.seq <= window.images_cleared or _is_old(block, file, window):
        reason = "room was needed, or it came some turns ago; react.read shows it again"
    else:
        objections = _objections(file, window.carrying, load)
        reason = next((objection for holds, objection in objections if holds), "")
    attached = Attached(
        ref=image.ref,
        name=image.ref,
        mime=image.mime,
        sha256=image.sha256,
        text=f"{line}\nNot shown: {reason}." if reason else line,
        tokens=0 if reason else tokens_of(file, window.carrying),
        data="" if reason else image.data,
    )
    return attached, load if reason else load.plus(file)


def is_shown_in_full(file: UserAttachment, attached: Attached) -> bool:
    """Return whether the file is a text and all of it is shown."""
    return (
        bool(file.text) and not file.data and attached.text.endswith(f"\n{escape_frame(file.text)}")
    )


def _explanation(
    block: Block, file: UserAttachment, window: Projection, reason: str
) -> Iterator[str]:
    """Yield why the model does not get the file, and its text."""
    if not is_image_or_pdf(file):
        named = "Not shown: files of this type are only named."
        yield _text(block, file.text, window) if file.text else named
    elif _is_old(block, file, window):
        again = "react.read gives its text." if file.text else "It can be attached again."
        yield f"Not shown any more: {reason}. {again}"
    elif reason and file.text:
        yield f"Not shown itself: {reason}. Its text:"
        yield _text(block, file.text, window)
    elif reason:
        yield f"Not shown: {reason}."


def _text(block: Block, text: str, window: Projection) -> str:
    limit = min(window.result_limit, window.text_limit or window.result_limit)
    if block.turn < window.old_before:
        return escape_frame(truncation.old_text(text, block.ref, min(limit, truncation.TEXT_LIMIT)))
    return escape_frame(truncation.truncate_text(text, limit, block.ref))


def _is_old(block: Block, file: UserAttachment, window: Projection) -> bool:
    """Return whether an image or a PDF is so old that only its name is shown."""
    old = block.turn < window.spent_before or block.seq <= window.files_cleared
    return old and is_image_or_pdf(file)


def _why_not(block: Block, file: UserAttachment, window: Projection, load: FileLoad) -> str:
    """Return why this model does not get the file, or "" if it does or if no model takes such files."""
    if _is_old(block, file, window):
        return "it came some turns ago, or room was needed"
    if not is_image_or_pdf(file):
        return ""
    objections = _objections(file, window.carrying, load)
    return next((reason for holds, reason in objections if holds), "")


def _objections(
    file: UserAttachment, allowed: AttachmentSupport, load: FileLoad
) -> list[tuple[bool, str]]:
    """Return what may speak against giving the file, each with whether it does."""
    after, tokens = load.plus(file), tokens_of(file, allowed)
    side = allowed.crowd_pixels if after.images > allowed.crowd else allowed.pixels
    crowded = f"with so many images each has at most {side} pixels a side"
    too_large = crowded if side < allowed.pixels else f"an image has at most {side} pixels a side"
    image = [
        (not allowed.images, "this model is given no images"),
        (file.mime not in allowed.image_types, f"this model takes no {one_line(file.mime)}"),
        (file.moves and not allowed.moving, "this model takes only images that do not move"),
        (after.images > allowed.images, f"a request has at most {allowed.images} images"),
        (after.pixels > side, too_large),
        (len(file.data) > allowed.image_bytes, _too_large("an image", allowed.image_bytes)),
    ]
    pdf = [
        (not allowed.pages, "this model is given no PDFs"),
        (after.pages > allowed.pages, f"the PDFs of a request have at most {allowed.pages} pages"),
        (len(file.data) > allowed.pdf_bytes, _too_large("a PDF", allowed.pdf_bytes)),
    ]
    too_many = _too_large("all files of a request", allowed.request_bytes)
    no_room = f"it would cost about {tokens} tokens, and there is room for {allowed.tokens}"
    return [
        *(image if attachments.is_image(file) else pdf),
        (after.size > allowed.request_bytes, too_many),
        (tokens > allowed.tokens, no_room),
    ]


def _too_large(subject: str, limit: int) -> str:
    return f"{subject} may have at most {limit * 3 // 4} bytes"
