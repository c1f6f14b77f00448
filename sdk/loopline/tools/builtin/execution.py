"""The tools that run programs: `exec.python` and `exec.shell`, over the port of a sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import cast

from loopline.errors import LooplineError, ToolError
from loopline.files import FileChange, Workspace, sort_changes
from loopline.models import (
    Json,
    JsonObject,
    ToolSpec,
    well_formed,
    well_formed_json,
    well_formed_object,
)
from loopline.sandbox import (
    Execution,
    ExecutionLimits,
    ExecutionResult,
    Language,
    ProgramEnd,
    Sandbox,
    ServedCall,
    Session,
    StopProgram,
    parse_contract,
    result_of,
    shown_name,
)
from loopline.timeline import Effect, Timeline, Visibility, parse_path, turn_number
from loopline.timeline.workspace_paths import is_beside
from loopline.tools.arguments import check_names, object_schema, text_argument
from loopline.tools.builtin.execution_sessions import LOST, ProgramSessions
from loopline.tools.invocation import ApprovalRequired, ToolInvocation
from loopline.tools.outcome import Outcome

READ = "react.read"
APPROVAL_REQUIRED = "approval_required"
_CONTRACT: JsonObject = {
    "type": "array",
    "description": "The files that the program must make, in outputs/ or files/.",
    "items": object_schema(
        {
            "filename": {"type": "string", "description": "Such as outputs/chart.png."},
            "description": {"type": "string", "description": "What the file holds."},
            "visibility": {"type": "string", "enum": ["external", "internal"]},
        },
        "filename",
    ),
}
_ABOUT: dict[Language, str] = {
    "python": (
        "Run a program of Python 3 in isolation, without a network. The current folder has the newest files/ and "
        "outputs/, to be read and changed, and attachments/ (the user's files). The program may await at the top "
        'level: await tools.call("alias.tool", {…}) calls a tool, also one that '
        'react.request_tools would bring in; await fetch_ctx("fi:…") reads a ref. What it prints '
        "is returned, and all that it changes in files/ and outputs/ is stored; the user sees outputs that the "
        "contract names."
    ),
    "shell": (
        "Run a shell script in isolation, without a network and without tools. The current folder has the newest "
        "files/ and outputs/, to be read and changed, and attachments/ (the user's files). All that it changes in "
        "files/ and outputs/ is stored; the user sees outputs that the contract names."
    ),
}


LONGEST_SESSION = 40
_SESSION: JsonObject = {
    "session": {
        "type": "string",
        "maxLength": LONGEST_SESSION,
        "description": "A name: further calls of this turn with it go on in the same interpreter, with its variables.",
    }
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSettings:
    """How programs run: their limits, what a call of one declares, and which tools they may call."""

    limits: ExecutionLimits = field(default_factory=ExecutionLimits)
    effect: Effect = "exclusive"
    approval_seconds: float = 60.0
    patterns: tuple[str, ...] = ("*",)
    bundle_id: str = ""
    bundle_root: str = ""


class ExecutionTool:
    """The tool that runs programs of one language."""

    def __init__(self, sandbox: Sandbox, language: Language, settings: ExecutionSettings) -> None:
        self._sandbox = sandbox
        self._language: Language = language
        self._sessions = ProgramSessions(sandbox)
        self._settings = settings
        self.effect: Effect = settings.effect
        longest = settings.limits.wall_seconds
        self.spec: ToolSpec = ToolSpec(
            name=f"exec.{language}",
            description=_ABOUT[language],
            parameters=object_schema(
                {
                    "contract": _CONTRACT,
                    "program": {"type": "string", "description": "The code."},
                    "timeout_s": {
                        "type": "number",
                        "exclusiveMinimum": 0,
                        "maximum": longest,
                        "default": longest,
                    },
                    **(_SESSION if language == "python" else {}),
                    "background": {
                        "type": "boolean",
                        "description": "Go on without waiting: the result comes as a message. Then it calls no tools.",
                    },
                },
                "contract",
                "program",
            ),
        )

    def check(self, arguments: JsonObject) -> None:
        """Refuse a contract, a program or a time that is none."""
        check_names(self.spec, arguments)
        text_argument(arguments, "program")
        parse_contract(_contract(arguments), "")
        self._seconds(arguments)
        if _is_background(arguments) and _session_name(arguments):
            raise ToolError("session: a program in the background has none")

    def key(self, arguments: JsonObject) -> str:
        """Return the key of all programs: they run one after the other."""
        del arguments
        return "exec"

    async def reconcile(self, arguments: JsonObject, call: ToolInvocation) -> Outcome | None:
        """Say what a program that was cut off had called; it is not run again.

        Raises:
            ToolError: always, for nobody knows the program's result.
        """
        del arguments
        calls = _calls_of(call.timeline, call.context.turn_id, call.context.call_id)
        raise ToolError(
            "\n".join(
                ["The program was cut off when its process ended, and is not run again.", *calls]
            )
        )

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Run the program and return its report, with the files that it made.

        Raises:
            ToolError: an argument is wrong, or a file of the turn cannot be given to the program.
        """
        context, settings = call.context, self._settings
        limits = replace(settings.limits, wall_seconds=self._seconds(arguments))
        names = call.proxy.names if self._language == "python" else ()
        execution = Execution(
            execution_id=f"{context.turn_id}-{context.call_id}",
            turn_id=context.turn_id,
            program=text_argument(arguments, "program"),
            language=self._language,
            contract=parse_contract(_contract(arguments), context.turn_id),
            inputs=_inputs(context.workspace, context.turn_id),
            workspace=_view(context.workspace),
            tools=[
                name
                for name in names
                if any(fnmatchcase(name, pattern) for pattern in settings.patterns)
            ],
            bundle_id=settings.bundle_id,
            bundle_root=settings.bundle_root,
            limits=limits,
        )
        session, name = self._session(call), _session_name(arguments)
        if name:
            key = (context.idempotency_key.partition(":")[0], context.turn_id, name)
            was_begun = _has_session(call, name)
            end = self._sessions.run(key, execution, session, was_begun=was_begun)
            return self._outcome(execution, await end, call)
        if not _is_background(arguments):
            return self._outcome(execution, await self._sandbox.run(execution, session), call)
        alone = replace(
            execution, tools=()
        )  # a call of a tool is one of a turn, and there may be none

        async def work() -> Outcome:
            end = await self._sandbox.run(alone, Session(serve=_no_tools))
            return self._outcome(alone, end, call)

        return call.begin_later(work, limits.wall_seconds)

    async def close(self) -> None:
        """End the sessions."""
        await self._sessions.close()

    def _outcome(self, execution: Execution, end: ProgramEnd, call: ToolInvocation) -> Outcome:
        """Return the report on a program, with the files that it made."""
        context, limits = call.context, execution.limits
        result = result_of(execution, end)
        file_limits = replace(context.workspace.limits, file_bytes=limits.file_bytes)
        changes, problems = _changes(result, execution, context.workspace)
        number = turn_number(context.turn_id)
        files, refused = sort_changes(call.timeline, number, changes, limits=file_limits)
        problems += [f"Not recorded: {problem}" for problem in refused]
        calls = _calls_of(call.timeline, context.turn_id, context.call_id)
        text = "\n".join([result.report_text, *problems, *(calls if not result.ok else ())])
        return Outcome(
            text=text,
            files=tuple(files),
            artifact=result.document(),
            failed=not result.ok,
            cites_files=True,
            file_limits=file_limits,
        )

    def _session(self, call: ToolInvocation) -> Session:
        """Return what the program talks to: the tools of the turn, and whoever follows it."""
        context = call.context

        async def serve(tool: str, arguments: JsonObject) -> ServedCall:
            seconds = self._settings.approval_seconds
            try:
                sound = well_formed_object(arguments)
                answer = await call.proxy.call(tool, sound, approval_seconds=seconds)
            except ApprovalRequired as error:
                raise StopProgram(APPROVAL_REQUIRED, str(error)) from error
            except LooplineError as error:
                return ServedCall(False, None, str(error), "error")
            if not answer.ok:
                return ServedCall(False, None, answer.text, answer.code)
            text = "\n\n".join(answer.sections) if tool == READ else answer.text
            return ServedCall(True, value_of(text))

        def emit(name: str, data: Json) -> None:
            try:
                context.emit(name, well_formed_json(data))
            except LooplineError as error:
                context.progress(f"an event was not sent: {error}")

        return Session(
            serve=serve,
            on_output=lambda text: context.progress(well_formed(text)),
            on_event=emit,
        )

    def _seconds(self, arguments: JsonObject) -> float:
        longest = self._settings.limits.wall_seconds
        value = arguments.get("timeout_s", longest)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value <= longest
        ):
            raise ToolError(f"timeout_s: seconds, more than 0 and at most {longest:g}")
        return float(value)


