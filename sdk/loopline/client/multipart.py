"""A message with files as a multipart form (RFC 7578), whose files are no longer than they are."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex

from loopline.files import Attachment
from loopline.models import JsonObject, dumps

_ESCAPES = {ord('"'): "%22", ord("\r"): "%0D", ord("\n"): "%0A"}


def encode_form(message: JsonObject, files: Sequence[Attachment]) -> tuple[bytes, str]:
    """Return the body of the form, and its type."""
    boundary = f"loopline-{token_hex(16)}"
    parts = [_part(boundary, 'name="message"', "application/json"), dumps(message).encode()]
    for file in files:
        name = file.name.translate(_ESCAPES)
        mime = file.mime.translate(_ESCAPES) or "application/octet-stream"
        parts += [_part(boundary, f'name="files"; filename="{name}"', mime), bytes(file.data)]
    body = b"".join([*parts, f"\r\n--{boundary}--\r\n".encode()])
    return body, f"multipart/form-data; boundary={boundary}"


def _part(boundary: str, disposition: str, mime: str) -> bytes:
    lines = f"\r\n--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\nContent-Type: {mime}\r\n\r\n"
    return lines.encode("utf-8", "replace")
