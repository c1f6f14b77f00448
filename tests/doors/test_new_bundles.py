"""A new bundle works as it is: its test passes, its commands work, and it is found by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doors.command import Loopline


@pytest.mark.parametrize("layout", [[], ["--package"]], ids=["module", "package"])
def test_its_test_passes_and_its_commands_work(tmp_path: Path, layout: list[str]) -> None:
    loopline = Loopline(tmp_path)
    made = loopline("new", "tea_shop", *layout)
    assert made.code == 0, made.err
    run, tool, test = made.pasted
    assert run.startswith("loopline run ./tea_shop ")
    assert "loopline tool" in loopline.paste(run).out
    assert '"words":4' in loopline.paste(tool).out
    passed = loopline.paste(test)
    assert (passed.code, "passed" in passed.out) == (0, True), passed.out


def test_what_is_there_or_cannot_be_a_package_is_refused(tmp_path: Path) -> None:
    loopline = Loopline(tmp_path)
    assert loopline("new", "tea-shop").code == 1
    assert list(tmp_path.iterdir()) == []
    assert loopline("new", "tea_shop").code == 0
    again = loopline("new", "tea_shop")
    assert again.code == 1
    assert "exists" in again.err


def test_servers_beside_the_bundles_folder_are_named_by_check(tmp_path: Path) -> None:
    loopline = Loopline(tmp_path)
    loopline("new", "tea_shop", "--package")
    (tmp_path / "tea_shop" / ".mcp.json").write_text('{"mcpServers": {}}')
    ran = loopline("check", "tea_shop")
    assert ran.code == 0
    assert "tea_shop/.mcp.json is not read: move it to " in ran.err


def test_bundles_are_found_by_name(tmp_path: Path) -> None:
    loopline = Loopline(tmp_path)
    assert loopline("bundles").code == 0
    (tmp_path / "bundles").mkdir()
    loopline("new", "tea_shop", "--in", "bundles")
    assert "tea_shop\tbundles/tea_shop" in loopline("bundles").out
    assert loopline("check", "tea_shop").code == 0