async def _no_tools(tool: str, arguments: JsonObject) -> ServedCall:
    del arguments
    return ServedCall(False, None, f"{tool}: a program in the background calls no tools", "error")


def _session_name(arguments: JsonObject) -> str:
    match arguments:
        case {"session": str(name)} if len(name) <= LONGEST_SESSION:
            return name
        case {"session": _}:
            raise ToolError(f"session: a name of at most {LONGEST_SESSION} characters")
        case _:
            return ""


def _has_session(call: ToolInvocation, name: str) -> bool:
    """Return whether a call of the turn has begun the session, and none has said since that it is gone."""
    turn = call.timeline.turn(turn_number(call.context.turn_id))
    results = [
        batch.results[called.call_id].text.splitlines()
        for batch in turn.batches
        for called in batch.calls
        if called.tool == "exec.python" and _session_name(called.arguments) == name
        if called.call_id in batch.results and called.call_id != call.context.call_id
    ]
    return bool(results) and f"Failure: {LOST} (sandbox)" not in results[-1]


def _is_background(arguments: JsonObject) -> bool:
    match arguments:
        case {"background": bool(value)}:
            return value
        case {"background": _}:
            raise ToolError("background: true or false")
        case _:
            return False


def value_of(text: str) -> Json:
    """Return the object or list that a text is the JSON of, else the text."""
    if text[:1] not in ("{", "["):
        return text
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return cast("Json", value)


