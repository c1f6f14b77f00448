"""Programs in tasks of ECS: what a task is given, how it is stopped, and each way in which it may fail."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import random
import stat
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import dedent

import pytest

from loopline import Bundle, Harness
from loopline.errors import PropertyError
from loopline.models import Json, JsonObject
from loopline.sandbox import ExecutionLimits, ServedCall, Session, parse_contract
from loopline.sandbox.aws import Aws, AwsError, Bucket
from loopline.sandbox.fargate import FargateSandbox, SnapshotError, restore_outputs
from loopline.sandbox.supervisor.frames import CALLS, OUTPUT, frame, frames
from loopline.testing import ScriptedModel
from tests.bench.executions import execution, session, start_harness
from tests.support.ecs_endpoint import (
    BUCKET,
    CREDENTIALS,
    TASKS,
    Services,
    clear,
    keys,
    protected,
    s3_server,
)
from tests.support.escapes import ATTEMPTS, ENDS, canaries, judge_all, judge_attempts
from tests.support.programs import python
from tests.support.s3_server import s3_server as running_s3
from tests.support.waiting import until

WITHOUT_NAMESPACES = {"names of interfaces", "routes of the host"}
"""What a program of a task may see: it is not secret, and Fargate permits nothing that would hide it."""

SOME_ENDS = ["disk", "a process that stays", *random.Random(18).sample(sorted(ENDS), 4)]
"""`python -m tests.bench.escapes --backend fargate` runs all."""


@pytest.fixture
async def fargate(aws: Services, runs: Path) -> AsyncIterator[FargateSandbox]:
    opened = FargateSandbox(TASKS, folder=runs)
    yield opened
    await opened.close()


async def test_a_task_is_asked_for_as_the_properties_say_and_gets_no_secret(
    fargate: FargateSandbox, aws: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "the-secret")
    end = await fargate.run(execution("import os; print(sorted(os.environ))"), session())
    assert end.failure is None
    assert not {"EXEC_SNAPSHOT", "API_KEY", "AWS_ACCESS_KEY_ID"} & set(end.user_out.split("'"))
    request = aws.tasks.requests[-1]
    assert (request["cluster"], request["taskDefinition"]) == ("c", "exec-task")
    text = json.dumps(request["overrides"])
    assert len(text) < 8_192
    assert "the-secret" not in text
    assert '\\"work\\": \\"s3://snapshots/x/executions/' in text
    assert keys(aws.s3) == []


async def test_a_task_is_asked_for_with_the_network_that_the_properties_name(
    aws: Services,
) -> None:
    aws.tasks.fault = "capacity"
    runtime: JsonObject = {
        "mode": "fargate",
        "cluster": "arn:aws:ecs:eu-west-1:123456789012:cluster/exec",
        "task_definition": "exec-task",
        "container_name": "main",
        "subnets": ["subnet-1"],
        "security_groups": ["sg-1"],
        "assign_public_ip": True,
        "launch_type": "FARGATE",
        "platform_version": "1.4.0",
        "snapshots": "s3://snapshots/p",
    }
    profiles: JsonObject = {"far": runtime}
    section: JsonObject = {"runtime": {"default_profile": "far", "profiles": profiles}}
    bundle = Bundle(id="shop", configuration={"execution": section})
    model = ScriptedModel([python("print(1)"), "Done."])
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        await harness.conversation("c").say("go")
    request = aws.tasks.requests[-1]
    assert (request["cluster"], request["taskDefinition"]) == (runtime["cluster"], "exec-task")
    assert (request["launchType"], request["platformVersion"]) == ("FARGATE", "1.4.0")
    assert request["networkConfiguration"] == {
        "awsvpcConfiguration": {
            "subnets": ["subnet-1"],
            "securityGroups": ["sg-1"],
            "assignPublicIp": "ENABLED",
        }
    }


async def test_a_task_is_stopped_with_the_program_that_is_cancelled(
    fargate: FargateSandbox, aws: Services
) -> None:
    up = asyncio.Event()
    follows = Session(serve=session().serve, on_output=lambda _: up.set())
    program = "import time; print('up'); time.sleep(60)"
    task = asyncio.ensure_future(fargate.run(execution(program), follows))
    await up.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert aws.tasks.is_stopped(aws.tasks.started[-1])


async def test_a_task_and_its_harness_may_exchange_more_objects_than_were_signed_at_first(
    aws: Services, runs: Path
) -> None:
    assert aws.tasks.fault == ""
    fargate = FargateSandbox(dataclasses.replace(TASKS, signed_ahead=2), folder=runs)
    program = "for n in range(12): print(n, await tools.call('shop.find', n=n), flush=True)"
    calls = dataclasses.replace(execution(program), tools=("shop.find",))
    numbers = list[Json]()

    async def serve(tool: str, arguments: JsonObject) -> ServedCall:
        numbers.append(arguments["n"])
        return ServedCall(True, f"{tool} {arguments['n']}")

    end = await fargate.run(calls, Session(serve=serve))
    await fargate.close()
    assert end.failure is None, end.failure
    assert numbers == list(range(12))
    assert end.user_out == "".join(f"{n} shop.find {n}\n" for n in range(12))


def test_a_task_with_fewer_than_two_addresses_at_a_time_is_refused() -> None:
    with pytest.raises(PropertyError, match="write 2 or more"):
        dataclasses.replace(TASKS, signed_ahead=1)


class MeasuredBucket(Aws):
    """An S3 that counts the bytes of each object which a task has written."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = list[int]()

    async def get(self, bucket: Bucket, name: str) -> bytes | None:
        data = await super().get(bucket, name)
        if data is not None and name.startswith("up/"):
            self.sizes.append(len(data))
        return data


