"""Attached files and images of results in a prompt: sent to the model, or described in text.

Files are decided in order, and each decision depends only on earlier files, so a later file never changes an earlier one.

The cost of an image is the highest among the vendors, as read on 2026-11-20. Anthropic, "Vision"
(platform.claude.com/docs): a token for each patch of 28 by 28 pixels, at most 4,784. OpenAI, "Images and
vision" (developers.openai.com/api/docs), at high detail: patches of 32 by 32 pixels, at most 2,500 at 1.2 tokens
or 1,536 at up to 2.46, or tiles of 512 pixels a side, and at least 255 tokens. A page of a PDF costs as much as an
image, plus its text; Anthropic's "PDF support" names 1,500 to 3,000 tokens for the text.
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
_MIN_TOKENS = 300
_MAX_TOKENS = 4_800
_PAGE_TOKENS = 3_000
"""The minimum estimate of a page, because its text may be unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLoad:
    """The files that a request has so far: their number, largest side in pixels, PDF pages, and size as base64 in bytes."""

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


NO_FILES = FileLoad()


def is_image_or_pdf(file: UserAttachment) -> bool:
    """Return whether the file is an image or a PDF, which some models accept."""
    return attachments.is_image(file) or file.pages > 0


def tokens_of(file: UserAttachment, allowed: AttachmentSupport) -> int:
    """Estimate the tokens of an image or a PDF that is sent to a model.

    They are 300 to 4,800 for an image by its size in pixels, and at least 3,000 for each page of a PDF.
    """
    if attachments.is_image(file):
        patches = -(-file.width // _PATCH) * -(-file.height // _PATCH)
        return min(max(patches * _PATCH_TOKENS, _MIN_TOKENS), _MAX_TOKENS)
    by_text = estimate(file.text) + file.pages * allowed.page_tokens
    return max(by_text, file.pages * _PAGE_TOKENS)


def show_file(
    block: Block, file: UserAttachment, window: Projection, load: FileLoad
) -> tuple[Attached, FileLoad]:
    """Return the attached file under a window, with its data if the model gets it, and the load including the file.

    The data is sent only for an image or a PDF within the limits. A file that is not sent does not add to the load; its
    description has the reason, its text, or both.
    """
    reason = ""
    if _is_old(block, file, window):
        reason = "it came some turns ago, or room was needed"
    elif is_image_or_pdf(file):
        reason = _refusal(file, window.carrying, load)
    is_sent = is_image_or_pdf(file) and not reason
    line = f"[ATTACHED {block.ref}] {attachments.describe(file)}"
    text = "\n".join([line, *_explanation(block, file, window, reason)])
    attached = _attach(file, block.ref, text, window.carrying, is_sent=is_sent)
    return attached, load.plus(file) if is_sent else load


def _attach(
    file: UserAttachment, ref: str, text: str, allowed: AttachmentSupport, *, is_sent: bool
) -> Attached:
    """Return the attached file with `text`; without `is_sent` its data is empty, and its tokens are 0."""
    return Attached(
        ref=ref,
        name=file.name,
        mime=file.mime,
        sha256=file.sha256,
        text=text,
        tokens=tokens_of(file, allowed) if is_sent else 0,
        data=file.data if is_sent else "",
    )


def show_image(
    block: Block, image: ShownImage, window: Projection, load: FileLoad
) -> tuple[Attached, FileLoad]:
    """Return an image of a result under a window, with its data if the model gets it, and the load including the image."""
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
        reason = _refusal(file, window.carrying, load)
    text = f"{line}\nNot shown: {reason}." if reason else line
    attached = _attach(file, image.ref, text, window.carrying, is_sent=not reason)
    return attached, load if reason else load.plus(file)


def is_shown_in_full(file: UserAttachment, attached: Attached) -> bool:
    """Return whether the file is a text file and `attached` has its complete text."""
    if file.data or not 0 < len(file.text) <= len(attached.text):
        return False  # before `escape_frame`, which takes long for a long text
    return attached.text.endswith(f"\n{escape_frame(file.text)}")


def _explanation(
    block: Block, file: UserAttachment, window: Projection, reason: str
) -> Iterator[str]:
    """Yield a line with the reason why the model does not get the file, and the text of the file, each if there is one.

    The text of a PDF is left out if the PDF is sent or is old.
    """
    if not is_image_or_pdf(file):
        only_named = "Not shown: files of this type are only named."
        yield _text(block, file.text, window) if file.text else only_named
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
    """Return whether the file is an image or a PDF of which only the name is shown, by its age or to save tokens."""
    old = block.turn < window.spent_before or block.seq <= window.files_cleared
    return old and is_image_or_pdf(file)


def _refusal(file: UserAttachment, allowed: AttachmentSupport, load: FileLoad) -> str:
    """Return the first limit of the model that an image or a PDF exceeds, as a sentence; "" if it exceeds none."""
    after = load.plus(file)
    tokens = tokens_of(file, allowed)
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
    checks = [
        *(image if attachments.is_image(file) else pdf),
        (after.size > allowed.request_bytes, too_many),
        (tokens > allowed.tokens, no_room),
    ]
    return next((reason for exceeds, reason in checks if exceeds), "")


def _too_large(subject: str, limit: int) -> str:
    return f"{subject} may have at most {limit * 3 // 4} bytes"
