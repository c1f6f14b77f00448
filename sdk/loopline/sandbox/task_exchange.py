"""The objects through which a task and its harness talk: each side writes numbered ones, and reads those of the other."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import cast

from loopline.models import Json, JsonObject
from loopline.sandbox.aws import Aws, Bucket
from loopline.sandbox.supervisor.frames import ADDRESSES, frame, frames
from loopline.tasks import finish


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
