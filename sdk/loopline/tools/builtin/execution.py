"""The tools that run programs: `exec.python` and `exec.shell`, over the port of a sandbox."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from time import monotonic
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
    Failure,
    Language,
    ProducedFile,
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
from loopline.timeline.workspace_paths import is_pulled_path
from loopline.tools.invocation import ApprovalRequired, ToolInvocation
from loopline.tools.outcome import Outcome
from loopline.tools.parameters import check_names, object_schema, text_argument

NEXT, PUT, GET = "session.next", "session.put", "session.get"
"""What the program of a session calls: for the next program, with the report on the last one, and with or for a part of a file."""
PART_BYTES = 600_000
MOST_CALLS = 100_000
LOST = "session_lost"
_TAIL = 12_000

DRIVER = f"""
import base64, hashlib, io, os, stat, sys, traceback

class _Copy(io.TextIOBase):
    def __init__(self, stream):
        self.stream, self.text = stream, ""
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
        return f"it has {{status.st_size:,}} bytes, and there is room for {{min(step['file_bytes'], room):,}}"

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

def _look():
    found, closed, waiting = {{}}, {{}}, ["outputs", "files"]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        except OSError as error:
            closed[folder + "/"] = f"it cannot be read: {{error.strerror}}"
            continue
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                found[entry.path] = _digest(entry.path)
            elif entry.name in ("__pycache__", ".pytest_cache", ".git"):
                closed[entry.path + "/"] = "a workspace has no folder of this name"
            else:
                waiting.append(entry.path)
    return found, closed

async def _take_over(step):
    for name in step["removed"]:
        try:
            os.unlink(name)
        except OSError:
            pass
    for name in step["changed"]:
        parts, part = [], None
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
            print(f"{{name}} is not the newest: {{error}}", file=sys.stderr)

async def _give(step, before):
    (found, closed), room = _look(), step["total_bytes"]
    changed = [name for name, digest in found.items() if before[0].get(name, "") != digest]
    for name in dict.fromkeys([*step["files"], *sorted(changed)]):
        room -= await _put(name, step, room)
    for name in sorted(closed.keys() - before[1].keys()):
        await tools.call("{PUT}", name=name, problem=closed[name])
    return [name for name in before[0] if name not in found and not name.startswith(tuple(closed))]

async def _serve():
    space = {{"__name__": "__main__", "tools": tools, "ToolFailed": ToolFailed, "fetch_ctx": fetch_ctx,
             "emit": emit, "WORKDIR": WORKDIR, "OUTPUT_DIR": OUTPUT_DIR}}
    streams, folder, report = (sys.stdout, sys.stderr), os.getcwd(), {{}}
    while True:
        step = await tools.call("{NEXT}", report)
        await _take_over(step)
        before = _look()
        sys.stdout, sys.stderr = out, err = _Copy(streams[0]), _Copy(streams[1])
        code, error = 0, ""
        try:
            program = compile(step["program"], "<program>", "exec", flags=0x2000, dont_inherit=True)
            value = eval(program, space)
            if program.co_flags & 0x80:
                await value
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException as failure:
            code, error = 1, "".join(traceback.format_exception_only(failure)).strip()
            err.write("".join(traceback.format_exception(failure, limit=-5)))
        sys.stdout, sys.stderr = streams
        os.chdir(folder)
        removed = await _give(step, before)
        report = {{"code": code, "error": error[-500:], "out": out.text, "err": err.text, "removed": removed}}

try:
    await _serve()
except ToolFailed:
    pass
