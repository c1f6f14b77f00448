"""The checks of axe-core, which is fetched once for a run of the tests."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

from tests.support.peers import npm_packages

SERIOUS = ("serious", "critical")


def axe_script(folder: Path) -> str:
    """Return the script of axe-core, installed in the folder."""
    if not folder.exists():
        folder.mkdir()
        npm_packages.install(folder, "axe-core@4.14.1")
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


def serious_faults(page: Page, script: str, name: str) -> list[str]:
    """Return the serious faults of the page as it is now."""
    page.evaluate(script)
    result = page.evaluate("axe.run()")
    return [
        f"{name}: {fault['id']} {node['target']} {node['failureSummary']}"
        for fault in result["violations"]
        if fault["impact"] in SERIOUS
        for node in fault["nodes"][:3]
    ]