async def test_a_program_that_sends_more_than_its_task_can_store_waits(
    aws: Services, runs: Path
) -> None:
    assert aws.tasks.fault == ""
    measured, most = MeasuredBucket(), 4 << 20
    fargate = FargateSandbox(TASKS, measured, folder=runs)
    program = """
        import asyncio
        text = "x" * 900_000
        await asyncio.gather(*[tools.call('shop.find', text=text) for _ in range(20)])
        """

    async def serve(tool: str, arguments: JsonObject) -> ServedCall:
        return ServedCall(True, f"{tool} {len(arguments)}")

    end = await fargate.run(
        dataclasses.replace(execution(dedent(program)), tools=("shop.find",)), Session(serve=serve)
    )
    await fargate.close()
    assert end.failure is None, end.failure
    assert sum(measured.sizes) > 4 * most
    assert max(measured.sizes) < most + (1 << 17)


async def test_the_files_of_a_program_that_never_reads_its_answers_are_there_when_it_is_stopped(
    fargate: FargateSandbox, aws: Services
) -> None:
    program = """
        import asyncio, time
        open('outputs/a.txt', 'w').write('made')
        calls = [asyncio.ensure_future(tools.call('shop.find')) for _ in range(2)]
        await asyncio.sleep(0)
        time.sleep(60)
        """

    async def serve(tool: str, arguments: JsonObject) -> ServedCall:
        del arguments
        return ServedCall(True, tool * 150_000)

    end = await fargate.run(
        dataclasses.replace(
            execution(dedent(program)),
            tools=("shop.find",),
            contract=parse_contract([{"filename": "outputs/a.txt"}], "turn_1"),
            limits=ExecutionLimits(wall_seconds=3),
        ),
        Session(serve=serve),
    )
    await fargate.close()
    assert end.failure is not None
    assert end.failure.code == "timeout"
    assert [file.data for file in end.files] == [b"made"]
    assert aws.tasks.stopped == []


