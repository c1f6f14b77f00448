"""The sandbox of Fargate: each program runs in a task of ECS, on another machine, with its files in S3."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import marshal
import os
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from loopline.errors import LooplineError, PropertyError
from loopline.models import Json, JsonObject
from loopline.sandbox.aws import Aws, AwsError, Bucket
from loopline.sandbox.execution import (
    Execution,
    ExecutionLimits,
    Failure,
    Feature,
    ProgramEnd,
    Session,
    report_failure,
)
from loopline.sandbox.program_process import Launch, ProgramCost, ProgramProcess
from loopline.sandbox.run_folder import (
    WORK,
    RunFolder,
    RunFolders,
    disk_size,
    environment,
    isolated_start,
    tool_modules,
)
from loopline.sandbox.seccomp_filter import FilterUnavailable, filter_program, seccomp_feature
from loopline.sandbox.supervisor import frames
from loopline.sandbox.supervisor.folders import remove_tree
from loopline.tasks import cancel_all, finish

_logger = logging.getLogger("loopline")

_EXCLUDED = frozenset({".git", "__pycache__", ".pytest_cache", "logs", "executed_programs"})

_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError)
"""The exceptions for an archive that is truncated, changed, encrypted or compressed by another method."""


class SnapshotError(LooplineError):
    """An archive with the files of a program is malformed; its files are not used."""


class OversizedSnapshotError(SnapshotError):
    """The files in an archive exceed the limits of the execution."""


def pack_folder(folder: Path, *, whole: bool) -> bytes:
    """Pack the files of a folder into a ZIP archive; links are stored as links.

    Unless it is `whole`, folders with caches, logs and Git data are left out.
    """
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for parent, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if whole or name not in _EXCLUDED]
            for name in (*folders, *names):
                _add(archive, Path(parent, name), folder)
    return file.getvalue()


def _add(archive: zipfile.ZipFile, path: Path, folder: Path) -> None:
    """Add a folder, link or file to the archive under its path relative to `folder`; other kinds are skipped."""
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
    """Replace the folder of a turn in `out` by the folder in an archive. Other entries, such as logs, are ignored.

    Links are replaced by a link to a path that does not exist. They are reported as problems when files are collected.

    Raises:
        SnapshotError: `data` is not a readable archive, an entry is in a link or occurs twice, or the old folder
            cannot be removed.
        OversizedSnapshotError: the files in it exceed the limits; files up to the limit are written.
    """
    problem = remove_tree(out / turn)
    if problem:
        raise SnapshotError(f"the old folder cannot be removed: {problem}")
    remaining = limits.disk_bytes
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for number, entry in enumerate(archive.infolist(), 1):
                if number > limits.disk_files:
                    raise OversizedSnapshotError(
                        f"it has made more than {limits.disk_files:,} files"
                    )
                parts = entry.filename.rstrip("/").split("/")
                if parts[0] == turn and not {"", ".", ".."} & set(parts):
                    remaining -= _restore(archive, entry, out, remaining)
                if remaining < 0:
                    raise OversizedSnapshotError(
                        f"it has written more than {limits.disk_bytes:,} bytes"
                    )
    except _ARCHIVE_ERRORS as error:
        raise SnapshotError(f"the archive cannot be read: {error}") from error


def _restore(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, out: Path, most: int) -> int:
    """Restore one entry if it has at most `most` bytes; return its size, but never more than `most` + 1.

    A folder and a link, which is restored with another target, count as 0. Raise SnapshotError if the path is in a link
    or occurs twice.
    """
    path = out / entry.filename
    if any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(out)):
        raise SnapshotError(f"{entry.filename!r} is in a link")
    if path.is_symlink() or path.is_file():
        raise SnapshotError(f"{entry.filename!r} occurs twice")
    if entry.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(entry.external_attr >> 16):
        path.symlink_to("/nothing")
        return 0
    with archive.open(entry) as source:
        content = source.read(most + 1)  # the size in the header may be wrong
    if len(content) <= most:
        path.write_bytes(content)
    return len(content)


class TaskExchange:
    """The exchange of frames with a task through numbered objects in a bucket.

    The task reads and writes objects only at signed addresses, which are valid for `seconds`. It receives more addresses
    before it has used half of them. New objects of the task are polled until `is_over` is set.
    """

    def __init__(self, aws: Aws, bucket: Bucket, settings: FargateSettings, seconds: int) -> None:
        self._aws = aws
        self._bucket = bucket
        self._ahead = settings.signed_ahead
        self._look_seconds = settings.look_seconds
        self._seconds = seconds
        self._signed = 0
        self._written = 0
        self._read = 0
        self.is_over: bool = False

    async def addresses(self) -> JsonObject:
        """Return the next signed addresses: those to which the task writes, as `up`, and those from which it reads, as `down`.

        Each call returns `signed_ahead` of both, after the addresses of the previous call.
        """
        numbers = range(self._signed, self._signed + self._ahead)
        self._signed += self._ahead
        ups = [f"up/{number}" for number in numbers]
        downs = [f"down/{number}" for number in numbers]
        puts = await self._aws.addresses(self._bucket, "put", ups, self._seconds)
        gets = await self._aws.addresses(self._bucket, "get", downs, self._seconds)
        return {"up": cast("list[Json]", puts), "down": cast("list[Json]", gets)}

    async def write(self, channel: bytes, data: bytes) -> None:
        """Write a frame, together with more addresses if the task has used half of its addresses.

        Raises:
            AwsError: S3 has refused.
        """
        number = self._written
        self._written += 1
        content = frames.frame(channel, data)
        if self._needs_addresses(number):
            content += await self._sign_more()
        await self._put(number, content)

    async def read(self) -> list[tuple[bytes, bytes]]:
        """Wait for the next object of the task, and return its frames; none if the task has ended and all were read.

        Raises:
            AwsError: S3 has refused.
        """
        data = await self._poll()
        self._read += 1
        if self._needs_addresses(self._read) and not self.is_over:
            number = self._written
            self._written += 1
            await self._put(number, await self._sign_more())
        return frames.frames(data)

    async def _put(self, number: int, content: bytes) -> None:
        """Write an object. A cancellation waits until it is written; otherwise it could appear after the removal of all objects."""
        await finish(asyncio.ensure_future(self._aws.put(self._bucket, f"down/{number}", content)))

    async def _poll(self) -> bytes:
        """Poll for the next object of the task, and return its bytes; empty if the task has ended without it."""
        while True:
            # Read before the object: a task that is over has written all of its objects.
            is_over = self.is_over
            data = await self._aws.get(self._bucket, f"up/{self._read}")
            if data is not None or is_over:
                return data or b""
            await asyncio.sleep(self._look_seconds)

    def _needs_addresses(self, number: int) -> bool:
        return number + self._ahead // 2 >= self._signed

    async def _sign_more(self) -> bytes:
        return frames.frame(frames.ADDRESSES, json.dumps(await self.addresses()).encode())


GRACE_SECONDS = 15.0
"""The seconds within which a supervisor that receives STOP must store the program's files."""
STOP_SECONDS = 120.0
_SUPERVISOR = Path(__file__).with_name("supervisor")
_EXECUTOR = _SUPERVISOR / "executor.py"
_MODULES = ("folders", "frames", "task_supervisor")
"""The modules of the supervisor, in the order in which a task must load them."""
_BOOTSTRAP = """
import json, os, sys, time, types, urllib.request
snapshot = json.loads(os.environ["EXEC_SNAPSHOT"])
for pause in (0.2, 0.8, 3.2, None):
    try:
        manifest = json.load(urllib.request.urlopen(snapshot["manifest"], timeout=60))
        break
    except OSError:
        if pause is None:
            raise
        time.sleep(pause)
for name, source in manifest["modules"].items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), vars(module))
module.main(manifest)
"""
"""The program that the image's Python runs: it loads the supervisor's code from the manifest, with 4 attempts, and runs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FargateSettings:
    """The settings of the tasks. `snapshots` is the place for the files of programs, such as `s3://bucket/prefix`.

    If the harness ends, its task ends `orphan_seconds` after the time limit of the program. `poll_seconds` is the time
    between two requests for the state of a task, `look_seconds` that between two requests for a new object, and
    `signed_ahead` the number of addresses that are signed at a time.
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
        """Check `signed_ahead`.

        Raises:
            PropertyError: the number is below 2, so that a task would wait for its next address for ever.
        """
        if self.signed_ahead < 2:
            raise PropertyError(
                f"signed_ahead is {self.signed_ahead}: a task keeps one address for its end, so write 2 or more"
            )

    def bucket(self, execution: str) -> Bucket:
        """Return the bucket and prefix for the objects of an execution.

        Raises:
            PropertyError: `snapshots` does not name a bucket.
        """
        kind, _, location = self.snapshots.partition("://")
        name, _, prefix = location.partition("/")
        if kind != "s3" or not name:
            raise PropertyError(
                f"execution.runtime.snapshots must be like s3://bucket/prefix, not {self.snapshots!r}"
            )
        folder = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        return Bucket(name, f"{folder}executions/{execution}/")


