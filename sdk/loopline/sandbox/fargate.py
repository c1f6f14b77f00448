"""Programs in tasks of ECS on Fargate: for long work without a hurry, on machines of its own."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import marshal
import os
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

from loopline.errors import LooplineError, PropertyError
from loopline.models import Json, JsonObject
from loopline.sandbox.aws import Aws, AwsError, Bucket
from loopline.sandbox.call_server import CallServer
from loopline.sandbox.execution import (
    Execution,
    ExecutionLimits,
    Failure,
    Feature,
    ProgramEnd,
    Session,
)
from loopline.sandbox.program_process import Launch, ProgramCost, ProgramProcess
from loopline.sandbox.run_folder import (
    OUT,
    SOCKET,
    WORK,
    RunFolder,
    SharedFolder,
    disk_size,
    environment,
    isolated_start,
    make_shared_folder,
)
from loopline.sandbox.seccomp_filter import FilterUnavailable, filter_program, seccomp_feature
from loopline.sandbox.supervisor.folders import remove_tree
from loopline.sandbox.supervisor.frames import (
    ADDRESSES,
    CALLS,
    ERRORS,
    EXIT,
    OUTPUT,
    READY,
    STOP,
    frame,
    frames,
)
from loopline.tasks import finish

_LEFT_OUT = frozenset({".git", "__pycache__", ".pytest_cache", "logs", "executed_programs"})

_UNREADABLE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError)
"""What is raised for an archive that is cut off, changed, encrypted or compressed in another way."""


class SnapshotError(LooplineError):
    """An archive is malformed, so nothing is taken from it."""


class OversizedSnapshotError(SnapshotError):
    """An archive holds more than the limits of its execution permit."""


def pack_folder(folder: Path, *, whole: bool) -> bytes:
    """Return the files of a folder as an archive, links as links; not its caches and logs unless it is the `whole`."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if whole or name not in _LEFT_OUT]
            for name in (*folders, *names):
                _add(archive, Path(place, name), folder)
    return file.getvalue()


def _add(archive: zipfile.ZipFile, path: Path, folder: Path) -> None:
    status = path.lstat()
    entry = zipfile.ZipInfo(str(path.relative_to(folder)))
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = status.st_mode << 16
    if stat.S_ISDIR(status.st_mode):
        entry.filename += "/"
        archive.writestr(entry, b"")
    elif stat.S_ISLNK(status.st_mode):
        archive.writestr(entry, str(path.readlink()))
    elif stat.S_ISREG(status.st_mode):
        archive.writestr(entry, path.read_bytes())


def restore_outputs(data: bytes, out: Path, turn: str, limits: ExecutionLimits) -> None:
    """Lay what a program made in a turn into `out`; all else in the archive, such as logs, is passed over.

    A link becomes one to nothing, so that it is refused where a contract names it.

    Raises:
        SnapshotError: it is no archive.
        OversizedSnapshotError: it holds more than the limits permit.
    """
    room, count = limits.disk_bytes, 0
    problem = remove_tree(out / turn)
    if problem:
        raise SnapshotError(f"there is no room for the archive: {problem}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                count += 1
                if count > limits.disk_files:
                    raise OversizedSnapshotError(
                        f"it has made more than {limits.disk_files:,} files"
                    )
                parts = entry.filename.rstrip("/").split("/")
                if parts[0] == turn and not {"", ".", ".."} & set(parts):
                    room -= _restore(archive, entry, out, room)
                if room < 0:
                    raise OversizedSnapshotError(
                        f"it has written more than {limits.disk_bytes:,} bytes"
                    )
    except _UNREADABLE as error:
        raise SnapshotError(f"the archive cannot be read: {error}") from error


def _restore(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, out: Path, room: int) -> int:
    """Restore one entry, if there is room; return its bytes, or one more than there is room for."""
    path = out / entry.filename
    if any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(out)):
        raise SnapshotError(f"{entry.filename!r} is in a link")
    if path.is_symlink() or path.is_file():
        raise SnapshotError(f"{entry.filename!r} is there twice")
    if entry.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(entry.external_attr >> 16):
        path.symlink_to("/nothing")
        return 0
    with archive.open(entry) as source:
        content = source.read(room + 1)
    if len(content) <= room:
        path.write_bytes(content)
    return len(content)