async def test_a_program_that_ends_before_its_calls_are_answered_has_ended_well(
    fargate: FargateSandbox,
) -> None:
    program = """
        import asyncio
        for _ in range(60):
            asyncio.ensure_future(tools.call('shop.find', text="x" * 100_000))
        await asyncio.sleep(0)
        print("made")
        """

    async def serve(tool: str, arguments: JsonObject) -> ServedCall:
        await asyncio.Event().wait()
        raise AssertionError(tool, arguments)

    end = await fargate.run(
        dataclasses.replace(execution(dedent(program)), tools=("shop.find",)), Session(serve=serve)
    )
    assert (end.failure, end.user_out) == (None, "made\n")


class FullBucket(Aws):
    """An S3 that refuses answers to a program."""

    async def put(self, bucket: Bucket, name: str, data: bytes) -> None:
        if data.startswith(CALLS) and b'"ok"' in data:
            raise AwsError("AWS: SlowDown: reduce your request rate")
        await super().put(bucket, name, data)


async def test_a_task_whose_answers_cannot_be_stored_ends_and_says_why(
    aws: Services, runs: Path
) -> None:
    fargate = FargateSandbox(TASKS, FullBucket(), folder=runs)
    program = dataclasses.replace(
        execution("await tools.call('shop.find')"), tools=("shop.find",), limits=ExecutionLimits()
    )
    end = await fargate.run(program, session())
    await fargate.close()
    assert end.failure is not None
    assert (end.failure.code, "SlowDown" in end.failure.message) == ("supervisor_lost", True)
    assert aws.tasks.stopped == [aws.tasks.started[-1]]


ORPHAN = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path
from loopline.sandbox.fargate import FargateSandbox
from tests.bench.executions import execution, session
from tests.support.ecs_endpoint import TASKS

async def main():
    sandbox = FargateSandbox(replace(TASKS, orphan_seconds=1), folder=Path(sys.argv[1]))
    program = replace(execution("import time; print('up'); time.sleep(60)"), limits=ExecutionLimits(wall_seconds=1))
    follows = replace(session(), on_output=lambda _: print("up", flush=True))
    await sandbox.run(program, follows)

