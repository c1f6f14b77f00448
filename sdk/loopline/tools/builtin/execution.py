"""The tools that run programs in a sandbox: `exec.python` and `exec.shell`, and the sessions of Python programs."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from time import monotonic

from loopline.errors import LooplineError, ToolError
from loopline.files import FileChange, Workspace, sort_changes
from loopline.models import (
    Json,
    JsonObject,
    ToolSpec,
    dumps,
    one_line,
    well_formed,
    well_formed_json,
    well_formed_object,
)
from loopline.sandbox import (
    Execution,
    ExecutionLimits,
    ExecutionResult,
    Failure,
    Language,
    ProducedFile,
    ProgramEnd,
    Sandbox,
    ServedCall,
    Session,
    StopProgram,
    parse_contract,
    report_failure,
    result_of,
    shown_name,
    too_deep,
)
from loopline.timeline import Effect, Timeline, Visibility, parse_path, turn_number
from loopline.timeline.workspace_paths import is_pulled_path
from loopline.tools.invocation import ApprovalRequired, ToolInvocation
from loopline.tools.outcome import Outcome
from loopline.tools.parameters import (
    boolean_argument,
    check_names,
    object_schema,
    text_argument,
)

NEXT, PUT, GET = "session.next", "session.put", "session.get"
"""The internal tools of the program of a session. `NEXT` reports the last program and returns the next one, `PUT` sends a part
of a changed file, and `GET` fetches a part of a file of the workspace.
"""
PART_BYTES = 600_000
MOST_CALLS = 100_000
LOST = "session_lost"
_TAIL = 12_000

DRIVER = f"""
import base64, hashlib, io, os, stat, sys, traceback

class _Tee(io.TextIOBase):
    def __init__(self, stream):
        self.stream = stream
        self.text = ""
    def write(self, text):
        self.text = (self.text + text)[-{_TAIL}:]
        return self.stream.write(text)
    def flush(self):
        self.stream.flush()

def _open(name):
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)

def _problem(status, step, room):
    if not stat.S_ISREG(status.st_mode):
        return "it is not a plain file"
    if status.st_nlink > 1:
        return "it has a second name: write a file of its own"
    if status.st_size > min(step["file_bytes"], room):
        return f"it has {{status.st_size:,}} bytes, and may have {{min(step['file_bytes'], room):,}}"

async def _put(name, step, room):
    try:
        descriptor = _open(name)
    except FileNotFoundError:
        return 0
    except OSError as error:
        await tools.call("{PUT}", name=name, problem=f"it is not a plain file: {{error.strerror}}")
        return 0
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        problem = _problem(status, step, room)
        if problem:
            await tools.call("{PUT}", name=name, problem=problem)
            return 0
        part = None
        while part is None or part:
            part = file.read({PART_BYTES})
            await tools.call("{PUT}", name=name, data=base64.b64encode(part).decode())
        return status.st_size

def _digest(name):
    try:
        with os.fdopen(_open(name), "rb") as file:
            digest = hashlib.sha256() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
            while digest and (part := file.read({PART_BYTES})):
                digest.update(part)
            return digest and digest.hexdigest()
    except OSError:
        return None

def _scan():
    digests, problems, folders = {{}}, {{}}, ["outputs", "files"]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        except OSError as error:
            problems[folder + "/"] = f"it cannot be read: {{error.strerror}}"
            continue
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                digests[entry.path] = _digest(entry.path)
            elif entry.name in ("__pycache__", ".pytest_cache", ".git"):
                problems[entry.path + "/"] = "a workspace has no folder of this name"
            else:
                folders.append(entry.path)
    return digests, problems

async def _update_files(step):
    for name in step["removed"]:
        try:
            os.unlink(name)
        except OSError:
            pass
    for name in step["changed"]:
        parts = []
        part = None
        while part is None or part:
            text = await tools.call("{GET}", name=name, offset=sum(map(len, parts)))
            part = base64.b64decode(text)
            parts.append(part)
        try:
            os.makedirs(os.path.dirname(name), exist_ok=True)
            if os.path.islink(name):
                os.unlink(name)
            with open(name, "wb") as file:
                file.write(b"".join(parts))
        except OSError as error:
            print(f"{{name}} cannot be updated: {{error}}", file=sys.stderr)

