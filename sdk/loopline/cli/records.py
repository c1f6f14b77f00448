"""Log records for machines: one JSON object a line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

_PLAIN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""What every record has; all else was given to it, such as the turn that it was made in."""


class JsonLines(logging.Formatter):
    """`time`, `level`, `logger`, `message`, then what the record was given; `error` is a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of JSON; what was given empty is left out."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        given = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        line |= {name: value for name, value in given.items() if value not in ("", None)}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