class FargateTask:
    """A program that runs in a task. `stdin` is None because the start message is sent with the snapshot."""

    stdin: None = None

    def __init__(
        self, aws: Aws, settings: FargateSettings, execution: Execution, folder: RunFolder
    ) -> None:
        self._aws = aws
        self._settings = settings
        self._execution = execution
        self._folder = folder
        self._bucket = settings.bucket(f"{execution.execution_id}-{os.urandom(8).hex()}")
        self._seconds = int(execution.limits.wall_seconds + settings.start_seconds) + 900
        self._exchange = TaskExchange(aws, self._bucket, settings, self._seconds)
        self._arn = ""
        self._is_ready = False
        self._is_stopped = asyncio.Event()
        self._exit: JsonObject | None = None
        self._call_writer: asyncio.StreamWriter | None = None
        self._answering: asyncio.Task[None] | None = None
        self._answer_error: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._end: asyncio.Task[Failure | int] | None = None
        self.stdout: asyncio.StreamReader = asyncio.StreamReader()
        self.stderr: asyncio.StreamReader = asyncio.StreamReader()

    async def begin(self, start: Mapping[str, Any], variables: Mapping[str, str]) -> FargateTask:
        """Store the snapshot, and start the task. `variables` are the environment of the program.

        Raises:
            AwsError: S3 or ECS has refused; the stored objects are removed.
        """
        try:
            snapshot = await self._store_snapshot(start, variables)
            launching = asyncio.ensure_future(self._aws.run_task(self._task_request(snapshot)))
            try:
                self._arn = await asyncio.shield(launching)
            except asyncio.CancelledError:
                self._arn = await launching
                raise
        except BaseException:
            await asyncio.shield(self._discard())
            raise
        self._end = asyncio.ensure_future(self._wait_for_end())
        return self

    async def _store_snapshot(
        self, start: Mapping[str, Any], variables: Mapping[str, str]
    ) -> JsonObject:
        """Store the files and the manifest of the task; return the value of its variable EXEC_SNAPSHOT."""
        execution = self._execution
        seconds = self._seconds
        archives = {"work": self._folder.work, "out": self._folder.out}
        if execution.bundle_root:
            root = Path(execution.bundle_root)
            archives[f"bundles/{root.name}"] = root
        for name, path in archives.items():
            archive = await asyncio.to_thread(pack_folder, path, whole=name in ("work", "out"))
            await self._aws.put(self._bucket, f"input/{name}.zip", archive)
        inputs = [f"input/{name}.zip" for name in archives]
        signed = await self._aws.addresses(self._bucket, "get", inputs, seconds)
        [output] = await self._aws.addresses(self._bucket, "put", ["output/out.zip"], seconds)
        limits = execution.limits
        manifest: JsonObject = {
            "modules": await asyncio.to_thread(_read_modules),
            "executor": await asyncio.to_thread(_EXECUTOR.read_text, "utf-8"),
            "snapshots": dict(zip(archives, signed, strict=True)),
            "output": output,
            **await self._exchange.addresses(),
            "pause": self._settings.look_seconds,
            "start": base64.b64encode(marshal.dumps(dict(start), 2)).decode(),
            "variables": dict(variables),
            "user": start["user"],
            "turn": execution.turn_id,
            "limits": {
                "seconds": int(limits.wall_seconds) + self._settings.orphan_seconds,
                "disk_bytes": limits.disk_bytes,
                "disk_files": limits.disk_files,
                "archive_bytes": disk_size(execution).size,
                "stream_bytes": limits.output_bytes,
            },
        }
        await self._aws.put(self._bucket, "input/manifest.json", json.dumps(manifest).encode())
        [address] = await self._aws.addresses(self._bucket, "get", ["input/manifest.json"], seconds)
        prefix = f"s3://{self._bucket.name}/{self._bucket.prefix}"
        locations: JsonObject = {name: f"{prefix}input/{name}.zip" for name in archives}
        return {**locations, "output": f"{prefix}output/out.zip", "manifest": address}

    def _task_request(self, snapshot: JsonObject) -> JsonObject:
        """Return the request to ECS for one task, without the settings of platform and network that are empty."""
        settings = self._settings
        variables = {
            "EXEC_SNAPSHOT": json.dumps(snapshot),
            "EXECUTION_ID": self._execution.execution_id,
            "RUNTIME_TOOL_MODULES": tool_modules(self._execution),
            "BUNDLE_ID": self._execution.bundle_id,
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
        """Wait until the task has stopped, and return the exit code of the program, or a failure.

        Raises:
            RuntimeError: `begin` has not started the task.
        """
        if self._end is None:
            raise RuntimeError("the task was not begun")
        return await asyncio.shield(self._end)

    async def _wait_for_end(self) -> Failure | int:
        """Handle the frames of the task until it has stopped, restore its files, and return its exit code or failure.

        An AwsError becomes the failure `supervisor_lost`. The streams are ended in every case.
        """
        receiving = asyncio.ensure_future(self._receive())
        stopping = asyncio.ensure_future(self._poll_state())
        try:
            steps: list[asyncio.Future[Any]] = [receiving, stopping, self._answer_error]
            done, _ = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
            for step in done:
                step.result()
            task = await stopping
            await receiving
            return await self._restore(task)
        except AwsError as error:
            return Failure("sandbox", "supervisor_lost", str(error))
        finally:
            await cancel_all(receiving, stopping)
            self.stdout.feed_eof()
            self.stderr.feed_eof()

    async def _poll_state(self) -> JsonObject:
        """Wait until the task has stopped, mark the exchange as over, and return its description by ECS.

        The description is empty if ECS has forgotten the task. ECS may not know a task that has just been started yet.
        """
        is_known = False
        while True:
            task = await self._aws.describe_task(self._settings.cluster, self._arn)
            is_known = is_known or bool(task)
            if is_known and (not task or task["lastStatus"] == "STOPPED"):
                self._exchange.is_over = True
                self._is_stopped.set()
                return task
            await asyncio.sleep(self._settings.poll_seconds)

    async def _restore(self, task: JsonObject) -> Failure | int:
        """Restore the files of the program into its folder, and return its exit code, or a failure.

        Without an exit of the program the failure is `start_failed` if the program never connected, otherwise
        `supervisor_lost`.
        """
        if self._exit is None:
            code = "start_failed" if self._call_writer is None else "supervisor_lost"
            return Failure("sandbox", code, f"the task has stopped: {_stop_reason(task)}")
        execution = self._execution
        data = await self._aws.get(self._bucket, "output/out.zip")
        match self._exit:
            case {"exit": int(exit_code)} if data is not None:
                outcome: Failure | int = exit_code
            case {"code": "disk_limit", "text": str(text)}:
                outcome = Failure("limits", "disk_limit", text)
            case {"text": str(text)}:
                return Failure("sandbox", "restore_failed", text)
            case _:
                return Failure("sandbox", "restore_failed", "the task stored no output")
        size = disk_size(execution)  # the archive has the files of the workspace, too
        limits = replace(execution.limits, disk_bytes=size.size, disk_files=size.files)
        try:
            await asyncio.to_thread(
                restore_outputs, data or b"", self._folder.out, execution.turn_id, limits
            )
        except OversizedSnapshotError as error:
            return outcome if outcome else Failure("limits", "disk_limit", str(error))
        except SnapshotError as error:
            return Failure("sandbox", "restore_failed", str(error))
        return outcome

    async def _receive(self) -> None:
        """Handle the frames of the task in their order, until the exit of the program or the last object."""
        while self._exit is None and (received := await self._exchange.read()):
            for channel, content in received:
                await self._handle(channel, content)

    async def _handle(self, channel: bytes, content: bytes) -> None:
        """Handle a frame by its channel; READY also removes the manifest from S3. An unknown channel is ignored."""
        if channel == frames.OUTPUT:
            self.stdout.feed_data(content)
        elif channel == frames.ERRORS:
            self.stderr.feed_data(content)
        elif channel == frames.CALLS:
            await self._relay_calls(content)
        elif channel == frames.EXIT:
            self._exit = cast("JsonObject", json.loads(content))
        elif channel == frames.READY:
            self._is_ready = True
            # The manifest has secrets such as the token, and the task has read it.
            manifest = f"{self._bucket.prefix}input/manifest"
            await self._aws.remove(Bucket(self._bucket.name, manifest))

    async def _relay_calls(self, content: bytes) -> None:
        """Send the bytes of the program's connection to the call server; the first ones open a connection."""
        if self._call_writer is None:
            reader, self._call_writer = await asyncio.open_unix_connection(str(self._folder.socket))
            self._answering = asyncio.ensure_future(self._relay_answers(reader))
        self._call_writer.write(content)
        # A stopped task does not read answers, so that the call server may block; its exit must still be received.
        steps: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._call_writer.drain()),
            asyncio.ensure_future(self._is_stopped.wait()),
        ]
        try:
            await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(*steps)

    async def _relay_answers(self, reader: asyncio.StreamReader) -> None:
        """Send the bytes of the call server to the task until the connection ends. An AwsError ends the execution."""
        try:
            while data := await reader.read(1 << 18):
                await self._exchange.write(frames.CALLS, data)
        except AwsError as error:  # ends the execution: the program would wait for its answer
            if not self._answer_error.done():
                self._answer_error.set_exception(error)
                self._answer_error.exception()  # mark it as retrieved, in case that the task has ended

    async def stop(self) -> ProgramCost:
        """Stop the task if it runs, with time to store the program's files, and remove its objects. Counts are 0."""
        try:
            if self._end is not None and not self._end.done():
                await self._stop_gracefully(self._end)
        finally:
            if self._call_writer is not None:
                self._call_writer.close()
            try:
                if self._answering is not None:
                    await cancel_all(self._answering)
            finally:
                await self._discard()
        return ProgramCost()

    async def _stop_gracefully(self, end: asyncio.Task[Failure | int]) -> None:
        """Send STOP to the supervisor; if the task has not stopped after 15 seconds, let ECS stop it."""
        if self._is_ready:
            with suppress(AwsError):
                await self._exchange.write(frames.STOP, b"")
            done, _ = await asyncio.wait([end], timeout=GRACE_SECONDS)
            if done:
                return
        with suppress(AwsError):
            await self._aws.stop_task(self._settings.cluster, self._arn, "stopped by Loopline")
        await asyncio.wait([end], timeout=STOP_SECONDS)
        end.cancel()
        await asyncio.wait([end])

    async def _discard(self) -> None:
        """Stop the task if it still runs, without waiting for its end, and remove its objects."""
        with suppress(AwsError):
            if self._arn and not self._is_stopped.is_set():
                await self._aws.stop_task(self._settings.cluster, self._arn, "stopped by Loopline")
        try:
            await self._aws.remove(self._bucket)
        except AwsError as error:
            _logger.warning("files of a program stay in the bucket: %s", error)


