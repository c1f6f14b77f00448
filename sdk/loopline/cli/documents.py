"""Documents that are given to a command: a file, or stdin for `-`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from loopline.cli.door import UsageError
from loopline.models import Json, JsonObject


async def read_object(file: Path) -> JsonObject:
    """Return the JSON object that the file holds.

    Raises:
        UsageError: it holds none.
    """
    try:
        document: Json = json.loads(await asyncio.to_thread(_text, file))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{file}: it holds no JSON object: give it what loopline export prints")
    return document


def _text(file: Path) -> str:
    return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
