"""A file in a folder is there whole or not at all: a write that fails leaves the folder as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopline.errors import ToolError
from loopline.files import Folder
from tests.support.failing_disks import no_growth


@pytest.mark.parametrize("size", [1_000, 100_000], ids=["buffered", "larger than a buffer"])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, size: int) -> None:
    file = tmp_path / "tea.txt"
    file.write_text("green")
    with (
        Folder(tmp_path) as folder,
        no_growth(file, 10),
        pytest.raises(ToolError, match=r"tea\.txt .*: File too large"),
    ):
        folder.write("tea.txt", b"x" * size)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"tea.txt": "green"}