def _read_modules() -> JsonObject:
    return {
        f"loopline.sandbox.supervisor.{name}": (_SUPERVISOR / f"{name}.py").read_text("utf-8")
        for name in _MODULES
    }


def _stop_reason(task: JsonObject) -> str:
    """Return the fields of a task and its containers that describe why it stopped."""
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
    """Runs each program in a task, with a snapshot of its files in S3.

    A task cannot make namespaces. The seccomp filter denies the program the network, and its user id denies it access to
    the supervisor.
    """

    name: str = "fargate"

    def __init__(
        self, settings: FargateSettings, aws: Aws | None = None, *, folder: Path | None = None
    ) -> None:
        self._settings = settings
        self._aws = aws or Aws()
        self._folders = RunFolders(folder)

    async def features(self) -> Sequence[Feature]:
        """Check for the task definition, with a request to AWS, and for the seccomp filter; return a feature for each.

        If the library is missing or the request fails, the task definition is reported as missing, with the reason.
        """
        name = self._settings.task_definition
        try:
            await self._aws.check_definition(name)
            definition = Feature("task definition", True, name)
        except AwsError as error:
            definition = Feature("task definition", False, str(error))
        return [definition, seccomp_feature()]

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program. If the seccomp filter is not available, it does not run and the failure says why.

        If S3 or ECS refuses a request before the program runs, the failure is `start_failed`.
        """
        try:
            seccomp = filter_program()
        except FilterUnavailable as error:
            return report_failure(self.name, "isolation_unavailable", str(error))
        try:
            async with self._folders.open_next(execution, WORK) as folder:
                start = isolated_start(execution, seccomp, in_group=False, has_landlock=False)
                task = FargateTask(self._aws, self._settings, execution, folder)
                launch = Launch(
                    begin=partial(task.begin, start, environment(execution)),
                    start=start,
                    isolation=self.name,
                    user=folder.user,  # the calls are relayed by this process
                    start_seconds=self._settings.start_seconds,
                )
                return await ProgramProcess(launch, execution, session, folder).run()
        except AwsError as error:
            return report_failure(self.name, "start_failed", str(error))

    async def close(self) -> None:
        """Remove the folder of this sandbox. A running program is stopped by cancelling its `run`."""
        await self._folders.remove()