@dataclass(slots=True, kw_only=True)
class TaskExchange:
    """What is written to a task, and what it has written. A task reaches objects only at signed addresses.

    They are signed `ahead` at a time, and hold for `seconds`. A task gets more before it has used half of them, so
    there may be as many objects as it needs. The other side is looked at every `look_seconds`, until it `is_over`.
    """

    aws: Aws
    bucket: Bucket
    ahead: int
    seconds: int
    look_seconds: float
    is_over: bool = False
    _signed: int = 0
    _written: int = 0
    _read: int = 0

    async def addresses(self) -> JsonObject:
        """Return the next addresses: `up`, where the task writes, and `down`, where it reads."""
        first, self._signed = self._signed, self._signed + self.ahead
        numbers = range(first, self._signed)
        ups = [f"up/{number}" for number in numbers]
        downs = [f"down/{number}" for number in numbers]
        puts = await self.aws.addresses(self.bucket, "put", ups, self.seconds)
        gets = await self.aws.addresses(self.bucket, "get", downs, self.seconds)
        return {"up": cast("list[Json]", puts), "down": cast("list[Json]", gets)}

    async def write(self, channel: bytes, data: bytes) -> None:
        """Write a frame, and with it addresses if the task is about to have none.

        Raises:
            AwsError: S3 has refused.
        """
        number, self._written = self._written, self._written + 1
        content = frame(channel, data)
        if self._is_short(number):
            content += await self._more()
        await self._put(number, content)

    async def read(self) -> list[tuple[bytes, bytes]]:
        """Return the frames of the next object once the task has written it, none if it has written all and is over.

        Raises:
            AwsError: S3 has refused.
        """
        data = await self._next()
        self._read += 1
        if self._is_short(self._read) and not self.is_over:
            number, self._written = self._written, self._written + 1
            await self._put(number, await self._more())
        return frames(data)

    async def _put(self, number: int, content: bytes) -> None:
        """Write an object; a cancellation is raised once it is there, so that nothing appears after the others are removed."""
        await finish(asyncio.ensure_future(self.aws.put(self.bucket, f"down/{number}", content)))

    async def _next(self) -> bytes:
        while True:
            is_over = self.is_over  # before it was, everything had been written
            data = await self.aws.get(self.bucket, f"up/{self._read}")
            if data is not None or is_over:
                return data or b""
            await asyncio.sleep(self.look_seconds)

    def _is_short(self, number: int) -> bool:
        return number + self.ahead // 2 >= self._signed

    async def _more(self) -> bytes:
        return frame(ADDRESSES, json.dumps(await self.addresses()).encode())


