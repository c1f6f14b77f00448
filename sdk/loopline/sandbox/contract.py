"""The contract of a program: the files that it is to make, and whom each is for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from loopline.errors import ToolError
from loopline.models import Json, JsonObject

Area = Literal["files", "outputs"]
MOST_FILES = 100
LONGEST_PATH = 400
_PATH = re.compile(r"(?:(turn_[0-9]{1,10})/)?(?:(files|outputs)/)?([^\x00-\x1f\x7f\\]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractFile:
    """A file that the program is to make: `outputs/chart.png`, what it holds, and whether the user sees it."""

    area: Area
    path: str
    description: str = ""
    visibility: Literal["external", "internal"] = "external"

    @property
    def name(self) -> str:
        """Return the path with its area, as the program writes it."""
        return f"{self.area}/{self.path}"


def parse_contract(contract: Json, turn_id: str) -> tuple[ContractFile, ...]:
    """Return the files that a contract lists.

    Raises:
        ToolError: it is no list of files of this turn, or lists a file twice; the message names the entry.
    """
    if not isinstance(contract, list) or len(contract) > MOST_FILES:
        raise ToolError(
            f"contract: a list of at most {MOST_FILES} files, each with a filename and a description"
        )
    files = tuple(_parsed(contract, turn_id))
    names = [file.name for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ToolError(f"contract: {twice} is listed twice")
    return files


def _parsed(contract: Sequence[Json], turn_id: str) -> Iterator[ContractFile]:
    for number, entry in enumerate(contract, 1):
        if not isinstance(entry, dict):
            raise ToolError(f"contract[{number}]: an object with filename and description")
        yield _file(entry, f"contract[{number}]", turn_id)


def _file(entry: JsonObject, place: str, turn_id: str) -> ContractFile:
    fields = {"filename": "", "description": "", "visibility": "external", **entry}
    unknown = sorted(set(fields) - {"filename", "description", "visibility"})
    if unknown:
        raise ToolError(
            f"{place}: it has filename, description and visibility, and no {unknown[0]!r}"
        )
    filename, description = fields["filename"], fields["description"]
    visibility = fields["visibility"]
    if not isinstance(filename, str) or not isinstance(description, str):
        raise ToolError(f"{place}: filename and description are texts")
    if visibility not in ("external", "internal"):
        raise ToolError(f"{place}: visibility is external or internal, not {visibility!r}")
    area, path = parse_output_path(filename, place, turn_id)
    return ContractFile(
        area=area,
        path=path,
        description=description,
        visibility="internal" if visibility == "internal" else "external",
    )


def parse_output_path(filename: str, place: str, turn_id: str) -> tuple[Area, str]:
    """Return the area and the path of a file that a program makes; without an area it is an output.

    Raises:
        ToolError: it is no path below `files/` or `outputs/` of this turn.
    """
    match = _PATH.fullmatch(filename)
    parts = match[3].split("/") if match else []
    if match is None or len(filename) > LONGEST_PATH or any(p in ("", ".", "..") for p in parts):
        raise ToolError(f"{place}: {filename[:LONGEST_PATH]!r} is no file below files/ or outputs/")
    if match[1] not in (None, turn_id):
        raise ToolError(f"{place}: {filename!r} is in another turn; a program writes in {turn_id}")
    return ("files" if match[2] == "files" else "outputs"), match[3]