async def _send_changes(step, before):
    (digests, problems), room = _scan(), step["total_bytes"]
    changed = [name for name, digest in digests.items() if before[0].get(name, "") != digest]
    for name in dict.fromkeys([*step["files"], *sorted(changed)]):
        room -= await _put(name, step, room)
    for name in sorted(problems.keys() - before[1].keys()):
        await tools.call("{PUT}", name=name, problem=problems[name])
    return [name for name in before[0] if name not in digests and not name.startswith(tuple(problems))]

async def _serve():
    program_globals = {{"__name__": "__main__", "tools": tools, "ToolFailed": ToolFailed, "fetch_ctx": fetch_ctx,
             "emit": emit, "WORKDIR": WORKDIR, "OUTPUT_DIR": OUTPUT_DIR}}
    streams, folder, report = (sys.stdout, sys.stderr), os.getcwd(), {{}}
    while True:
        step = await tools.call("{NEXT}", report)
        await _update_files(step)
        before = _scan()
        sys.stdout, sys.stderr = out, err = _Tee(streams[0]), _Tee(streams[1])
        code = 0
        error = ""
        try:
            program = compile(step["program"], "<program>", "exec", flags=0x2000, dont_inherit=True)
            value = eval(program, program_globals)
            if program.co_flags & 0x80:
                await value
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException as failure:
            code = 1
            error = "".join(traceback.format_exception_only(failure)).strip()
            err.write("".join(traceback.format_exception(failure, limit=-5)))
        sys.stdout, sys.stderr = streams
        os.chdir(folder)
        removed = await _send_changes(step, before)
        report = {{"code": code, "error": error[-500:], "out": out.text, "err": err.text, "removed": removed}}

try:
    await _serve()
except ToolFailed:
    pass
"""
"""The program of a session: it runs the programs of calls one after the other in the same interpreter.

