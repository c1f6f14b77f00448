"""The result of an execution: what was made, what went wrong first, and a report for the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from loopline.files import describe_data
from loopline.models import Json, JsonObject, well_formed
from loopline.sandbox.execution import ContractFile, Execution, Failure, ProducedFile, ProgramEnd

LONGEST_NAME = 200
USER_OUT_TAIL = 4_000
RUNTIME_ERR_TAIL = 12_000
"""Characters of the program's output and errors that a result holds, from their ends."""
MOST_LINES = 40
"""Files beside the contract that a report names, of each kind."""
REPORT_TAIL = 2_000
"""Characters of each of them that the report shows."""
MISSING = "missing_output_files"
INVALID = "artifact_validation_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultItem:
    """One file of the contract: what it was to be, and its bytes or what is wrong with it."""

    file: ContractFile
    data: bytes | None = None
    problem: str = ""

    @property
    def is_missing(self) -> bool:
        """Return whether the program did not make it."""
        return self.data is None and not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """The result of an execution. Files that were made are there also if it failed.

    `others` are files that no contract names and that the program has made or changed, or why they are not taken.
    `failure` is the first of: an error of the run, a file that is missing, a file that is invalid.
    """

    execution_id: str
    end: ProgramEnd
    items: Sequence[ResultItem]
    failure: Failure | None
    others: Sequence[ProducedFile] = ()

    @property
    def ok(self) -> bool:
        """Return whether the program ended well and made every file of its contract."""
        return self.failure is None

    @property
    def made(self) -> Sequence[ResultItem]:
        """Return the files that were made."""
        return [item for item in self.items if item.data is not None]

    @property
    def result_filename(self) -> str:
        """Return the name of the file that holds the result."""
        return f"exec_result_{self.execution_id}.json"

    @property
    def user_out_tail(self) -> str:
        """Return the end of the program's output."""
        return tail(self.end.user_out, USER_OUT_TAIL)

    @property
    def runtime_err_tail(self) -> str:
        """Return the end of the program's errors."""
        return tail(self.end.runtime_err, RUNTIME_ERR_TAIL)

    def document(self) -> JsonObject:
        """Return the result as JSON, without the bytes of files."""
        failure = self.failure
        details: Json = None
        if failure is not None:
            details = {
                "where": failure.where,
                "code": failure.code,
                "description": failure.message,
                "managed": failure.managed,
            }
        items: list[Json] = [_item(item) for item in self.items]
        others: list[Json] = [
            {
                "filename": shown_name(file.name),
                "ok": file.data is not None,
                "problem": file.problem,
            }
            for file in self.others
        ]
        artifacts: list[Json] = [
            _artifact(item.file.name, item.data or b"", item.file.description, item.file.visibility)
            for item in self.made
        ]
        artifacts += [
            _artifact(file.name, file.data, "", "internal")
            for file in self.others
            if file.data is not None
        ]
        removed: list[Json] = [shown_name(name) for name in self.end.removed]
        return {
            "ok": self.ok,
            "artifacts": artifacts,
            "error": failure.message if failure else "",
            "error_details": details,
            "report_text": self.report_text,
            "user_out_tail": self.user_out_tail,
            "runtime_err_tail": self.runtime_err_tail,
            "items": items,
            "succeeded": [item.file.name for item in self.made],
            "errors": [
                {"filename": item.file.name, "code": MISSING if item.is_missing else INVALID}
                for item in self.items
                if item.data is None
            ],
            "others": others,
            "removed": removed,
            "result_filename": self.result_filename,
            "isolation": self.end.isolation,
            "seconds": self.end.seconds,
        }

    @property
    def report_text(self) -> str:
        """Return what the model reads. What the program wrote is quoted line by line, so that nothing of it passes as ours."""
        lines = [f"Status: {'ok' if self.ok else 'failed'} after {self.end.seconds:.1f} s"]
        if self.end.isolation == "none":
            lines.append("Not isolated: the program ran with the rights of this process.")
        if self.failure is not None:
            lines.append(f"Failure: {self.failure.code} ({self.failure.where})")
            lines += _quoted(self.failure.message, REPORT_TAIL)
        invalid = [item for item in self.items if item.problem]
        lines += [f"Not taken: {item.file.name}: {item.problem}" for item in invalid]
        missing = [item.file.name for item in self.items if item.is_missing]
        lines += [f"Missing: {', '.join(missing)}"] if missing else []
        lines += [f"Made: {item.file.name} ({len(item.data or b''):,} bytes)" for item in self.made]
        others = [file for file in self.others if file.problem]
        lines += _some([f"Not taken: {shown_name(file.name)}: {file.problem}" for file in others])
        made = [file for file in self.others if not file.problem]
        lines += _some(
            [
                f"Made beside the contract: {shown_name(file.name)} ({len(file.data or b''):,} bytes)"
                for file in made
            ]
        )
        lines += _some([f"Removed: {shown_name(name)}" for name in self.end.removed])
        if self.runtime_err_tail.strip():
            lines += ["Errors of the program:", *_quoted(self.runtime_err_tail, REPORT_TAIL)]
        if self.user_out_tail.strip():
            lines += ["Output of the program:", *_quoted(self.user_out_tail, REPORT_TAIL)]
        return "\n".join(lines)