def _contract(arguments: JsonObject) -> Json:
    return arguments.get("contract")


def _inputs(workspace: Workspace, turn_id: str) -> dict[str, bytes]:
    """Return the files of the turn by the path at which a program finds them."""
    return {
        path if is_beside(path) else f"{turn_id}/{path}": workspace.read(path)
        for path in workspace.paths()
    }


def _view(workspace: Workspace) -> dict[str, bytes]:
    """Return the newest files/ and outputs/ of the turn, which a program finds in its current folder."""
    own = [path for area in ("files", "outputs") for path in workspace.paths(area)]
    return {path: workspace.read(path) for path in own}


def _changes(
    result: ExecutionResult, execution: Execution, workspace: Workspace
) -> tuple[list[FileChange], list[str]]:
    """Return the files that the program has made, changed or removed as changes, and why some of them are none.

    A file that it found is replaced only if no other call has changed it since. A program that failed removes nothing.
    An output that no contract has named is for the agent alone.
    """
    made = [
        _Made(item.file.name, item.data, item.file.visibility, replaces=None)
        for item in result.made
    ]
    made += [
        _Made(file.name, file.data, workspace.visibility(file.name) or "internal")
        for file in result.others
        if file.data is not None
    ]
    problems, removed = list[str](), result.end.removed
    if result.end.failure is None:
        made += [_Made(name, None) for name in removed]
    elif removed:
        problems.append("Nothing is removed from the workspace, because the program failed.")
    changes = list[FileChange]()
    for file in made:
        found = execution.workspace.get(file.name)
        replaces = file.replaces if found is None else sha256(found).hexdigest()
        try:
            path = parse_path(file.name)
        except LooplineError as error:
            problems.append(f"Not recorded: {shown_name(file.name)}: {error}")
            continue
        changes.append(
            FileChange(path=path, data=file.data, visibility=file.visibility, replaces=replaces)
        )
    return changes, problems


@dataclass(frozen=True, slots=True)
class _Made:
    """A file that a program has made, or removed if it has no data; `replaces` is of one that it did not find."""

    name: str
    data: bytes | None
    visibility: Visibility = "external"
    replaces: str | None = ""


def _calls_of(timeline: Timeline, turn_id: str, call_id: str) -> Sequence[str]:
    """Return lines that name the calls of the program."""
    turn = timeline.turn(turn_number(turn_id))
    calls = [call for call in turn.proxied.values() if call.parent == call_id]
    if not calls:
        return []
    named = (
        f"- tc:{turn_id}.{call.call_id}.result {call.tool}"
        + (" (its outcome is unknown)" if call.call_id in turn.open_proxied else "")
        for call in calls
    )
    return ["It had called:", *named]
