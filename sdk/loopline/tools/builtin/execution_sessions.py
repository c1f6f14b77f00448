"""Sessions of programs: an execution whose program asks for programs, so that an interpreter stays for further calls."""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass, field, replace
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

NEXT, PUT = "session.next", "session.put"
"""What the program of a session calls: for the next program, with the report on the last one, and with a part of a file."""
PART_BYTES = 600_000
MOST_CALLS = 100_000
LOST = "session_lost"
_TAIL = 12_000

DRIVER = f"""
import base64, io, os, stat, sys, traceback

class _Copy(io.TextIOBase):
    def __init__(self, stream):
        self.stream, self.text = stream, ""
    def write(self, text):
        self.text = (self.text + text)[-{_TAIL}:]
        return self.stream.write(text)
    def flush(self):
        self.stream.flush()

async def _put(name):
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except OSError as error:
        await tools.call("{PUT}", name=name, problem=f"it is no plain file: {{error.strerror}}")
        return
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            await tools.call("{PUT}", name=name, problem="it is no plain file")
            return
        part = None
        while part is None or part:
            part = file.read({PART_BYTES})
            await tools.call("{PUT}", name=name, data=base64.b64encode(part).decode())

async def _serve():
    space = {{"__name__": "__main__", "tools": tools, "ToolFailed": ToolFailed, "fetch_ctx": fetch_ctx,
             "emit": emit, "WORKDIR": WORKDIR, "OUTPUT_DIR": OUTPUT_DIR}}
    streams, folder, report = (sys.stdout, sys.stderr), os.getcwd(), {{}}
    while True:
        step = await tools.call("{NEXT}", report)
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
        for name in step["files"]:
            await _put(name)
        report = {{"code": code, "error": error[-500:], "out": out.text, "err": err.text}}

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
        self._most_calls = first.limits.calls
        self._calls = 0
        limits = replace(
            first.limits,
            wall_seconds=24 * 3_600.0,
            calls=MOST_CALLS,
            message_bytes=max(first.limits.message_bytes, 2 * PART_BYTES),
        )
        execution = replace(
            first, program=DRIVER, contract=(), tools=[*first.tools, NEXT, PUT], limits=limits
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
            return replace(end, failure=end.failure or ended)
        await self.close()
        text = f"it may run {seconds:g} s, and was stopped then, with its session"
        failure = Failure("limits", "timeout", text)
        return ProgramEnd(isolation=self._isolation, failure=failure, seconds=seconds)

    async def close(self) -> None:
        """End the interpreter; what it has said is logged like that of any program."""
        if self._step is None:  # it has not begun, and its backend may take long to begin it
            self._task.cancel()
        elif not self._stopped.done():
            self._stopped.set_result(StopProgram(LOST, "its session has ended"))
        await asyncio.gather(self._task, return_exceptions=True)

    def _end(self, step: _Step, report: JsonObject, seconds: float) -> ProgramEnd:
        match report:
            case {"code": int(code), "error": str(error), "out": str(out), "err": str(err)}:
                pass
            case _:
                code, error, out, err = 1, "it reported nothing that can be read", "", ""
        failed = Failure("runtime", "program_failed", error or f"it ended with {code}", False)
        names = [file.name for file in step.execution.contract]
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
                if name in step.files or name in step.problems
            ],
        )

    async def _serve(self, tool: str, arguments: JsonObject) -> ServedCall:
        step = self._step
        if tool == NEXT:
            if step is not None and not step.report.done():
                step.report.set_result(arguments)
            self._step = step = await self._steps.get()
            files: list[Json] = [file.name for file in step.execution.contract]
            return ServedCall(True, {"program": step.execution.program, "files": files})
        if step is None or step.report.done():
            return ServedCall(False, None, f"{tool} was not begun: the program has ended", "error")
        if tool == PUT:
            return self._put(step, arguments)
        self._calls += 1
        if self._calls > self._most_calls:
            raise StopProgram("call_limit", f"a program may call tools {self._most_calls} times")
        return await step.session.serve(tool, arguments)

    def _put(self, step: _Step, arguments: JsonObject) -> ServedCall:
        """Take a part of a file, as far as the limits go."""
        limits = step.execution.limits
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
