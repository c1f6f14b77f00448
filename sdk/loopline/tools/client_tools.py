"""Tools that the client runs: their checks when a request brings them, and the results that the client sends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property

from loopline.errors import LooplineError, ToolError
from loopline.models import Json, JsonObject, ToolSpec, dumps, well_formed, well_formed_object
from loopline.models.json_schema import (
    SchemaMismatch,
    convert_scalars,
    is_object_schema,
    validator_of_checked,
    validator_of_schema,
)
from loopline.timeline import ClientTool, Effect
from loopline.timeline.codec import is_too_deep
from loopline.tools.functions import NOTHING, BoundTool, RerunnableTool, Tool
from loopline.tools.invocation import AskUser, ToolInvocation
from loopline.tools.outcome import Outcome

MAX_CLIENT_TOOLS = 128
"""The most tools of one request."""
TOOL_BYTES = 64_000
"""The most bytes of one tool of a request, as JSON."""
REQUEST_BYTES = 256_000
"""The most bytes of all tools of a request together, as JSON."""
NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}
"""The schema of a tool without parameters."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_TOO_DEEP = "the JSON in its text is nested too deeply"


class RequestTool(RerunnableTool):
    """A tool of a request, which the client runs. Its schema must have passed `check_client_tools`."""

    effect: Effect = "exclusive"

    def __init__(self, tool: ClientTool) -> None:
        self._tool = tool
        self.shared_key: str = tool.name
        self.spec: ToolSpec = ToolSpec(
            name=tool.name, description=tool.description, parameters=tool.parameters
        )

    @cached_property
    def _validate(self) -> Callable[[Json], Json]:
        return validator_of_checked(self._tool.parameters)

    def check(self, arguments: JsonObject) -> None:
        """Check the arguments against the schema of the tool.

        Raises:
            ToolError: the arguments do not match the schema.
        """
        try:
            self._validate(arguments)
        except SchemaMismatch as error:
            raise ToolError(f"{self.spec.name}: {error}") from error

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Raise AskUser for the client, also after a crash, because the client may still send the result."""
        del call
        raise AskUser.for_client(self.spec.name, arguments, self._tool.result)


def runs_on_client(tool: object) -> bool:
    """Return whether the client runs the calls of a tool."""
    return isinstance(tool, RequestTool) or (isinstance(tool, BoundTool) and tool.function.client)


def check_client_tools(tools: Sequence[ClientTool]) -> tuple[ClientTool, ...]:
    """Check the tools of a request, and return them with lone surrogates in their texts escaped.

    This may take a second for large schemas, so call it in a thread.

    Raises:
        LooplineError: there are too many tools or bytes; a name has other characters than letters, digits, `_` and `-`, or
            more than 64, or is used twice; or a schema cannot be used to check values, or is not that of an object.
    """
    if len(tools) > MAX_CLIENT_TOOLS:
        raise LooplineError(f"a message may bring {MAX_CLIENT_TOOLS} tools, not {len(tools)}")
    checked: dict[str, ClientTool] = {}
    total = 0
    for tool in tools:
        if _NAME.fullmatch(tool.name) is None:
            raise LooplineError(
                f"{well_formed(tool.name)[:80]!r} is not a name for a tool that the client runs: it has 1 to 64 letters, "
                "digits, _ or -"
            )
        if tool.name in checked:
            raise LooplineError(f"two tools of the message are called {tool.name!r}")
        size = _check_tool(tool)
        total += size
        if total > REQUEST_BYTES:
            raise LooplineError(
                f"the tools of a message may have {REQUEST_BYTES:,} bytes together: send fewer, or shorter schemas"
            )
        checked[tool.name] = ClientTool(
            name=tool.name,
            description=well_formed(tool.description),
            parameters=well_formed_object(tool.parameters or NO_PARAMETERS),
            result=None if tool.result is None else well_formed_object(tool.result),
        )
    return tuple(checked.values())


def _check_tool(tool: ClientTool) -> int:
    """Check the size and the schemas of a tool, and return its size in bytes.

    Raises:
        LooplineError: the tool is too large, its arguments are not an object, or a schema cannot be used to check values.
    """
    parameters = tool.parameters or NO_PARAMETERS
    who = f"the tool {tool.name!r} of the message"
    try:
        text = dumps([tool.description, parameters, tool.result])
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > TOOL_BYTES:
            raise LooplineError(f"{who} has {size:,} bytes, and may have {TOOL_BYTES:,}")
        if not is_object_schema(parameters):
            raise LooplineError(f"the parameters of {who} are not an object: write type object")
        for schema in (parameters, tool.result):
            if schema is not None:
                _check_schema(who, schema)
    except RecursionError as error:
        raise LooplineError(f"a schema of {who} is nested too deeply") from error
    return size


def _check_schema(who: str, schema: JsonObject) -> None:
    try:
        validator_of_schema(schema, skip_unreadable=True)
    except LooplineError as error:
        raise LooplineError(f"a schema of {who} cannot be used: {error}") from error


def check_shadows(tools: Sequence[ClientTool], names: Sequence[str]) -> None:
    """Check that no tool of a request has the name of a tool of the bundle, also with `__` in place of each dot.

    Raises:
        LooplineError: one has; the message names the tool of the bundle.
    """
    taken = {name.replace(".", "__"): name for name in names}
    for tool in tools:
        if tool.name in taken:
            raise LooplineError(
                f"the message brings a tool {tool.name!r}, and the bundle has a tool {taken[tool.name]!r}: "
                "give that of the message another name"
            )


def make_client_tools(tools: Sequence[ClientTool], names: Sequence[str]) -> Sequence[Tool]:
    """Return the tools of a message for its turn; `names` are those of the tools of the bundle.

    Raises:
        LooplineError: a tool of the message has the name of one of the bundle.
    """
    check_shadows(tools, names)
    return [RequestTool(tool) for tool in tools]


def read_client_result(value: Json, form: Json) -> Outcome:
    """Return the outcome of a call from the result that the client sent; `form` is the JSON Schema of the result, or None.

    Some protocols and forms send texts. If the result does not fit the schema, a text that is JSON is read as that JSON, and
    texts are converted where the schema has only numbers or booleans. With `{"error": "why"}` the client could not run the
    call: the outcome is failed, and the schema is not checked. A valid None gives the text `done`.

    Raises:
        SchemaMismatch: the result does not fit the schema, or is nested too deeply.
    """
    reason = _read_error(value)
    if reason is None and isinstance(form, dict):
        validate = validator_of_checked(form)
        try:
            validate(value)
        except SchemaMismatch:
            value = _parse(value)
            reason = _read_error(value)
            if reason is None:
                value = convert_scalars(value, form)
                validate(value)
    if reason is not None:
        return Outcome(text=reason or "The client could not run the call.", failed=True)
    if value is None:
        return Outcome(text=NOTHING)
    return Outcome(text=value if isinstance(value, str) else dumps(value))


def _read_error(value: Json) -> str | None:
    """Return why the client could not run a call, None for any other result."""
    if not isinstance(value, dict) or value.keys() != {"error"}:
        return None
    reason = value["error"]
    return reason if isinstance(reason, str) else None


def _parse(value: Json) -> Json:
    """Return the JSON in a text, or the value itself if it is not a text, or no JSON.

    Raises:
        SchemaMismatch: the JSON in the text is nested too deeply.
    """
    if not isinstance(value, str):
        return value
    try:
        parsed: Json = json.loads(value)
    except ValueError:
        return value
    except RecursionError as error:
        raise SchemaMismatch(_TOO_DEEP) from error
    if is_too_deep(parsed):
        raise SchemaMismatch(_TOO_DEEP)
    return parsed