GRACE_SECONDS = 15.0
"""Seconds in which a supervisor that is told to stop stores what the program made."""
STOP_SECONDS = 120.0
_SUPERVISOR = Path(__file__).with_name("supervisor")
_EXECUTOR = _SUPERVISOR / "executor.py"
_MODULES = ("folders", "frames", "task_supervisor")
"""The modules of the supervisor, in the order in which a task imports them."""
_BOOTSTRAP = """
import json, os, sys, types, urllib.request
snapshot = json.loads(os.environ["EXEC_SNAPSHOT"])
manifest = json.load(urllib.request.urlopen(snapshot["manifest"], timeout=60))
for name, source in manifest["modules"].items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), vars(module))
module.main(manifest)
"""
"""What the image's Python runs: it gets the supervisor's code with the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FargateSettings:
    """Where tasks run, and where snapshots are stored (`s3://bucket/prefix`).

    A task whose harness is gone ends `orphan_seconds` after the time of its program. Every `look_seconds` a task and its
    harness look for what the other has written, at addresses that are signed `signed_ahead` at a time.
    """

    cluster: str = ""
    task_definition: str = ""
    container_name: str = "exec"
    subnets: Sequence[str] = ()
    security_groups: Sequence[str] = ()
    assign_public_ip: bool = False
    launch_type: str = "FARGATE"
    platform_version: str = ""
    snapshots: str = ""
    python: str = "python3"
    poll_seconds: float = 2.0
    start_seconds: float = 180.0
    orphan_seconds: int = 60
    look_seconds: float = 0.3
    signed_ahead: int = 32

    def __post_init__(self) -> None:
        """Check the number of addresses.

        Raises:
            PropertyError: a task would wait for its next address for ever.
        """
        if self.signed_ahead < 2:
            raise PropertyError(
                f"signed_ahead is {self.signed_ahead}: a task keeps one address for its end, so write 2 or more"
            )

    def bucket(self, execution: str) -> Bucket:
        """Return where the snapshot of an execution is stored.

        Raises:
            PropertyError: no place is named.
        """
        kind, _, place = self.snapshots.partition("://")
        name, _, prefix = place.partition("/")
        if kind != "s3" or not name:
            raise PropertyError(
                f"execution.runtime.snapshots is like s3://bucket/prefix, not {self.snapshots!r}"
            )
        folder = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        return Bucket(name, f"{folder}executions/{execution}/")


@dataclass(slots=True, kw_only=True)
class FargateTask:
    """A program that runs in a task. It has its start message with its snapshot."""

    aws: Aws
    settings: FargateSettings
    bucket: Bucket
    execution: Execution
    folder: RunFolder
    arn: str = ""
    stdin: None = None
    stdout: asyncio.StreamReader = field(default_factory=asyncio.StreamReader)
    stderr: asyncio.StreamReader = field(default_factory=asyncio.StreamReader)
    _is_ready: bool = False
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _exit: JsonObject | None = None
    _supervisor: asyncio.StreamWriter | None = None
    _broken: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    _seconds: int = 0
    _exchange: TaskExchange = field(init=False)
    _steps: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    _end: asyncio.Task[Failure | int] | None = None

    def __post_init__(self) -> None:
        settings, limits = self.settings, self.execution.limits
        self._seconds = int(limits.wall_seconds + settings.start_seconds) + 900
        self._exchange = TaskExchange(
            aws=self.aws,
            bucket=self.bucket,
            ahead=settings.signed_ahead,
            seconds=self._seconds,
            look_seconds=settings.look_seconds,
        )

    async def begin(self, start: Mapping[str, Any], variables: Mapping[str, str]) -> FargateTask:
        """Store the snapshot, and run the task.

        Raises:
            AwsError: S3 or ECS has refused; nothing is left.
        """
        try:
            snapshot = await self._stored(start, variables)
            launching = asyncio.ensure_future(self.aws.run_task(self._request(snapshot)))
            try:
                self.arn = await asyncio.shield(launching)
            except asyncio.CancelledError:
                self.arn = await launching
                raise
        except BaseException:
            await asyncio.shield(self._discard())
            raise
        self._end = asyncio.ensure_future(self._ended())
        return self

    async def _stored(self, start: Mapping[str, Any], variables: Mapping[str, str]) -> JsonObject:
        """Store what the task needs; return what EXEC_SNAPSHOT says of it."""
        execution, folder, seconds = self.execution, self.folder, self._seconds
        archives = {"work": folder.work, "out": folder.out}
        if execution.bundle_root:
            root = Path(execution.bundle_root)
            archives[f"bundles/{root.name}"] = root
        for name, path in archives.items():
            archive = await asyncio.to_thread(pack_folder, path, whole=name in ("work", "out"))
            await self.aws.put(self.bucket, f"input/{name}.zip", archive)
        inputs = [f"input/{name}.zip" for name in archives]
        signed = await self.aws.addresses(self.bucket, "get", inputs, seconds)
        [made] = await self.aws.addresses(self.bucket, "put", ["output/out.zip"], seconds)
        limits = execution.limits
        manifest: JsonObject = {
            "modules": await asyncio.to_thread(_modules),
            "executor": await asyncio.to_thread(_EXECUTOR.read_text, "utf-8"),
            "snapshots": dict(zip(archives, signed, strict=True)),
            "made": made,
            **await self._exchange.addresses(),
            "pause": self.settings.look_seconds,
            "start": base64.b64encode(marshal.dumps(dict(start), 2)).decode(),
            "variables": dict(variables),
            "user": start["user"],
            "turn": execution.turn_id,
            "output_bytes": limits.output_bytes,
            "limits": {
                "seconds": int(limits.wall_seconds) + self.settings.orphan_seconds,
                "disk_bytes": limits.disk_bytes,
                "disk_files": limits.disk_files,
                "made_bytes": disk_size(execution).size,
            },
        }
        await self.aws.put(self.bucket, "input/manifest.json", json.dumps(manifest).encode())
        [address] = await self.aws.addresses(self.bucket, "get", ["input/manifest.json"], seconds)
        place = f"s3://{self.bucket.name}/{self.bucket.prefix}"
        named: JsonObject = {name: f"{place}input/{name}.zip" for name in archives}
        return {**named, "output": f"{place}output/out.zip", "manifest": address}

    def _request(self, snapshot: JsonObject) -> JsonObject:
        settings, execution = self.settings, self.execution
        aliases = sorted({tool.split(".")[0] for tool in execution.tools})
        variables = {
            "EXEC_SNAPSHOT": json.dumps(snapshot),
            "EXECUTION_ID": execution.execution_id,
            "RUNTIME_TOOL_MODULES": ",".join(aliases),
            "BUNDLE_ID": execution.bundle_id,
        }
        request: JsonObject = {
            "cluster": settings.cluster,
            "taskDefinition": settings.task_definition,
            "launchType": settings.launch_type,
            "count": 1,
            "startedBy": "loopline",
            "overrides": {
                "containerOverrides": [
                    {
                        "name": settings.container_name,
                        "command": [settings.python, "-I", "-c", _BOOTSTRAP],
                        "environment": [
                            {"name": name, "value": value} for name, value in variables.items()
                        ],
                    }
                ]
            },
        }
        if settings.platform_version:
            request["platformVersion"] = settings.platform_version
        if settings.subnets:
            request["networkConfiguration"] = {
                "awsvpcConfiguration": {
                    "subnets": list(settings.subnets),
                    "securityGroups": list(settings.security_groups),
                    "assignPublicIp": "ENABLED" if settings.assign_public_ip else "DISABLED",
                }
            }
        return request

    async def wait(self) -> Failure | int:
        """Return the program's exit code once its task has stopped, or why there is none."""
        if self._end is None:
            raise RuntimeError("the task was not begun")
        return await asyncio.shield(self._end)

    async def _ended(self) -> Failure | int:
        receiving = asyncio.ensure_future(self._receive())
        stopping = asyncio.ensure_future(self._until_stopped())
        try:
            steps: list[asyncio.Future[Any]] = [receiving, stopping, self._broken]
            done, _ = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
            for step in done:
                step.result()
            stopped = await stopping
            await receiving
            return await self._outcome(stopped)
        except AwsError as error:
            return Failure("sandbox", "supervisor_lost", str(error))
        finally:
            receiving.cancel()
            stopping.cancel()
            await asyncio.gather(receiving, stopping, return_exceptions=True)
            self.stdout.feed_eof()
            self.stderr.feed_eof()

    async def _until_stopped(self) -> JsonObject:
        """Return what ECS says of the task once it has stopped."""
        while True:
            task = await self.aws.describe_task(self.settings.cluster, self.arn)
            if not task or task["lastStatus"] == "STOPPED":
                self._exchange.is_over = True
                self._stopped.set()
                return task
            await asyncio.sleep(self.settings.poll_seconds)

    async def _outcome(self, task: JsonObject) -> Failure | int:
        """Restore what the program made; return its exit code, or what went wrong."""
        if self._exit is None:
            code = "start_failed" if self._supervisor is None else "supervisor_lost"
            return Failure("sandbox", code, f"the task has stopped: {_reason(task)}")
        execution = self.execution
        data = await self.aws.get(self.bucket, "output/out.zip")
        match self._exit:
            case {"exit": int(exit_code)} if data is not None:
                outcome: Failure | int = exit_code
            case {"code": "disk_limit", "text": str(text)}:
                outcome = Failure("limits", "disk_limit", text)
            case {"text": str(text)}:
                return Failure("sandbox", "restore_failed", text)
            case _:
                return Failure("sandbox", "restore_failed", "the task stored no output")
        room = disk_size(execution)  # what it found is there, too
        limits = replace(execution.limits, disk_bytes=room.size, disk_files=room.files)
        try:
            await asyncio.to_thread(
                restore_outputs, data or b"", self.folder.out, execution.turn_id, limits
            )
        except OversizedSnapshotError as error:
            return outcome if outcome else Failure("limits", "disk_limit", str(error))
        except SnapshotError as error:
            return Failure("sandbox", "restore_failed", str(error))
        return outcome

    async def _receive(self) -> None:
        """Take what the supervisor writes, in its order, up to the exit of the program or the last that it has written."""
        while self._exit is None and (taken := await self._exchange.read()):
            for channel, content in taken:
                await self._take(channel, content)

    async def _take(self, channel: bytes, content: bytes) -> None:
        if channel == OUTPUT:
            self.stdout.feed_data(content)
        elif channel == ERRORS:
            self.stderr.feed_data(content)
        elif channel == CALLS:
            await self._relay(content)
        elif channel == EXIT:
            self._exit = cast("JsonObject", json.loads(content))
        elif channel == READY:
            self._is_ready = True
            # The manifest has been read, and is of no use to anyone else.
            manifest = f"{self.bucket.prefix}input/manifest"
            await self.aws.remove(Bucket(self.bucket.name, manifest))

    async def _relay(self, content: bytes) -> None:
        """Give the call server what the program has sent."""
        if self._supervisor is None:
            reader, self._supervisor = await asyncio.open_unix_connection(str(self.folder.socket))
            self._steps.append(asyncio.ensure_future(self._answer(reader)))
        self._supervisor.write(content)
        # A task that has stopped waits for no answers, and how it ended comes behind its calls.
        steps: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._supervisor.drain()),
            asyncio.ensure_future(self._stopped.wait()),
        ]
        try:
            await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for step in steps:
                step.cancel()
            await asyncio.gather(*steps, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(1 << 18):
                await self._exchange.write(CALLS, data)
        except AwsError as error:  # the program would wait for its answer
            if not self._broken.done():
                self._broken.set_exception(error)
                self._broken.exception()  # the task may have ended, so that nobody asks

    async def stop(self) -> ProgramCost:
        """Stop the task if it runs, with time to store what the program made; remove its objects."""
        try:
            if self._end is not None and not self._end.done():
                await self._stop_softly(self._end)
        finally:
            for step in self._steps:
                step.cancel()
            if self._supervisor is not None:
                self._supervisor.close()
            try:
                await asyncio.gather(*self._steps, return_exceptions=True)
            finally:
                await self._discard()
        return ProgramCost()

    async def _stop_softly(self, end: asyncio.Task[Failure | int]) -> None:
        if self._is_ready:
            with suppress(AwsError):
                await self._exchange.write(STOP, b"")
            done, _ = await asyncio.wait([end], timeout=GRACE_SECONDS)
            if done:
                return
        with suppress(AwsError):
            await self.aws.stop_task(self.settings.cluster, self.arn, "stopped by Loopline")
        await asyncio.wait([end], timeout=STOP_SECONDS)
        end.cancel()
        await asyncio.wait([end])

    async def _discard(self) -> None:
        """Stop a task that nobody waits for, and remove the objects."""
        with suppress(AwsError):
            if self.arn and not self._stopped.is_set():
                await self.aws.stop_task(self.settings.cluster, self.arn, "stopped by Loopline")
        with suppress(AwsError):
            await self.aws.remove(self.bucket)


def _modules() -> JsonObject:
    """Return the code of the supervisor, by the names of its modules."""
    return {
        f"loopline.sandbox.supervisor.{name}": (_SUPERVISOR / f"{name}.py").read_text("utf-8")
        for name in _MODULES
    }


def _reason(task: JsonObject) -> str:
    """Return what ECS says of the end of a task."""
    containers = task.get("containers")
    listed = containers if isinstance(containers, list) else []
    reasons = [
        f"{name}: {container[name]}"
        for container in (task, *listed)
        if isinstance(container, dict)
        for name in ("stopCode", "stoppedReason", "reason", "exitCode")
        if name in container
    ]
    return "; ".join(reasons) or "ECS gave no reason"


class FargateSandbox:
    """Runs each program in a task of its own, with its files as a snapshot in S3.

    A task has no namespaces of its own beside those of its machine; the filter of system calls keeps the program from the
    network, and its user from the supervisor.
    """

    name: str = "fargate"

    def __init__(
        self, settings: FargateSettings, aws: Aws | None = None, *, folder: Path | None = None
    ) -> None:
        self._settings = settings
        self._aws = aws or Aws()
        self._parent = folder
        self._folder: SharedFolder | None = None
        self._opening = asyncio.Lock()
        self._numbers = count(1)

    async def features(self) -> Sequence[Feature]:
        """Return whether the library, the task definition and the filter are here."""
        features: list[Feature] = []
        try:
            await self._aws.has_definition(self._settings.task_definition)
            features.append(Feature("task definition", True, self._settings.task_definition))
        except AwsError as error:
            features.append(Feature("task definition", False, str(error)))
        return [*features, seccomp_feature()]

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program; if it cannot be isolated, it does not run."""
        try:
            code = filter_program()
        except FilterUnavailable as error:
            failure = Failure("sandbox", "isolation_unavailable", str(error))
            return ProgramEnd(isolation=self.name, failure=failure)
        shared = await self._opened()
        folder = RunFolder(shared.path / str(next(self._numbers)), None)
        try:
            await asyncio.to_thread(folder.make)
            await asyncio.to_thread(folder.fill, execution, WORK)
            return await self._run(execution, session, folder, code)
        except AwsError as error:
            failure = Failure("sandbox", "start_failed", str(error))
            return ProgramEnd(isolation=self.name, failure=failure)
        finally:
            await asyncio.to_thread(folder.remove)

    async def _run(
        self, execution: Execution, session: Session, folder: RunFolder, code: bytes
    ) -> ProgramEnd:
        features = ("uid", "rlimits", "seccomp")
        async with CallServer(
            folder.socket, execution, session, user=os.getuid(), features=features
        ) as server:
            start = isolated_start(
                execution, server.token, code, in_group=False, has_landlock=False
            )
            task = FargateTask(
                aws=self._aws,
                settings=self._settings,
                bucket=self._settings.bucket(f"{execution.execution_id}-{os.urandom(8).hex()}"),
                execution=execution,
                folder=folder,
            )
            launch = Launch(
                begin=partial(task.begin, start, environment(execution, WORK, OUT, SOCKET)),
                start=start,
                isolation=self.name,
                start_seconds=self._settings.start_seconds,
            )
            return await ProgramProcess(launch, execution, session, folder, server).run()

    async def _opened(self) -> SharedFolder:
        async with self._opening:
            if self._folder is None:
                self._folder = await make_shared_folder(self._parent)
            return self._folder

    async def close(self) -> None:
        """Remove the folder of this sandbox; what runs is stopped by whoever awaits it."""
        folder, self._folder = self._folder, None
        if folder is not None:
            await folder.remove()