Its reports are not trusted, because these programs can change them.
"""


@dataclass(slots=True)
class _Step:
    """One call of a session: its program, its callbacks, its report, and the bytes or the problems of changed files."""

    execution: Execution
    session: Session
    report: asyncio.Future[JsonObject]
    files: dict[str, bytearray] = field(default_factory=dict[str, bytearray])
    problems: dict[str, str] = field(default_factory=dict[str, str])


def digests(execution: Execution) -> dict[str, str]:
    """Return the sha256 of each file in the workspace of an execution."""
    return {name: sha256(data).hexdigest() for name, data in execution.workspace.items()}


def _read_part(execution: Execution, arguments: JsonObject) -> ServedCall:
    """Return a part of a file of the workspace as base64, empty at the end of the file."""
    match arguments:
        case {"name": str(name), "offset": int(offset)} if offset >= 0:
            data = execution.workspace.get(name, b"")[offset : offset + PART_BYTES]
            return ServedCall(True, base64.b64encode(data).decode())
        case _:
            return ServedCall(False, None, "the arguments must be a name and an offset", "error")


def _end_of_step(end: ProgramEnd, step: _Step) -> ProgramEnd:
    """Convert the end of an interpreter to the end of its last program, without unchanged files of the workspace.

    Files of the contract, and files with a problem, are included in any case.
    """
    execution = step.execution
    names = {file.name for file in execution.contract}
    files = [
        file
        for file in end.files
        if file.name in names or file.problem or file.data != execution.workspace.get(file.name)
    ]
    removed = [name for name in end.removed if name in execution.workspace]
    return replace(end, files=files, removed=removed)


def _lost_session(isolation: str) -> ProgramEnd:
    """Return the end of a program that did not run, because the interpreter of its session has ended."""
    text = "the session has ended, and its variables are lost; the next call starts a new one"
    return report_failure(isolation, LOST, text)


def _isolation(sandbox: Sandbox) -> str:
    return "none" if sandbox.name == "local" else sandbox.name


class ProgramSession:
    """A Python interpreter that runs the programs of several calls, one after the other.

    It ends when its execution is closed, or when no call arrives within the time that a tool call may take.
    """

    def __init__(
        self, sandbox: Sandbox, first: Execution, on_end: Callable[[], None] = lambda: None
    ) -> None:
        """`on_end` is called when the interpreter has ended."""
        self._isolation = _isolation(sandbox)
        self._step: _Step | None = None
        self._steps = asyncio.Queue[_Step]()
        self._folder = digests(first)
        """The sha256 of the files that the interpreter has in its current folder, as far as known."""
        self._sent_files = set(first.workspace)
        self._most_calls = first.limits.calls
        self._calls = 0
        limits = replace(
            first.limits,
            wall_seconds=24 * 3_600.0,
            calls=MOST_CALLS,
            message_bytes=max(first.limits.message_bytes, 2 * PART_BYTES),
        )
        execution = replace(
            first, program=DRIVER, contract=(), tools=[*first.tools, NEXT, PUT, GET], limits=limits
        )
        self._stopped: asyncio.Future[StopProgram] = asyncio.get_running_loop().create_future()
        session = Session(
            serve=self._serve,
            on_output=self._on_output,
            on_event=self._on_event,
            stopped=self._stopped,
        )
        self._task = asyncio.ensure_future(sandbox.run(execution, session))
        self._task.add_done_callback(lambda _task: on_end())

    @property
    def has_ended(self) -> bool:
        """Whether the interpreter has ended."""
        return self._task.done()

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the next program. If it exceeds its time, or this is cancelled, the whole session is stopped.

        If the interpreter ends before the program begins, the end of the program says that the session is lost.
        """
        began = monotonic()
        step = _Step(execution, session, asyncio.get_running_loop().create_future())
        self._calls = 0
        self._steps.put_nowait(step)
        seconds = execution.limits.wall_seconds
        ends: set[asyncio.Future[JsonObject] | asyncio.Future[ProgramEnd]] = {
            step.report,
            self._task,
        }
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.close()
            raise
        if step.report.done() and not step.report.cancelled():
            return self._report_end(step, step.report.result(), monotonic() - began)
        if self._task.done():
            end = self._task.result()
            if end.failure is None and self._step is not step:  # it ended before this program
                return _lost_session(self._isolation)
            ended = Failure("runtime", "program_failed", "it ended its session", managed=False)
            return _end_of_step(replace(end, failure=end.failure or ended), step)
        await self.close()
        text = f"it may run {seconds:g} s, and was stopped then, with its session"
        failure = Failure("limits", "timeout", text)
        if self._task.cancelled() or self._task.exception() is not None:
            return ProgramEnd(isolation=self._isolation, failure=failure, seconds=seconds)
        return _end_of_step(replace(self._task.result(), failure=failure, seconds=seconds), step)

    async def close(self) -> None:
        """Stop the interpreter, and wait until it has ended; its execution is logged like others."""
        if self._step is None:  # it has not started, which may take a backend long
            self._task.cancel()
        elif not self._stopped.done():
            self._stopped.set_result(StopProgram(LOST, "its session has ended"))
        await asyncio.gather(self._task, return_exceptions=True)

    def _report_end(self, step: _Step, report: JsonObject, seconds: float) -> ProgramEnd:
        """Convert the report of a program to its end, with the last 12,000 characters of each output.

        A malformed report or an exit code other than 0 is a failure. The digests of its files are kept for the next program.
        """
        match report:
            case {
                "code": int(code),
                "error": str(error),
                "out": str(out),
                "err": str(err),
                "removed": list(names),
            }:
                removed = [str(name) for name in names if name in step.execution.workspace]
            case _:
                code = 1
                error = "its report is malformed"
                out = ""
                err = ""
                removed = []
        for name in removed:
            self._folder.pop(name, None)
        self._folder |= {name: sha256(data).hexdigest() for name, data in step.files.items()}
        failure: Failure | None = None
        if code:
            failure = Failure(
                "runtime", "program_failed", error or f"it ended with {code}", managed=False
            )
        return ProgramEnd(
            isolation=self._isolation,
            failure=failure,
            exit_code=code,
            seconds=seconds,
            user_out=out[-_TAIL:],
            runtime_err=err[-_TAIL:],
            files=[
                ProducedFile(
                    name=name,
                    data=bytes(step.files[name]) if name in step.files else None,
                    problem=step.problems.get(name, ""),
                )
                for name in dict.fromkeys([*step.files, *step.problems])
            ],
            removed=removed,
        )

    async def _serve(self, tool: str, arguments: JsonObject) -> ServedCall:
        """Answer a call of the interpreter: internal tools here, and other tools by the session of the program.

        `NEXT` sets the report of the last program, and waits for the next program. Without a running program other calls are
        refused.

        Raises:
            StopProgram: the program makes more calls than it may, or the files that it sends exceed the limits.
        """
        step = self._step
        if tool == NEXT:
            if step is not None and not step.report.done():
                step.report.set_result(arguments)
            self._step = step = await self._steps.get()
            return ServedCall(True, self._describe_next(step.execution))
        if step is None or step.report.done():
            return ServedCall(False, None, f"{tool} is not called: the program has ended", "error")
        if tool == PUT:
            return self._add_part(step, arguments)
        if tool == GET:
            return _read_part(step.execution, arguments)
        self._calls += 1
        if self._calls > self._most_calls:
            raise StopProgram("call_limit", f"a program may call tools {self._most_calls} times")
        return await step.session.serve(tool, arguments)

    def _describe_next(self, execution: Execution) -> Json:
        """Return the next program, with the names of the workspace files that differ from those of the interpreter.

        These files count as sent from now on.
        """
        now = digests(execution)
        files: list[Json] = [file.name for file in execution.contract]
        changed: list[Json] = [name for name in now if self._folder.get(name) != now[name]]
        removed: list[Json] = [*sorted(self._sent_files - now.keys())]
        self._sent_files = set(now)
        self._folder |= now
        return {
            "program": execution.program,
            "files": files,
            "changed": changed,
            "removed": removed,
            "file_bytes": execution.limits.file_bytes,
            "total_bytes": execution.limits.total_bytes,
        }

    def _add_part(self, step: _Step, arguments: JsonObject) -> ServedCall:
        """Add a part to a file of the step, or a problem; malformed arguments are answered with an error.

        Raises:
            StopProgram: the files of the step exceed the limits.
        """
        limits = step.execution.limits
        if len(step.files) + len(step.problems) > limits.disk_files:
            raise StopProgram("disk_limit", f"it has more than {limits.disk_files:,} files")
        match arguments:
            case {"name": str(name), "problem": str(problem)}:
                step.problems[name] = problem[:200]
            case {"name": str(name), "data": str(data)}:
                used_bytes = sum(len(file) for file in step.files.values())
                if used_bytes > limits.total_bytes + limits.file_bytes:
                    raise StopProgram(
                        "disk_limit", f"its files have more than {limits.total_bytes:,} bytes"
                    )
                try:
                    part = base64.b64decode(data, validate=True)
                except binascii.Error:
                    return ServedCall(False, None, "the part is not base64", "error")
                step.files.setdefault(name, bytearray()).extend(part)
            case _:
                return ServedCall(
                    False, None, "the arguments must be a name, and data or a problem", "error"
                )
        return ServedCall(True)

    def _on_output(self, text: str) -> None:
        if self._step is not None and not self._step.report.done():
            self._step.session.on_output(text)

    def _on_event(self, name: str, data: Json) -> None:
        if self._step is not None and not self._step.report.done():
            self._step.session.on_event(name, data)


