"""Tools of MCP servers: their specifications, the port for calls, and the conversion of results."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Protocol

from loopline.errors import ToolError
from loopline.files import FileChange, describe_data
from loopline.models import Json, JsonObject, ToolSpec
from loopline.models.json_schema import SchemaMismatch, validator_of_checked
from loopline.refs import FileRef
from loopline.timeline import Effect, ShownImage, WorkspacePath, turn_number
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome, images_within_limits, is_image

MCP = "mcp"
"""The first part of the names of all tools of MCP servers."""
_SUFFIXES = {
    "application/json": ".json",
    "application/pdf": ".pdf",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/wav": ".wav",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/svg+xml": ".svg",
    "image/webp": ".webp",
    "text/html": ".html",
    "text/plain": ".txt",
}
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,10}")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpToolSpec:
    """A tool as its server describes it.

    A call of an `idempotent` tool may be repeated after a crash. `output_schema` is the schema of structured results.
    """

    name: str
    description: str
    parameters: JsonObject
    output_schema: JsonObject | None = None
    effect: Effect = "exclusive"
    idempotent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class McpFile:
    """A file in a result, such as an image. `mime` is the media type by the server, `name` the last part of its address."""

    data: bytes = field(repr=False)
    mime: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpResult:
    """The result of a call. `structured` is a JSON value that the text does not show in full, or None."""

    text: str
    files: tuple[McpFile, ...] = ()
    structured: Json = None
    is_error: bool = False


AskPerson = Callable[[str, Json], Awaitable[Json]]
"""Asks the user a question, with the schema of the answer, and returns the answer; None if there is none."""


class McpServer(Protocol):
    """A connection to an MCP server, which is started at its first call."""

    async def call(
        self,
        tool: str,
        arguments: JsonObject,
        on_progress: Callable[[str], None],
        on_question: AskPerson,
    ) -> McpResult:
        """Call a tool. Cancelling this cancels the call on the server.

        `on_question` is called if the server asks the user during the call. An error of the tool itself is a result with
        `is_error`.

        Raises:
            ToolError: the server could not be started, ended, or broke the protocol; the message has no secrets.
        """
        ...


class McpTool:
    """A tool of an MCP server with the name `mcp.<alias>.<tool>`.

    Its schema must have passed `check_schema`. The first instance in a process imports `jsonschema`, which takes 0.2 s.
    """

    def __init__(self, alias: str, tool: McpToolSpec, server: McpServer) -> None:
        self._tool = tool
        self._server = server
        self._alias = alias
        self._validate = validator_of_checked(tool.parameters)
        self.effect: Effect = tool.effect
        self.spec: ToolSpec = ToolSpec(
            name=f"{MCP}.{alias}.{tool.name}",
            description=tool.description,
            parameters=tool.parameters,
        )

    def check(self, arguments: JsonObject) -> None:
        """Check the arguments against the schema of the tool.

        Raises:
            ToolError: the arguments do not match the schema.
        """
        self._check_arguments(arguments)

    def key(self, arguments: JsonObject) -> str:
        """Return one key for all tools of the server, so that writing calls run in order."""
        del arguments
        return f"{MCP}.{self._alias}"

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Call the tool on its server. Files in the result are recorded in `outputs/`, and images are shown to the model.

        If the model accepts images, the text says why an image is not shown. A structured value becomes the artifact.

        Raises:
            ToolError: the arguments do not match the schema, or the call failed.
        """
        result = await self._server.call(
            self._tool.name,
            self._check_arguments(arguments),
            call.context.progress,
            call.on_question,
        )
        if result.is_error:
            raise ToolError(result.text or f"{self.spec.name} failed and gave no reason")
        files = _to_changes(result.files, self._alias, call.context.call_id)
        allowed = call.view.window.carrying
        shown = images_within_limits(_image_data(files, call), allowed)
        refused = shown.refused if allowed.images else {}
        notes = [f"{ref} is not shown: {reason}" for ref, reason in refused.items()]
        return Outcome(
            text="\n\n".join(part for part in (result.text, *notes) if part),
            artifact=result.structured,
            files=files,
            images=shown.images,
            shows=tuple((image.ref, _text_digest(image)) for image in shown.images),
        )

    async def reconcile(self, arguments: JsonObject, call: ToolInvocation) -> Outcome | None:
        """Repeat the call if the tool only reads or is idempotent; otherwise return None."""
        if self.effect == "read" or self._tool.idempotent:
            return await self.run(arguments, call)
        return None

    def _check_arguments(self, arguments: JsonObject) -> JsonObject:
        """Return the arguments if they match the schema; otherwise without nulls, if they match then.

        Raises:
            ToolError: the arguments do not match the schema in either form.
        """
        try:
            self._validate(arguments)
        except SchemaMismatch as error:
            without_nulls: JsonObject = {
                name: value for name, value in arguments.items() if value is not None
            }
            with suppress(SchemaMismatch):
                if len(without_nulls) < len(arguments):
                    self._validate(without_nulls)
                    return without_nulls
            raise ToolError(f"{self.spec.name}: {error}") from error
        return arguments


def _to_changes(files: Sequence[McpFile], alias: str, call_id: str) -> tuple[FileChange, ...]:
    """Return the changes that write the files of a result to `outputs/mcp/<alias>/` with unique names."""
    return tuple(
        FileChange(
            path=WorkspacePath("outputs", f"{MCP}/{alias}/{call_id}-{number}{_suffix(file)}"),
            data=file.data,
            mime=file.mime,
        )
        for number, file in enumerate(files, 1)
    )


def _image_data(files: Sequence[FileChange], call: ToolInvocation) -> dict[str, bytes]:
    """Return the bytes of the images among the files, by the refs with which they will be recorded."""
    turn = call.context.turn_id
    data: dict[str, bytes] = {}
    for file in files:
        if file.data is not None and is_image(file.mime):
            area, path = file.path.area, file.path.path
            version = call.timeline.files.version(turn_number(turn), area, path) + 1
            ref = FileRef(turn_id=turn, area=area, path=path, version=version)
            data[str(ref)] = file.data
    return data


def _text_digest(image: ShownImage) -> str:
    """Return the sha256 of the text that `react.read` returns for the image, so that the image counts as visible."""
    text = describe_data(image.ref, b64decode(image.data)).text
    return sha256(text.encode()).hexdigest()


def _suffix(file: McpFile) -> str:
    """Return the suffix of the file's name, or one for its media type."""
    suffix = PurePosixPath(file.name).suffix
    if _SUFFIX.fullmatch(suffix):
        return suffix
    return _SUFFIXES.get(file.mime, ".bin")
