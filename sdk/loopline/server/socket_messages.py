"""What clients of KDCube send over Socket.IO, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loopline.conversations import WhenBusy
from loopline.errors import LooplineError
from loopline.files import Attachment
from loopline.models import Json, JsonObject
from loopline.server.bodies import FILES, NAME, TEXT

_POLICIES: dict[str, WhenBusy] = {
    "event.user.prompt": "queue",
    "event.user.followup": "followup",
    "event.user.steer": "steer",
}
_ATTACHMENT = "event.user.attachment"


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketMessage:
    """A message: its text, how it joins a running turn, and its files. `key` is that of the event, if it has an id."""

    conversation: str
    bundle_id: str
    text: str
    when_busy: WhenBusy = "queue"
    key: str = ""
    files: Sequence[Attachment] = ()


def text_of(data: Json, name: str) -> str:
    """Return a text of an object; empty if it has none of that name.

    Raises:
        LooplineError: it is too long.
    """
    value = data[name] if isinstance(data, dict) and name in data else ""
    if value is None:
        return ""
    most = TEXT if name in ("text", "message") else NAME
    if not isinstance(value, str) or len(value) > most:
        raise LooplineError(f"{name} must be a text of at most {most:,} characters")
    return value


def approvals_of(data: Json) -> dict[str, str]:
    """Return the signed approvals of an answer, by call."""
    match data:
        case {"approvals": {**approvals}}:
            return {f"{call}": text for call, text in approvals.items() if isinstance(text, str)}
        case _:
            return {}


def read_message(data: Json, files: Sequence[bytes]) -> SocketMessage:
    """Return the message of a submission: events, or in the older form an object with the text.

    Raises:
        LooplineError: it is neither, or has no text.
    """
    submission = data if isinstance(data, dict) else JsonObject()
    match submission:
        case {"external_events": [*events]}:
            return _of_events(submission, events, files)
        case {"message": {"message": str()} | {"text": str()} as message}:
            return SocketMessage(
                conversation=text_of(message, "conversation_id"),
                bundle_id=text_of(message, "bundle_id"),
                text=text_of(message, "message") or text_of(message, "text"),
                files=_attachments(_names(submission), files),
            )
        case _:
            raise LooplineError("chat_message has external_events, or a message with its text")


def _of_events(data: JsonObject, events: Sequence[Json], files: Sequence[bytes]) -> SocketMessage:
    texts, names, kind, key = list[str](), list[str](), "event.user.prompt", ""
    for event in events:
        match event:
            case {"type": str(name), "payload": {"event": {"filename": str(filename)}}} if (
                name.startswith(_ATTACHMENT)
            ):
                names.append(filename)
            case {"type": str(name), "payload": {"event": {"text": str(text)}}} if (
                name in _POLICIES
            ):
                texts.append(text)
                kind, key = name, key or text_of(event, "event_id")
            case _:
                raise LooplineError("an event is of the user, with a text or the name of a file")
    return SocketMessage(
        conversation=text_of(data, "conversation_id"),
        bundle_id=text_of(data, "bundle_id"),
        text="\n".join(text for text in texts if text),
        when_busy=_POLICIES[kind],
        key=key,
        files=_attachments(names, files),
    )


def _names(submission: JsonObject) -> list[str]:
    match submission:
        case {"attachment_meta": [*items]}:
            return [text_of(item, "filename") or text_of(item, "name") for item in items]
        case _:
            return []


def _attachments(names: Sequence[str], files: Sequence[bytes]) -> list[Attachment]:
    if len(names) != len(files) or len(files) > FILES:
        raise LooplineError(
            f"{len(names)} files are named and {len(files)} came: send each, {FILES} at most"
        )
    return [
        Attachment(name or f"file-{number}", content)
        for number, (name, content) in enumerate(zip(names, files, strict=True), start=1)
    ]


SocketState = Literal["processing_started", "followup_accepted", "steer_accepted"]
STATES: dict[WhenBusy, SocketState] = {
    "queue": "processing_started",
    "reject": "processing_started",
    "followup": "followup_accepted",
    "steer": "steer_accepted",
}
"""What a client is told of a message that joined a turn, by how it did."""
