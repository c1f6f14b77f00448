"""Requests for chat completions: the fields that count here. All others are accepted and change nothing."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from loopline.errors import LooplineError
from loopline.files import Attachment
from loopline.server.bodies import FILES, NAME, TEXT

MESSAGES = 2_000
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.-]+)*;base64,", re.ASCII)


class _Part(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")


class TextPart(_Part):
    """A text."""

    type: Literal["text"]
    text: Annotated[str, Field(max_length=TEXT)]


class ImageUrl(_Part):
    """Where an image is: its bytes in a data URL."""

    url: str


class ImagePart(_Part):
    """An image."""

    type: Literal["image_url"]
    image_url: ImageUrl


class FileData(_Part):
    """A file: its bytes in a data URL."""

    file_data: str
    filename: Annotated[str, Field(max_length=NAME)] = ""


class FilePart(_Part):
    """A file, such as a PDF."""

    type: Literal["file"]
    file: FileData


Part = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]


class ChatMessage(_Part):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str, Field(max_length=TEXT)] | list[Part] | None = None

    @property
    def parts(self) -> Sequence[TextPart | ImagePart | FilePart]:
        """Return the parts of the content."""
        match self.content:
            case None:
                return ()
            case str(text):
                return (TextPart(type="text", text=text),)
            case parts:
                return parts

    @property
    def text(self) -> str:
        """Return the text of the message."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))


class StreamOptions(_Part):
    """What a stream has beside its content."""

    include_usage: bool = False


class CompletionBody(_Part):
    """A request for a chat completion. `model` is the id of a bundle."""

    model: Annotated[str, Field(max_length=NAME)] = ""
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MESSAGES)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    tools: Annotated[list[JsonValue], Field(max_length=0)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=50)] | None = None

    @property
    def newest(self) -> Sequence[ChatMessage]:
        """Return the messages of the user that no answer follows."""
        last = max(
            (at for at, message in enumerate(self.messages) if message.role == "assistant"),
            default=-1,
        )
        return [message for message in self.messages[last + 1 :] if message.role == "user"]

    @property
    def transcript(self) -> str:
        """Return what was said before the newest messages, and the client's instructions; empty without any."""
        newest = self.newest
        lines = [
            f"{message.role}: {message.text}"
            for message in self.messages
            if message.text and not any(message is user_message for user_message in newest)
        ]
        return "\n".join(lines)

    def text(self, *, with_transcript: bool) -> str:
        """Return the text to send, behind the transcript if the conversation does not know it.

        Raises:
            LooplineError: the user said nothing.
        """
        text = "\n".join(message.text for message in self.newest if message.text)
        if not text:
            raise LooplineError("the last message must be one of the user, with a text")
        before = self.transcript if with_transcript else ""
        return f"[Earlier in this conversation]\n{before}\n[Now]\n{text}" if before else text

    def attachments(self) -> list[Attachment]:
        """Return the files of the newest messages.

        Raises:
            LooplineError: one of them is not in the request itself, or there are too many.
        """
        files: list[Attachment] = []
        for part in (part for message in self.newest for part in message.parts):
            match part:
                case TextPart():
                    pass
                case ImagePart(image_url=image):
                    files.append(_attachment(f"image-{len(files) + 1}", image.url))
                case FilePart(file=file):
                    name = file.filename or f"file-{len(files) + 1}"
                    files.append(_attachment(name, file.file_data))
        if len(files) > FILES:
            raise LooplineError(f"a message may have {FILES} files, not {len(files)}")
        return files


def _attachment(name: str, url: str) -> Attachment:
    match = _DATA_URL.match(url)
    if match is None:
        raise LooplineError(f"{name}: send its bytes in a data URL; no other address is read")
    try:
        data = base64.b64decode(url[match.end() :], validate=True)
    except binascii.Error as error:
        raise LooplineError(f"{name}: its bytes are not in base64") from error
    return Attachment(name, data, match[1] or "")
