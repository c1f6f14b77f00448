"""The result of an execution: the files of the program, its first failure, and a report for the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from loopline.files import describe_data
from loopline.models import Json, JsonObject, well_formed
from loopline.sandbox.execution import (
    ContractFile,
    Execution,
    ExecutionLimits,
    Failure,
    ProducedFile,
    ProgramEnd,
)

LONGEST_NAME = 200
USER_OUT_TAIL = 4_000
RUNTIME_ERR_TAIL = 12_000
"""The last characters of stdout and of stderr that a result stores."""
MOST_LINES = 40
"""The number of files outside the contract, of each kind, that a report names."""
REPORT_TAIL = 2_000
"""The last characters of stdout and of stderr that a report quotes."""
MISSING = "missing_output_files"
INVALID = "artifact_validation_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultItem:
    """One file of the contract, with its bytes or a problem. A missing file has neither."""

    file: ContractFile
    data: bytes | None = None
    problem: str = ""

    @property
    def is_missing(self) -> bool:
        """Whether the program did not make the file."""
        return self.data is None and not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """The result of an execution. It has the files of the program even if the execution failed.

    `others` are files outside the contract that the program made or changed, each with its bytes or a problem. `failure`
    is the first of: a failure of the run, a missing file of the contract, an invalid file of the contract.
    """

    execution_id: str
    end: ProgramEnd
    items: Sequence[ResultItem]
    failure: Failure | None
    others: Sequence[ProducedFile] = ()

    @property
    def ok(self) -> bool:
        """Whether the program succeeded and made all files of its contract."""
        return self.failure is None

    @property
    def made(self) -> Sequence[ResultItem]:
        """The files of the contract that were made."""
        return [item for item in self.items if item.data is not None]

    @property
    def result_filename(self) -> str:
        """The name of the file for the JSON of the result."""
        return f"exec_result_{self.execution_id}.json"

    @property
    def user_out_tail(self) -> str:
        """The last 4,000 characters of the program's output."""
        return tail(self.end.user_out, USER_OUT_TAIL)

    @property
    def runtime_err_tail(self) -> str:
        """The last 12,000 characters of the program's error output."""
        return tail(self.end.runtime_err, RUNTIME_ERR_TAIL)

    def document(self) -> JsonObject:
        """Return the result as a JSON object, without the bytes of files."""
        failure = self.failure
        details: Json = None
        if failure is not None:
            details = {
                "where": failure.where,
                "code": failure.code,
                "description": failure.message,
                "managed": failure.managed,
            }
        artifacts: list[Json] = [
            _artifact(item.file.name, item.data or b"", item.file.description, item.file.visibility)
            for item in self.made
        ]
        artifacts += [
            _artifact(file.name, file.data, "", "internal")
            for file in self.others
            if file.data is not None
        ]
        return {
            "ok": self.ok,
            "artifacts": artifacts,
            "error": failure.message if failure else "",
            "error_details": details,
            "report_text": self.report_text,
            "user_out_tail": self.user_out_tail,
            "runtime_err_tail": self.runtime_err_tail,
            "items": [
                {
                    "filename": item.file.name,
                    "description": item.file.description,
                    "visibility": item.file.visibility,
                    "ok": item.data is not None,
                    "problem": item.problem,
                }
                for item in self.items
            ],
            "succeeded": [item.file.name for item in self.made],
            "errors": [
                {"filename": item.file.name, "code": MISSING if item.is_missing else INVALID}
                for item in self.items
                if item.data is None
            ],
            "others": [
                {
                    "filename": shown_name(file.name),
                    "ok": file.data is not None,
                    "problem": file.problem,
                }
                for file in self.others
            ],
            "removed": [shown_name(name) for name in self.end.removed],
            "result_filename": self.result_filename,
            "isolation": self.end.isolation,
            "seconds": self.end.seconds,
        }

    @property
    def report_text(self) -> str:
        """The report for the model. Each line of the program's own text is quoted, so that it cannot imitate the report."""
        lines = [f"Status: {'ok' if self.ok else 'failed'} after {self.end.seconds:.1f} s"]
        if self.end.isolation == "none":
            lines.append("Not isolated: the program ran with the rights of this process.")
        if self.failure is not None:
            lines.append(f"Failure: {self.failure.code} ({self.failure.where})")
            lines += _quote(self.failure.message)
        invalid = [item for item in self.items if item.problem]
        lines += [f"Not taken: {item.file.name}: {item.problem}" for item in invalid]
        missing = [item.file.name for item in self.items if item.is_missing]
        lines += [f"Missing: {', '.join(missing)}"] if missing else []
        lines += [f"Made: {item.file.name} ({len(item.data or b''):,} bytes)" for item in self.made]
        others = [file for file in self.others if file.problem]
        lines += _shorten(
            [f"Not taken: {shown_name(file.name)}: {file.problem}" for file in others]
        )
        made = [file for file in self.others if not file.problem]
        lines += _shorten(
            [
                f"Made beside the contract: {shown_name(file.name)} ({len(file.data or b''):,} bytes)"
                for file in made
            ]
        )
        lines += _shorten([f"Removed: {shown_name(name)}" for name in self.end.removed])
        if self.runtime_err_tail.strip():
            lines += ["Errors of the program:", *_quote(self.runtime_err_tail)]
        if self.user_out_tail.strip():
            lines += ["Output of the program:", *_quote(self.user_out_tail)]
        return "\n".join(lines)