from loopline.sandbox import ExecutionLimits
asyncio.run(main())
"""


async def test_a_task_whose_harness_is_killed_ends_after_its_own_time(
    aws: Services, runs: Path
) -> None:
    process = await start_harness(ORPHAN, str(runs))
    process.kill()
    await process.wait()
    [task] = aws.tasks.started[-1:]
    await until(lambda: asyncio.to_thread(aws.tasks.is_stopped, task))
    await until(lambda: asyncio.to_thread(lambda: not list(runs.iterdir())))
    clear(aws.s3)  # nobody is left to do it


async def test_a_task_that_ecs_does_not_list_yet_is_waited_for(
    fargate: FargateSandbox, aws: Services
) -> None:
    aws.tasks.fault = "unlisted"
    end = await fargate.run(execution("print('it ran')"), session())
    assert aws.tasks.fault == ""
    assert (end.failure, end.user_out) == (None, "it ran\n")


async def test_a_task_sends_each_request_again_that_the_bucket_could_not_serve(
    aws: Services, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert aws.tasks.fault == ""
    with running_s3() as s3:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint)
        s3.fail_each("Python-urllib")
        settings = dataclasses.replace(TASKS, snapshots="s3://blobs/x")
        fargate = FargateSandbox(settings, folder=runs)
        end = await fargate.run(execution("print('it ran')"), session())
        await fargate.close()
    assert (end.failure, end.user_out) == (None, "it ran\n")


@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [
        ("capacity", "start_failed", "RESOURCE:MEMORY"),
        ("start", "start_failed", "exitCode: 3"),
        ("asleep", "start_failed", "did not start in 2 s"),
        ("snapshot", "restore_failed", "the snapshot work does not exist"),
    ],
)
async def test_a_task_that_does_not_start_says_why(
    fault: str, code: str, reason: str, aws: Services, runs: Path
) -> None:
    aws.tasks.fault = fault
    seconds = 2.0 if fault == "asleep" else 60.0
    fargate = FargateSandbox(dataclasses.replace(TASKS, start_seconds=seconds), folder=runs)
    end = await fargate.run(execution("print('it ran')"), session())
    await fargate.close()
    assert all(aws.tasks.is_stopped(task) for task in aws.tasks.started)
    assert end.failure is not None
    assert (end.failure.code, end.user_out) == (code, "")
    assert reason in end.failure.message


async def test_a_task_that_ends_without_a_result_is_lost(
    fargate: FargateSandbox, aws: Services
) -> None:
    up = asyncio.Event()
    follows = Session(serve=session().serve, on_output=lambda _: up.set())
    running = fargate.run(execution("import time; print('up'); time.sleep(60)"), follows)
    task = asyncio.ensure_future(running)
    await up.wait()
    await asyncio.to_thread(aws.tasks.stop, {"task": f"task/{aws.tasks.started[-1]}"})
    end = await task
    assert end.failure is not None
    assert end.failure.code == "supervisor_lost"


async def test_what_a_task_has_made_beyond_its_limits_before_it_was_stopped_is_not_taken(
    fargate: FargateSandbox,
) -> None:
    limits = ExecutionLimits(disk_bytes=100_000)
    program = "open('outputs/a', 'wb').write(bytes(200_000))"
    end = await fargate.run(dataclasses.replace(execution(program), limits=limits), session())
    assert end.failure is not None
    assert (end.failure.where, end.failure.code) == ("limits", "disk_limit")


def use_s3(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name that S3 in the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name.upper(), value)


async def test_an_object_that_may_not_be_read_is_not_taken_for_one_that_is_not_there_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = b"<Error><Code>AccessDenied</Code><Message>not of arn:aws:iam::404040404040:role/x</Message></Error>"
    head = f"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + body)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        use_s3(f"http://{host}:{port}", monkeypatch)
        with pytest.raises(AwsError, match="AccessDenied"):
            await Aws().get(Bucket("snapshots", "x/"), "up/0")


async def test_an_object_whose_bytes_are_cut_off_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\n"
    bodies = [b"te", b"teas"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + bodies.pop(0))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        use_s3(f"http://{host}:{port}", monkeypatch)
        assert await Aws().get(Bucket("snapshots", "x/"), "up/0") == b"teas"


async def test_objects_that_are_not_removed_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as address:
        use_s3(address, monkeypatch)
        aws, bucket = Aws(), Bucket(BUCKET, "x/")
        for name in "abc":
            await aws.put(bucket, name, b"1")
        refusal = pytest.raises(AwsError, match=r"did not remove x/b \(Access Denied\)")
        with protected(address, "x/b"), refusal:
            await aws.remove(bucket)
        assert keys(address) == ["x/b"]
        await aws.remove(bucket)
        assert keys(address) == []


async def test_of_the_attempts_to_get_out_only_those_that_need_namespaces_see_anything(
    fargate: FargateSandbox, tmp_path: Path
) -> None:
    with canaries(tmp_path) as watched:
        verdicts = await judge_attempts(fargate, watched)
        touched = watched.touched
    assert len(verdicts) == len(ATTEMPTS)
    assert {verdict.name for verdict in verdicts if verdict.escaped} <= WITHOUT_NAMESPACES
    assert touched == 0


async def test_no_end_of_a_program_in_a_task_is_other_than_it_should_be(
    fargate: FargateSandbox, tmp_path: Path
) -> None:
    with canaries(tmp_path) as watched:
        verdicts = await judge_all(fargate, SOME_ENDS, watched)
    assert [verdict for verdict in verdicts if verdict.escaped] == []


def archive(*entries: tuple[str, bytes, int]) -> bytes:
    """An archive with files of these names, contents and modes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data, mode in entries:
            entry = zipfile.ZipInfo(name)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, mode << 16
            opened.writestr(entry, data)
    return file.getvalue()


