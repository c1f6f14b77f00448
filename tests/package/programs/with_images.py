"""The extra `images`: a picture is decoded, and half of one is refused."""

from __future__ import annotations

import io
from contextlib import suppress

from PIL import Image

from loopline import Attachment
from loopline.errors import AttachmentError
from loopline.files import AttachmentCaps, read_attachments

file = io.BytesIO()
Image.linear_gradient("L").save(file, "PNG")
picture, caps = file.getvalue(), AttachmentCaps(decode_images=True)
[taken] = read_attachments(Attachment("tea.png", picture), caps)
assert (taken.mime, taken.width) == ("image/png", 256)
with suppress(AttachmentError):
    read_attachments(Attachment("half.png", picture[: len(picture) // 2]), caps)
    raise SystemExit("half a picture was taken")