def result_of(execution: Execution, end: ProgramEnd) -> ExecutionResult:
    """Return the result of an execution that ended so."""
    found = {file.name: file for file in end.files}
    named = {file.name for file in execution.contract}
    limits = execution.limits
    items, total = list[ResultItem](), 0
    for file in execution.contract:
        item = _checked(file, found.get(file.name), limits.file_bytes)
        total += len(item.data or b"")
        if total > limits.total_bytes:
            problem = f"files_too_large: all files have {total:,} bytes, and may have {limits.total_bytes:,}"
            item, total = ResultItem(file=file, problem=problem), total - len(item.data or b"")
        items.append(item)
    return ExecutionResult(
        execution_id=execution.execution_id,
        end=end,
        items=items,
        failure=_first(end, items),
        others=[file for file in end.files if file.name not in named],
    )


def _checked(file: ContractFile, found: ProducedFile | None, limit: int) -> ResultItem:
    if found is None or (found.data is None and not found.problem):
        return ResultItem(file=file)
    if found.data is not None and len(found.data) > limit:
        problem = f"file_too_large: it has {len(found.data):,} bytes, and may have {limit:,}"
        return ResultItem(file=file, problem=problem)
    return ResultItem(file=file, data=found.data, problem=found.problem)


def _first(end: ProgramEnd, items: Sequence[ResultItem]) -> Failure | None:
    """Return the failure that counts."""
    if end.failure is not None:
        return end.failure
    missing = [item.file.name for item in items if item.is_missing]
    if missing:
        return Failure("contract", MISSING, f"the program did not make {', '.join(missing)}")
    invalid = [f"{item.file.name}: {item.problem}" for item in items if item.problem]
    return Failure("artifact", INVALID, "; ".join(invalid)) if invalid else None


def _item(item: ResultItem) -> JsonObject:
    return {
        "filename": item.file.name,
        "description": item.file.description,
        "visibility": item.file.visibility,
        "ok": item.data is not None,
        "problem": item.problem,
    }


def _artifact(name: str, data: bytes, description: str, visibility: str) -> JsonObject:
    return {
        "filename": shown_name(name),
        "mime": describe_data(name, data).mime,
        "size": len(data),
        "sha256": sha256(data).hexdigest(),
        "description": description,
        "visibility": visibility,
    }


def tail(text: str, characters: int) -> str:
    """Return the end of a text, from the beginning of a line where there is one."""
    if len(text) <= characters:
        return text
    end = text[-characters:]
    return end.partition("\n")[2] or end


def shown_name(name: str) -> str:
    """Return a name that a program has made up as text on one line, without characters that hide or reorder others."""
    shown = name if name.isprintable() else ascii(name)
    return shown if len(shown) <= LONGEST_NAME else f"{shown[:LONGEST_NAME]}…"


def _some(lines: list[str]) -> list[str]:
    """Return lines up to a number, and how many more there are."""
    more = len(lines) - MOST_LINES
    return lines if more <= 0 else [*lines[:MOST_LINES], f"and {more:,} more"]


def _quoted(text: str, characters: int) -> list[str]:
    """Return the end of a text as lines that each begin with a mark."""
    lines = tail(well_formed(text).strip("\n"), characters).splitlines()
    return [f"| {line}" for line in lines]
