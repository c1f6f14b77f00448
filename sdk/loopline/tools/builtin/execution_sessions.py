"""Sessions of programs: an execution whose program asks for programs, so that an interpreter stays for further calls."""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass, field, replace
from hashlib import sha256
from time import monotonic

from loopline.models import Json, JsonObject
from loopline.sandbox import (
    Execution,
    Failure,
    ProducedFile,
    ProgramEnd,
    Sandbox,
    ServedCall,
    Session,
    StopProgram,
)

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
        return "it is no plain file"
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
        await tools.call("{PUT}", name=name, problem=f"it is no plain file: {{error.strerror}}")
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