def result_of(execution: Execution, end: ProgramEnd) -> ExecutionResult:
    """Compare the files of a program with its contract and its limits, and return the result.

    A file of the contract that exceeds a size limit has a problem in place of its bytes, and does not count toward the
    total. Files outside the contract are returned as they are.
    """
    files = {file.name: file for file in end.files}
    items: list[ResultItem] = []
    total = 0
    for file in execution.contract:
        produced = files.pop(file.name, None)
        data = produced.data if produced is not None else None
        problem = produced.problem if produced is not None else ""
        if data is not None:
            problem = size_problem(len(data), total, execution.limits)
            data = None if problem else data
            total += len(data or b"")
        items.append(ResultItem(file=file, data=data, problem=problem))
    return ExecutionResult(
        execution_id=execution.execution_id,
        end=end,
        items=items,
        failure=_first_failure(end, items),
        others=list(files.values()),
    )


def size_problem(size: int, other_bytes: int, limits: ExecutionLimits) -> str:
    """Return why a file of `size` bytes is refused after `other_bytes` of other files; empty if the limits allow it."""
    if size > limits.file_bytes:
        return f"file_too_large: it has {size:,} bytes, and may have {limits.file_bytes:,}"
    total = other_bytes + size
    if total > limits.total_bytes:
        return (
            f"files_too_large: all files have {total:,} bytes, and may have {limits.total_bytes:,}"
        )
    return ""


def _first_failure(end: ProgramEnd, items: Sequence[ResultItem]) -> Failure | None:
    """Return the failure of the run, or if it has none, that of all missing or then of all invalid files, or None."""
    if end.failure is not None:
        return end.failure
    missing = [item.file.name for item in items if item.is_missing]
    if missing:
        return Failure("contract", MISSING, f"the program did not make {', '.join(missing)}")
    invalid = [f"{item.file.name}: {item.problem}" for item in items if item.problem]
    return Failure("artifact", INVALID, "; ".join(invalid)) if invalid else None


def _artifact(name: str, data: bytes, description: str, visibility: str) -> JsonObject:
    """Return the JSON description of a file, with its MIME type, its size in bytes and its SHA-256."""
    return {
        "filename": shown_name(name),
        "mime": describe_data(name, data).mime,
        "size": len(data),
        "sha256": sha256(data).hexdigest(),
        "description": description,
        "visibility": visibility,
    }


def tail(text: str, characters: int) -> str:
    """Return at most the last `characters` of a text; if it is cut, it begins with a whole line, if possible."""
    if len(text) <= characters:
        return text
    end = text[-characters:]
    return end.partition("\n")[2] or end


def shown_name(name: str) -> str:
    """Return a file name on one line, at most 200 characters; if a character is not printable, all such are escaped."""
    shown = name if name.isprintable() else ascii(name)
    return shown if len(shown) <= LONGEST_NAME else f"{shown[:LONGEST_NAME]}…"


def _shorten(lines: list[str]) -> list[str]:
    more = len(lines) - MOST_LINES
    return lines if more <= 0 else [*lines[:MOST_LINES], f"and {more:,} more"]


def _quote(text: str) -> list[str]:
    """Return the end of a text as lines that each begin with `| `."""
    lines = tail(well_formed(text).strip("\n"), REPORT_TAIL).splitlines()
    return [f"| {line}" for line in lines]
