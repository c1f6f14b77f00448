"""Objects of S3 and tasks of ECS, through the library `boto3`, which is untyped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from loopline.errors import LooplineError
from loopline.models import JsonObject

_NOT_FOUND = ("NoSuchKey", "404")
"""The error codes of S3 for an object that does not exist."""
_T = TypeVar("_T")


class AwsError(LooplineError):
    """AWS cannot be reached or has refused a request; the message has the reason that AWS gave."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, and the prefix of the keys of the objects in it that are used."""

    name: str
    prefix: str


class Aws:
    """The clients of S3 and ECS. Their credentials and addresses come from the settings of boto3, such as its variables."""

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}
        self._connecting = asyncio.Lock()

    async def put(self, bucket: Bucket, name: str, data: bytes) -> None:
        """Write an object."""
        key = f"{bucket.prefix}{name}"
        await self._request("s3", lambda s3: s3.put_object(Bucket=bucket.name, Key=key, Body=data))

    async def get(self, bucket: Bucket, name: str) -> bytes | None:
        """Return the bytes of an object; None if it does not exist."""
        key = f"{bucket.prefix}{name}"

        def read(s3: Any) -> bytes | None:
            """Read the object; if its bytes are cut off, which boto3 does not retry, read it once more."""
            errors = import_module("botocore.exceptions")
            try:
                with suppress(errors.ResponseStreamingError, errors.IncompleteReadError):
                    data: bytes = s3.get_object(Bucket=bucket.name, Key=key)["Body"].read()
                    return data
                again: bytes = s3.get_object(Bucket=bucket.name, Key=key)["Body"].read()
            except errors.ClientError as error:
                if error.response["Error"]["Code"] in _NOT_FOUND:
                    return None
                raise
            return again

        return await self._request("s3", read)

    async def addresses(
        self, bucket: Bucket, method: str, names: Sequence[str], seconds: int
    ) -> list[str]:
        """Return signed URLs in the order of `names`, valid for `seconds`; `method` is "get" or "put".

        A request to such a URL does not need other credentials. Whether the objects exist is not checked.
        """
        operation = f"{method}_object"

        def sign(s3: Any) -> list[str]:
            """Return one signed URL for each name, in the order of `names`."""
            return [
                s3.generate_presigned_url(
                    operation,
                    Params={"Bucket": bucket.name, "Key": f"{bucket.prefix}{name}"},
                    ExpiresIn=seconds,
                )
                for name in names
            ]

        return await self._request("s3", sign)

    async def remove(self, bucket: Bucket) -> None:
        """Remove all objects with the prefix.

        Raises:
            AwsError: a request failed, or S3 did not remove some objects.
        """

        def remove(s3: Any) -> None:
            """List the objects page by page, and delete each page of them."""
            kept = list[Any]()
            pages = s3.get_paginator("list_objects_v2").paginate(
                Bucket=bucket.name, Prefix=bucket.prefix
            )
            for page in pages:
                if "Contents" in page:  # an empty page has none
                    keys = [{"Key": item["Key"]} for item in page["Contents"]]
                    response = s3.delete_objects(
                        Bucket=bucket.name, Delete={"Objects": keys, "Quiet": True}
                    )
                    kept += response.get("Errors", [])
            if kept:
                key, reason = kept[0].get("Key"), kept[0].get("Message") or kept[0].get("Code")
                raise AwsError(f"S3 did not remove {key} ({reason})")

        await self._request("s3", remove)

    async def run_task(self, request: JsonObject) -> str:
        """Start a task, and return its ARN.

        Raises:
            AwsError: ECS has refused.
        """
        response = await self._request("ecs", lambda ecs: ecs.run_task(**request))
        if not response["tasks"]:
            reasons = [str(dict(failure)) for failure in response["failures"]]
            raise AwsError(
                f"ECS did not start the task: {'; '.join(reasons) or 'it gave no reason'}"
            )
        return str(response["tasks"][0]["taskArn"])

    async def describe_task(self, cluster: str, task: str) -> JsonObject:
        """Return the description of a task by ECS; an empty object when ECS has forgotten the task."""
        response = await self._request(
            "ecs", lambda ecs: ecs.describe_tasks(cluster=cluster, tasks=[task])
        )
        return response["tasks"][0] if response["tasks"] else {}

    async def stop_task(self, cluster: str, task: str, reason: str) -> None:
        """Request the stop of a task; does not wait for it."""
        await self._request(
            "ecs", lambda ecs: ecs.stop_task(cluster=cluster, task=task, reason=reason)
        )

    async def check_definition(self, name: str) -> None:
        """Check that a task definition exists.

        Raises:
            AwsError: the definition does not exist, or may not be read.
        """
        await self._request("ecs", lambda ecs: ecs.describe_task_definition(taskDefinition=name))

    async def _request(self, service: str, request: Callable[[Any], _T]) -> _T:
        """Send a request in a thread, and return the response."""
        async with self._connecting:
            if service not in self._clients:
                self._clients[service] = await asyncio.to_thread(_connect, service)
        return await asyncio.to_thread(_send, request, self._clients[service])


def _connect(service: str) -> Any:
    """Return a boto3 client of `service` with 10 s to connect, 60 s to read and 4 attempts for each request.

    Raise AwsError if boto3 is not installed or cannot make the client, for example without a region.
    """
    try:
        library = import_module("boto3")
    except ImportError as error:
        raise AwsError(f"{error}: pip install 'loopline[fargate]'") from error
    configs = import_module("botocore.config")
    errors = import_module("botocore.exceptions")
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


def _send(request: Callable[[Any], _T], client: Any) -> _T:
    """Return `request(client)`; raise AwsError for an error of AWS."""
    errors = import_module("botocore.exceptions")
    try:
        return request(client)
    except (errors.ClientError, errors.BotoCoreError) as error:
        raise AwsError(f"AWS: {error}") from error
