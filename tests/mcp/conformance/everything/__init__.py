"""A bundle with the tools that the conformance suite calls."""

from __future__ import annotations

import struct
import wave
import zlib
from io import BytesIO

from loopline import Bundle, Output, OutputFile, ToolContext, ToolError, tool


def pixel() -> bytes:
    """Return a red pixel as PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    parts = (
        chunk(b"IHDR", header),
        chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")),
        chunk(b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def silence() -> bytes:
    """Return ten samples of silence as WAV."""
    written = BytesIO()
    with wave.open(written, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8_000)
        sound.writeframes(bytes(20))
    return written.getvalue()


@tool(effect="read")
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@tool(effect="read")
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool(effect="read")
def test_tool_with_progress(context: ToolContext) -> str:
    """Report progress three times."""
    for percent in (0, 50, 100):
        context.progress(f"{percent} of 100")
    return "done"


@tool(effect="write")
def test_image_content() -> Output:
    """Return an image."""
    return Output(files=[OutputFile("pixel.png", pixel())])


@tool(effect="write")
def test_audio_content() -> Output:
    """Return a sound."""
    return Output(files=[OutputFile("silence.wav", silence(), mime="audio/wav")])


@tool(effect="write")
def test_embedded_resource() -> Output:
    """Return a file."""
    return Output(files=[OutputFile("page.md", "# A page\n")])


@tool(effect="write")
def test_multiple_content_types() -> Output:
    """Return a text, an image and a file."""
    files = [OutputFile("pixel.png", pixel()), OutputFile("data.json", '{"test": "data"}')]
    return Output("Multiple content types test:", files=files)


@tool(effect="read")
def test_elicitation(message: str, context: ToolContext) -> str:
    """Ask the user."""
    context.ask_user(message)


@tool(effect="read")
def test_input_required_result_elicitation(context: ToolContext) -> str:
    """Ask the user for a name."""
    context.ask_user("What is your name?")


@tool(effect="read")
def test_input_required_result_request_state(context: ToolContext) -> str:
    """Ask the user; the call goes on by the state that the client sends back."""
    context.ask_user("Go on?")


@tool(effect="read")
def test_input_required_result_tampered_state(context: ToolContext) -> str:
    """Ask the user; a state that the client has changed is refused."""
    context.ask_user("Go on?")


bundle = Bundle(
    id="everything",
    tools=[
        test_simple_text,
        test_error_handling,
        test_tool_with_progress,
        test_image_content,
        test_audio_content,
        test_embedded_resource,
        test_multiple_content_types,
        test_elicitation,
        test_input_required_result_elicitation,
        test_input_required_result_request_state,
        test_input_required_result_tampered_state,
    ],
)
