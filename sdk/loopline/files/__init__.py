"""Files: what a user attaches, read and checked before anything of it is recorded."""

from loopline.files.attachment import (
    Attachment,
    AttachmentCaps,
    AttachmentInput,
    attachment_of,
    check_text,
    check_values,
    read_attachments,
    with_unique_names,
)

__all__ = [
    "Attachment",
    "AttachmentCaps",
    "AttachmentInput",
    "attachment_of",
    "check_text",
    "check_values",
    "read_attachments",
    "with_unique_names",
]
