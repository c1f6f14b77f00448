"""The tools for the files of a turn: `react.write` and `react.patch`."""

from __future__ import annotations

import asyncio

from loopline.errors import ToolError
from loopline.files import PatchedFile, Workspace, apply_patch
from loopline.models import JsonObject, ToolSpec
from loopline.timeline import Effect, Visibility, parse_path
from loopline.tools.arguments import check_names, object_schema, text_argument
from loopline.tools.invocation import ToolInvocation
from loopline.tools.outcome import Outcome
from loopline.tools.tool import RerunnableTool

WORKSPACE_KEY = "workspace"
"""The key of all calls that change files, so that they keep their order."""
_PATH: JsonObject = {
    "type": "string",
    "description": "files/… for the project, outputs/… for a product of this turn.",
}


class WriteTool(RerunnableTool):
    """The tool that writes a whole file."""

    effect: Effect = "write"
    shared_key: str = WORKSPACE_KEY
    spec: ToolSpec = ToolSpec(
        name="react.write",
        description=(
            "Write a text file of the workspace, whole. Later turns begin with what is in files/; outputs/ "
            "holds what this turn makes for the user. The result gives the ref that reads this version again. "
            "To change a part of a file, use react.patch."
        ),
        parameters=object_schema(
            {
                "path": _PATH,
                "content": {"type": "string", "description": "The whole text."},
                "visibility": {
                    "type": "string",
                    "enum": ["external", "internal"],
                    "default": "external",
                    "description": "internal: an output that the user is not offered.",
                },
            },
            "path",
            "content",
        ),
    )

    def check(self, arguments: JsonObject) -> None:
        """Refuse a path that no workspace takes, and a content that is no text."""
        check_names(self.spec, arguments)
        parse_path(text_argument(arguments, "path"))
        _content(arguments)
        _visibility(arguments)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the change."""
        files, path = call.context.workspace, parse_path(text_argument(arguments, "path"))
        data = _content(arguments).encode()
        same = files.find(path) == data
        files.write(str(path), data, visibility=_visibility(arguments))
        text = f"{path} has this content already: {files.ref(str(path))}" if same else ""
        return Outcome(text=text, files=tuple(files.changes))


def _content(arguments: JsonObject) -> str:
    content = arguments.get("content")
    if not isinstance(content, str):
        raise ToolError("content: a text, which may be empty")
    return content


def _visibility(arguments: JsonObject) -> Visibility:
    value = arguments.get("visibility", "external")
    if value not in ("external", "internal"):
        raise ToolError("visibility: external or internal")
    return "internal" if value == "internal" else "external"


class PatchTool(RerunnableTool):
    """The tool that changes files by a unified diff."""

    effect: Effect = "write"
    shared_key: str = WORKSPACE_KEY
    spec: ToolSpec = ToolSpec(
        name="react.patch",
        description=(
            "Change files of the workspace by a unified diff, all of it or nothing: --- a/files/x.py, +++ b/files/x.py, "
            "then hunks that begin @@ -1,3 +1,4 @@ with lines of context as they stand in the file. The diff may "
            "change, create, rename and delete several files. If a hunk does not fit, the error says what stands there."
        ),
        parameters=object_schema(
            {
                "patch": {"type": "string", "description": "The unified diff."},
                "path": {
                    "type": "string",
                    "description": "The file, if the diff begins with its first hunk.",
                },
            },
            "patch",
        ),
    )

    def check(self, arguments: JsonObject) -> None:
        """Refuse an empty patch, and a path that no workspace takes."""
        check_names(self.spec, arguments)
        text_argument(arguments, "patch")
        if _path(arguments):
            parse_path(_path(arguments))

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the changes that Git makes of the diff."""
        files, patch = call.context.workspace, text_argument(arguments, "patch").encode()
        limit = files.limits.file_bytes
        patched = await asyncio.to_thread(
            apply_patch, patch, files.find, limit, _path(arguments), files.is_executable
        )
        for file in patched:
            _stage(files, file)
        text = "" if patched else "the files are so already: nothing was changed"
        return Outcome(text=text, files=tuple(files.changes))


def _stage(files: Workspace, file: PatchedFile) -> None:
    if file.after is None:
        files.remove(str(file.path))
    else:
        files.write(str(file.path), file.after, executable=file.executable)


def _path(arguments: JsonObject) -> str:
    path = arguments.get("path") or ""
    if not isinstance(path, str):
        raise ToolError("path: a text such as files/src/a.py")
    return path