READ = "react.read"
APPROVAL_REQUIRED = "approval_required"
_KDCUBE_EVENTS = ("chat.", "conv.", "queue.", "solver.")
"""The beginnings of the types of KDCube's own events, which tools of a bundle may emit, and a program may not."""
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
_DESCRIPTIONS: dict[Language, str] = {
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
MOST_UNSENT = 10
_SESSION: JsonObject = {
    "session": {
        "type": "string",
        "maxLength": LONGEST_SESSION,
        "description": "A name: further calls of this turn with it go on in the same interpreter, with its variables.",
    }
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSettings:
    """The settings of programs: their limits, the effect of their calls, and patterns of the tools that they may call.

    `approval_seconds` is the time that a program waits for the approval of a call. `bundle_root` is a folder that it may
    read.
    """

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
        self._sessions: dict[tuple[str, str, str], ProgramSession] = {}
        """The running sessions by conversation, turn and name. A conversation has only sessions of one turn."""
        self._settings = settings
        self.effect: Effect = settings.effect
        longest = settings.limits.wall_seconds
        self.spec: ToolSpec = ToolSpec(
            name=f"exec.{language}",
            description=_DESCRIPTIONS[language],
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
        """Check the arguments of a call without running the program.

        `contract` is the list of files that the program must write.

        Raises:
            ToolError: an argument is missing, invalid or unknown, `timeout_s` is above the limit, or `background` is combined
                with `session`.
        """
        check_names(self.spec, arguments)
        text_argument(arguments, "program")
        parse_contract(arguments.get("contract"))
        self._seconds(arguments)
        if boolean_argument(arguments, "background") and _session_name(arguments):
            raise ToolError("session: a program in the background cannot use a session")

    def key(self, arguments: JsonObject) -> str:
        """Return the same key for all programs, so that they run one after the other."""
        del arguments
        return "exec"

    async def reconcile(self, arguments: JsonObject, call: ToolInvocation) -> Outcome | None:
        """Fail the call of a program that was interrupted by a crash, because the program is not run again.

        Raises:
            ToolError: always; the message lists the calls that the program made.
        """
        del arguments
        calls = _list_calls(call.timeline, call.context.turn_id, call.context.call_id)
        raise ToolError(
            "\n".join(
                ["The program was cut off when its process ended, and is not run again.", *calls]
            )
        )

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Run the program, in the background or in a session if the arguments ask for it; return its report and files.

        A program that fails is not an error: the outcome is failed, and also lists the calls that the program made.

        Raises:
            ToolError: an argument is invalid.
        """
        context = call.context
        settings = self._settings
        limits = replace(settings.limits, wall_seconds=self._seconds(arguments))
        names = call.proxy.names if self._language == "python" else ()
        workspace = context.workspace
        execution = Execution(
            execution_id=f"{context.turn_id}-{context.call_id}",
            turn_id=context.turn_id,
            program=text_argument(arguments, "program"),
            language=self._language,
            contract=parse_contract(arguments.get("contract"), context.turn_id),
            inputs={
                path if is_pulled_path(path) else f"{context.turn_id}/{path}": workspace.read(path)
                for path in workspace.paths()
            },
            workspace={
                path: workspace.read(path)
                for area in ("files", "outputs")
                for path in workspace.paths(area)
            },
            tools=[
                name
                for name in names
                if any(fnmatchcase(name, pattern) for pattern in settings.patterns)
            ],
            bundle_id=settings.bundle_id,
            bundle_root=settings.bundle_root,
            limits=limits,
        )
        unsent: list[str] = []
        edited: list[str] = []
        if boolean_argument(arguments, "background"):
            # Tool calls are recorded in a turn, which may have ended when the program makes them.
            without_tools = replace(execution, tools=())

            async def work() -> Outcome:
                """Run the program, which cannot call tools, and return its outcome; its events are not sent."""
                problem = "a program in the background cannot send events"
                background = Session(
                    serve=_refuse_call, on_event=lambda _name, _data: unsent.append(problem)
                )
                end = await self._sandbox.run(without_tools, background)
                return self._outcome(without_tools, end, call, unsent)

            return call.begin_later(work, limits.wall_seconds, False)
        session = self._session(call, unsent, edited)
        name = _session_name(arguments)
        if name:
            end = await self._run_in_session(name, execution, session, call)
        else:
            end = await self._sandbox.run(execution, session)
        return self._outcome(execution, end, call, unsent, edited)

    async def _run_in_session(
        self, name: str, execution: Execution, session: Session, call: ToolInvocation
    ) -> ProgramEnd:
        """Run the program in the session of that name, and end the sessions of older turns of the conversation.

        If a session of an earlier call has ended, it is not started again: the program does not run, and its end says so.
        """
        conversation = call.context.idempotency_key.partition(":")[0]
        turn = call.context.turn_id
        key = (conversation, turn, name)
        for other in [k for k in self._sessions if k[0] == conversation and k[1] != turn]:
            await self._sessions.pop(other).close()
        running = self._sessions.get(key)
        if running is None or running.has_ended:
            self._sessions.pop(key, None)
            if _has_session(call, name):
                return _lost_session(_isolation(self._sandbox))
            running = self._begin_session(key, execution)
        return await running.run(execution, session)

    def _begin_session(self, key: tuple[str, str, str], first: Execution) -> ProgramSession:
        """Start a session, and store it until its interpreter has ended."""

        def forget() -> None:
            if self._sessions.get(key) is begun:  # a later session may have the key
                del self._sessions[key]

        begun = self._sessions[key] = ProgramSession(self._sandbox, first, forget)
        return begun

    async def close(self) -> None:
        """End the sessions."""
        while self._sessions:
            await self._sessions.popitem()[1].close()

    def _outcome(
        self,
        execution: Execution,
        end: ProgramEnd,
        call: ToolInvocation,
        unsent: Sequence[str],
        edited: Sequence[str] = (),
    ) -> Outcome:
        """Return the report of a program, the changes of the workspace, and a line for each change that is refused.

        If the program failed, the outcome is failed and lists the calls that the program made.
        """
        context = call.context
        result = result_of(execution, end)
        file_limits = replace(context.workspace.limits, file_bytes=execution.limits.file_bytes)
        changes, problems = _changes(result, execution, context.workspace)
        number = turn_number(context.turn_id)
        files, refused = sort_changes(call.timeline, number, changes, limits=file_limits)
        lines = [
            result.report_text,
            *problems,
            *(f"Not recorded: {problem}" for problem in refused),
            *_report_unsent(unsent),
            *(f"Changed by the user: {line}" for line in edited),
        ]
        if not result.ok:
            lines += _list_calls(call.timeline, context.turn_id, context.call_id)
        return Outcome(
            text="\n".join(lines),
            files=tuple(files),
            artifact=result.document(),
            failed=not result.ok,
            cites_files=True,
            file_limits=file_limits,
        )

    def _session(self, call: ToolInvocation, unsent: list[str], edited: list[str]) -> Session:
        """Return the callbacks of a program: its calls become calls of the turn, its output and events are emitted.

        `unsent` receives the reasons of events that are not sent, `edited` a line for each call whose arguments the user
        changed.
        """
        context = call.context

        async def serve(tool: str, arguments: JsonObject) -> ServedCall:
            """Run a tool call of the program as a call of the turn; an error of the tool is returned to the program.

            Raises:
                StopProgram: the call needs an approval that was not given in time.
            """
            seconds = self._settings.approval_seconds
            try:
                answer = await call.proxy.call(
                    tool, well_formed_object(arguments), approval_seconds=seconds
                )
            except ApprovalRequired as error:
                raise StopProgram(APPROVAL_REQUIRED, str(error)) from error
            except LooplineError as error:
                return ServedCall(False, None, str(error), "error")
            if answer.ran_with is not None:
                edited.append(f"{tool} ran with these arguments: {dumps(answer.ran_with)}")
            if not answer.ok:
                return ServedCall(False, None, answer.text, answer.code, answer.ran_with)
            text = "\n\n".join(answer.sections) if tool == READ else answer.text
            return replace(_serve_text(text), ran_with=answer.ran_with)

        def emit(name: str, data: Json) -> None:
            """Emit an event of the program; if the name or the data is refused, append the reason to `unsent`."""
            try:
                if name.startswith(_KDCUBE_EVENTS):
                    raise LooplineError(f"{name!r} is reserved for events of Loopline's own")
                context.emit(name, well_formed_json(data))
            except LooplineError as error:
                unsent.append(str(error))

        return Session(
            serve=serve,
            on_output=lambda text: context.progress(well_formed(text)),
            on_event=emit,
        )

    def _seconds(self, arguments: JsonObject) -> float:
        """Return `timeout_s`, by default the longest time; raise a ToolError if it is not above 0 or is longer."""
        longest = self._settings.limits.wall_seconds
        value = arguments.get("timeout_s", longest)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value <= longest
        ):
            raise ToolError(f"timeout_s must be a number of seconds above 0, at most {longest:g}")
        return float(value)


def _report_unsent(problems: Sequence[str]) -> list[str]:
    """Return a line for each different reason why an event of a program was not sent, at most ten."""
    different = [*dict.fromkeys(problems)]
    lines = [f"Not sent: {one_line(problem)}" for problem in different[:MOST_UNSENT]]
    more = len(different) - len(lines)
    return [*lines, f"and {more:,} more events"] if more else lines


async def _refuse_call(tool: str, arguments: JsonObject) -> ServedCall:
    del arguments
    text = f"{tool}: a program in the background cannot call tools"
    return ServedCall(False, None, text, "error")


def _session_name(arguments: JsonObject) -> str:
    """Return `session`, empty if missing; raise a ToolError if it is not a text of at most 40 characters."""
    match arguments:
        case {"session": str(name)} if len(name) <= LONGEST_SESSION:
            return name
        case {"session": _}:
            raise ToolError(f"session must be a name of at most {LONGEST_SESSION} characters")
        case _:
            return ""


def _has_session(call: ToolInvocation, name: str) -> bool:
    """Return whether an earlier call of the turn used the session, and the last such call did not report it as lost."""
    turn = call.timeline.turn(turn_number(call.context.turn_id))
    results = [
        batch.results[called.call_id].text.splitlines()
        for batch in turn.batches
        for called in batch.calls
        if called.tool == "exec.python" and _session_name(called.arguments) == name
        if called.call_id in batch.results and called.call_id != call.context.call_id
    ]
    return bool(results) and f"Failure: {LOST} (sandbox)" not in results[-1]


def _serve_text(text: str) -> ServedCall:
    """Return the result of a call for the program: the value of a text that is a JSON object or list, otherwise the text.

    JSON that is nested too deeply is an error.
    """
    if text[:1] not in ("{", "["):
        return ServedCall(True, text)
    try:
        return ServedCall(True, json.loads(text))
    except ValueError:
        return ServedCall(True, text)
    except RecursionError:
        return too_deep()


def _changes(
    result: ExecutionResult, execution: Execution, workspace: Workspace
) -> tuple[list[FileChange], list[str]]:
    """Return the changes of the workspace by a program, and an error message for each file with an invalid path.

    A file of the workspace is changed only if no other call has changed it since. A program that failed removes no files.
    Outputs outside the contract are internal, if they had no other visibility before.
    """
    changes: list[FileChange] = []
    problems: list[str] = []

    def add(name: str, data: bytes | None, visibility: Visibility, replaces: str | None) -> None:
        """Append the change of a file to `changes`, or a message to `problems` if the path is not valid."""
        before = execution.workspace.get(name)
        try:
            path = parse_path(name)
        except LooplineError as error:
            problems.append(f"Not recorded: {shown_name(name)}: {error}")
            return
        if before is not None:
            replaces = sha256(before).hexdigest()
        changes.append(FileChange(path=path, data=data, visibility=visibility, replaces=replaces))

    for item in result.made:
        add(item.file.name, item.data, item.file.visibility, None)
    for file in result.others:
        if file.data is not None:
            add(file.name, file.data, workspace.visibility(file.name) or "internal", "")
    if result.end.failure is None:
        for name in result.end.removed:
            add(name, None, "external", "")
    elif result.end.removed:
        problems.insert(0, "No files are removed from the workspace, because the program failed.")
    return changes, problems


def _list_calls(timeline: Timeline, turn_id: str, call_id: str) -> Sequence[str]:
    """Return lines with the refs of the calls that a program made; empty if it made none."""
    turn = timeline.turn(turn_number(turn_id))
    calls = [call for call in turn.proxied.values() if call.parent == call_id]
    if not calls:
        return []
    lines = [
        f"- tc:{turn_id}.{call.call_id}.result {call.tool}"
        + (" (its outcome is unknown)" if call.call_id in turn.open_proxied else "")
        for call in calls
    ]
    return ["It had called:", *lines]
