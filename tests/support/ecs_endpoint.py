"""An endpoint of ECS on boto3's wire that starts real containers, and an S3 of moto."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, cast

from loopline.models import Json, JsonObject
from loopline.sandbox.fargate import FargateSettings
from tests.support.docker_daemons import IMAGE
from tests.support.local_http import Answering, http_server

BUCKET = "snapshots"
TASKS = FargateSettings(
    cluster="c",
    task_definition="exec-task",
    snapshots=f"s3://{BUCKET}/x",
    python="/usr/bin/python3",
    poll_seconds=0.05,
    look_seconds=0.03,
)


class _Client(Protocol):
    create_container_from_config: Callable[[JsonObject], Mapping[str, str]]
    start: Callable[[str], None]
    inspect_container: Callable[[str], Mapping[str, Mapping[str, Json]]]
    stop: Callable[..., None]
    remove_container: Callable[..., None]
    close: Callable[[], None]


@dataclass
class Tasks:
    """The tasks of a daemon. `fault` is what goes wrong with the next ones, or with their first description."""

    host: str
    fault: str = ""
    requests: list[JsonObject] = field(default_factory=list[JsonObject])
    started: list[str] = field(default_factory=list[str])
    stopped: list[str] = field(default_factory=list[str])

    @contextmanager
    def client(self) -> Generator[_Client]:
        client = cast("_Client", import_module("docker").APIClient(base_url=self.host))
        yield client
        client.close()

    def run(self, request: JsonObject) -> JsonObject:
        """RunTask: start a container as Fargate would, without the right to make namespaces."""
        self.requests.append(request)
        if self.fault == "capacity":
            failure: Json = {"arn": "arn:x", "reason": "RESOURCE:MEMORY"}
            return {"tasks": [], "failures": [failure]}
        overrides = cast("dict[str, list[dict[str, Json]]]", request["overrides"])
        override = overrides["containerOverrides"][0]
        variables = cast("list[dict[str, str]]", override["environment"])
        command: list[Json] = list(cast("list[Json]", override["command"]))
        if self.fault == "start":
            command = ["/usr/bin/python3", "-c", "raise SystemExit(3)"]
        if self.fault == "asleep":
            command = ["/usr/bin/python3", "-c", "import time; time.sleep(60)"]
        if self.fault == "snapshot":
            _remove_snapshot(str(variables[0]["value"]))
        environment: list[Json] = [f"{item['name']}={item['value']}" for item in variables]
        limits: Json = {"NetworkMode": "host", "Binds": ["/usr:/usr:ro"], "PidsLimit": 2_000}
        started: JsonObject = {"Image": IMAGE, "Entrypoint": [], "Cmd": command}
        with self.client() as client:
            container = client.create_container_from_config(
                {**started, "Env": environment, "HostConfig": limits}
            )
            client.start(container["Id"])
        self.started.append(container["Id"])
        return {"tasks": [_task(container["Id"], "PROVISIONING")], "failures": []}

    def describe(self, request: JsonObject) -> JsonObject:
        [arn] = cast("list[str]", request["tasks"])
        if self.fault == "unlisted":
            self.fault = ""
            missing: Json = {"arn": arn, "reason": "MISSING"}
            return {"tasks": [], "failures": [missing]}
        container = arn.rpartition("/")[2]
        with self.client() as client:
            state = client.inspect_container(container)["State"]
        if state["Running"]:
            return {"tasks": [_task(container, "RUNNING")], "failures": []}
        ended: JsonObject = {
            "stopCode": "EssentialContainerExited",
            "stoppedReason": "Essential container in task exited",
            "containers": [{"name": "exec", "exitCode": state["ExitCode"]}],
        }
        return {"tasks": [{**_task(container, "STOPPED"), **ended}], "failures": []}

    def is_stopped(self, container: str) -> bool:
        described = cast(
            "list[JsonObject]", self.describe({"tasks": [f"task/{container}"]})["tasks"]
        )
        return described[0]["lastStatus"] == "STOPPED"

    def stop(self, request: JsonObject) -> JsonObject:
        container = str(request["task"]).rpartition("/")[2]
        self.stopped.append(container)
        with self.client() as client:
            client.stop(container, timeout=0)
        return {"task": _task(container, "STOPPING")}

    def close(self) -> None:
        with self.client() as client:
            for container in self.started:
                client.remove_container(container, force=True)


def _remove_snapshot(snapshot: str) -> None:
    _, _, place = str(json.loads(snapshot)["work"]).partition("://")
    bucket, _, key = place.partition("/")
    with closing(cast("_Boto3", import_module("boto3")).client("s3")) as s3:
        s3.delete_object(Bucket=bucket, Key=key)


def _task(container: str, status: str) -> JsonObject:
    return {"taskArn": f"arn:aws:ecs:x:1:task/c/{container}", "lastStatus": status}


@contextmanager
def ecs_endpoint(host: str) -> Generator[tuple[str, Tasks]]:
    """The address of an endpoint over a daemon, and its tasks."""
    tasks = Tasks(host)
    answers: Mapping[str, Callable[[JsonObject], JsonObject]] = {
        "RunTask": tasks.run,
        "DescribeTasks": tasks.describe,
        "StopTask": tasks.stop,
        "DescribeTaskDefinition": lambda _: {"taskDefinition": {"family": "exec-task"}},
    }

    class Handler(Answering):
        def post(self) -> None:
            operation = self.headers["X-Amz-Target"].rpartition(".")[2]
            answer = answers[operation](json.loads(self.body()))
            self.answer(json.dumps(answer).encode(), "application/x-amz-json-1.1")

    try:
        with http_server(Handler) as url:
            yield url, tasks
    finally:
        tasks.close()


@contextmanager
def s3_server() -> Generator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = import_module("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    with _client(address) as s3:
        s3.create_bucket(Bucket=BUCKET)
    try:
        yield address
    finally:
        server.stop()


@dataclass(frozen=True)
class Services:
    """An S3, an ECS whose tasks are containers, and the variables of the environment that name them."""

    s3: str
    tasks: Tasks
    variables: Mapping[str, str]


@contextmanager
def local_aws(host: str) -> Generator[Services]:
    """What stands for AWS, over a daemon of docker."""
    with ecs_endpoint(host) as (ecs, tasks), s3_server() as s3:
        variables = {
            "AWS_ENDPOINT_URL_ECS": ecs,
            "AWS_ENDPOINT_URL_S3": s3,
            "AWS_DEFAULT_REGION": "us-east-1",
            **{name.upper(): value for name, value in CREDENTIALS.items()},
        }
        yield Services(s3, tasks, variables)


CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


def keys(address: str) -> list[str]:
    with _client(address) as s3:
        listed = s3.list_objects_v2(Bucket=BUCKET)
    return [item["Key"] for item in listed["Contents"]] if "Contents" in listed else []


def clear(address: str) -> None:
    with _client(address) as s3:
        for key in keys(address):
            s3.delete_object(Bucket=BUCKET, Key=key)


@contextmanager
def protected(address: str, key: str) -> Generator[None]:
    """Let nobody delete the object until the context ends."""
    resource = f"arn:aws:s3:::{BUCKET}/{key}"
    denial = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:DeleteObject",
        "Resource": resource,
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [denial]})
    with _client(address) as s3:
        s3.put_bucket_policy(Bucket=BUCKET, Policy=policy)
        try:
            yield
        finally:
            s3.delete_bucket_policy(Bucket=BUCKET)


class _S3(Protocol):
    create_bucket: Callable[..., None]
    list_objects_v2: Callable[..., Mapping[str, list[Mapping[str, str]]]]
    delete_object: Callable[..., None]
    put_bucket_policy: Callable[..., None]
    delete_bucket_policy: Callable[..., None]

    def close(self) -> None: ...


class _Boto3(Protocol):
    client: Callable[..., _S3]


def _client(address: str) -> closing[_S3]:
    library = cast("_Boto3", import_module("boto3"))
    options = {"endpoint_url": address, "region_name": "us-east-1", **CREDENTIALS}
    return closing(library.client("s3", **options))
