"""The requests of OpenAI's APIs: messages in parts, and the text and files that they send to a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from loopline.errors import LooplineError
from loopline.files import Attachment
from loopline.models import Effort, ModelSettings
from loopline.react import Limits
from loopline.server.bodies import NAME, TEXT, SampledFields, decode_file

MESSAGES = 2_000
NAMED = "conversation_id"
"""The key of the metadata for the name of the conversation."""
RESPONSE = "resp_"
"""The beginning of the id of a response."""


class _Part(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")


class TextPart(_Part):
    """A part with a text."""

    type: Literal["text", "input_text", "output_text"]
    text: Annotated[str, Field(max_length=TEXT)]


class ImageUrl(_Part):
    """The bytes of an image in a data URL."""

    url: str


class ImagePart(_Part):
    """A part with an image, as chat completions have it."""

    type: Literal["image_url"]
    image_url: ImageUrl


class InputImagePart(_Part):
    """A part with an image, as responses have it: its bytes in a data URL."""

    type: Literal["input_image"]
    image_url: str


class FileData(_Part):
    """The bytes of a file in a data URL, and its name."""

    file_data: str
    filename: Annotated[str, Field(max_length=NAME)] = ""


class FilePart(_Part):
    """A part with a file, such as a PDF, as chat completions have it."""

    type: Literal["file"]
    file: FileData


class InputFilePart(FileData):
    """A part with a file, as responses have it."""

    type: Literal["input_file"]


Part = Annotated[
    TextPart | ImagePart | InputImagePart | FilePart | InputFilePart, Field(discriminator="type")
]


class ChatMessage(_Part):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str, Field(max_length=TEXT)] | list[Part] | None = None

    @property
    def parts(self) -> Sequence[Part]:
        """The parts of the content; a text is one part."""
        match self.content:
            case None:
                return ()
            case str(text):
                return (TextPart(type="text", text=text),)
            case parts:
                return parts

    @property
    def text(self) -> str:
        """The texts of the message, joined by line breaks."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))


class InputMessage(ChatMessage):
    """A message in the input of a response."""

    type: Literal["message"] = "message"


class InputReasoning(_Part):
    """The reasoning of an earlier response, which a client sends back; it is not used."""

    type: Literal["reasoning"]


@dataclass(frozen=True, slots=True)
class ClientMessages:
    """The messages that a client sent, and the first of the newest ones of its user by its index."""

    messages: Sequence[ChatMessage]

    @property
    def _begin(self) -> int:
        roles = [message.role for message in self.messages]
        return max((at + 1 for at, role in enumerate(roles) if role == "assistant"), default=0)

    @property
    def newest(self) -> Sequence[ChatMessage]:
        """The messages of the user after the last answer."""
        return [item for item in self.messages[self._begin :] if item.role == "user"]

    def text(self, *, with_transcript: bool) -> str:
        """Return the text to send; with `with_transcript`, it begins with the earlier messages and the instructions.

        Raises:
            LooplineError: the newest messages have no text.
        """
        text = "\n".join(message.text for message in self.newest if message.text)
        if not text:
            raise LooplineError("the last message must be a message of the user with a text")
        begin = self._begin
        lines = [
            f"{message.role}: {message.text}"
            for at, message in enumerate(self.messages)
            if with_transcript and message.text and (at < begin or message.role != "user")
        ]
        before = "\n".join(lines)
        return f"[Earlier in this conversation]\n{before}\n[Now]\n{text}" if before else text

    def attachments(self) -> list[Attachment]:
        """Decode the files of the newest messages.

        Raises:
            LooplineError: a file is not in a data URL.
        """
        files: list[Attachment] = []
        for part in (part for message in self.newest for part in message.parts):
            match part:
                case TextPart():
                    pass
                case ImagePart(image_url=ImageUrl(url=url)) | InputImagePart(image_url=str(url)):
                    files.append(decode_file(f"image-{len(files) + 1}", url))
                case FilePart(file=file) | (InputFilePart() as file):
                    name = file.filename or f"file-{len(files) + 1}"
                    files.append(decode_file(name, file.file_data))
        return files


class StreamOptions(_Part):
    """The options of a stream."""

    include_usage: bool = False


class ReplyBody(SampledFields, _Part):
    """The fields that both requests have. `model` is the id of a bundle."""

    model: Annotated[str, Field(max_length=NAME)] = ""
    stream: bool = False
    tools: Annotated[list[JsonValue], Field(max_length=0)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=50)] | None = None

    def options(self) -> Limits:
        """Return the settings of the model that the client sent, as an option of the turn.

        Clients send a temperature also to models that refuse it, so what the model does not support is left out.
        """
        values = self.sampled() | self._lengths()
        return {"settings": ModelSettings(**values, unsupported="drop")} if values else {}

    def _lengths(self) -> dict[str, Any]:
        """Return the settings that have another name in this API."""
        return {}

    @property
    def name(self) -> str:
        """The name of the conversation that the metadata has, or an empty text."""
        return (self.metadata or {}).get(NAMED, "")


class CompletionBody(ReplyBody):
    """A request for a chat completion."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MESSAGES)]
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None

    def _lengths(self) -> dict[str, Any]:
        limit = self.max_completion_tokens
        return {} if limit is None else {"max_tokens": limit}

    @property
    def client_messages(self) -> ClientMessages:
        """The messages of the request."""
        return ClientMessages(self.messages)


class ResponseConversation(_Part):
    """The name of a conversation."""

    id: Annotated[str, Field(max_length=NAME)]


class ResponseReasoning(_Part):
    """How much the model thinks."""

    effort: Effort | None = None


class ResponseBody(ReplyBody):
    """A request for a response."""

    input: (
        Annotated[str, Field(max_length=TEXT)]
        | Annotated[list[InputMessage | InputReasoning], Field(max_length=MESSAGES)]
    )
    instructions: Annotated[str, Field(max_length=TEXT)] | None = None
    conversation: Annotated[str, Field(max_length=NAME)] | ResponseConversation | None = None
    previous_response_id: Annotated[str, Field(max_length=2 * NAME)] | None = None
    background: Literal[False] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    reasoning: ResponseReasoning | None = None

    def _lengths(self) -> dict[str, Any]:
        limit = self.max_output_tokens
        effort = self.reasoning.effort if self.reasoning else None
        values = {"max_tokens": limit, "reasoning_effort": effort}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def name(self) -> str:
        """The name of the conversation, or an empty text."""
        match self.conversation:
            case None:
                return super().name
            case str(name) | ResponseConversation(id=name):
                return name

    @property
    def client_messages(self) -> ClientMessages:
        """The instructions as a message, and the messages of the input."""
        system = [ChatMessage(role="system", content=self.instructions)]
        if isinstance(self.input, str):
            return ClientMessages([*system, ChatMessage(role="user", content=self.input)])
        return ClientMessages(
            [*system, *(item for item in self.input if isinstance(item, InputMessage))]
        )