"""
"""The program of a session; what it reports it reports of itself."""


@dataclass(slots=True)
class _Step:
    """A call of the session: its program, what serves it, and the files that came of it."""

    execution: Execution
    session: Session
    report: asyncio.Future[JsonObject]
    files: dict[str, bytearray] = field(default_factory=dict[str, bytearray])
    problems: dict[str, str] = field(default_factory=dict[str, str])


def digests(execution: Execution) -> dict[str, str]:
    """Return the digests of the files that a program finds in its current folder."""
    return {name: sha256(data).hexdigest() for name, data in execution.workspace.items()}


def _part(execution: Execution, arguments: JsonObject) -> ServedCall:
    """Return a part of a file of the workspace, empty at its end."""
    match arguments:
        case {"name": str(name), "offset": int(offset)} if offset >= 0:
            data = execution.workspace.get(name, b"")[offset : offset + PART_BYTES]
            return ServedCall(True, base64.b64encode(data).decode())
        case _:
            return ServedCall(False, None, "a name and an offset", "error")


def _of_step(end: ProgramEnd, step: _Step) -> ProgramEnd:
    """Return the end of an interpreter as that of its last program: what the workspace has already is left out."""
    execution = step.execution
    names = {file.name for file in execution.contract}
    files = [
        file
        for file in end.files
        if file.name in names or file.problem or file.data != execution.workspace.get(file.name)
    ]
    removed = [name for name in end.removed if name in execution.workspace]
    return replace(end, files=files, removed=removed)


def _lost(isolation: str) -> ProgramEnd:
    """Return that a program did not run, because the interpreter that it was for is gone."""
    text = "the session is gone, with all that it held; the next call begins it anew"
    return ProgramEnd(isolation=isolation, failure=Failure("sandbox", LOST, text))


def _isolation(sandbox: Sandbox) -> str:
    return "none" if sandbox.name == "local" else sandbox.name


class ProgramSession:
    """An interpreter that runs one program after the other. It ends when nobody asks it for as long as a call may take."""

    def __init__(self, sandbox: Sandbox, first: Execution) -> None:
        self._isolation = _isolation(sandbox)
        self._step: _Step | None = None
        self._steps = asyncio.Queue[_Step]()
        self._folder = digests(first)
        """The digests of the files that the interpreter is known to have in its current folder."""
        self._given_files = set(first.workspace)
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

    @property
    def has_ended(self) -> bool:
        """Return whether the interpreter is gone."""
        return self._task.done()

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program after those before it; a program that is stopped ends the session."""
        began = monotonic()
        step = _Step(execution, session, asyncio.get_running_loop().create_future())
        self._calls = 0
        self._steps.put_nowait(step)
        seconds = execution.limits.wall_seconds
        try:
            self._task.add_done_callback(lambda _: step.report.cancel())
            await asyncio.wait({step.report}, timeout=seconds)
        except asyncio.CancelledError:
            await self.close()
            raise
        if step.report.done() and not step.report.cancelled():
            return self._end(step, step.report.result(), monotonic() - began)
        if self._task.done():
            end = self._task.result()
            if end.failure is None and self._step is not step:  # it ended before it asked for more
                return _lost(self._isolation)
            ended = Failure("runtime", "program_failed", "it ended its session", managed=False)
            return _of_step(replace(end, failure=end.failure or ended), step)
        await self.close()
        text = f"it may run {seconds:g} s, and was stopped then, with its session"
        failure = Failure("limits", "timeout", text)
        if self._task.cancelled() or self._task.exception() is not None:
            return ProgramEnd(isolation=self._isolation, failure=failure, seconds=seconds)
        return _of_step(replace(self._task.result(), failure=failure, seconds=seconds), step)

    async def close(self) -> None:
        """End the interpreter; what it has said is logged like that of any program."""
        if self._step is None:  # it has not begun, and its backend may take long to begin it
            self._task.cancel()
        elif not self._stopped.done():
            self._stopped.set_result(StopProgram(LOST, "its session has ended"))
        await asyncio.gather(self._task, return_exceptions=True)

    def _end(self, step: _Step, report: JsonObject, seconds: float) -> ProgramEnd:
        match report:
            case {
                "code": int(code),
                "error": str(error),
                "out": str(out),
                "err": str(err),
                "removed": list(gone),
            }:
                removed = [str(name) for name in gone if name in step.execution.workspace]
            case _:
                code, error, out, err = 1, "it reported nothing that can be read", "", ""
                removed = []
        for name in removed:
            self._folder.pop(name, None)
        self._folder |= {name: sha256(data).hexdigest() for name, data in step.files.items()}
        failed = Failure("runtime", "program_failed", error or f"it ended with {code}", False)
        names = dict.fromkeys([*step.files, *step.problems])
        return ProgramEnd(
            isolation=self._isolation,
            failure=failed if code else None,
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
                for name in names
            ],
            removed=removed,
        )

    async def _serve(self, tool: str, arguments: JsonObject) -> ServedCall:
        step = self._step
        if tool == NEXT:
            if step is not None and not step.report.done():
                step.report.set_result(arguments)
            self._step = step = await self._steps.get()
            return ServedCall(True, self._next(step.execution))
        if step is None or step.report.done():
            return ServedCall(False, None, f"{tool} was not begun: the program has ended", "error")
        if tool == PUT:
            return self._put(step, arguments)
        if tool == GET:
            return _part(step.execution, arguments)
        self._calls += 1
        if self._calls > self._most_calls:
            raise StopProgram("call_limit", f"a program may call tools {self._most_calls} times")
        return await step.session.serve(tool, arguments)

    def _next(self, execution: Execution) -> Json:
        """Return the next program, with the names of the files that have changed since the interpreter saw them."""
        now = digests(execution)
        files: list[Json] = [file.name for file in execution.contract]
        changed: list[Json] = [name for name in now if self._folder.get(name) != now[name]]
        removed: list[Json] = [*sorted(self._given_files - now.keys())]
        self._given_files = set(now)
        self._folder |= now
        return {
            "program": execution.program,
            "files": files,
            "changed": changed,
            "removed": removed,
            "file_bytes": execution.limits.file_bytes,
            "total_bytes": execution.limits.total_bytes,
        }

    def _put(self, step: _Step, arguments: JsonObject) -> ServedCall:
        """Take a part of a file, as far as the limits go."""
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
                        "disk_limit", f"its files have more than {used_bytes:,} bytes"
                    )
                try:
                    part = base64.b64decode(data, validate=True)
                except binascii.Error:
                    return ServedCall(False, None, "the part is no base64", "error")
                step.files.setdefault(name, bytearray()).extend(part)
            case _:
                return ServedCall(False, None, "a name, and data or a problem", "error")
        return ServedCall(True)

    def _on_output(self, text: str) -> None:
        if self._step is not None and not self._step.report.done():
            self._step.session.on_output(text)

    def _on_event(self, name: str, data: Json) -> None:
        if self._step is not None and not self._step.report.done():
            self._step.session.on_event(name, data)


class ProgramSessions:
    """The sessions of a harness by conversation, turn and name; those of other turns of a conversation are ended."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._sessions: dict[tuple[str, str, str], ProgramSession] = {}

    async def run(
        self, key: tuple[str, str, str], execution: Execution, session: Session, *, was_begun: bool
    ) -> ProgramEnd:
        """Run the program in the session; `was_begun` says that a call before this one began it."""
        conversation, turn, _ = key
        for other in [k for k in self._sessions if k[0] == conversation and k[1] != turn]:
            await self._sessions.pop(other).close()
        running = self._sessions.get(key)
        if running is not None and running.has_ended:
            del self._sessions[key]
            running = None
        if running is None and was_begun:
            return _lost(_isolation(self._sandbox))
        if running is None:
            running = self._sessions[key] = ProgramSession(self._sandbox, execution)
        return await running.run(execution, session)

    async def close(self) -> None:
        """End all sessions."""
        while self._sessions:
            await self._sessions.popitem()[1].close()


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
        path if is_pulled_path(path) else f"{turn_id}/{path}": workspace.read(path)
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
