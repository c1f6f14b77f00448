"""The extra `fargate`: its library is asked for a task; where AWS does not answer, the program does not run."""

from __future__ import annotations

import asyncio
import os

from loopline.sandbox import Execution, ServedCall, Session
from loopline.sandbox.fargate import FargateSandbox, FargateSettings


async def main() -> None:
    """Run a program where no AWS is."""

    async def serve(tool: str, arguments: object) -> ServedCall:
        raise AssertionError(f"{tool} was called with {arguments}")

    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_ECS"):
        os.environ[name] = "http://127.0.0.1:9"
    os.environ |= {"AWS_DEFAULT_REGION": "eu-west-1", "AWS_MAX_ATTEMPTS": "1"}
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    sandbox = FargateSandbox(
        FargateSettings(cluster="c", task_definition="t", snapshots="s3://b/p")
    )
    execution = Execution(execution_id="e", turn_id="turn_1", program="print(1)")
    end = await sandbox.run(execution, Session(serve=serve))
    await sandbox.close()
    assert end.failure is not None
    assert end.failure.code in ("start_failed", "isolation_unavailable"), end.failure


asyncio.run(main())
