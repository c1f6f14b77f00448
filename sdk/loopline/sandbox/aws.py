"""What a sandbox asks of AWS: objects of S3 and tasks of ECS, by Amazon's own library."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Protocol, TypeVar, cast

from loopline.errors import LooplineError
from loopline.models import JsonObject

_GONE = ("NoSuchKey", "404")
"""The codes with which S3 answers that an object is not there."""
_T = TypeVar("_T")


class AwsError(LooplineError):
    """AWS cannot be asked, or has refused; the message says what it said."""


class _Body(Protocol):
    def read(self) -> bytes: ...


class _Paginator(Protocol):
    paginate: Callable[..., Sequence[Mapping[str, Sequence[Mapping[str, str]]]]]


class _Client(Protocol):
    """What is used of boto3's clients, which have no types."""

    get_object: Callable[..., Mapping[str, _Body]]
    put_object: Callable[..., object]
    delete_objects: Callable[..., object]
    generate_presigned_url: Callable[..., str]
    get_paginator: Callable[[str], _Paginator]
    run_task: Callable[..., Mapping[str, Sequence[Mapping[str, str]]]]
    describe_tasks: Callable[..., Mapping[str, Sequence[JsonObject]]]
    stop_task: Callable[..., object]
    describe_task_definition: Callable[..., object]


class _Library(Protocol):
    client: Callable[..., _Client]


class _Configs(Protocol):
    Config: Callable[..., object]


class _ClientError(Exception):
    response: Mapping[str, Mapping[str, str]]


class _Errors(Protocol):
    BotoCoreError: type[Exception]
    ClientError: type[_ClientError]


@dataclass(frozen=True, slots=True)
class Bucket:
    """A place for objects: a bucket, and what their keys begin with."""

    name: str
    prefix: str


class Aws:
    """The services, with the credentials and addresses that boto3 finds in its own settings."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._connecting = asyncio.Lock()

    async def put(self, bucket: Bucket, name: str, data: bytes) -> None:
        """Write an object."""
        key = f"{bucket.prefix}{name}"
        await self._ask("s3", lambda s3: s3.put_object(Bucket=bucket.name, Key=key, Body=data))

    async def get(self, bucket: Bucket, name: str) -> bytes | None:
        """Return an object; None if it is not there."""
        key = f"{bucket.prefix}{name}"
        try:
            return await self._ask(
                "s3", lambda s3: s3.get_object(Bucket=bucket.name, Key=key)["Body"].read()
            )
        except _GoneError:
            return None

    async def addresses(
        self, bucket: Bucket, method: str, names: Sequence[str], seconds: int
    ) -> list[str]:
        """Return signed addresses at which anyone may get or put these objects for some time."""
        operation = f"{method}_object"

        def signed(s3: _Client) -> list[str]:
            return [
                s3.generate_presigned_url(
                    operation,
                    Params={"Bucket": bucket.name, "Key": f"{bucket.prefix}{name}"},
                    ExpiresIn=seconds,
                )
                for name in names
            ]

        return await self._ask("s3", signed)

    async def remove(self, bucket: Bucket) -> None:
        """Remove every object below the prefix."""

        def remove(s3: _Client) -> None:
            pages = s3.get_paginator("list_objects_v2").paginate(
                Bucket=bucket.name, Prefix=bucket.prefix
            )
            for page in pages:
                keys = (
                    [{"Key": item["Key"]} for item in page["Contents"]]
                    if "Contents" in page
                    else []
                )
                if keys:
                    s3.delete_objects(Bucket=bucket.name, Delete={"Objects": keys, "Quiet": True})

        await self._ask("s3", remove)

    async def run_task(self, request: JsonObject) -> str:
        """Start a task; return its ARN.

        Raises:
            AwsError: ECS has refused.
        """
        answer = await self._ask("ecs", lambda ecs: ecs.run_task(**request))
        if not answer["tasks"]:
            reasons = [str(dict(failure)) for failure in answer["failures"]]
            raise AwsError(
                f"ECS did not start the task: {'; '.join(reasons) or 'it gave no reason'}"
            )
        return str(answer["tasks"][0]["taskArn"])

    async def describe_task(self, cluster: str, task: str) -> JsonObject:
        """Return what ECS says of a task; an empty object once ECS knows it no more."""
        answer = await self._ask(
            "ecs", lambda ecs: ecs.describe_tasks(cluster=cluster, tasks=[task])
        )
        return answer["tasks"][0] if answer["tasks"] else {}

    async def stop_task(self, cluster: str, task: str, reason: str) -> None:
        """Have ECS stop a task."""
        await self._ask("ecs", lambda ecs: ecs.stop_task(cluster=cluster, task=task, reason=reason))

    async def has_definition(self, name: str) -> None:
        """Ask for a task definition.

        Raises:
            AwsError: it is not there, or may not be seen.
        """
        await self._ask("ecs", lambda ecs: ecs.describe_task_definition(taskDefinition=name))

    async def _ask(self, service: str, request: Callable[[_Client], _T]) -> _T:
        async with self._connecting:
            if service not in self._clients:
                self._clients[service] = await asyncio.to_thread(partial(_connect, service))
        return await asyncio.to_thread(_answered, request, self._clients[service])


class _GoneError(AwsError):
    """The object is not there."""


def _connect(service: str) -> _Client:
    try:
        library = cast("_Library", import_module("boto3"))
    except ImportError as error:
        raise AwsError(f"{error}: pip install 'loopline[fargate]'") from error
    configs = cast("_Configs", import_module("botocore.config"))
    errors = cast("_Errors", import_module("botocore.exceptions"))
    config = configs.Config(
        signature_version="s3v4" if service == "s3" else None,
        connect_timeout=10,
        read_timeout=60,
        retries={"mode": "standard", "max_attempts": 4},
    )
    try:
        return library.client(service, config=config)
    except (errors.BotoCoreError, ValueError) as error:
        raise AwsError(f"AWS: {error}") from error


def _answered(request: Callable[[_Client], _T], client: _Client) -> _T:
    errors = cast("_Errors", import_module("botocore.exceptions"))
    try:
        return request(client)
    except errors.ClientError as error:
        if error.response["Error"]["Code"] in _GONE:
            raise _GoneError(str(error)) from error
        raise AwsError(f"AWS: {error}") from error
    except errors.BotoCoreError as error:
        raise AwsError(f"AWS: {error}") from error