def damaged(data: bytes) -> bytes:
    """The archive of `turn_1/a`, of which some compressed bytes are others."""
    start = data.index(b"turn_1/a") + len(b"turn_1/a")
    return data[:start] + b"\xff" * 5 + data[start + 5 :]


PLAIN, LINK = stat.S_IFREG | 0o640, stat.S_IFLNK | 0o777


def test_only_files_of_the_turn_are_taken_from_a_snapshot(tmp_path: Path) -> None:
    (tmp_path / "timeline.json").write_text("ours")
    data = archive(
        ("turn_1/outputs/a.txt", b"made", PLAIN),
        ("turn_1/outputs/link", b"/etc/passwd", LINK),
        ("turn_2/outputs/a.txt", b"another turn's", PLAIN),
        ("timeline.json", b"theirs", PLAIN),
        ("turn_1/../../escaped", b"x", PLAIN),
        ("/turn_1/absolute", b"x", PLAIN),
    )
    restore_outputs(data, tmp_path, "turn_1", ExecutionLimits())
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()]
    assert sorted(files) == ["timeline.json", "turn_1/outputs/a.txt", "turn_1/outputs/link"]
    assert (tmp_path / "timeline.json").read_text() == "ours"
    assert (tmp_path / "turn_1/outputs/link").readlink() == Path("/nothing")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no archive",
        archive(("turn_1/a", bytes(3_000_000), PLAIN)),
        archive(*[(f"turn_1/{n}", b"", PLAIN) for n in range(30)]),
        archive(("turn_1/a", b"/etc", LINK), ("turn_1/a/passwd", b"x", PLAIN)),
        archive(
            ("turn_1/a", b"/etc/passwd", LINK),
            ("turn_1/a/", b"", PLAIN),
        ),
        archive(("turn_1/a", b"x" * 500, PLAIN))[:-30],
        damaged(archive(("turn_1/a", b"x" * 500, PLAIN))),
    ],
    ids=["empty", "text", "large", "many", "in a link", "over a link", "cut off", "damaged"],
)
def test_a_snapshot_that_is_malformed_or_too_large_is_refused(data: bytes, tmp_path: Path) -> None:
    limits = ExecutionLimits(disk_bytes=2_000_000, disk_files=20)
    with pytest.raises(SnapshotError):
        restore_outputs(data, tmp_path, "turn_1", limits)


def test_frames_are_read_as_they_were_written() -> None:
    written = frame(OUTPUT, b"x" * 70_000) + frame(CALLS, b"") + frame(CALLS, b"{}\n")
    assert frames(written) == [(OUTPUT, b"x" * 70_000), (CALLS, b""), (CALLS, b"{}\n")]
    for end in (1, 4, 5, 100, len(written) - 1):
        with pytest.raises(ValueError, match="incomplete"):
            frames(written[:end])


@pytest.mark.parametrize(
    ("runtime", "problem"),
    [
        ({}, r"needs cluster \(.* and task_definition \(.* and snapshots \("),
        ({"cluster": "arn", "task_definition": "exec-task"}, r"needs snapshots \(.*s3://bucket/"),
        ({"cluster": "c", "task_definition": "t", "snapshots": "b"}, "must be like s3://"),
        ({"cluster": "c", "task_definition": "t", "snapshots": "s3://b", "subnets": "x"}, "list"),
    ],
)
async def test_a_task_needs_its_properties(runtime: dict[str, Json], problem: str) -> None:
    section: dict[str, Json] = {"runtime": {"mode": "fargate", **runtime}}
    bundle = Bundle(id="shop", configuration={"execution": section})
    with pytest.raises(PropertyError, match=problem):
        async with Harness.open(bundle, store="memory:", model=ScriptedModel([])):
            pass
