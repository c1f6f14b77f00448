"""Files: what a user attaches, read and checked before anything of it is recorded."""

from loopline.files.attachment import (
    Attachment,
    AttachmentCaps,
    Given,
    attachment_of,
    check_text,
    check_values,
    entered,
    renamed,
)

__all__ = [
    "Attachment",
    "AttachmentCaps",
    "Given",
    "attachment_of",
    "check_text",
    "check_values",
    "entered",
    "renamed",
]
