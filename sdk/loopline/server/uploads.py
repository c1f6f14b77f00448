"""Messages as multipart forms: the bytes of files come as they are, and go to disk while they are read."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from loopline.errors import AttachmentError
from loopline.files import Attachment, AttachmentCaps
from loopline.server.bodies import FILES, MessageBody

MESSAGE, FILE = "message", "files"
MESSAGE_BYTES = 4 * 1024 * 1024
"""How long the message may be written in JSON; its text has a limit of its own."""
FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [MESSAGE],
                    "properties": {
                        MESSAGE: {
                            "type": "string",
                            "contentMediaType": "application/json",
                            "description": "The message as for /messages, without attachments.",
                        },
                        FILE: {
                            "type": "array",
                            "maxItems": FILES,
                            "items": {"type": "string", "format": "binary"},
                        },
                    },
                }
            }
        },
    }
}
"""The form as OpenAPI describes it."""


async def read_form(request: Request, caps: AttachmentCaps) -> tuple[MessageBody, list[Attachment]]:
    """Return the message and the files of a form, whose files are on disk until they are known to be small enough.

    Raises:
        HTTPException: the form is broken, or has more parts or bytes than it may have.
        RequestValidationError: there is no such message.
        AttachmentError: a file, or all together, are too large.
    """
    async with request.form(max_files=FILES, max_fields=1, max_part_size=MESSAGE_BYTES) as form:
        return _message(form), await _files(form, caps)


def _message(form: FormData) -> MessageBody:
    texts = [value for value in form.getlist(MESSAGE) if isinstance(value, str)]
    if len(texts) != 1:
        raise _fault(MESSAGE, "a form needs one message, as JSON")
    try:
        body = MessageBody.model_validate_json(texts[0])
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_input=False)) from error
    if body.attachments:
        raise _fault("attachments", f"the files of a form are its parts {FILE!r}")
    return body


async def _files(form: FormData, caps: AttachmentCaps) -> list[Attachment]:
    parts = [value for value in form.getlist(FILE) if isinstance(value, UploadFile)]
    if len(parts) + 1 < len(form.multi_items()):
        raise _fault(FILE, f"a form has one {MESSAGE!r} and {FILE!r}, nothing else")
    limit = max(caps.image_bytes, caps.pdf_bytes, caps.text_bytes, caps.file_bytes)
    total = 0
    for part in parts:
        size = part.size or 0
        total += size
        if size > limit:
            raise AttachmentError(f"{part.filename} has {size:,} bytes: a file may have {limit:,}")
        if total > caps.message_bytes:
            raise AttachmentError(
                f"{part.filename}: with it the message has {total:,} bytes: it may have {caps.message_bytes:,}"
            )
    return [
        Attachment(part.filename or "", await part.read(), part.content_type or "")
        for part in parts
    ]


def _fault(name: str, message: str) -> RequestValidationError:
    return RequestValidationError([{"loc": ("body", name), "msg": message, "type": "value_error"}])
